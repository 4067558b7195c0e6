"""`TokenLoader`: batches of windows, made ahead by native threads."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, get_args

import numpy as np

from pagestream import _native
from pagestream._common import environment
from pagestream._common.checks import at_least, check_bool, one_of, only_with
from pagestream._common.ranks import rank_and_world_size
from pagestream.loading.batches import Batch, PackedBatch, document_bounds
from pagestream.loading.handout import BatchStream
from pagestream.loading.mixture import Mixture
from pagestream.loading.options import (
    DocumentOption,
    Order,
    Target,
    batch_dtype,
    check_drop_behind,
    check_long_enough,
    mixing_radius_windows,
)
from pagestream.loading.state import STATE_VERSION, saved_position
from pagestream.tokens.corpus import TokenCorpus, open_tokens

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pagestream._common.types import Mode, StrPath
    from pagestream.loading.options import BatchDtype, DropBehind

__all__ = ["TokenLoader"]


class TokenLoader(BatchStream):
    """One stream of batches over a corpus, epoch after epoch, read ahead by native threads.

    The order is a function of seed and position alone, so the loader knows what comes: it asks the
    kernel for the pages of later batches, gathers batches in threads of its own, and hands out arrays
    on buffers that are used again once nothing refers to them. No batch ever changes under its user.

    Each file is looked at when a batch is whole; one that was rewritten is an error then. Of files that are
    not mapped the server is asked. Of mapped ones on NFS the kernel tells what it knows, which may be as old
    as the mount's ``acregmin`` to ``acregmax`` (3 to 60 s; see nfs(5)): so long may a file that is rewritten
    there go unnoticed.

    A loader is an iterator. It goes on where it stopped, also in a second ``for`` loop, and after the
    end it stays at the end; `load_state_dict` takes it elsewhere. An exception from storage leaves it at
    the batch that failed, which is tried again by the next call.

    Args:
        tokens: A corpus, a `Mixture`, or what `open_tokens` takes.
        sequence_length: T, tokens of x in one window.
        batch_size: Windows of one batch on this rank.
        order: ``"shuffled"`` (a permutation of all windows, another each epoch), ``"random"`` (starts at
            any token, with replacement), ``"sequential"``, or ``"blocked"`` (a permutation that stays
            within `mixing_radius` windows at a time, for storage that is slow at random reads).
        seed: Picks the order.
        epochs: After how many epochs the stream ends; None for never.
        stride: Tokens between the beginnings of windows; T by default, T+1 for ``"block"``.
        target: ``"shift"``, ``"block"`` or ``"none"``; see `TokenDataset`. With ``"none"`` batches are x
            alone.
        documents: ``"ignore"``, or ``"boundaries"`` for `PackedBatch`.
        max_documents: Pads ``cu_seqlens`` to this many documents; a batch with more is an error.
        drop_last: Whether a short global batch at the very end is left out. If not, it is dealt out so
            that all ranks make as many steps; a rank can get fewer rows, even none.
        rank: This process among `world_size`; by default from torch.distributed if that is set up, else
            from ``RANK`` and ``WORLD_SIZE``, else 0 of 1. Rank r gets rows ``[r * batch_size,
            (r + 1) * batch_size)`` of each global batch.
        world_size: See `rank`; both or none.
        dtype: ``"int64"``, ``"int32"`` (or NumPy's types of these names), or ``"raw"`` for the type of the
            files.
        lookahead: Batches whose pages are asked for ahead; None adapts. Where files are not
            mapped: batches that are read ahead.
        threads: Gathering threads; None adapts (``PAGESTREAM_THREADS``).
        memory_bytes: What buffers and pages asked for ahead may take together, but two batches of each at
            least; None for an eighth of the available memory and at most 1 GiB
            (``PAGESTREAM_MEMORY_BYTES``).
        mmap_mode: How to open files; see `MappedFile`.
        mixing_radius: Windows within which ``"blocked"`` mixes; None for about 64 MiB.
        drop_behind: What is let go of once gathered: ``"resident"`` takes pages out of this process's
            resident set, ``"cache"`` also out of the page cache; None lets the kernel decide. With
            ``mmap_mode="read"`` nothing is resident.

    Raises:
        ValueError: An argument is out of range, or the corpus is shorter than one window.
        OSError: A file cannot be opened.

    Example:
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
        >>> loader.close()
    """

    def __init__(
        self,
        tokens: TokenCorpus | Mixture | StrPath | Sequence[StrPath],
        *,
        sequence_length: int,
        batch_size: int,
        order: Order = "shuffled",
        seed: int = 0,
        epochs: int | None = None,
        stride: int | None = None,
        target: Target = "shift",
        documents: DocumentOption = "ignore",
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
    ) -> None:
        """Starts reading ahead."""
        if isinstance(tokens, (TokenCorpus, Mixture)):
            only_with("mmap_mode", mmap_mode, needed=False, needs="a path: this corpus is open already")
        else:
            tokens = open_tokens(tokens, mmap_mode=mmap_mode)
        self.tokens = tokens
        self._corpora = tokens.sources if isinstance(tokens, Mixture) else (tokens,)
        self.sequence_length = at_least(1, "sequence_length", sequence_length)
        self.batch_size = at_least(1, "batch_size", batch_size)
        self.rank, self.world_size = rank_and_world_size(rank, world_size)
        one_of("documents", documents, get_args(DocumentOption))
        one_of("order", order, get_args(Order))
        one_of("target", target, get_args(Target))
        dtype = batch_dtype(dtype)
        check_drop_behind(drop_behind, self._corpora)
        if documents == "boundaries" and any(corpus.documents is None for corpus in self._corpora):
            message = 'documents="boundaries" needs files that record them (Megatron, datatrove)'
            raise ValueError(message)
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
        self.mixing_radius = mixing_radius_windows(
            mixing_radius, self.stride * self._corpora[0].dtype.itemsize
        )
        self._max_documents = None if max_documents is None else at_least(1, "max_documents", max_documents)
        self._dtype = self._corpora[0].dtype if dtype == "raw" else np.dtype(dtype)
        self._position_dtype = np.dtype("int64" if dtype == "int64" else "int32")
        self._settings: dict[str, Any] = {
            "sequence_length": self.sequence_length,
            "stride": self.stride,
            "target": target,
            "order": order,
            "mixing_radius": self.mixing_radius,
            "seed": self.seed,
            "rank": self.rank,
            "world_size": self.world_size,
            "batch_size": self.batch_size,
            "epochs": None if epochs is None else at_least(1, "epochs", epochs),
            "drop_last": self.drop_last,
            "dtype": dtype,
            "documents": self._packed,
            "threads": environment.threads(threads),
            "lookahead": None if lookahead is None else at_least(1, "lookahead", lookahead),
            "memory_bytes": environment.memory_bytes(memory_bytes),
            "drop_behind": drop_behind,
        }
        super().__init__()
        self._epoch_samples: int | None = self._running().epoch_samples

    def _start(self) -> _native.TokenPipeline:
        mixture = self.tokens if isinstance(self.tokens, Mixture) else None
        return _native.TokenPipeline(
            self._corpora,
            None if mixture is None else mixture.whole_weights,
            "repeat" if mixture is None else mixture.exhausted,
            position=self._next_position(),
            **self._settings,
        )

    def _next(self) -> tuple[Any, int] | None:
        """The next batch, and the position after it."""
        return self._take()

    def _take(self) -> tuple[Any, int] | None:
        """The next batch of the pipeline as arrays, and the position after it."""
        pipeline = self._running()
        found = pipeline.next()
        if found is None:
            return None
        buffer, rows, position, starts = found
        _, y_offset, _, positions_offset, _ = pipeline.layout
        shape = (rows, self.sequence_length)
        x = np.ndarray(shape, self._dtype, buffer)
        y = None if y_offset is None else np.ndarray(shape, self._dtype, buffer, y_offset)
        if positions_offset is None or starts is None:
            return (x if y is None else Batch(x, y)), position
        ends, longest = document_bounds(starts, x.size, self._max_documents)
        position_ids = np.ndarray(shape, self._position_dtype, buffer, positions_offset)
        return PackedBatch(x, y, ends, longest, position_ids), position

    def __len__(self) -> int:
        """Batches of one epoch.

        Raises:
            TypeError: A mixture whose sources repeat has no epochs.
        """
        samples, rows = self._epoch_samples, self.batch_size * self.world_size
        if samples is None:
            message = 'a mixture with exhausted="repeat" has no epochs, and so no length'
            raise TypeError(message)
        return samples // rows if self.drop_last else -(-samples // rows)

    def state_dict(self) -> dict[str, Any]:
        """Where the stream stands, counted in batches that were handed out; equal on all ranks.

        The fingerprint of the data is worked out in the background when the loader starts, so that a state
        can be taken once storage has failed; of more than 1024 files it is read at the first call.

        Returns:
            A small dict of str, int and None, fit for JSON.

        Example:
            >>> from pagestream import TokenLoader
            >>> with TokenLoader("tokens.bin", sequence_length=32, batch_size=4) as loader:
            ...     batch = next(loader)
            ...     loader.state_dict()["samples_consumed"]
            4
        """
        samples = self._epoch_samples
        return {
            "version": STATE_VERSION,
            **self._identity(),
            "epoch": None if samples is None else self._consumed // samples,
            "samples_consumed": self._consumed,
        }

    def _identity(self) -> dict[str, Any]:
        """What must be equal for a position to mean the same."""
        return {
            "fingerprint": self.tokens.fingerprint,
            "order": self.order,
            "order_version": _native.ORDER_VERSION,
            "mixing_radius": self.mixing_radius if self.order == "blocked" else None,
            "seed": self.seed,
            "sequence_length": self.sequence_length,
            "stride": self.stride,
            "target": self.target,
        }

    def load_state_dict(self, state: Mapping[str, Any], *, strict: bool = True) -> None:
        """Goes to the place where a state was taken, on however many ranks, with whatever batch size.

        Args:
            state: From `state_dict`.
            strict: Whether a state of other data or another order is refused. If not, its position is
                taken all the same.

        Raises:
            StateMismatchError: The state is of another version, or is not of this data and order; the
                message names what was found and what was expected.

        Example:
            >>> from pagestream import TokenLoader
            >>> loader = TokenLoader("tokens.bin", sequence_length=32, batch_size=4)
            >>> loader.load_state_dict(loader.state_dict() | {"samples_consumed": 40})
            >>> loader.state_dict()["samples_consumed"]
            40
            >>> loader.load_state_dict(loader.state_dict() | {"seed": 7})
            Traceback (most recent call last):
            ...
            pagestream.errors.StateMismatchError: the state does not belong to this loader: seed is 7 ...
            >>> loader.close()
        """
        self._go_to(saved_position(state, self._identity(), strict=strict))

    def check(self) -> None:
        """Raises if a file is no longer what was opened; see `MappedFile.check`.

        Raises:
            FileChangedError: Cut, grown, rewritten, deleted or replaced.

        Example:
            >>> from pagestream import TokenLoader
            >>> with TokenLoader("tokens.bin", sequence_length=32, batch_size=4) as loader:
            ...     loader.check()
        """
        self.tokens.check()

    def __repr__(self) -> str:
        """What it reads, and where it stands."""
        return (
            f"<{type(self).__name__} {self.order} [{self.batch_size}, {self.sequence_length}] "
            f"of {self.tokens!r}, sample {self._consumed}>"
        )
