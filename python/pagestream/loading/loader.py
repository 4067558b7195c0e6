"""`TokenLoader`: batches of windows, prepared ahead by native threads."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Generic, Literal, NoReturn, TypeAlias, Unpack, overload

from pagestream import _native
from pagestream._common import environment
from pagestream._common.checks import at_least, check_bool, one_of, only_with
from pagestream._common.closing import HoldsFiles
from pagestream._common.keywords import advises
from pagestream._common.public import set_module
from pagestream._common.ranks import check_unchanged, rank_and_world_size
from pagestream._common.types import Mode
from pagestream._common.workers import NO_WORKERS
from pagestream.loading.batches import Batch, PackedBatch
from pagestream.loading.epochs import Epoch, LoopBatches, Loops
from pagestream.loading.handout import Handout
from pagestream.loading.host_batches import HostBatches
from pagestream.loading.metrics import LoaderMetrics
from pagestream.loading.mixture import Mixture
from pagestream.loading.mixture_run import MixtureRun
from pagestream.loading.options import (
    BatchDtype,
    DocumentOption,
    DropBehind,
    LoaderOptions,
    Order,
    StreamOptions,
    Target,
    batch_dtype,
    check_documents,
    check_drop_behind,
    check_long_enough,
    check_raw_dtype,
    checked_vocabulary,
)
from pagestream.loading.state import STATE_VERSION, saved_position
from pagestream.tokens.corpus import TokenCorpus, TokenFiles, native_corpus, open_tokens

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    from typing_extensions import TypeVar

    BatchT_co = TypeVar("BatchT_co", covariant=True, default=Any)
else:
    from typing import TypeVar

    # Python supports defaults of type variables from 3.13 on. Only type checkers need them.
    BatchT_co = TypeVar("BatchT_co", covariant=True)

__all__ = ["TokenLoader"]

TokenSource: TypeAlias = TokenCorpus | Mixture | TokenFiles
PairTarget: TypeAlias = Literal["shift", "block"]
NoDocuments: TypeAlias = Literal["ignore"]

_log = logging.getLogger("pagestream.loader")

# The default mixing radius: a span that storage reads efficiently in one go.
_MIXING_BYTES = 64 << 20


@set_module("pagestream")
class TokenLoader(HoldsFiles, Generic[BatchT_co]):
    """Batches of windows of a corpus, epoch after epoch, read ahead by native threads.

    The order depends only on seed and position, so the loader knows the next batches. It requests their pages
    from the kernel, gathers batches in its own threads, and returns arrays over buffers that are reused once
    nothing refers to them. No batch ever changes while it is in use.

    The loader checks each file when a batch is complete, and raises if the file was rewritten. For unmapped
    files it asks the server. For mapped files on NFS it asks the kernel, whose answer may be as old as the
    mount's ``acregmin`` to ``acregmax`` (3 to 60 s; see nfs(5)). A rewrite may stay undetected for that long.

    Each ``for`` loop reads `epochs` epochs, one by default, and each epoch has its own order. If a loop was
    left early, or if a state was loaded, the next loop reads the rest. After the last batch, ``next`` raises
    StopIteration until another loop begins the next epoch. With ``epochs=None`` the stream has no end.
    `epoch` returns an epoch from its beginning, for example for validation.

    An exception from storage leaves the loader at the failed batch, and the next call tries that batch again.
    A worker process of a ``DataLoader`` is rejected, because each worker would get every window.

    Args:
        tokens: A corpus, a `Mixture`, or an argument of `open_tokens`, for example a path or a
            ``numpy.memmap``.
        sequence_length: T, the number of tokens of x in a window.
        batch_size: Number of windows in a batch on this rank.
        order: ``"shuffled"`` (a permutation of all windows, different in each epoch), ``"random"`` (windows
            start at any token, with replacement), ``"sequential"``, or ``"blocked"`` (a permutation that
            stays within `mixing_radius` windows at a time, for storage with slow random reads).
        seed: Determines the order.
        epochs: Number of epochs per ``for`` loop; None for an endless stream, whose batches may contain
            windows of two epochs.
        stride: Number of tokens between the beginnings of windows; by default T, or T+1 for ``"block"``.
        target: ``"shift"``, ``"block"`` or ``"none"``; see `TokenDataset`. With ``"none"``, batches are only
            x.
        documents: ``"ignore"``, or ``"boundaries"`` for `PackedBatch`. Without `end_token` and `begin_token`,
            the files record the boundaries (Megatron, datatrove).
        end_token: The id that ends each document, for example 50256 of GPT-2. The next token begins a
            document. With a token, the files' records are ignored. In a `Mixture` it applies to all sources.
        begin_token: The id that begins each document, in place of `end_token`.
        max_documents: Pads ``cu_seqlens`` to this many documents. A batch with more documents is an error.
        drop_last: Whether to drop a short global batch at the end of a loop. If not, it is distributed so
            that all ranks make the same number of steps; a rank may get fewer rows, or none.
        rank: The rank of this process among `world_size`. None means the rank from torch.distributed or JAX,
            if the program has initialised one of them, otherwise from the launcher (torchrun, Open MPI,
            MPICH, Intel MPI, srun), otherwise 0 of 1. Rank r gets rows
            ``[r * batch_size, (r + 1) * batch_size)`` of each global batch. The rows of a `Mixture` begin at
            a random place of the batch and wrap around, so that each rank gets its share of each source. The
            batch is the same for any number of ranks.
        world_size: See `rank`; pass both or neither.
        dtype: ``"int64"``, ``"int32"`` (or types of NumPy or torch with these names), or ``"raw"`` for the
            type of the files, which must all have the same type.
        lookahead: Number of batches whose pages are requested ahead; None adapts it. For unmapped files, the
            number of batches that are read ahead.
        threads: Number of gathering threads; None adapts it (``PAGESTREAM_THREADS``).
        memory_bytes: Limit on buffers and pages requested ahead together, but at least two batches of each.
            None means an eighth of the available memory and at most 1 GiB (``PAGESTREAM_MEMORY_BYTES``).
        mmap_mode: How to open the files; see `MappedFile`.
        mixing_radius: Number of windows within which ``"blocked"`` mixes; None for about 64 MiB.
        drop_behind: Pages to drop once they are gathered: ``"resident"`` removes them from this process's
            resident set, ``"cache"`` also from the page cache; None lets the kernel decide. With
            ``mmap_mode="read"`` no page is resident.
        vocabulary: The model's number of ids, for example 50257. A batch with a token that is negative, or
            not below this number, raises `FormatError` with the file and the token's position, before the
            batch reaches a device. `end_token` and `begin_token` must be below it. None disables the check.

    Raises:
        ValueError: An argument is out of range, the corpus is shorter than one window, or a loop would have
            no batch.
        OSError: A file cannot be opened.
        RuntimeError: This process is a worker of a ``DataLoader``.

    Examples:
        >>> from pagestream import TokenLoader
        >>> loader = TokenLoader("tokens.bin", sequence_length=32, batch_size=4, seed=1)
        >>> len(loader)
        31
        >>> x, y = next(loader)
        >>> x.shape, bool((x[:, 1:] == y[:, :-1]).all())
        ((4, 32), True)
        >>> state = loader.state_dict()
        >>> later = next(loader)
        >>> loader.load_state_dict(state)
        >>> bool((next(loader).x == later.x).all())
        True
        >>> [sum(1 for x, y in loader) for epoch in range(3)]  # the rest of the first epoch, and two more
        [29, 31, 31]
        >>> loader.close()
    """

    @overload
    def __init__(
        self: TokenLoader[Batch[npt.NDArray[np.int64]]],
        tokens: TokenSource,
        *,
        target: PairTarget = ...,
        documents: NoDocuments = ...,
        dtype: Literal["int64"] | type[np.int64] | np.dtype[np.int64] = ...,
        **options: Unpack[StreamOptions],
    ) -> None: ...
    @overload
    def __init__(
        self: TokenLoader[Batch[npt.NDArray[np.int32]]],
        tokens: TokenSource,
        *,
        target: PairTarget = ...,
        documents: NoDocuments = ...,
        dtype: Literal["int32"] | type[np.int32] | np.dtype[np.int32],
        **options: Unpack[StreamOptions],
    ) -> None: ...
    @overload
    def __init__(
        self: TokenLoader[Batch[npt.NDArray[Any]]],
        tokens: TokenSource,
        *,
        target: PairTarget = ...,
        documents: NoDocuments = ...,
        dtype: Literal["raw"],
        **options: Unpack[StreamOptions],
    ) -> None: ...
    @overload
    def __init__(
        self: TokenLoader[npt.NDArray[Any]],
        tokens: TokenSource,
        *,
        target: Literal["none"],
        documents: NoDocuments = ...,
        dtype: BatchDtype = ...,
        **options: Unpack[StreamOptions],
    ) -> None: ...
    @overload
    def __init__(
        self: TokenLoader[PackedBatch[npt.NDArray[Any]]],
        tokens: TokenSource,
        *,
        target: Target = ...,
        documents: Literal["boundaries"],
        end_token: int | None = ...,
        begin_token: int | None = ...,
        max_documents: int | None = ...,
        dtype: BatchDtype = ...,
        **options: Unpack[StreamOptions],
    ) -> None: ...
    @overload
    def __init__(self: TokenLoader[Any], tokens: TokenSource, **options: Unpack[LoaderOptions]) -> None: ...
    @advises("TokenLoader")
    def __init__(
        self,
        tokens: TokenSource,
        *,
        sequence_length: int,
        batch_size: int,
        order: Order = "shuffled",
        seed: int = 0,
        epochs: int | None = 1,
        stride: int | None = None,
        target: Target = "shift",
        documents: DocumentOption = "ignore",
        end_token: int | None = None,
        begin_token: int | None = None,
        max_documents: int | None = None,
        drop_last: bool = True,
        rank: int | None = None,
        world_size: int | None = None,
        dtype: BatchDtype = "int64",
        lookahead: int | None = None,
        threads: int | None = None,
        memory_bytes: int | None = None,
        mmap_mode: Mode | None = None,
        mixing_radius: int | None = None,
        drop_behind: DropBehind | None = None,
        vocabulary: int | None = None,
    ) -> None:
        """Starts reading ahead."""
        if isinstance(tokens, (TokenCorpus, Mixture)):
            only_with("mmap_mode", mmap_mode, needed=False, needs="a path: this corpus is open already")
        else:
            tokens = open_tokens(tokens, mmap_mode=mmap_mode)
        self.tokens = self._files = tokens
        self._corpora = tokens.sources if isinstance(tokens, Mixture) else (tokens,)
        self.sequence_length = at_least(1, "sequence_length", sequence_length)
        self.batch_size = at_least(1, "batch_size", batch_size)
        self.rank, self.world_size = rank_and_world_size(rank, world_size)
        # Whether the process group may be initialised before the first batch, with other ranks.
        self._is_rank_derived = rank is None
        check_documents(documents, end_token, begin_token, self._corpora)
        one_of("order", order, _native.ORDERS)
        one_of("target", target, _native.TARGETS)
        dtype = batch_dtype(dtype)
        check_raw_dtype(dtype, self._corpora)
        check_drop_behind(drop_behind, self._corpora)
        check_long_enough(self.sequence_length + (target != "none"), self._corpora)
        default_stride = self.sequence_length + (target == "block")
        self.stride = default_stride if stride is None else at_least(1, "stride", stride)
        self.order: Order = order
        self.seed = at_least(0, "seed", seed)
        self.target: Target = target
        self.drop_last = check_bool("drop_last", drop_last)
        only_with("mixing_radius", mixing_radius, needed=order == "blocked", needs='order="blocked"')
        self._packed = documents == "boundaries"
        only_with("max_documents", max_documents, needed=self._packed, needs='documents="boundaries"')
        if mixing_radius is None:
            item_bytes = max(corpus.dtype.itemsize for corpus in self._corpora)
            mixing_radius = max(16, _MIXING_BYTES // (self.stride * item_bytes))
        self.mixing_radius = at_least(1, "mixing_radius", mixing_radius)
        self._max_documents = None if max_documents is None else at_least(1, "max_documents", max_documents)
        self.epochs = None if epochs is None else at_least(1, "epochs", epochs)
        self._run = MixtureRun(tokens, self._windows()) if isinstance(tokens, Mixture) else None
        mixture = self._run.native if self._run else _native.Mixture([1], self._windows(), "drop", None)
        self._loops = self._loops_of(mixture)
        # The end of the current loop.
        self._end: int | None = None
        settings: dict[str, Any] = {
            "mixture": mixture,
            "sequence_length": self.sequence_length,
            "stride": self.stride,
            "target": target,
            "order": order,
            "mixing_radius": self.mixing_radius,
            "seed": self.seed,
            "rank": self.rank,
            "world_size": self.world_size,
            "batch_size": self.batch_size,
            "end": None,
            "drop_last": self.drop_last,
            "dtype": dtype,
            "documents": self._packed,
            "end_token": end_token,
            "begin_token": begin_token,
            "vocabulary": checked_vocabulary(vocabulary, end_token=end_token, begin_token=begin_token),
            "threads": environment.threads(threads),
            "lookahead": None if lookahead is None else at_least(1, "lookahead", lookahead),
            "memory_bytes": environment.memory_bytes(memory_bytes),
            "drop_behind": drop_behind,
        }
        self._batches = self._make_batches(settings)
        self._handout = Handout(self._batches)
        self._go_to(0)
        _log.info("started %r", self)

    def _make_batches(self, settings: dict[str, Any]) -> Any:  # noqa: ANN401 - HostBatches, or a device's
        """Returns the source of the batches. `pagestream.torch.TokenLoader` overrides it."""
        return HostBatches(self._corpora, settings, self._max_documents)

    def _windows(self) -> list[int]:
        """Returns the number of windows of each corpus."""
        windows = (self.sequence_length, self.stride, self.target)
        return [native_corpus(corpus).windows(*windows) for corpus in self._corpora]

    def _loops_of(self, mixture: _native.Mixture) -> Loops:
        rows = self.batch_size * self.world_size
        return Loops(mixture, self.epochs, rows, drop_last=self.drop_last)

    def _go_to(self, position: int, run: MixtureRun | None = None, end: int | None = None) -> None:
        """Starts reading at a position.

        Args:
            position: Number of earlier samples of the stream.
            run: The mixture to read from there on; None for the current one.
            end: The end, if it is not the end of the loop that contains the position.
        """
        loops = self._loops if run is None else self._loops_of(run.native)
        position = loops.settled(position)
        loop_end = loops.end(position)

        def start(position: int) -> None:
            self._loops, self._end = loops, loop_end
            if run is not None:
                self._run = run
                self._batches.mix(run.native)
            self._batches.start(position)

        self._handout.go_to(position, loop_end if end is None else end, start)

    def __bool__(self) -> bool:
        """Returns True, even for a loader without a length."""
        return True

    def __iter__(self) -> Iterator[BatchT_co]:
        """Returns the iterator of the current loop, or of the next loop if that is over."""
        self._check_rank()
        self._end = self._loops.end(self._handout.position)
        return LoopBatches(self._handout, self._end)

    def __getitem__(self, index: object) -> NoReturn:
        """Raises, because a loader is not a dataset.

        Raises:
            TypeError: Always.
        """
        message = f"a TokenLoader has no items: {NO_WORKERS}"
        raise TypeError(message)

    def __next__(self) -> BatchT_co:
        """Returns the next batch.

        Raises:
            StopIteration: The loop is over.
            RuntimeError: The process group was initialised after the loader, and has other ranks; or this
                process is a worker of a ``DataLoader``.
            MappedReadError: A file was truncated, or its storage failed.
            FileChangedError: A file was rewritten or replaced since it was opened.
            FormatError: A token does not fit into `dtype`, or exceeds `vocabulary`.
        """
        if self._is_rank_derived:
            self._check_rank()
        return self._handout.next(self._end)  # type: ignore[no-any-return]

    def _check_rank(self) -> None:
        if self._is_rank_derived:
            check_unchanged(self.rank, self.world_size)
            self._is_rank_derived = False

    def __len__(self) -> int:
        """Returns the number of batches in a whole ``for`` loop.

        Raises:
            TypeError: The stream is endless.
        """
        return len(self._loops)

    @property
    def current_epoch(self) -> int | None:
        """The epoch of the next batch, which equals the number of completed epochs.

        It is None for a mixture with sources that repeat. A run that continues from a state loops over
        ``range(loader.current_epoch, epochs)``.
        """
        return self._loops.current_epoch(self._handout.position)

    def epoch(self, number: int) -> Epoch[BatchT_co]:
        """Returns an epoch, as an iterable with a length.

        Each loop over it moves the loader to the beginning of the epoch, and leaves it at the end. An
        unfinished loop over this loader then raises ``RuntimeError``. To validate during an epoch, create
        another loader. An endless loader also has epochs.

        Args:
            number: The epoch, from 0. The first ``for`` loop over a new loader is epoch 0.

        Raises:
            ValueError: The epoch would have no batch, the sources of a `Mixture` repeat, or the epoch began
                with other weights.

        Examples:
            >>> from pagestream import TokenLoader
            >>> options = {"sequence_length": 32, "batch_size": 4, "drop_last": False}
            >>> with TokenLoader("tokens.bin", order="sequential", **options) as validation:
            ...     for step in range(2):
            ...         first = [int(x[0, 0]) for x, y in validation.epoch(0)][:4]  # the same each time
            >>> first, len(validation.epoch(0))
            ([0, 128, 256, 384], 32)
        """
        number = at_least(0, "number", number)
        _, _, batches = self._bounds_of(number)
        return Epoch(number, batches, self._begin_epoch)

    def _bounds_of(self, epoch: int) -> tuple[int, int, int]:
        return self._loops.epoch(epoch, 0 if self._run is None else self._run.first_epoch)

    def _begin_epoch(self, number: int) -> Iterator[BatchT_co]:
        self._check_rank()
        begin, end, _ = self._bounds_of(number)
        # A new loader is already there, and already reads.
        if (self._handout.position, self._handout.end) != (begin, end):
            self._go_to(begin, end=end)
        else:
            self._handout.end_loops()  # even those that have not read a batch
        return LoopBatches(self._handout, end)

    def state_dict(self) -> dict[str, Any]:
        """Returns the position of the stream after the batches handed out. It is equal on all ranks.

        When the loader starts, it computes the fingerprint of the data in the background, so that a state is
        available even after storage has failed. For more than 1024 files the first call computes it.

        ``samples_consumed`` is the number of windows before the next batch, over all ranks. It includes
        windows that ``drop_last=True`` dropped at the end of a loop. The number of windows that the ranks
        received is the number of steps times ``batch_size * world_size``. With ``epochs=None`` no window is
        dropped, and the two are equal, as they are for Megatron's ``consumed_samples``.

        Returns:
            A small dict of str, int and None, suitable for JSON. For a `Mixture` it also lists the sources:
            weight, epoch, and windows used in the epoch.

        Examples:
            >>> from pagestream import TokenLoader
            >>> with TokenLoader("tokens.bin", sequence_length=32, batch_size=4) as loader:
            ...     batch = next(loader)
            ...     loader.state_dict()["samples_consumed"]
            4

            An epoch of 127 windows has 31 batches of 4, and drops 3 windows:

            >>> with TokenLoader("tokens.bin", sequence_length=32, batch_size=4) as loader:
            ...     batches = sum(1 for batch in loader)
            ...     4 * batches, loader.state_dict()["samples_consumed"]
            (124, 127)
        """
        position = self._handout.position
        state = {
            "version": STATE_VERSION,
            **self._identity(),
            "samples_consumed": position,
            "epoch": self._loops.current_epoch(position),
        }
        return state if self._run is None else {**state, "mixture": self._run.record(position)}

    def _identity(self) -> dict[str, Any]:
        """Returns the settings that a state must share with this loader, except the mixture's."""
        return {
            **({"fingerprint": self.tokens.fingerprint} if self._run is None else {}),
            "order": self.order,
            "order_version": _native.ORDER_VERSION,
            "mixing_radius": self.mixing_radius if self.order == "blocked" else None,
            "seed": self.seed,
            "sequence_length": self.sequence_length,
            "stride": self.stride,
            "target": self.target,
        }

    def load_state_dict(
        self, state: Mapping[str, Any], *, strict: bool = True, new_mixture: bool = False
    ) -> None:
        """Moves to the position of a state, taken on any number of ranks, with any batch size and `epochs`.

        The next ``for`` loop reads the rest of the epoch, or the next epoch if no batch is left in this one.

        Weights or sources of a `Mixture` may change in mid-run. With ``new_mixture=True`` the loader also
        accepts a state of another mixture. Each source listed in the state continues from its position,
        without a repetition, and a new source starts from its beginning. A source whose files have changed
        counts as new. The new weights apply from this position on. The next state records them, and needs no
        ``new_mixture``.

        Args:
            state: A result of `state_dict`.
            strict: Whether to reject a state of other data or another order. If not, its position is used
                anyway.
            new_mixture: Whether to accept a state with other weights, other sources or another ``exhausted``.
                A state of a single corpus counts as a mixture of this corpus.

        Raises:
            StateMismatchError: The state has another version, or belongs to other data or another order; the
                message says what was found and what was expected.
            ValueError: ``new_mixture`` is given for a loader of a single corpus.

        Examples:
            >>> from pagestream import Mixture, TokenLoader, open_tokens
            >>> loader = TokenLoader("tokens.bin", sequence_length=32, batch_size=4)
            >>> loader.load_state_dict(loader.state_dict() | {"samples_consumed": 40})
            >>> loader.state_dict()["samples_consumed"]
            40
            >>> loader.load_state_dict(loader.state_dict() | {"seed": 7})
            Traceback (most recent call last):
            ...
            pagestream.errors.StateMismatchError: the state does not belong to this loader: seed is 7 ...
            >>> loader.close()

            Half of the run has equal weights, and then the second source gets more:

            >>> web, code = open_tokens("tokens.bin"), open_tokens(["tokens.bin"] * 2)
            >>> options = {"sequence_length": 32, "batch_size": 4, "epochs": None}
            >>> with TokenLoader(Mixture([(web, 0.5), (code, 0.5)]), **options) as loader:
            ...     batch = next(loader)
            ...     state = loader.state_dict()
            >>> with TokenLoader(Mixture([(web, 0.25), (code, 0.75)]), **options) as loader:
            ...     loader.load_state_dict(state, new_mixture=True)
            ...     batch = next(loader)
            ...     [source["windows_consumed"] for source in loader.state_dict()["mixture"]["sources"]]
            [3, 5]
        """
        position = saved_position(state, self._identity(), strict=strict)
        run = self._run
        if run is not None:
            run = run.resumed(state, position, strict=strict, new_mixture=new_mixture)
        elif new_mixture:
            message = "new_mixture=True needs a loader of a Mixture; this one reads one corpus"
            raise ValueError(message)
        self._go_to(position, run)

    def metrics(self) -> LoaderMetrics:
        """Returns counters of the work so far, and the current lookahead.

        In a forked child, the counters keep their values from the fork until the child takes a batch.

        Examples:
            >>> from pagestream import TokenLoader
            >>> with TokenLoader("tokens.bin", sequence_length=32, batch_size=4) as loader:
            ...     batch = next(loader)
            ...     loader.metrics().batches
            1
        """
        return self._batches.metrics()  # type: ignore[no-any-return]

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._handout.closed

    def close(self) -> None:
        """Stops the threads. Batches already returned stay valid, and so does the corpus.

        A signal handler may call it, even while `next` runs. Then `next` raises ValueError, unless it already
        has its batch.

        Examples:
            >>> from pagestream import TokenLoader
            >>> TokenLoader("tokens.bin", sequence_length=32, batch_size=4).close()
        """
        self._handout.close()

    def __getstate__(self) -> object:
        """Raises, because two loaders with the same position would each return half of the batches."""
        message = (
            f"a TokenLoader cannot be copied or pickled; make another and use state_dict(); {NO_WORKERS}"
        )
        raise TypeError(message)

    def __repr__(self) -> str:
        """Shows order, shape, corpus and position."""
        return (
            f"<{type(self).__name__} {self.order} [{self.batch_size}, {self.sequence_length}] "
            f"of {self.tokens!r}, sample {self._handout.position}>"
        )
