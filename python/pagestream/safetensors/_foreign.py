"""Saving for the frameworks that go by way of NumPy: flax, tensorflow, mlx and paddle."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pagestream.safetensors import _upstream, numpy
from pagestream.safetensors._frameworks import to_numpy

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pagestream._common.types import StrPath


def save(framework: str, tensors: Mapping[str, Any], metadata: dict[str, str] | None) -> bytes:
    """Makes a safetensors file of these tensors, as bytes; see `numpy.save`."""
    if framework != "paddle":
        return numpy.save(to_numpy(framework, tensors), metadata)
    _upstream.check_names(tensors)
    with _upstream.errors_as_ours():
        return bytes(_upstream.module(framework).save(dict(tensors), metadata))


def save_file(
    framework: str, tensors: Mapping[str, Any], filename: StrPath, metadata: dict[str, str] | None
) -> None:
    """Saves these tensors to a file; see `numpy.save_file`."""
    if framework != "paddle":
        numpy.save_file(to_numpy(framework, tensors), filename, metadata)
        return
    _upstream.check_names(tensors)
    writer = _upstream.module(framework).save_file
    _upstream.write(lambda path: writer(dict(tensors), path, metadata), filename)
