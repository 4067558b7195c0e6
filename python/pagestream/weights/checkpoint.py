"""Weights as a mapping from names to arrays: `open_checkpoint`, `Checkpoint`."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Literal, NamedTuple, TypeVar, overload

import numpy as np
import numpy.typing as npt

from pagestream import _native, errors
from pagestream._common import checks, environment
from pagestream._common.closing import HoldsFiles
from pagestream._common.keywords import advises
from pagestream._common.paths import expanded
from pagestream._common.progress import Progress
from pagestream._common.public import set_module
from pagestream._common.types import Mode, StrPath
from pagestream.weights import (
    arrays,
    checksums,
    holes,
    hub,
    indexing,
    names,
    streaming,
    warming,
)
from pagestream.weights.checksums import VerifyReport
from pagestream.weights.dtypes import SUB_BYTE_BITS, numpy_dtype
from pagestream.weights.indexing import Index
from pagestream.weights.plan import Plan
from pagestream.weights.tensor_info import TensorInfo

OtherT = TypeVar("OtherT")

__all__ = ["Checkpoint", "TensorInfo", "VerifyReport", "open_checkpoint"]


class _OpenedWith(NamedTuple):
    """The arguments for opening a checkpoint. A checkpoint keeps them with absolute paths."""

    paths: list[str]
    what: Literal["path", "files", "partial", "apart"]
    mode: str
    strict: bool
    cache_root: str | None
    raw: bool
    ahead: int | None

    def open(self) -> Checkpoint:
        """Opens the files and reads their headers."""
        paths, root = [os.fsencode(each) for each in self.paths], self.cache_root
        encoded_root = None if root is None else os.fsencode(root)
        ahead_bytes = environment.ahead_bytes(self.ahead)
        files = _native.Checkpoint(paths, self.what, self.mode, self.strict, encoded_root, ahead_bytes)
        # Make the arguments valid for a process with another current directory.
        root = None if root is None else _absolute(root)
        return Checkpoint(files, self._replace(paths=[*map(_absolute, self.paths)], cache_root=root))


@set_module("pagestream")
class Checkpoint(HoldsFiles, Mapping[str, "npt.NDArray[Any]"]):
    """The tensors of one or several safetensors files by name, as read-only arrays.

    `open_checkpoint` creates it.

    Arrays are views of the mapped files. A view takes no memory and keeps the mapping alive after `close`. It
    reads nothing until it is used. However, while a program takes tensors of a large cold file one by one,
    the next ones are read ahead (see ``ahead`` of `open_checkpoint`). Arrays are copies if a file cannot be
    mapped, if it was read ahead without the page cache, or if a tensor is misaligned in its file.

    A view shows the present content of the file. If the file is truncated, touching the view gives zeros.
    Soon a `MappedReadError` is raised in the main thread (as Ctrl-C is) and at each later use of that file.
    If the file is overwritten in place, the view may show the new bytes; `check` detects that. `read` copies,
    and raises instead.

    Names come in the order of the files (``model-00002`` before ``model-00010``) and, within a file, in the
    order of the data. Several threads can use a checkpoint at once, and so can a forked child. Pickling
    stores the absolute paths, and unpickling opens the files again.

    At most a quarter of ``ulimit -n``, and at most 1024, files stay open. Other files are opened again when
    one of their tensors is used, and must then still be the same files.

    Examples:
        >>> from pagestream import open_checkpoint
        >>> weights = open_checkpoint("model.safetensors")
        >>> list(weights), weights["bias"]
        (['weight', 'bias'], array([0., 0., 0.], dtype=float32))
        >>> weights["bias"].flags.writeable
        False
    """

    _files: _native.Checkpoint

    def __init__(self, files: _native.Checkpoint, opened_with: _OpenedWith) -> None:
        """Wraps the native object. `open_checkpoint` calls it."""
        self._files = files
        self._opened_with = opened_with
        self._arrays = arrays.NumpyArrays(read_only=True, raw=opened_with.raw)
        environment.log_opening(repr(self), files.mode, files.reason)

    @property
    def files(self) -> tuple[str, ...]:
        """The paths of the files, in the order of the names."""
        return tuple(self._files.paths)

    @property
    def metadata(self) -> dict[str, str] | None:
        """The ``__metadata__`` of the headers; None if no header has any.

        For several files it is their union. A key with two values is left out, and `warnings` names it. The
        index has its own metadata: `index_metadata`.
        """
        return self._files.metadata()

    @property
    def index_metadata(self) -> dict[str, Any] | None:
        """The ``metadata`` of the index, for example ``total_size``; None without an index or metadata."""
        found = self._files.index_metadata
        return None if found is None else json.loads(found)

    @property
    def warnings(self) -> list[str]:
        """Oddities that are not errors, as sentences.

        They name tensors and files that the index lacks, second copies of tensors in files that the index
        does not name for them, unknown fields in a header, and metadata keys with different values. With
        ``strict=False`` they also name tensors that only the index has and, without an index, tensors in two
        files.

        They also name files with holes among their tensors, unless the checkpoint is closed. A hole is a
        range without stored bytes; it reads as zeros. A download that allocates its file first and then stops
        leaves holes, but so does a tool that stores true zeros sparsely. Each access looks for holes, with a
        few system calls per file. See ``docs/faults.md`` for the file systems that report them.
        """
        return [*self._files.warnings, *holes.warnings(self._files)]

    # Identity comparison: `==` must not read every tensor.
    __eq__ = object.__eq__
    __hash__ = object.__hash__

    def __len__(self) -> int:
        """Returns the number of tensors."""
        return len(self._files)

    def __iter__(self) -> Iterator[str]:
        """Iterates over the names in the order of the files, and for each file in the order of the data."""
        return iter(self._files.keys())

    def __contains__(self, name: object) -> bool:
        """Returns whether there is a tensor of that name."""
        return isinstance(name, str) and name in self._files

    def __getitem__(self, name: str) -> npt.NDArray[Any]:
        """Returns the tensor with this name, read-only.

        Raises:
            KeyError: There is no such tensor.
            SafetensorError: NumPy has no type for its elements, or cannot create an array of its shape.
            ValueError: The checkpoint is closed.
            OSError: A closed file could not be reopened (see above).
            FileChangedError: A reopened file has changed.
        """
        if not isinstance(name, str):
            raise KeyError(name)
        try:
            file = self._files.file_of(name)
        except KeyError as error:
            names.add_closest(error, name, self._files)
            raise
        return self._array(file, name)

    @overload
    def get(self, name: str, /) -> npt.NDArray[Any] | None: ...
    @overload
    def get(self, name: str, /, default: OtherT) -> npt.NDArray[Any] | OtherT: ...
    def get(self, name: str, /, default: OtherT | None = None) -> npt.NDArray[Any] | OtherT | None:
        """Returns the tensor with this name, read-only, or the default if there is no such tensor.

        Examples:
            >>> from pagestream import open_checkpoint
            >>> open_checkpoint("model.safetensors").get("scale") is None
            True
        """
        # `Mapping.get` would catch a KeyError, whose note takes time.
        return self[name] if name in self else default  # noqa: SIM401 - it is `get`

    def _array(self, file: _native.WeightFile, name: str) -> npt.NDArray[Any]:
        array: npt.NDArray[Any] = self._arrays.whole(file, name)
        if array.flags.writeable:  # a copy
            array.flags.writeable = False
        return array

    def read(self, name: str, index: Index = ..., *, out: npt.NDArray[Any] | None = None) -> npt.NDArray[Any]:
        """Copies a tensor or a part of it. Only the necessary bytes are read.

        Args:
            name: Its name.
            index: The part, in NumPy's basic indexing: ints, slices, ``...`` and None, for example from
                ``np.s_``.
            out: Destination array with the part's shape and type, C-contiguous. None creates a new array.

        Returns:
            `out`, or the new array, which belongs to the caller.

        Raises:
            KeyError: There is no such tensor.
            SliceError: `index` is out of range, or not basic indexing; it is an ``IndexError``.
            ValueError: `out` does not match; or the file is closed.
            TypeError: `out` is not an array.
            SafetensorError: NumPy has no type for its elements.
            MappedReadError: The file was truncated, or its storage failed.
            FileChangedError: The file was rewritten since it was opened.

        Examples:
            >>> import numpy as np
            >>> from pagestream import open_checkpoint
            >>> open_checkpoint("model.safetensors").read("bias")
            array([0., 0., 0.], dtype=float32)
            >>> open_checkpoint("model.safetensors").read("weight", np.s_[:, ::2]).shape
            (2, 2)
        """
        try:
            stored = self._files.file_of(name).stored(name)
        except KeyError as error:
            names.add_closest(error, name, self._files)
            raise
        dtype, shape = self._arrays.described(stored.dtype, stored.shape, stored.nbytes)
        numpy_type = numpy_dtype(dtype)
        try:
            part = indexing.select(shape, index, name=repr(name))
        except errors.SliceError as error:
            raise indexing.of_tensor(error, stored.path, name) from error
        if out is None:
            if dtype in SUB_BYTE_BITS:
                return self._arrays.sub_byte_part(stored, index)  # type: ignore[no-any-return]
            return np.ndarray(part.shape, numpy_type, stored.copied(part.in_bytes(numpy_type.itemsize)))
        if not isinstance(out, np.ndarray):
            message = f"out must be a NumPy array, not {type(out).__name__}"  # type: ignore[unreachable]
            raise TypeError(message)
        if ((out.shape, out.dtype) != (part.shape, numpy_type)) or not out.flags.c_contiguous:
            what = repr(name) if index is ... else f"the part of {name!r}"
            found = f"{out.shape} and {out.dtype}{'' if out.flags.c_contiguous else ', not C-contiguous'}"
            message = f"{what} is of shape {part.shape} and type {numpy_type}; out is {found}"
            raise ValueError(message)
        if dtype in SUB_BYTE_BITS:
            out[...] = self._arrays.sub_byte_part(stored, index)
        elif part.size:
            arrays.reader(stored, part, numpy_type.itemsize)(self._arrays.bytes_of(out))
        return out

    @advises("Checkpoint.stream")
    def stream(
        self,
        plan: Plan = None,
        *,
        strategy: streaming.Strategy = "auto",
        memory_bytes: int | None = None,
        threads: int | None = None,
        order: streaming.StreamOrder = "file",
        verify: bool | None = None,
        drop_behind: bool | None = None,
        copy: bool = False,
        progress: Progress = False,
    ) -> streaming.TensorStream[npt.NDArray[Any]]:
        """Streams tensors as their bytes arrive, many reads at a time.

        Args:
            plan: The tensors to stream, fixed before any byte is read:

                * None: all tensors;
                * names;
                * a mapping from names to parts, in NumPy's basic indexing; None means the whole tensor;
                * a function that is called with the `TensorInfo` of each tensor. It returns the part to
                  stream, True or None for the whole tensor, or False to skip it.

                If elements are smaller than a byte, a part is read and kept with the whole tensor; `read`
                reads only the part.
            strategy: How to get the bytes; `explain` shows the choice of ``"auto"``.

                * ``"pread"`` reads them into memory that belongs to the array;
                * ``"direct"`` does the same without the page cache (``O_DIRECT``), in whole pages. It acts
                  like ``"pread"`` if the file system refuses (`explain` shows it), and for parts that are not
                  contiguous;
                * ``"ahead"`` reads them into the page cache, and yields read-only views of the mapped files;
                * ``"mapped"`` yields such views, and reads nothing;
                * ``"auto"`` is ``"mapped"`` if 64 pages, drawn at random, are all in the page cache. It is
                  ``"ahead"`` if several processes of a job share this node (``LOCAL_WORLD_SIZE`` and similar
                  variables), after `warm`, or if copies would take more than half of the available memory,
                  unless reads bypass the page cache. It is ``"direct"`` if that takes less than half of the
                  time of ``"pread"``, so that a second start of the program loses nothing. Streams of 2 GiB
                  and more of cold files, without limits on threads and memory, try 64 MiB each way, once per
                  mount. Otherwise it is ``"pread"``.
            memory_bytes: Limit on the bytes that are read ahead and not yet used. A larger tensor is read
                when the caller requests it. A loop over the stream then holds two tensors, this one and the
                previous one. None means ``PAGESTREAM_MEMORY_BYTES``, or twice the size of the largest tensor:
                at least 128 MiB, and at most 1 GiB and an eighth of the available memory.
            threads: Number of threads that read. None means ``PAGESTREAM_THREADS``, or 8, and up to 64 while
                they wait for storage.
            order: The order of the tensors: ``"file"`` for the order of the data in the files; ``"plan"`` for
                the order of the plan; ``"layer"`` for the order of the numbers in their names, for a program
                that fills a model layer by layer: names without numbers, then layer 0, 1, …, 10.
            verify: True compares each tensor, in the memory that is handed out, with the checksums of
                `write_checksums`, and sizes and headers of the files before that. Tensors are then read as a
                whole, and never viewed. None and False compare nothing.
            drop_behind: True leaves the page cache as it was: pages that were not in it before are dropped
                after they were read. If the kernel does not show which pages these are, as in ``"read"``
                mode, all are dropped. ``"auto"`` is then ``"mapped"`` or ``"direct"``, or ``"pread"`` with
                `verify`. None and False keep the pages.
            copy: True for writable arrays that own their memory. Otherwise arrays are read-only, whether they
                are views or were read. A view reflects later changes to its file: if the file is truncated or
                rewritten, the array's bytes change.
            progress: True for a progress bar (on rank 0 only), or a callable that gets (bytes done, total
                bytes).

        Returns:
            An iterator over names and arrays, whose ``len`` is the number of tensors in the plan. Each array
            has the shape of its tensor, or of its part, and NumPy's type for its elements. Arrays already
            returned stay valid. If they are read, neighbouring tensors smaller than 1 MiB share memory, which
            is freed with the last of them.

        Raises:
            KeyError: The checkpoint lacks a name in the plan.
            SliceError: A part is out of range, or not basic indexing; it is an ``IndexError``.
            SafetensorError: NumPy has no type for the elements of a tensor.
            ChecksumError: With ``verify=True``: a file or one of the tensors has no checksum, or a file's
                size or header differs from its checksums, before anything else is read; or, in place of a
                tensor, its bytes do not match their checksum.
            TypeError: The plan is a single name.
            MappedReadError: A file was truncated, or its storage failed; with path and offset.
            FileChangedError: A file was rewritten since it was opened.
            ValueError: A word is unknown, a number is out of range, or the plan has a name twice; the
                checkpoint is closed; ``strategy="mapped"`` with a file in ``"read"`` mode, or ``"ahead"``
                with a file whose reads bypass the page cache; either of them with ``verify=True`` or
                ``drop_behind=True``; or a part of a tensor with ``verify=True``.

        Examples:
            >>> import numpy as np
            >>> from pagestream import open_checkpoint
            >>> weights = open_checkpoint("model.safetensors")
            >>> {name: array.shape for name, array in weights.stream()}
            {'weight': (2, 3), 'bias': (3,)}
            >>> [array.shape for _, array in weights.stream({"weight": np.s_[:, :2]})]
            [(2, 2)]
        """
        memory_bytes, threads = environment.memory_bytes(memory_bytes), environment.threads(threads)
        verify = verify is not None and checks.check_bool("verify", verify)
        wanted = streaming.planned(list(self), self.info, plan, order, self._arrays)
        drop_behind = drop_behind is not None and checks.check_bool("drop_behind", drop_behind)
        asked = "pread" if verify and strategy == "auto" else strategy
        is_limited = memory_bytes is not None or threads is not None
        found, _ = streaming.chosen(
            self._files, wanted, asked, drop_behind=drop_behind, is_limited=is_limited
        )
        known = None
        if verify:
            known = checksums.known(self._files, checksums.comparable(wanted, found), threads)
        copies = checks.check_bool("copy", copy)
        own = arrays.NumpyArrays(read_only=not copies, copies=copies, raw=self._arrays.raw)

        def view(file: _native.WeightFile, each: streaming.Wanted) -> npt.NDArray[Any]:
            if copies:
                copied: npt.NDArray[Any] = own.part(file.stored(each.info.name), each.index)
                return copied
            array = self._array(file, each.info.name)
            return array if each.index is ... else indexing.array_part(array, each.index)

        pairs = streaming.tensors(
            self._files, wanted, found, own, view, memory_bytes, threads, known, drop_behind=drop_behind
        )
        return streaming.reported(pairs, wanted, progress)

    def warm(self, plan: Plan = None, *, memory_bytes: int | None = None) -> warming.Warming:
        """Starts to read tensors that will be used soon, while the program does something else.

        Bytes go into the page cache, where all processes find them. On FUSE another program that opens the
        file drops its pages, unless the daemon keeps them (libfuse's ``kernel_cache``).

        Bytes go into memory of this process if the file bypasses the page cache (`explain` tells) or is not
        in ``"shared"`` mode. ``weights[name]``, `read` and `stream` take each tensor, or the planned part of
        it, from there, and reading goes on. `stream` also takes over the rest of the plan. With
        ``verify=True``, and to a GPU, it reads everything by itself.

        A checkpoint has one `Warming`. `close` or a further call cancels it, and frees its unused tensors.

        Args:
            plan: The tensors to read, in the order of the files; see `stream`.
            memory_bytes: Limit on the bytes in the page cache, and on the bytes that wait in
                memory. One tensor is always read into memory, whatever its size. None means
                ``PAGESTREAM_MEMORY_BYTES``, or half of the available memory for the page cache, and the limit
                of `stream` for memory.

        Returns:
            A handle to watch, await or cancel the reads.

        Raises:
            KeyError: The checkpoint lacks a name in the plan.
            SliceError: A part is out of range, or not basic indexing; it is an ``IndexError``.
            TypeError: The plan is a single name.
            ValueError: The plan has a name twice; a number is out of range; or the checkpoint is closed.

        Examples:
            >>> from pagestream import open_checkpoint
            >>> weights = open_checkpoint("model.safetensors")
            >>> warming = weights.warm()
            >>> warming.wait(), warming.fraction
            (True, 1.0)
        """
        memory_bytes = environment.memory_bytes(memory_bytes)
        wanted = streaming.planned(list(self), self.info, plan, "file", self._arrays)
        return warming.started(self._files, wanted, memory_bytes, environment.threads(None))

    def explain(self, plan: Plan = None) -> str:
        """Explains how `stream` would get the bytes of a plan, and why.

        A few MiB that are not in memory are read to time the storage, and 128 MiB for a plan of 2 GiB or
        more.

        Args:
            plan: The tensors that would be streamed; see `stream`.

        Returns:
            Lines of text for people: files and mounts, modes and the reasons for them, the time of a single
            request and of many in parallel, memory, and the decision.

        Raises:
            KeyError: The checkpoint lacks a name in the plan.
            MappedReadError: A file was truncated, or its storage failed.

        Examples:
            >>> from pagestream import open_checkpoint
            >>> print(open_checkpoint("model.safetensors").explain().splitlines()[0])
            2 tensors of 60 bytes in 1 file
        """
        wanted = streaming.planned(list(self), self.info, plan, "file", self._arrays)
        from pagestream.weights import explanation

        return explanation.explained(self._files, wanted)

    def write_checksums(self, *, threads: int | None = None, progress: Progress = False) -> tuple[str, ...]:
        """Writes checksums beside each file, for a later comparison by `verify` or while streaming.

        ``model.safetensors`` gets ``model.safetensors.xxh3.json``, with the size of the file and the XXH3
        checksums (128 bits) of its header and of each of its tensors. They detect bytes that were damaged on
        disk or in transit. They are no protection against anyone who can write them.

        The checksums of a file are stored beside it. If the file is a link, as in the snapshots of the
        Hugging Face cache, they are stored beside the link, not beside its target. They are written to a
        temporary file, which is then renamed: a link with that name is replaced, not followed. The same file
        always gets the same checksums.

        Args:
            threads: Number of threads. None means ``PAGESTREAM_THREADS``, or one per processor, and up to 64
                while they wait for storage.
            progress: True for a progress bar (on rank 0 only), or a callable that gets (bytes done, total
                bytes).

        Returns:
            The absolute paths of the written files, in the order of `files`.

        Raises:
            MappedReadError: A file was truncated, or its storage failed; with path and offset.
            FileChangedError: A file was rewritten since it was opened.
            OSError: The checksums cannot be written there; with ``errno`` and ``filename``.
            ValueError: The checkpoint is closed.

        Examples:
            >>> import os
            >>> from pagestream import open_checkpoint
            >>> weights = open_checkpoint("model.safetensors")
            >>> (path,) = weights.write_checksums()
            >>> os.path.basename(path)
            'model.safetensors.xxh3.json'
            >>> weights.verify()
            VerifyReport(checked=('model.safetensors',), unchecked=(), bad=(), warnings=())
            >>> os.remove(path)
        """
        return checksums.write(self._files, environment.threads(threads), progress)

    def verify(self, *, threads: int | None = None, progress: Progress = False) -> VerifyReport:
        """Compares every byte of the files with their checksums.

        A file is compared with the checksums beside it (see `write_checksums`). The Hugging Face cache names
        each large file by its SHA-256, and `verify` also compares that. The cache names small files by a git
        hash, which is not compared. Header and tensors cover the whole file: the format leaves no bytes
        between them.

        Files are read in parallel, and a file with checksums beside it is read by several threads. The page
        cache stays as it was, if the kernel shows which pages of a file it holds.

        Args:
            threads: Number of threads. None means ``PAGESTREAM_THREADS``, or one per processor, and up to 64
                while they wait for storage.
            progress: True for a progress bar (on rank 0 only), or a callable that gets (bytes done, total
                bytes).

        Returns:
            A report: the files that were compared, the files that could not be, and all errors. Bytes that do
            not match their checksum raise nothing here; ``stream(verify=True)`` raises. Holes are a warning
            (see `warnings`), unless all bytes of the file match their checksums.

        Raises:
            MappedReadError: A file was truncated, or its storage failed; with path and offset.
            FileChangedError: A file was rewritten since it was opened.
            OSError: A file cannot be opened.
            ValueError: The checkpoint is closed.

        Examples:
            >>> import os
            >>> from pagestream import open_checkpoint
            >>> (path,) = open_checkpoint("model.safetensors").write_checksums()
            >>> with open("model.safetensors", "r+b") as file:
            ...     _ = file.seek(-1, os.SEEK_END), file.write(b"?")
            >>> damaged = open_checkpoint("model.safetensors").verify().bad
            >>> [error.name for error in damaged]
            ['bias']
            >>> with open("model.safetensors", "r+b") as file:
            ...     _ = file.seek(-1, os.SEEK_END), file.write(bytes(1))
            >>> os.remove(path)
        """
        return checksums.verify(self._files, environment.threads(threads), progress)

    def info(self, name: str) -> TensorInfo:
        """Returns the entry of a tensor in the header.

        Raises:
            KeyError: There is no such tensor.

        Examples:
            >>> from pagestream import open_checkpoint
            >>> open_checkpoint("model.safetensors").info("weight").shape
            (2, 3)
        """
        try:
            return TensorInfo(*self._files.info_fields(name))
        except KeyError as error:
            names.add_closest(error, name, self._files)
            raise

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickles the absolute paths and the options."""
        return _OpenedWith.open, (self._opened_with,)

    def __repr__(self) -> str:
        """Shows the path and the number of tensors."""
        paths = self._files.paths
        what = repr(paths[0]) if len(paths) == 1 else f"{len(paths)} files"
        return f"<{type(self).__name__} {what} {len(self)} tensors>"

    def _repr_html_(self) -> str:
        """Shows element types and the largest tensors, for notebooks."""
        from pagestream.weights import summary

        return summary.html(type(self).__name__, len(self.files), [self.info(name) for name in self])


def native_files(weights: Checkpoint) -> _native.Checkpoint:
    """Returns the native object of a checkpoint, for the packages above."""
    return weights._files  # noqa: SLF001 - of this module's class


@contextmanager
def opened(
    path: StrPath | Iterable[StrPath] | Checkpoint, mmap_mode: Mode | None = None
) -> Iterator[Checkpoint]:
    """Opens a checkpoint and closes it at the end. An open checkpoint of the caller stays open.

    Raises:
        ValueError: `path` is a checkpoint, and `mmap_mode` is given.
    """
    if not isinstance(path, Checkpoint):
        with open_checkpoint(path, mmap_mode=mmap_mode) as weights:
            yield weights
        return
    needs = "a path: this checkpoint is open already"
    checks.only_with("mmap_mode", mmap_mode, needed=False, needs=needs)
    yield path


def open_apart(folder: str) -> Checkpoint:
    """Opens a folder. Without an index, ``weight`` of its first file is named ``0/weight``.

    Raises:
        OSError: A file cannot be opened, or the folder has none; with ``errno`` and ``filename``.
        SafetensorError: The folder has no valid checkpoint; see `open_checkpoint`.
    """
    mode = environment.mmap_mode(None)
    return _OpenedWith([folder], "apart", mode, strict=True, cache_root=None, raw=False, ahead=None).open()


def open_partly(path: str, *, cache_root: str | None, ahead: int | None) -> Checkpoint:
    """Opens the valid files of a checkpoint. ``native_files(…).problem`` describes the rest.

    Raises:
        OSError: A file cannot be opened, or the folder has none; with ``errno`` and ``filename``.
        SafetensorError: The index or the only file is not valid.
    """
    mode = environment.mmap_mode(None)
    return _OpenedWith(
        [path], "partial", mode, strict=True, cache_root=cache_root, raw=False, ahead=ahead
    ).open()


def _absolute(path: str) -> str:
    # Not `os.path.abspath`, which simplifies "link/..".
    return path if os.path.isabs(path) else os.path.join(os.getcwd(), path)


@set_module("pagestream")
@advises("open_checkpoint")
def open_checkpoint(
    path: StrPath | Iterable[StrPath],
    *,
    mmap_mode: Mode | None = None,
    strict: bool = True,
    cache_root: StrPath | None = None,
    raw: bool = False,
    ahead: int | None = None,
) -> Checkpoint:
    """Opens the safetensors files of a checkpoint. Only their headers are read, in parallel.

    The headers of files that were opened before and have not changed are not read again; see `safe_open`.

    Formats: https://github.com/huggingface/safetensors#format and
    https://huggingface.co/docs/transformers/big_models#shard-metadata

    `path` is followed wherever it leads. Names from an index or a folder are not: a checkpoint never reads
    outside its folder, whatever these names and their links say. The links of the Hugging Face cache, from
    snapshots to blobs, work without further options. Audit hooks see ``os.listdir`` for a folder, and
    ``pagestream.open`` for the index and each file, before anything is read.

    Args:
        path: The checkpoint. A leading ``~`` is the home directory:

            * a file;
            * a folder: its ``*.safetensors.index.json`` (if there are several,
              ``model.safetensors.index.json``); without an index its ``model.safetensors``, or otherwise all
              of its ``*.safetensors``;
            * an index, with a name ending in ``.json``;
            * a list of files, in order;
            * if there is no such path, the id of a Hugging Face repository, as a str: its snapshot of the
              branch ``main`` in the local cache (``HF_HUB_CACHE``, ``HF_HOME``). Nothing is downloaded.
        mmap_mode: How to open the files; see `MappedFile`. None means ``PAGESTREAM_MMAP_MODE`` or ``"auto"``.
        strict: Whether to reject headers that the format forbids but upstream accepts, mainly because of
            duplicate names; an index with duplicate names; files without a tensor that the index assigns to
            them; and, without an index, a tensor in two files. With False, the last duplicate counts, missing
            tensors are left out, and the last of two files with the same tensor counts; `Checkpoint.warnings`
            lists them. With an index, a tensor comes from the file that the index names, and a copy in
            another file is a warning, regardless of `strict`.
        cache_root: Another folder that links may lead into. With it, files named here are also confined: to
            their folder and to this one.
        raw: Whether to return each tensor as its bytes: the type is uint8, and the last dimension counts
            bytes. Use it for element types that NumPy supports only with ml_dtypes.
        ahead: Limit on the bytes that are read ahead of requested tensors; see
            `pagestream.safetensors.safe_open`.

    Returns:
        The mapping.

    Raises:
        OSError: A file cannot be opened, or the folder has none, or a repository was not downloaded; with
            ``errno`` and ``filename``.
        SafetensorError: A file is not a valid safetensors file; or the index (of at most 256 MiB) is not
            valid; or files are missing, rejected or broken, or tensors missing or in two files, all reported
            in one error. The message says what was found, what was expected and where.
        FileChangedError: The index was replaced while the files were opened.

    Examples:
        >>> from pagestream import open_checkpoint
        >>> open_checkpoint("model.safetensors")["weight"].shape
        (2, 3)
        >>> open_checkpoint(".").files
        ('./model.safetensors',)
    """
    checks.check_bool("strict", strict)
    checks.check_bool("raw", raw)
    if isinstance(path, Checkpoint) or not isinstance(path, (str, bytes, os.PathLike, Iterable)):
        message = f"path must be a path or a list of paths, not {path!r}"
        raise TypeError(message)
    paths = [path] if isinstance(path, (str, bytes, os.PathLike)) else path
    what: Literal["path", "files"] = "files" if paths is path else "path"
    given = [expanded(each) for each in paths]
    if isinstance(path, str):
        given = [hub.local_folder(given[0])]
    root = None if cache_root is None else expanded(cache_root)
    mode = environment.mmap_mode(mmap_mode)
    return _OpenedWith(given, what, mode, strict, root, raw, ahead).open()
