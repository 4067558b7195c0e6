"""Connections by which one rank sees that the process of another has ended, however it ended.

The kernel closes a process's connections with it, and those of a process that is stopped or slow it keeps.
Nothing is ever sent on them, and nobody accepts them: the kernel does, up to a backlog.
"""

from __future__ import annotations

import contextlib
import os
import socket
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary, WeakSet

from torch._C._distributed_c10d import PrefixStore, TCPStore

if TYPE_CHECKING:
    from typing import Self

    from torch._C._distributed_c10d import Store

# Watched by one rank, and by those that come after it once others are done.
_BACKLOG = 16
# By which of its addresses this machine reaches a store: to ask for the name again may take seconds.
_reaching: WeakKeyDictionary[Store, tuple[int, str]] = WeakKeyDictionary()
_held: WeakSet[Lifeline] = WeakSet()


class Lifeline:
    """The end of the rank that is watched.

    Attributes:
        address: Where others connect to. Empty where they cannot.
    """

    address: str = ""

    def __init__(self, store: Store) -> None:
        """Listens at the address by which this machine reaches the store, if that has one."""
        self._socket: socket.socket | None = None
        try:
            family, host = _reaching.get(store) or _reaching.setdefault(store, _reaches(store))
            self._socket = socket.socket(family, socket.SOCK_STREAM)
            self._socket.bind((host, 0))
            self._socket.listen(_BACKLOG)
        except OSError:
            self.close()
            return
        self.address = f"{host} {self._socket.getsockname()[1]}"
        _held.add(self)

    def __enter__(self) -> Self:
        """Returns it."""
        return self

    def __exit__(self, *_: object) -> None:
        """Lets go of it."""
        self.close()

    def close(self) -> None:
        """Lets go of it: to those that watch this is what the end of the process is."""
        if self._socket is not None:
            self._socket.close()


class Watch:
    """The end of a rank that watches another."""

    def __init__(self, address: str) -> None:
        """Begins to connect. Where no connection comes about, none is ever cut."""
        self._socket: socket.socket | None = None
        self.stands = False
        if not address:
            return
        host, port = address.split(" ")
        self._socket = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
        self._socket.settimeout(0)
        with contextlib.suppress(OSError):
            self._socket.connect_ex((host, int(port)))

    def is_cut(self) -> bool:
        """Returns whether the connection stood once, and stands no more."""
        if self._socket is None:
            return False
        try:
            if not self.stands:
                self._socket.getpeername()
                self.stands = True
            self._socket.recv(1)
        except BlockingIOError:
            return False
        except OSError:
            return self.stands
        return True

    def close(self) -> None:
        """Ends it."""
        if self._socket is not None:
            self._socket.close()


def _reaches(store: Store) -> tuple[int, str]:
    """Returns the family and the address by which this machine reaches a store.

    Raises:
        OSError: The store has no address, or it cannot be found.
    """
    while isinstance(store, PrefixStore):
        store = store.underlying_store
    if not isinstance(store, TCPStore):
        message = "the store is a file"
        raise OSError(message)
    family, kind, protocol, _, place = socket.getaddrinfo(store.host, store.port, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind, protocol) as probe:
        probe.connect(place)  # of datagrams: nothing is sent
        return family, probe.getsockname()[0]


def _let_go() -> None:
    """Closes in a child of fork(2) what would outlive its parent there."""
    for each in list(_held):
        each.close()


os.register_at_fork(after_in_child=_let_go)
