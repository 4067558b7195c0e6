"""Threads that share an object take turns, also after a fork."""

from __future__ import annotations

import os
import threading
import weakref


class Turns:
    """Has a `lock` for a ``with`` block; after a fork another, as nobody is there to release the old one."""

    __slots__ = ("__weakref__", "lock")

    def __init__(self) -> None:
        # Used as it is: an interrupt cannot come between its taking and the block, as in methods of ours.
        self.lock = threading.Lock()
        _ALL.add(self)


_ALL: weakref.WeakSet[Turns] = weakref.WeakSet()


def _renew_all() -> None:
    for turns in _ALL:
        turns.lock = threading.Lock()


os.register_at_fork(after_in_child=_renew_all)
