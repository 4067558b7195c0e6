"""The four functions of ``flax``, ``tensorflow``, ``mlx`` and ``paddle``, which differ in a name alone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pagestream.safetensors import _upstream, numpy
from pagestream.safetensors._frameworks import converter, to_numpy
from pagestream.safetensors._open import Backend, deserialize, safe_open

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pagestream._common.types import Mode, StrPath


_NAMES = ("load", "load_file", "save", "save_file")
_EXAMPLES = (
    """>>> from pathlib import Path
>>> from {home} import load
>>> tuple(load(Path("model.safetensors").read_bytes())["bias"].shape)
(3,)""",
    """>>> from {home} import load_file
>>> tuple(load_file("model.safetensors")["bias"].shape)
(3,)""",
    """>>> from {home} import load, load_file, save
>>> sorted(load(save(load_file("model.safetensors"))))
['bias', 'weight']""",
    """>>> from {home} import load_file, save_file
>>> save_file(load_file("model.safetensors"), "again.safetensors")
>>> sorted(load_file("again.safetensors"))
['bias', 'weight']""",
)


def functions(framework: str, home: str) -> tuple[Callable[..., Any], ...]:
    """``load``, ``load_file``, ``save`` and ``save_file`` of a framework, for the module `home`."""

    def load_to(data: Any, device: Any = "cpu", *, strict: bool | None = None) -> dict[str, Any]:  # noqa: ANN401
        """All tensors of a safetensors file that is in memory (bytes, bytearray, memoryview, …)."""
        convert = converter(framework, device)
        types = {name: tensor["dtype"] for name, tensor in deserialize(data, strict=strict)}
        return {name: convert(types[name], array) for name, array in numpy.load(data, strict=strict).items()}

    def load_file_to(
        filename: StrPath,
        device: Any = "cpu",  # noqa: ANN401 - a str or an int
        *,
        backend: Backend | None = None,
        mmap_mode: Mode | None = None,
        strict: bool | None = None,
    ) -> dict[str, Any]:
        """All tensors of a file, in its order. The arguments are those of `safe_open`."""
        options = {"backend": backend, "mmap_mode": mmap_mode, "strict": strict}
        with safe_open(filename, framework, device, **options) as file:  # type: ignore[arg-type]
            return file.get_tensors()

    def load(data: Any, *, strict: bool | None = None) -> dict[str, Any]:  # noqa: ANN401
        """All tensors of a safetensors file that is in memory (bytes, bytearray, memoryview, …)."""
        return load_to(data, strict=strict)

    def load_file(
        filename: StrPath,
        *,
        backend: Backend | None = None,
        mmap_mode: Mode | None = None,
        strict: bool | None = None,
    ) -> dict[str, Any]:
        """All tensors of a file, in its order. The arguments are those of `safe_open`."""
        return load_file_to(filename, backend=backend, mmap_mode=mmap_mode, strict=strict)

    def save(tensors: Mapping[str, Any], metadata: dict[str, str] | None = None) -> bytes:
        """A safetensors file of these tensors, as bytes; see `numpy.save`."""
        if framework != "paddle":
            return numpy.save(to_numpy(framework, tensors), metadata)
        _upstream.check_names(tensors)
        with _upstream.errors_as_ours():
            return bytes(_upstream.module(framework).save(dict(tensors), metadata))

    def save_file(
        tensors: Mapping[str, Any], filename: StrPath, metadata: dict[str, str] | None = None
    ) -> None:
        """`save` to a file; see `numpy.save_file`."""
        if framework != "paddle":
            numpy.save_file(to_numpy(framework, tensors), filename, metadata)
            return
        _upstream.check_names(tensors)
        writer = _upstream.module(framework).save_file
        _upstream.write(lambda path: writer(dict(tensors), path, metadata), filename)

    # Only paddle has devices, upstream too.
    loads = (load_to, load_file_to) if framework == "paddle" else (load, load_file)
    made = (*loads, save, save_file)
    for function, name, example in zip(made, _NAMES, _EXAMPLES, strict=True):
        function.__name__ = name
        lines = example.format(home=home).splitlines()
        function.__doc__ = "\n".join(
            [function.__doc__ or "", "", "Example:", *(f"    {line}" for line in lines)]
        )
        function.__module__ = home
        function.__qualname__ = function.__name__
    return made
