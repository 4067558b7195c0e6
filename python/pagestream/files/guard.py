"""The guard against bus errors: `guard`."""

from __future__ import annotations

from pagestream import _native
from pagestream._common.public import set_module

__all__ = ["guard"]


@set_module("pagestream")
def guard(worker_id: int | None = None) -> bool:  # noqa: ARG001
    """Puts the handler of bus errors back in front of handlers that came later.

    That handler is the reason why a file that is truncated while arrays over it are used raises
    `MappedReadError` and does not end the process. Other code replaces it: ``faulthandler.enable()``,
    ``signal.signal(signal.SIGBUS, ...)``, and each worker of torch's ``DataLoader`` when it begins. Every
    pagestream call that reads, maps or checks a file puts the handler back; `get_tensor` does so every 16th
    call. Code that makes no pagestream call, but only slices arrays that it got before, calls this function
    after such a replacement.

    Args:
        worker_id: Ignored. It allows the function to be a ``worker_init_fn``.

    Returns:
        Whether the handler is in front. It is not with ``PAGESTREAM_FAULT_GUARD=off``.

    Examples:
        >>> import faulthandler, pagestream
        >>> faulthandler.enable()
        >>> pagestream.guard()
        True

        In a `DataLoader` whose data set keeps arrays::

            DataLoader(dataset, num_workers=4, worker_init_fn=pagestream.guard)
    """
    return _native.guard()
