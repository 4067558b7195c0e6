"""safetensors files and MLX, by upstream's names. Tensors are copies, made by way of NumPy."""

from __future__ import annotations

from pagestream.safetensors._foreign import functions

__all__ = ["load", "load_file", "save", "save_file"]

load, load_file, save, save_file = functions("mlx", __name__)
