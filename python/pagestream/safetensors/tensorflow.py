"""safetensors files and TensorFlow, by upstream's names. Tensors are copies, made by way of NumPy."""

from __future__ import annotations

from typing import Any

from pagestream.safetensors import _upstream
from pagestream.safetensors._foreign import functions

__all__ = ["load", "load_file", "save", "save_file"]

load, load_file, save, save_file = functions("tensorflow", __name__)


def __getattr__(name: str) -> Any:  # noqa: ANN401 - a module's attributes are of any type
    return _upstream.attribute("tensorflow", name)
