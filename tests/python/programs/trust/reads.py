"""Reads tokens and weights in each way that needs no package other than NumPy."""

import sys
from pathlib import Path

import pagestream
import pagestream.safetensors.numpy

folder = Path(sys.argv[1])
with pagestream.TokenLoader(folder / "tokens.bin", sequence_length=16, batch_size=4, seed=1) as loader:
    x, y = next(iter(loader))
    assert (x[:, 1:] == y[:, :-1]).all()
with pagestream.MappedFile(folder / "tokens.bin") as file:
    assert len(file.read(0, 8)) == 8
    file.warm()
    file.check()
with pagestream.open_checkpoint(folder / "model.safetensors") as weights:
    streamed = {name: array.sum() for name, array in weights.stream()}
    assert {name: array.sum() for name, array in weights.items()} == streamed
    assert weights.verify().bad == ()
    weights.explain()
with pagestream.safetensors.install():
    import safetensors.numpy

    assert set(safetensors.numpy.load_file(folder / "model.safetensors")) == set(streamed)
with pagestream.safetensors.safe_open(folder / "model.safetensors", "np") as file:
    assert set(file.keys()) == set(streamed)
print("ok")
