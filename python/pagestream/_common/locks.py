"""A lock that a fork does not leave locked."""

from __future__ import annotations

import os
import threading
import weakref


class ForkSafeLock:
    """A reentrant `lock` for a ``with`` block that a fork's child gets anew.

    In the child no thread is left that could release the lock of the parent. A signal handler runs in the
    main thread, possibly inside its ``with`` block, and acquires the lock again; it finds `taken` set then.
    """

    __slots__ = ("__weakref__", "lock", "taken")

    def __init__(self) -> None:
        # Used directly: an interrupt cannot come between taking it and the block, as in a method of ours.
        self.lock = threading.RLock()
        self.taken = False
        _ALL.add(self)


_ALL: weakref.WeakSet[ForkSafeLock] = weakref.WeakSet()


def _renew_all() -> None:
    for lock in _ALL:
        lock.lock = threading.RLock()
        lock.taken = False


os.register_at_fork(after_in_child=_renew_all)
