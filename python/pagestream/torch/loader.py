"""`TokenLoader` for PyTorch: batches as tensors, on the CPU or ahead of time on a GPU."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable
from typing import Any, Literal, Unpack, overload

import torch

from pagestream._common.keywords import advises
from pagestream._common.public import set_module
from pagestream.devices import constructors
from pagestream.devices.copy_device import CopyDevice
from pagestream.loading.batches import Batch, PackedBatch
from pagestream.loading.host_batches import HostBatches
from pagestream.loading.loader import BatchT_co, NoDocuments, PairTarget, TokenSource
from pagestream.loading.loader import TokenLoader as NumpyTokenLoader
from pagestream.loading.options import BatchDtype, LoaderOptions, StreamOptions, Target
from pagestream.torch._staging import STAGED_BUFFERS, StagedBatches, converted, is_widened_on_device

__all__ = ["TokenLoader"]


def _with_arguments_of(base: type, function: Callable[..., None]) -> inspect.Signature:
    """Returns the signature of a function that passes its ``**arguments`` on to a class."""
    own = inspect.signature(function)
    passed_on = [
        each for name, each in inspect.signature(base).parameters.items() if name not in own.parameters
    ]
    kept = [each for each in own.parameters.values() if each.kind is not inspect.Parameter.VAR_KEYWORD]
    return own.replace(parameters=[*kept, *passed_on])


@set_module("pagestream.torch")
class TokenLoader(NumpyTokenLoader[BatchT_co]):
    """`pagestream.TokenLoader` whose batches are tensors on a device.

    On the CPU, tensors share their memory with the loader's buffers. For a GPU, batches keep the type of the
    files until they reach the device: the buffers are pinned, copies run on a separate stream while the
    consumer works, and the device widens the tokens. A buffer is reused only after an event shows that its
    copy is done.

    Its other keyword arguments are those of `pagestream.TokenLoader`, which describes them in full:

    * `sequence_length`: number of tokens of x in a window; required.
    * `batch_size`: number of windows in a batch on this rank; required.
    * `order`: ``"shuffled"`` (default), ``"random"``, ``"sequential"`` or ``"blocked"``.
    * `seed`: determines the order; 0 by default.
    * `epochs`: number of epochs per ``for`` loop, or None for an endless stream; 1 by default.
    * `stride`: number of tokens between the beginnings of windows; None by default.
    * `target`: ``"shift"`` (default), ``"block"`` or ``"none"``.
    * `documents`: ``"ignore"`` (default), or ``"boundaries"`` for `PackedBatch`.
    * `end_token`: the id that ends each document; None by default.
    * `begin_token`: the id that begins each document; None by default.
    * `max_documents`: pads ``cu_seqlens`` to this many documents; None by default.
    * `drop_last`: whether to drop a short global batch at the end of a loop; True by default.
    * `rank`: the global rank of this process; None (default) finds it.
    * `world_size`: the number of ranks; None (default) finds it.
    * `dtype`: ``"int64"`` (default), ``"int32"``, or ``"raw"`` for the type of the files.
    * `lookahead`: number of batches whose pages are requested ahead; None (default) adapts it.
    * `threads`: number of gathering threads; None (default) adapts it.
    * `memory_bytes`: limit on buffers and pages requested ahead; None by default.
    * `mmap_mode`: how to open the files; None by default.
    * `mixing_radius`: number of windows within which ``"blocked"`` mixes; None by default.
    * `drop_behind`: pages to drop once they are gathered, ``"resident"`` or ``"cache"``; None by
      default.
    * `vocabulary`: number of ids; a token that is not below it is an error; None by default.

    Args:
        tokens: As for `pagestream.TokenLoader`.
        device: Device of the tensors; ``"cpu"`` by default.

    Raises:
        ValueError: An argument is out of range, or the corpus is shorter than one window.
        OSError: A file cannot be opened.

    Examples:
        >>> from pagestream.torch import TokenLoader
        >>> with TokenLoader("tokens.bin", sequence_length=8, batch_size=2, order="sequential") as loader:
        ...     x, y = next(loader)
        >>> x[1], x.dtype
        (tensor([ 8,  9, 10, 11, 12, 13, 14, 15]), torch.int64)
    """

    @overload
    def __init__(
        self: TokenLoader[Batch[torch.Tensor]],
        tokens: TokenSource,
        *,
        device: torch.device | str = ...,
        target: PairTarget = ...,
        documents: NoDocuments = ...,
        dtype: BatchDtype = ...,
        **arguments: Unpack[StreamOptions],
    ) -> None: ...
    @overload
    def __init__(
        self: TokenLoader[torch.Tensor],
        tokens: TokenSource,
        *,
        device: torch.device | str = ...,
        target: Literal["none"],
        documents: NoDocuments = ...,
        dtype: BatchDtype = ...,
        **arguments: Unpack[StreamOptions],
    ) -> None: ...
    @overload
    def __init__(
        self: TokenLoader[PackedBatch[torch.Tensor]],
        tokens: TokenSource,
        *,
        device: torch.device | str = ...,
        target: Target = ...,
        documents: Literal["boundaries"],
        end_token: int | None = ...,
        begin_token: int | None = ...,
        max_documents: int | None = ...,
        dtype: BatchDtype = ...,
        **arguments: Unpack[StreamOptions],
    ) -> None: ...
    @overload
    def __init__(
        self: TokenLoader[Any],
        tokens: TokenSource,
        *,
        device: torch.device | str = ...,
        **arguments: Unpack[LoaderOptions],
    ) -> None: ...
    @advises("TokenLoader")
    def __init__(
        self,
        tokens: TokenSource,
        *,
        device: torch.device | str = "cpu",
        **arguments: Unpack[LoaderOptions],
    ) -> None:
        """Starts reading ahead."""
        self.device = torch.device(device)
        super().__init__(tokens, **arguments)

    # `inspect.signature`, and so notebooks and editors, show all arguments.
    __init__.__signature__ = _with_arguments_of(NumpyTokenLoader, __init__)  # type: ignore[attr-defined]

    def _copy_device(self) -> CopyDevice | None:
        """Returns the device that receives the batches, or None if they stay in host memory."""
        return CopyDevice(self.device) if self.device.type != "cpu" else None

    def _make_batches(self, settings: dict[str, Any]) -> HostBatches | StagedBatches:
        device, wanted = self._copy_device(), None
        if device is None:
            return TensorBatches(self._corpora, settings, self._max_documents)
        self.device = device.device
        dtype = settings["dtype"]
        # A batch with several types has no single type before it is widened.
        file_dtype = self._corpora[0].dtype
        is_uniform = all(corpus.dtype == file_dtype for corpus in self._corpora)
        if is_uniform and is_widened_on_device(file_dtype, dtype):
            wanted = getattr(torch, dtype)
            settings = {**settings, "dtype": "raw"}
        host = HostBatches(self._corpora, settings, self._max_documents, STAGED_BUFFERS)
        return StagedBatches(host, device, wanted)

    def __del__(self) -> None:
        """Unpins buffers. Otherwise the driver would keep them."""
        if isinstance(getattr(self, "_batches", None), StagedBatches):
            with contextlib.suppress(Exception):
                self.close()


class TensorBatches(HostBatches):
    """Batches in host memory as tensors, which share the arrays' memory."""

    def take(self, position: int) -> tuple[Any, int] | None:
        """Returns the next batch, and the position after it; None at the end."""
        found = super().take(position)
        if found is None:
            return None
        return converted(found[0], constructors.from_numpy, constructors.from_numpy), found[1]
