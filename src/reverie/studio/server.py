"""The server: a socket, the guard, and the page behind it."""

from __future__ import annotations

import secrets
import socket
import threading
import webbrowser
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

import uvicorn

from reverie import api
from reverie.base.errors import UserError
from reverie.base.files import reason
from reverie.studio.app import Studio
from reverie.studio.connections import LimitedProtocol, may_exchange
from reverie.studio.guard import LOOPBACK, App, Guard
from reverie.studio.trainings import Field

UNREAD = 60_000  # milliseconds after which a connection ends whose other end does not take what it was sent
UNSENT = 2**17  # bytes of one connection that the system keeps, so that it is soon known who does not read
EVERYWHERE = ("0.0.0.0", "::")  # addresses that stand for all interfaces


def listening(host: str | None, port: int) -> socket.socket:
    """Return a socket that is bound; port 0 is any that is free.  All interfaces are bound only where they are named."""
    try:
        family = socket.AF_INET6 if host is not None and ":" in host else socket.AF_INET
        opened = socket.socket(family, socket.SOCK_STREAM)
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, UNSENT)
        if hasattr(socket, "TCP_USER_TIMEOUT"):
            opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, UNREAD)
        opened.bind((host if host is not None else "127.0.0.1", port))
    except (OSError, OverflowError) as error:
        why = reason(error) if isinstance(error, OSError) else "no such port"
        raise UserError(f"cannot listen at {host or '127.0.0.1'}:{port}: {why}; choose another --port or --host") from None
    if opened.getsockname()[0] in EVERYWHERE and host not in EVERYWHERE:
        opened.close()
        raise UserError(f"--host {host!r} would listen on all interfaces; give an address, or 0.0.0.0 if all are meant")
    return opened


def guarded(app: App, token: str, port: int, host: str | None = None) -> Guard:
    """Return the guard of a server that is bound to a host, None for this machine alone."""
    names = LOOPBACK if host is None else (*LOOPBACK, host.lower(), socket.gethostname().lower())
    trusts = partial(may_exchange, server=port)
    return Guard(app, port=port, token=token, names=names, public=host is not None, trusts=trusts)


class Server(uvicorn.Server):
    """A server that says where it is when it has started.  address: of the page; opens: returns what the browser is to open."""

    def __init__(self, config: uvicorn.Config, address: str, opens: Callable[[], str] | None) -> None:
        super().__init__(config)
        self.address, self.opens = address, opens

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start, print the address, and open the page."""
        await super().startup(sockets)
        print(f"studio:  {self.address}\nstop it with Ctrl-C; trainings that it has started go on", flush=True)
        if self.opens is not None:  # in a thread, as some browsers keep their caller waiting until they are closed
            threading.Thread(target=webbrowser.open, args=(self.opens(),), daemon=True).start()


def serve(folder: Path, form: list[Field], *, host: str | None = None, port: int = 0, browser: bool = True) -> None:
    """Serve the page of a folder until Ctrl-C."""
    api.load_all()
    studio, token = Studio(folder, form), secrets.token_urlsafe(24)
    opened = listening(host, port)
    bound = opened.getsockname()[1]
    shown = "127.0.0.1" if host is None else host
    if host in EVERYWHERE:
        shown = socket.gethostname().lower()
    origin = f"http://{f'[{shown}]' if ':' in shown else shown}:{bound}"
    guard = guarded(studio.app(), token, bound, host)
    config = uvicorn.Config(
        guard, log_level="warning", access_log=False, http=LimitedProtocol, timeout_graceful_shutdown=1, server_header=False,
        date_header=False, ws="none",
    )  # fmt: skip
    opens = (lambda: f"{origin}/?code={guard.new_code()}") if browser else None
    with suppress(KeyboardInterrupt):  # which comes again when everything has stopped
        Server(config, f"{origin}/?token={token}", opens).run([opened])
