"""A lock that a fork does not leave locked."""

from __future__ import annotations

import os
import threading
import weakref


class ForkSafeLock:
    """A reentrant `lock` for a ``with`` block, which a forked child replaces with a new one.

    The child has no thread that could release the parent's lock. A signal handler runs in the main thread,
    possibly inside its ``with`` block, and acquires the lock again. It then finds `taken` set.
    """

    __slots__ = ("__weakref__", "lock", "taken")

    def __init__(self) -> None:
        # Used directly, because an interrupt could come between the lock and the block in a method of our
        # own.
        self.lock = threading.RLock()
        self.taken = False
        _ALL.add(self)


_ALL: weakref.WeakSet[ForkSafeLock] = weakref.WeakSet()


def _renew_all() -> None:
    for lock in _ALL:
        lock.lock = threading.RLock()
        lock.taken = False


os.register_at_fork(after_in_child=_renew_all)
