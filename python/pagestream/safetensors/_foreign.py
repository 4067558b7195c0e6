"""The four functions of ``flax``, ``tensorflow``, ``mlx`` and ``paddle``, which differ in a name alone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pagestream.safetensors import _upstream, numpy
from pagestream.safetensors._frameworks import converter, to_numpy
from pagestream.safetensors._open import Backend, deserialize, safe_open

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pagestream._environment import Mode
    from pagestream.mapping import StrPath


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

    def load(data: Any) -> dict[str, Any]:  # noqa: ANN401 - anything with the buffer protocol
        """All tensors of a safetensors file that is in memory (bytes, bytearray, memoryview, …)."""
        convert = converter(framework)
        types = {name: tensor["dtype"] for name, tensor in deserialize(data)}
        return {name: convert(types[name], array) for name, array in numpy.load(data).items()}

    def load_file(
        filename: StrPath,
        *,
        backend: Backend | None = None,
        mmap_mode: Mode | None = None,
        strict: bool = True,
    ) -> dict[str, Any]:
        """All tensors of a file, in its order. The arguments are those of `safe_open`."""
        with safe_open(filename, framework, backend=backend, mmap_mode=mmap_mode, strict=strict) as file:
            return file.get_tensors()

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

    made = (load, load_file, save, save_file)
    for function, example in zip(made, _EXAMPLES, strict=True):
        lines = example.format(home=home).splitlines()
        function.__doc__ = "\n".join(
            [function.__doc__ or "", "", "Example:", *(f"    {line}" for line in lines)]
        )
        function.__module__ = home
        function.__qualname__ = function.__name__
    return made
