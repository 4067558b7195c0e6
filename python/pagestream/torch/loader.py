"""`TokenLoader` for PyTorch: batches as tensors, on the CPU or ahead of time on a GPU."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from pagestream.loading.loader import TokenLoader as NumpyTokenLoader
from pagestream.torch._staging import Staging, converted, is_widened_on_device

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Unpack

    from pagestream._common.types import StrPath
    from pagestream.loading.mixture import Mixture
    from pagestream.loading.options import LoaderOptions
    from pagestream.tokens.corpus import TokenCorpus

__all__ = ["TokenLoader"]


class TokenLoader(NumpyTokenLoader):
    """`pagestream.TokenLoader` whose batches are tensors on a device.

    On the CPU tensors share their memory with the loader's buffers. For a GPU batches stay in the type of
    the files until they are there: the buffers are pinned, copies run on a stream of their own while the
    consumer works, and the device widens them. A buffer is used again only after an event says that its
    copy is done.

    Args:
        tokens: As for `pagestream.TokenLoader`, as are all other arguments.
        device: Where the tensors are to be.
        **arguments: The others.

    Raises:
        ValueError: An argument is out of range, or the corpus is shorter than one window.
        OSError: A file cannot be opened.

    Example:
        >>> from pagestream.torch import TokenLoader
        >>> with TokenLoader("tokens.bin", sequence_length=8, batch_size=2, order="sequential") as loader:
        ...     x, y = next(loader)
        >>> x[1], x.dtype
        (tensor([ 8,  9, 10, 11, 12, 13, 14, 15]), torch.int64)
    """

    def __init__(
        self,
        tokens: TokenCorpus | Mixture | StrPath | Sequence[StrPath],
        *,
        device: torch.device | str = "cpu",
        **arguments: Unpack[LoaderOptions],
    ) -> None:
        """Starts reading ahead."""
        self.device = torch.device(device)
        self._staging = Staging(self.device) if self._is_staged() else None
        # What the device makes of the tokens, where that is not their type in the buffers.
        self._wanted: torch.dtype | None = None
        super().__init__(tokens, **arguments)

    def _is_staged(self) -> bool:
        """Whether batches are copied once more, to a device."""
        return self.device.type != "cpu"

    def _start(self) -> Any:  # noqa: ANN401 - the native pipeline
        dtype, file_dtype = self._settings["dtype"], self._corpora[0].dtype
        if self._staging is not None and is_widened_on_device(file_dtype, dtype):
            self._wanted = getattr(torch, dtype)
            self._settings["dtype"] = "raw"
            self._dtype = file_dtype
            self._position_dtype = np.dtype("int32")
        return super()._start()

    def _next(self) -> tuple[Any, int] | None:
        staging = self._staging
        if staging is None:
            found = self._take()
            if found is None:
                return None
            batch, position = found
            return converted(batch, torch.from_numpy, torch.from_numpy), position
        # Only now: until it was returned, an interrupt would have lost it.
        staging.drop_until(self._consumed)
        while not staging.is_full:
            # One that is on its way is not kept back until the next one is gathered.
            if len(staging) and not self._running().is_ready:
                break
            try:
                found = self._take()
            except Exception:
                if not len(staging):
                    raise
                # Those that are on their way come first; then it is raised.
                self._stop()
                break
            if found is None:
                break
            host, position = found
            if self._pipeline is not None:
                first = host[0] if isinstance(host, tuple) else host
                staging.pin(first, self._pipeline.layout[-1])
            staging.send(host, position, self._wanted)
        if not len(staging):
            return None
        return staging.first()

    def _stop(self) -> None:
        try:
            if self._staging is not None:
                self._staging.release()
        finally:
            super()._stop()

    def __del__(self) -> None:
        """Unpins buffers, which the driver would keep otherwise."""
        # The interpreter may be ending, and CUDA before it.
        if getattr(self, "_staging", None) is not None:
            with contextlib.suppress(Exception):
                self.close()

    def _next_position(self) -> int:
        if self._staging is not None and len(self._staging):
            return self._staging.last_position
        return super()._next_position()

    def _forget(self) -> None:
        if self._staging is not None:
            self._staging.forget()
