"""Threads that share an object take turns, also after a fork."""

from __future__ import annotations

import os
import threading
import weakref


class Turns:
    """Has a `lock` for a ``with`` block; after a fork another, as nobody is there to release the old one.

    A signal handler runs in the middle of the main thread's turn, and gets the lock too. `taken` is how it
    sees that: who gets the lock and finds it set is inside a turn of its own thread.
    """

    __slots__ = ("__weakref__", "lock", "taken")

    def __init__(self) -> None:
        # Used as it is: an interrupt cannot come between its taking and the block, as in methods of ours.
        self.lock = threading.RLock()
        self.taken = False
        _ALL.add(self)


_ALL: weakref.WeakSet[Turns] = weakref.WeakSet()


def _renew_all() -> None:
    for turns in _ALL:
        turns.lock = threading.RLock()
        turns.taken = False


os.register_at_fork(after_in_child=_renew_all)
