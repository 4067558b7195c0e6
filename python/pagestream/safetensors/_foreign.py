"""Loading and saving for the frameworks that go by way of NumPy: flax, tensorflow, mlx and paddle."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pagestream.safetensors import _upstream, numpy
from pagestream.safetensors._frameworks import converter, to_numpy
from pagestream.safetensors._open import deserialize, safe_open

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pagestream._common.types import Mode, StrPath
    from pagestream.safetensors._open import Backend


def load(framework: str, data: Any, device: Any, strict: bool | None) -> dict[str, Any]:  # noqa: ANN401, FBT001
    """Loads all tensors of a file that is in memory; see `numpy.load`."""
    convert = converter(framework, device)
    types = {name: tensor["dtype"] for name, tensor in deserialize(data, strict=strict)}
    return {name: convert(types[name], array) for name, array in numpy.load(data, strict=strict).items()}


def load_file(
    framework: str,
    filename: StrPath,
    device: Any,  # noqa: ANN401 - a str or an int
    backend: Backend | None,
    mmap_mode: Mode | None,
    strict: bool | None,  # noqa: FBT001
) -> dict[str, Any]:
    """Loads all tensors of a file, in its order; see `safe_open`."""
    options: dict[str, Any] = {"backend": backend, "mmap_mode": mmap_mode, "strict": strict}
    with safe_open(filename, framework, device, **options) as file:
        return file.get_tensors()


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
