"""Reads tensors while upstream's package cannot be imported."""

import sys

sys.modules["safetensors"] = None
import pagestream.safetensors as ours

assert "torch" not in sys.modules
from pagestream.safetensors.numpy import load_file, save_file

assert load_file(sys.argv[1])["a"].tolist() == [0, 1, 2]
try:
    save_file({}, sys.argv[1])
except ModuleNotFoundError as error:
    assert "pip install" in str(error), error
del sys.modules["safetensors"]
with ours.install():
    from safetensors import safe_open

    assert safe_open(sys.argv[1], "np").keys() == ["a"]
    save_file({}, sys.argv[1])  # upstream's code, which can be imported now
    assert load_file(sys.argv[1]) == {}
print("well")
