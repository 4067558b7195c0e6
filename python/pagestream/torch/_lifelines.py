"""Connections that show one rank that the process of another rank has ended.

When a process dies, the kernel closes its connections. A stopped or slow process keeps them. No data is sent,
and no code accepts a connection: the kernel completes it and holds it in the backlog of the listening socket.
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

# Usually one rank watches. Others take over when the ranks between them are done.
_BACKLOG = 16
# The family and local address for each store. Resolving the name of a store again may take seconds.
_reaching: WeakKeyDictionary[Store, tuple[int, str]] = WeakKeyDictionary()
_held: WeakSet[Lifeline] = WeakSet()


class Lifeline:
    """The listening socket of a rank that others watch.

    Attributes:
        address: Host and port for the others. Empty if this rank could not listen.
    """

    address: str = ""

    def __init__(self, store: Store) -> None:
        """Listens at the local address that leads to the store, if the store has an address."""
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
        """Returns the lifeline."""
        return self

    def __exit__(self, *_: object) -> None:
        """Closes the socket."""
        self.close()

    def close(self) -> None:
        """Closes the socket. Watching ranks cannot tell this from the end of the process."""
        if self._socket is not None:
            self._socket.close()


class Watch:
    """A connection to the lifeline of another rank."""

    def __init__(self, address: str) -> None:
        """Starts to connect. If that fails, `is_cut` stays false."""
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
        """Returns whether the connection was established and has been closed since."""
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
        """Closes the connection."""
        if self._socket is not None:
            self._socket.close()


def _reaches(store: Store) -> tuple[int, str]:
    """Returns the address family and the local address that lead to a store.

    Raises:
        OSError: The store is a file, or its name cannot be resolved.
    """
    while isinstance(store, PrefixStore):
        store = store.underlying_store
    if not isinstance(store, TCPStore):
        message = "the store is a file"
        raise OSError(message)
    family, kind, protocol, _, place = socket.getaddrinfo(store.host, store.port, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind, protocol) as probe:
        probe.connect(place)  # a datagram socket sends nothing to connect
        return family, probe.getsockname()[0]


def _let_go() -> None:
    """Closes lifelines in a forked child, which would keep them open after its parent has died."""
    for each in list(_held):
        each.close()


os.register_at_fork(after_in_child=_let_go)
