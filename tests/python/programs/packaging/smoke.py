"""The first steps of a new user, with NumPy alone."""

import json
import os
import struct
import sys

import numpy as np

import pagestream
import pagestream.safetensors
from pagestream import MappedFile, TokenLoader, open_checkpoint, open_tokens, write_tokens
from pagestream.errors import MappedReadError

assert "torch" not in sys.modules
os.chdir(sys.argv[1])

write_tokens("tokens.bin", np.arange(50_000), dtype="uint16")
assert open_tokens("tokens.bin")[7:9].tolist() == [7, 8]
with TokenLoader("tokens.bin", sequence_length=64, batch_size=4, seed=1) as loader:
    x, y = next(loader)
    assert (x[:, 1:] == y[:, :-1]).all()
    assert loader.metrics().windows == 4

weight = np.arange(600, dtype="f4").reshape(20, 30)
entry = {"weight": {"dtype": "F32", "shape": [20, 30], "data_offsets": [0, weight.nbytes]}}
header = json.dumps(entry).encode()
with open("model.safetensors", "wb") as file:
    file.write(struct.pack("<Q", len(header)) + header + weight.tobytes())
with open_checkpoint("model.safetensors") as weights:
    assert np.array_equal(weights["weight"], weight)
    assert np.array_equal(weights.read("weight", np.s_[3:5, ::7]), weight[3:5, ::7])
    assert {name: array.sum() for name, array in weights.stream()} == {"weight": weight.sum()}
with pagestream.safetensors.install():
    from safetensors import safe_open

    with safe_open("model.safetensors", "np") as f:
        assert f.get_slice("weight")[:, 2].tolist() == weight[:, 2].tolist()

file = MappedFile("tokens.bin")
view = np.frombuffer(file, "u2")
os.truncate("tokens.bin", 4096)
try:
    file.read(0, 10_000)
except MappedReadError as error:
    assert error.filename == file.path
else:
    sys.exit("a file that was cut was read")

print(f"pagestream {pagestream.__version__} works")
