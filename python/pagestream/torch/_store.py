"""Queries the store of a process group in such a way that no thread waits forever for a silent store."""

from __future__ import annotations

import os
import queue
import threading
from typing import TYPE_CHECKING, Any, Generic, TypeVar
from weakref import WeakKeyDictionary

import torch
from torch._C._distributed_c10d import PrefixStore

from pagestream._common.threads import BackgroundThread

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch._C._distributed_c10d import Store

T = TypeVar("T")


# Unused connections. For a new connection, torch resolves the name of the store's address, which takes
# seconds if no name server answers.
_idle: WeakKeyDictionary[Store, list[Store]] = WeakKeyDictionary()
# Connections that a forked child inherited. The child does not close them: a file store counts its users.
_inherited: list[dict[Store, list[Store]]] = []


def _begin_anew() -> None:
    _inherited.append(dict(_idle))
    _idle.clear()


os.register_at_fork(after_in_child=_begin_anew)


def connection(store: Store) -> Store:
    """Returns a separate connection to a store, for another thread.

    Raises:
        RuntimeError: torch is too old.
    """
    if not hasattr(store, "clone"):
        message = (
            "process_group needs torch 2.8 or newer, whose stores several threads can ask at a time; "
            f"this is {torch.__version__}"
        )
        raise RuntimeError(message)
    try:
        return _idle[store].pop()
    except (KeyError, IndexError):
        return store.clone()


def keep(store: Store, connected: Store) -> None:
    """Keeps a working connection to a store for later."""
    _idle.setdefault(store, []).append(connected)


class Answer(Generic[T]):
    """The future answer to a question."""

    def __init__(self, question: Callable[[Store], T]) -> None:
        self._question = question
        self._is_there = threading.Event()
        self._value: T
        self._error: BaseException | None = None

    def find(self, connected: Callable[[], Store]) -> bool:
        """Asks the question, and returns whether the store has answered."""
        try:
            self._value = self._question(connected())
            has_answered = True
        except BaseException as error:  # noqa: BLE001 - `value` raises it
            self._error = error
            has_answered = False
        self._is_there.set()
        return has_answered

    def comes_within(self, seconds: float) -> bool:
        """Waits for the answer, and returns whether it has arrived."""
        return self._is_there.wait(seconds)

    def value(self) -> T:
        """Returns the answer, or raises the exception that replaced it."""
        try:
            if self._error is not None:
                raise self._error
            return self._value
        finally:
            # Otherwise the error, its traceback and this object would keep each other alive.
            self._error = None


class Questions(BackgroundThread):
    """A thread that asks the store one question after another, all about the keys of one load.

    Calls of torch's stores wait without a time-out for a stopped store. In that case only this thread is left
    behind, and not the thread that asked.

    Attributes:
        prefix: The prefix of this load's keys, available after the first answer.
    """

    prefix: str

    def __init__(self, store: Store, rank: int) -> None:
        super().__init__("pagestream-store")
        self._group_store, self._rank = store, rank
        self._own: Store | None = None
        self._store: Store | None = None
        self._asked: queue.SimpleQueue[Answer[Any] | None] = queue.SimpleQueue()

    def run(self) -> None:
        """Answers questions until the end."""
        is_sound = True
        while (answer := self._asked.get()) is not None:
            is_sound &= answer.find(self._connected)
            del answer
        if self._own is not None and is_sound:
            keep(self._group_store, self._own)

    def _connected(self) -> Store:
        if self._store is None:
            self._own = connection(self._group_store)
            # All ranks begin the same loads in the same order.
            self.prefix = f"pagestream/{self._own.add(f'pagestream/loads/{self._rank}', 1)}"
            self._store = PrefixStore(self.prefix, self._own)
        return self._store

    def ask(self, question: Callable[[Store], T]) -> Answer[T]:
        """Queues a question, and returns its future answer."""
        answer = Answer(question)
        self._asked.put(answer)
        return answer

    def end(self) -> None:
        """Ends the thread after all questions are answered."""
        self._asked.put(None)
