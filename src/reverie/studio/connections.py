"""Limits on connections that have not shown the token: how many there may be, and for how long."""

from __future__ import annotations

import asyncio
import os
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

UNAUTHENTICATED = 384  # connections at a time; of more, the oldest of the peer that has most is closed
HEADER_TIMEOUT = 10.0  # seconds in which a connection must bring a request with the token
TABLES = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))
ESTABLISHED, ROOT = "01", 0  # a state of a connection, and the user who may read all that we have anyway


class LimitedProtocol(H11Protocol):
    """HTTP/1.1 whose connections are closed unless an authenticated request comes in time; newcomers are always let in."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.app_state = {**self.app_state, "authenticate": self.authenticate, "unread": self.unread}
        self.authenticated, self.opened = False, self.loop.time()
        self.timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start the time-out, and close the oldest where too many are unauthenticated."""
        super().connection_made(transport)
        self.timer = self.loop.call_later(HEADER_TIMEOUT, self._expire)
        waiting = [one for one in self.connections if isinstance(one, LimitedProtocol) and not one.authenticated]
        if len(waiting) > UNAUTHENTICATED:
            busiest = Counter(one.peer for one in waiting).most_common(1)[0][0]
            min((one for one in waiting if one.peer == busiest), key=lambda one: one.opened).abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the time-out."""
        self._stop_timer()
        super().connection_lost(exc)

    @property
    def peer(self) -> str:
        """The address of the other end, without its port."""
        return self.client[0] if self.client else ""

    def authenticate(self) -> None:
        """Note that a request on this connection has shown the token."""
        self.authenticated = True
        self._stop_timer()

    def unread(self) -> int:
        """Return how many bytes were sent that the other end has not taken, as far as the system tells (tcp(7), SIOCOUTQ)."""
        held = bytearray(4)
        try:
            import fcntl
            import termios

            fcntl.ioctl(self.transport.get_extra_info("socket").fileno(), termios.TIOCOUTQ, held)
        except (ImportError, OSError, AttributeError):
            pass
        return int.from_bytes(held, sys.byteorder) + self.transport.get_write_buffer_size()

    def abort(self) -> None:
        """Close the connection at once."""
        self.connections.discard(self)  # the transport tells of it later
        self.transport.abort()

    def _expire(self) -> None:
        if not self.authenticated:
            self.abort()

    def _stop_timer(self) -> None:
        if self.timer is not None:
            self.timer.cancel()


def users_of(client: int, server: int) -> set[int] | None:
    """Return the users of this machine that have a connection from one port to another, None where the system does not say.

    Linux lists connections with the user of each in /proc/net (proc_pid_net(5)).
    """
    tables = [table for table in TABLES if os.access(table, os.R_OK)]
    if not tables:
        return None
    lines = [line.split() for table in tables for line in table.read_text().splitlines()[1:]]
    ports = [(words[1].rpartition(":")[2], words[2].rpartition(":")[2], words[3], words[7]) for words in lines]
    wanted = (f"{client:04X}", f"{server:04X}", ESTABLISHED)
    return {int(user) for *found, user in ports if tuple(found) == wanted}


def may_exchange(client: tuple[str, int] | None, server: int) -> bool:
    """Tell whether the peer of a connection is a program of our own user, or of root, where the system tells."""
    users = users_of(client[1], server) if client else set()
    return users is None or (bool(users) and users <= {os.getuid(), ROOT})
