"""safetensors files and Flax, with upstream's names. Tensors are copies, made through NumPy."""

from __future__ import annotations

from pagestream.safetensors._foreign import ForeignModule

__all__ = ["load", "load_file", "save", "save_file"]

_functions = ForeignModule("flax")
load, load_file = _functions.load, _functions.load_file
save, save_file = _functions.save, _functions.save_file
__getattr__ = _functions.attribute
