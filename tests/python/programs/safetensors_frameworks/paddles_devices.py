"""Loads for paddle's devices, and checks the refused device names."""

import sys

import pagestream.safetensors as ours
from pagestream.safetensors.paddle import load, load_file

for device in ("cpu", None):
    tensors = load_file(sys.argv[1], device)
    assert tensors["vector"].place.is_cpu_place()
with open(sys.argv[1], "rb") as file:
    assert load(file.read(), device="cpu")["vector"].tolist() == [0, 1, 2, 3, 4]
for device in ("tpu", "cpu:1", -1, "cuda:x"):
    try:
        ours.safe_open(sys.argv[1], "paddle", device)
    except ours.SafetensorError as error:
        assert repr(device) in str(error), error
    else:
        raise AssertionError(device)
try:
    ours.safe_open(sys.argv[1], "paddle", "cuda").get_tensor("vector")
except ours.SafetensorError as error:
    print("refused", error)  # this build of paddle has no GPU support
print("well")
