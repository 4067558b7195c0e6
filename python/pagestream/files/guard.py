"""The guard against bus errors: `guard`."""

from __future__ import annotations

from pagestream import _native
from pagestream._common.public import set_module

__all__ = ["guard"]


@set_module("pagestream")
def guard(worker_id: int | None = None) -> bool:  # noqa: ARG001
    """Puts the handler of bus errors back in front of handlers that were installed later.

    If a file is truncated while arrays over it are in use, this handler makes the program raise
    `MappedReadError` instead of dying. Other code replaces the handler: ``faulthandler.enable()``,
    ``signal.signal(signal.SIGBUS, ...)``, and each worker of torch's ``DataLoader`` when it starts. Every
    pagestream call that reads, maps or checks a file puts the handler back; `get_tensor` does so in every
    16th call. Code that only slices existing arrays, without pagestream calls, should call this function
    after such a replacement.

    Args:
        worker_id: Ignored. It lets the function serve as a ``worker_init_fn``.

    Returns:
        Whether the handler is in front. It is not if ``PAGESTREAM_FAULT_GUARD=off``.

    Examples:
        >>> import faulthandler, pagestream
        >>> faulthandler.enable()
        >>> pagestream.guard()
        True

        In a `DataLoader` whose data set keeps arrays::

            DataLoader(dataset, num_workers=4, worker_init_fn=pagestream.guard)
    """
    return _native.guard()
