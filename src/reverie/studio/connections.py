"""Limits on unauthenticated connections: their number and their lifetime."""

from __future__ import annotations

import asyncio
import os
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

MAX_UNAUTHENTICATED = 384  # connections; beyond it, the oldest one of the peer with the most connections is closed
HEADER_TIMEOUT = 10.0  # seconds until the first authenticated request
TABLES = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))
ESTABLISHED, ROOT = "01", 0  # state of a connection; user id of root, which can read all files


class LimitedProtocol(H11Protocol):
    """HTTP/1.1 that closes connections without an authenticated request in time; new connections are always accepted."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.app_state = {**self.app_state, "authenticate": self.authenticate, "unread": self.unread}
        self.authenticated, self.opened = False, self.loop.time()
        self.timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start the timeout, and close the oldest connection if too many are unauthenticated."""
        super().connection_made(transport)
        self.timer = self.loop.call_later(HEADER_TIMEOUT, self._expire)
        waiting = [
            connection
            for connection in self.connections
            if isinstance(connection, LimitedProtocol) and not connection.authenticated
        ]
        if len(waiting) > MAX_UNAUTHENTICATED:
            busiest = Counter(connection.peer for connection in waiting).most_common(1)[0][0]
            min(
                (connection for connection in waiting if connection.peer == busiest), key=lambda connection: connection.opened
            ).abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the timeout."""
        self._stop_timer()
        super().connection_lost(exc)

    @property
    def peer(self) -> str:
        """The address of the peer, without its port."""
        return self.client[0] if self.client else ""

    def authenticate(self) -> None:
        """Mark the connection as authenticated."""
        self.authenticated = True
        self._stop_timer()

    def unread(self) -> int:
        """Return the bytes sent but not acknowledged by the peer, where the system reports them (tcp(7), SIOCOUTQ)."""
        buffer = bytearray(4)
        try:
            import fcntl
            import termios

            fcntl.ioctl(self.transport.get_extra_info("socket").fileno(), termios.TIOCOUTQ, buffer)
        except (ImportError, OSError, AttributeError):
            pass
        return int.from_bytes(buffer, sys.byteorder) + self.transport.get_write_buffer_size()

    def abort(self) -> None:
        """Close the connection at once."""
        self.connections.discard(self)  # before the transport calls connection_lost
        self.transport.abort()

    def _expire(self) -> None:
        if not self.authenticated:
            self.abort()

    def _stop_timer(self) -> None:
        if self.timer is not None:
            self.timer.cancel()


def users_of(client: int, server: int) -> set[int] | None:
    """Return the user ids of local connections from one port to another, None if the system does not report them.

    Linux lists connections and their user ids in /proc/net (proc_pid_net(5)).
    """
    tables = [table for table in TABLES if os.access(table, os.R_OK)]
    if not tables:
        return None
    lines = [line.split() for table in tables for line in table.read_text().splitlines()[1:]]
    ports = [(words[1].rpartition(":")[2], words[2].rpartition(":")[2], words[3], words[7]) for words in lines]
    expected = (f"{client:04X}", f"{server:04X}", ESTABLISHED)
    return {int(user) for *key, user in ports if tuple(key) == expected}


def may_redeem_code(client: tuple[str, int] | None, server: int) -> bool:
    """Return whether a peer is a process of the same user or of root; True if the system does not report it."""
    users = users_of(client[1], server) if client else set()
    return users is None or (bool(users) and users <= {os.getuid(), ROOT})
