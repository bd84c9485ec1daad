"""The server: a socket, the guard, and the page behind it."""

from __future__ import annotations

import secrets
import socket
import webbrowser
from contextlib import suppress
from pathlib import Path

import uvicorn

from reverie import api
from reverie.base.errors import UserError
from reverie.base.files import reason
from reverie.studio.app import Studio
from reverie.studio.guard import LOOPBACK, App, Guard
from reverie.studio.trainings import Field

UNREAD = 60_000  # milliseconds after which a connection ends whose other end does not take what it was sent
CONNECTIONS = 256  # at a time; others are told to wait


def listening(host: str | None, port: int) -> socket.socket:
    """Return a socket that is bound; port 0 is any that is free."""
    try:
        family = socket.AF_INET6 if host is not None and ":" in host else socket.AF_INET
        opened = socket.socket(family, socket.SOCK_STREAM)
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if hasattr(socket, "TCP_USER_TIMEOUT"):
            opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, UNREAD)
        opened.bind((host if host is not None else "127.0.0.1", port))
    except (OSError, OverflowError) as error:
        why = reason(error) if isinstance(error, OSError) else "no such port"
        raise UserError(f"cannot listen at {host or '127.0.0.1'}:{port}: {why}; choose another --port or --host") from None
    return opened


def guarded(app: App, token: str, port: int, host: str | None = None) -> Guard:
    """Return the guard of a server that is bound to a host, None for this machine alone."""
    names = LOOPBACK if host is None else (*LOOPBACK, host.lower(), socket.gethostname().lower())
    return Guard(app, port=port, token=token, names=names, public=host is not None)


class Server(uvicorn.Server):
    """A server that says where it is when it has started."""

    def __init__(self, config: uvicorn.Config, address: str, browser: bool) -> None:
        super().__init__(config)
        self.address, self.browser = address, browser

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start, print the address, and open the page."""
        await super().startup(sockets)
        print(f"studio:  {self.address}\nstop it with Ctrl-C; trainings that it has started go on", flush=True)
        if self.browser:
            webbrowser.open(self.address)


def serve(folder: Path, form: list[Field], *, host: str | None = None, port: int = 0, browser: bool = True) -> None:
    """Serve the page of a folder until Ctrl-C."""
    api.load_all()
    studio, token = Studio(folder, form), secrets.token_urlsafe(24)
    opened = listening(host, port)
    bound = opened.getsockname()[1]
    every = host in ("0.0.0.0", "::")
    shown = "127.0.0.1" if host is None else socket.gethostname().lower() if every else f"[{host}]" if ":" in host else host
    config = uvicorn.Config(
        guarded(studio.app(), token, bound, host), log_level="warning", access_log=False, limit_concurrency=CONNECTIONS,
        timeout_graceful_shutdown=1, server_header=False, date_header=False, ws="none",
    )  # fmt: skip
    with suppress(KeyboardInterrupt):  # which comes again when everything has stopped
        Server(config, f"http://{shown}:{bound}/?token={token}", browser).run([opened])
