"""`safe_open`."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Any, Generic, Literal, TypedDict, Unpack, overload

from pagestream import _native
from pagestream._common import checks, environment
from pagestream._common.closing import HoldsFiles
from pagestream._common.keywords import advises
from pagestream._common.paths import expanded
from pagestream._common.public import set_module
from pagestream._common.types import Mode, StrPath
from pagestream.errors import SafetensorError
from pagestream.safetensors import _defaults
from pagestream.safetensors._frameworks import ByNumpy, IndependentArrays, check_cpu, framework_named
from pagestream.safetensors._slice import PySafeSlice
from pagestream.weights import hub
from pagestream.weights.arrays import Align, Framework, NumpyArrays

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy.typing as npt
    import torch
    from typing_extensions import TypeVar

    TensorT_co = TypeVar("TensorT_co", covariant=True, default=Any)
else:
    from typing import TypeVar

    # Python supports defaults of type variables from 3.13 on. Only type checkers need them.
    TensorT_co = TypeVar("TensorT_co", covariant=True)

__all__ = ["Backend", "TensorMeta", "safe_open"]

Backend = Literal["mmap", "pread"]


class OpenOptions(TypedDict, total=False):
    """The keyword arguments of `safe_open`, which documents them."""

    backend: Backend | None
    mmap_mode: Mode | None
    strict: bool | None
    copy: bool | None
    raw: bool
    align: Align
    ahead: int | None


_COPY_ON_WRITE = "arrays and tensors can be written: they lie on copy-on-write pages"


@set_module("pagestream.safetensors")
@dataclass(frozen=True)
class TensorMeta:
    """The entry of a tensor in a header, as in safetensors 0.9.

    Attributes:
        dtype: The element type by its safetensors name, for example ``"BF16"``.
        shape: Its dimensions, in elements.
        data_offsets: The first byte and the end of its data, counted from the end of the header.

    Examples:
        >>> from pagestream.safetensors import safe_open
        >>> safe_open("model.safetensors", "np").get_tensor_meta("weight").data_offsets
        (0, 48)
    """

    dtype: str
    shape: list[int]
    data_offsets: tuple[int, int]


@set_module("pagestream.safetensors")
class safe_open(HoldsFiles, Generic[TensorT_co]):  # noqa: N801 - upstream's name
    """A safetensors file, open for reading: a replacement for upstream's class of the same name.

    Upstream: https://huggingface.co/docs/safetensors/api/torch#safetensors.safe_open

    Opening a file again, for example for each tensor, does not read its header again. A process keeps 64 MiB
    of headers, of files whose size and times have not changed since. If another program writes to a file
    through a shared mapping, the times change only when the kernel writes the pages back. On a file system
    that cannot show changes, for example one with times in whole seconds, headers are read each time.

    Tensors are not copied. They are writable: the first write to a page copies it, so neither the file nor
    another `safe_open` of it changes. With torch, two tensors of the same name from one handle share their
    memory, as they do upstream, unless they were read ahead into memory of their own (see `ahead`). With
    NumPy, upstream's arrays are copies: a second request for a tensor returns a copy of the file's bytes, and
    only overlapping parts of a slice share memory.

    Once a tensor of 8 MiB or more and all its views are gone, the memory of its written pages is freed, and a
    later request returns the file's bytes. A program that converts a file tensor by tensor therefore needs
    the memory of one tensor, for example if it pops tensors off the result of `load_file`. Written pages of
    smaller tensors are freed with the last tensor of the file. So are a few written rows of a large tensor,
    and parts of a slice with less than 2 MiB.

    An unwritten page shows the present content of the file, as upstream's tensors do for torch. If the file
    is overwritten in place, the page may show the new bytes; `check` detects that. If the file is truncated,
    touching the tensor gives zeros. Soon a `MappedReadError` is raised in the main thread (as Ctrl-C is) and
    at each later use of the file. Replacing the file, by renaming a new one over it, has neither effect.
    ``copy=True`` and ``mmap_mode="read"`` return copies, and raise if the file was truncated or rewritten.

    Args:
        filename: The file. A leading ``~`` is the home directory.
        framework: ``"pt"``, ``"torch"`` or ``"pytorch"``; ``"np"`` or ``"numpy"``; and, through NumPy and a
            copy, ``"flax"`` or ``"jax"``, ``"tf"`` or ``"tensorflow"``, ``"mlx"``, ``"paddle"``.
        device: The device for torch tensors. Tensors for a device other than the CPU are copied from memory
            without a file mapping, so that its driver never waits for storage; `mode` is then ``"read"``.
            Other frameworks accept only ``"cpu"``, and paddle its own devices.
        backend: Upstream's word for the way to read: ``"mmap"`` is ``mmap_mode="auto"``, and ``"pread"`` is
            ``mmap_mode="read"``.
        mmap_mode: How to open the file; see `MappedFile`. With ``"shared"``, NumPy arrays are read-only views
            of the page cache. torch tensors, which have no read-only flag, still get their own pages.
        strict: Whether to reject headers that the format forbids but upstream accepts. None means the
            argument of the last `install`, or True.
        copy: Whether to copy tensors into memory of their own, which later faults of the file cannot reach.
            None means the argument of the last `install`, or ``PAGESTREAM_COPY``, or False.
        raw: Whether to return each tensor as its bytes: the type is uint8, and the last dimension counts
            bytes. Use it for element types that a framework lacks.
        align: What to do with a tensor that is misaligned in the file (writers need not align tensors):
            ``"copy"`` it; return an unaligned ``"view"``, for NumPy only; or raise an ``"error"``. Tensors
            that are copied anyway, in ``"read"`` mode or with ``copy=True``, are aligned.
        ahead: Limit on the bytes that are read ahead of requested tensors, in a file of at least 1 MiB that
            is not in memory. False disables read-ahead. None means the argument of the last `install`, or
            ``PAGESTREAM_AHEAD``, or a quarter of the available memory and at most 1 GiB. Bytes go to the page
            cache. If reads bypass it (FUSE with ``direct_io``, ``"read"`` mode), tensors get memory of their
            own instead, each time they are requested. The same holds for parts of tensors: the predicted part
            is the part last taken of a tensor whose name differs only in its numbers. At the end of
            ``model-00001-of-00004.safetensors``, read-ahead continues with the next file. It stops half a
            second after the file was closed, and releases the file two seconds later. Until then, a program
            that opens the file for each tensor continues with it. A process reads ahead in at most eight
            files at a time. Whole tensors are left to the kernel if its own read-ahead delivers 4 GiB a
            second, as a local disk's may, and memory is not short.

    Raises:
        OSError: The file cannot be opened; with ``errno`` and ``filename``.
        SafetensorError: Not a valid safetensors file, or an unknown framework.
        ValueError: `backend` and `mmap_mode` contradict each other (also a `SafetensorError`), or a word is
            unknown.
        TypeError: An argument has the wrong type.

    Examples:
        >>> from pagestream.safetensors import safe_open
        >>> with safe_open("model.safetensors", framework="np") as f:
        ...     f.keys(), f.get_tensor("bias")
        (['bias', 'weight'], array([0., 0., 0.], dtype=float32))
    """

    _files: _native.WeightFile

    @overload
    def __init__(
        self: safe_open[npt.NDArray[Any]],
        filename: StrPath,
        framework: Literal["np", "numpy"],
        device: Any = ...,  # noqa: ANN401
        **options: Unpack[OpenOptions],
    ) -> None: ...
    @overload
    def __init__(
        self: safe_open[torch.Tensor],
        filename: StrPath,
        framework: Literal["pt", "torch", "pytorch"],
        device: Any = ...,  # noqa: ANN401
        **options: Unpack[OpenOptions],
    ) -> None: ...
    @overload
    def __init__(
        self: safe_open[Any],
        filename: StrPath,
        framework: str,
        device: Any = ...,  # noqa: ANN401
        **options: Unpack[OpenOptions],
    ) -> None: ...
    @advises("safetensors.safe_open")
    def __init__(
        self,
        filename: StrPath,
        framework: str,
        device: Any = "cpu",
        *,
        backend: Backend | None = None,
        mmap_mode: Mode | None = None,
        strict: bool | None = None,
        copy: bool | None = None,
        raw: bool = False,
        align: Align = "copy",
        ahead: int | None = None,
    ) -> None:
        """Opens the file and reads its header."""
        self._mode = mode_of(backend, mmap_mode)
        name = framework_named(framework)
        checks.one_of("align", align, ("copy", "view", "error"))
        if align == "view" and name != "numpy":
            message = f'align="view" is for NumPy; tensors of {name} must be aligned'
            raise ValueError(message)
        copy = _defaults.copies(copy)
        options = {
            "copies": copy,
            "read_only": self._mode == "shared" and name == "numpy",
            "raw": checks.check_bool("raw", raw),
        }
        self._framework = framework_on(name, device, align, **options)
        place = getattr(self._framework, "device", device)
        self._why_copied = "copy=True" if copy else f"the device is {place}"
        self._files = self._opened(filename, _defaults.strictness(strict), _defaults.ahead_bytes(ahead))
        self._refusal = None if self._framework.read_only else self._files.copy_on_write_refusal()
        # A single native call makes a plain tensor.
        plain = None if raw or self.mode == "read" else self._framework.plain
        self._make: Callable[..., Any] | None
        self._make, self._types = plain or (None, {})
        self._writable = not self._framework.read_only
        # NumPy has no fake arrays, and the check takes a twentieth of the time for a small array.
        self._reads_nothing = self._framework.reads_nothing if name == "torch" else None
        self._independent = self._framework if isinstance(self._framework, IndependentArrays) else None

    def _opened(self, filename: StrPath, strict: bool, ahead_bytes: int | None) -> _native.WeightFile:  # noqa: FBT001
        try:
            return _native.WeightFile(os.fsencode(expanded(filename)), self._mode, strict, ahead_bytes)
        except FileNotFoundError as error:
            if isinstance(filename, str) and hub.may_be_repository(filename):
                error.strerror = f"{error.strerror}; pass the path of a file, {hub.instead_of_file(filename)}"
            raise

    @property
    def mode(self) -> str:
        """The kind of memory of the tensors.

        ``"shared"`` (read-only views), ``"private"`` (copy-on-write pages) or ``"read"`` (copies).
        """
        if self._framework.copies or self._refusal is not None:
            return "read"
        return self._files.mode if self._framework.read_only else "private"

    @property
    def reason(self) -> str | None:
        """Why the tensors do not use the shared mapping, or None if they do."""
        if self._framework.copies:
            return self._why_copied
        if self._refusal is not None:
            return None if self._mode == "read" else self._refusal
        return self._files.reason or (None if self._framework.read_only else _COPY_ON_WRITE)

    def keys(self) -> list[str]:
        """Returns the names of the tensors, sorted.

        Examples:
            >>> from pagestream.safetensors import safe_open
            >>> safe_open("model.safetensors", "np").keys()
            ['bias', 'weight']
        """
        return self._open().keys()

    def offset_keys(self) -> list[str]:
        """Returns the names in the order of the data, and empty tensors at one place in the order of names.

        Examples:
            >>> from pagestream.safetensors import safe_open
            >>> safe_open("model.safetensors", "np").offset_keys()
            ['weight', 'bias']
        """
        return self._open().offset_keys()

    def metadata(self) -> dict[str, str] | None:
        """Returns the header's ``__metadata__``; None if it has none.

        Examples:
            >>> from pagestream.safetensors import safe_open
            >>> safe_open("model.safetensors", "np").metadata()
            {'format': 'np'}
        """
        return self._open().metadata()

    def get_tensor(self, name: str) -> TensorT_co:
        """Returns a tensor, as the framework's type.

        Raises:
            SafetensorError: There is no tensor of that name, the file is closed, the framework lacks the
                element type, or the tensor is misaligned and ``align="error"``.
            MappedReadError: In ``"read"`` mode or with ``copy=True``: the file was truncated, or its storage
                failed.
            FileChangedError: The file was rewritten while it was read ahead or copied.

        Examples:
            >>> from pagestream.safetensors import safe_open
            >>> safe_open("model.safetensors", "np").get_tensor("weight").shape
            (2, 3)
        """
        independent, make, reads_nothing = self._independent, self._make, self._reads_nothing
        if make is not None and (reads_nothing is None or not reads_nothing()):
            is_copy = independent is not None and not independent.claim(name)
            try:
                tensor: TensorT_co | None = self._files.array(
                    name, make, self._types, self._writable, is_copy
                )
                if tensor is not None:
                    return tensor
            except (RuntimeError, ValueError):
                # There is no such name, the file is closed, NumPy lacks the shape, or a mode changes tensors.
                # The general code below raises the error.
                pass
            if independent is not None and not is_copy:
                independent.unclaim(name)
        try:
            return self._framework.whole(self._files, name)  # type: ignore[no-any-return]
        except ValueError:
            self._open()  # raises if the file is closed
            raise

    def get_tensors(self) -> dict[str, TensorT_co]:
        """Returns all tensors, in the order of the data.

        Raises:
            SafetensorError: See `get_tensor`.
            MappedReadError: See `get_tensor`.
            FileChangedError: The file was rewritten while it was read ahead or copied.

        Examples:
            >>> from pagestream.safetensors import safe_open
            >>> list(safe_open("model.safetensors", "np").get_tensors())
            ['weight', 'bias']
        """
        tensors = {name: self.get_tensor(name) for name in self.offset_keys()}
        self._files.finish_lead()
        return tensors

    def get_slice(self, name: str) -> PySafeSlice:
        """Returns a tensor for partial reads: indexing it reads the selected part.

        Raises:
            SafetensorError: There is no tensor of that name, or the file is closed.

        Examples:
            >>> from pagestream.safetensors import safe_open
            >>> safe_open("model.safetensors", "np").get_slice("weight")[0, ::-2]
            array([1., 1.])
        """
        return PySafeSlice(self._open().stored(name), self._framework)

    def get_tensor_meta(self, name: str) -> TensorMeta:
        """Returns the entry of a tensor in the header.

        Raises:
            SafetensorError: There is no tensor of that name, or the file is closed.

        Examples:
            >>> from pagestream.safetensors import safe_open
            >>> safe_open("model.safetensors", "np").get_tensor_meta("bias").shape
            [3]
        """
        file = self._open()
        facts = file.info(name)
        begin = facts.offset - file.data_start
        return TensorMeta(facts.dtype, list(facts.shape), (begin, begin + facts.nbytes))

    def check(self) -> None:
        """Checks that the file has not changed since it was opened; see `MappedFile.check`.

        Raises:
            FileChangedError: The file was truncated, extended, rewritten, deleted or replaced.

        Examples:
            >>> from pagestream.safetensors import safe_open
            >>> safe_open("model.safetensors", "np").check()
        """
        self._open().check()

    def _open(self) -> _native.WeightFile:
        if self._files.closed:
            message = f"{self._files.path}: File is closed"
            raise SafetensorError(message)
        return self._files

    def __repr__(self) -> str:
        """Shows the path and the number of tensors."""
        return f"<{type(self).__name__} {self._files.path!r} {len(self._files)} tensors>"


class _safe_open_handle(safe_open):  # noqa: N801 - upstream's name
    """`safe_open` for a file that is already open. Its descriptor determines the file, and its name does not.

    The descriptor is copied: its position does not matter, and the caller may close it.

    Args:
        f: An object with ``fileno()``, open for reading.
        framework: As for `safe_open`, like all following arguments.

    Raises:
        OSError: As for `safe_open`; or `f` has no descriptor.
        SafetensorError: As for `safe_open`.

    Examples:
        >>> from pagestream.safetensors import _safe_open_handle
        >>> with open("model.safetensors", "rb") as f:
        ...     _safe_open_handle(f, "np").keys()
        ['bias', 'weight']
    """

    def __init__(self, f: IO[Any], framework: str, device: Any = "cpu", **options: Any) -> None:  # noqa: ANN401
        super().__init__(f, framework, device, **options)  # type: ignore[call-overload]

    def _opened(self, filename: Any, strict: bool, ahead_bytes: int | None) -> _native.WeightFile:  # noqa: ANN401, FBT001
        name = getattr(filename, "name", None)
        path = name if isinstance(name, (str, bytes, os.PathLike)) else f"<descriptor {filename.fileno()}>"
        return _native.WeightFile(os.fsencode(path), self._mode, strict, ahead_bytes, filename.fileno())


def framework_on(
    name: str,
    device: Any,  # noqa: ANN401 - a str, an int or a torch.device
    align: Align = "copy",
    **options: bool,
) -> Framework:
    """Returns the object that creates tensors of a framework on a device.

    Raises:
        SafetensorError: The framework has no such device.
        ModuleNotFoundError: The framework is not installed.
    """
    if name == "torch":
        from pagestream.devices.device_tensors import tensors_for

        return tensors_for(device, align, **options)
    if name == "numpy":
        check_cpu(name, device)
        if options.get("copies") or options.get("read_only"):
            return NumpyArrays(align, **options)
        return IndependentArrays(align, raw=options.get("raw", False))
    return ByNumpy(name, device, align, **options)


def mode_of(backend: Backend | None, mmap_mode: Mode | None) -> Mode:
    """Combines upstream's argument and ours into a mode."""
    if backend is None:
        return environment.mmap_mode(mmap_mode)
    if backend not in ("mmap", "pread"):
        message = f'backend must be "mmap" or "pread", not {backend!r}'
        raise SafetensorError(message)
    asked: Mode = "auto" if backend == "mmap" else "read"
    if mmap_mode is not None and (mmap_mode == "read") != (asked == "read"):
        message = f"backend={backend!r} and mmap_mode={mmap_mode!r} contradict each other; give one"
        raise SafetensorError(message)
    return mmap_mode or asked
