"""The guard against bus errors: `guard`."""

from __future__ import annotations

from pagestream import _native

__all__ = ["guard"]


def guard(worker_id: int | None = None) -> bool:  # noqa: ARG001
    """Puts the handler of bus errors back in front of handlers that came later.

    A file that is cut while arrays over it are used raises `MappedReadError` because of that handler.
    Others replace it: ``faulthandler.enable()``, ``signal.signal(signal.SIGBUS, ...)``, and each worker of
    torch's ``DataLoader`` when it begins. Every call of this package that reads, maps or checks a file undoes
    that; of many calls of `get_tensor`, which are short, every 16th. Code that calls nothing of this package,
    but only slices arrays that it got before, calls this function after such a replacement.

    Args:
        worker_id: Ignored. It is there so that the function can be a ``worker_init_fn``.

    Returns:
        Whether the handler is in front. It is not with ``PAGESTREAM_FAULT_GUARD=off``.

    Example:
        >>> import faulthandler, pagestream
        >>> faulthandler.enable()
        >>> pagestream.guard()
        True

        In a `DataLoader` whose data set keeps arrays::

            DataLoader(dataset, num_workers=4, worker_init_fn=pagestream.guard)
    """
    return _native.guard()
