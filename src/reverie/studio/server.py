"""The server of the studio: a socket, the guard, and the application behind it."""

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
from reverie.studio.connections import LimitedProtocol, may_redeem_code
from reverie.studio.guard import LOOPBACK, App, Guard
from reverie.studio.trainings import FormField

USER_TIMEOUT = 60_000  # milliseconds after which a connection with unacknowledged data is closed
SEND_BUFFER = 2**17  # bytes per connection; small, so that stalled clients are detected soon
ALL_INTERFACES = ("0.0.0.0", "::")


def open_socket(host: str | None, port: int) -> socket.socket:
    """Return a bound socket; port 0 is any free one.  All interfaces are bound only by their explicit address."""
    try:
        family = socket.AF_INET6 if host is not None and ":" in host else socket.AF_INET
        listener = socket.socket(family, socket.SOCK_STREAM)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER)
        if hasattr(socket, "TCP_USER_TIMEOUT"):
            listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, USER_TIMEOUT)
        listener.bind((host if host is not None else "127.0.0.1", port))
    except (OSError, OverflowError) as error:
        why = reason(error) if isinstance(error, OSError) else "no such port"
        raise UserError(f"cannot listen at {host or '127.0.0.1'}:{port}: {why}; choose another --port or --host") from None
    if listener.getsockname()[0] in ALL_INTERFACES and host not in ALL_INTERFACES:
        listener.close()
        raise UserError(f"--host {host!r} would listen on all interfaces; give an address, or 0.0.0.0 for all interfaces")
    return listener


def make_guard(app: App, token: str, port: int, host: str | None = None) -> Guard:
    """Return the guard of a server that is bound to a host, None for this machine only."""
    names = LOOPBACK if host is None else (*LOOPBACK, host.lower(), socket.gethostname().lower())
    trusts = partial(may_redeem_code, server=port)
    return Guard(app, port=port, token=token, names=names, public=host is not None, trusts=trusts)


class Server(uvicorn.Server):
    """A server that prints its address after startup.  browser_url: returns the address to open in the browser, if any."""

    def __init__(self, config: uvicorn.Config, address: str, browser_url: Callable[[], str] | None) -> None:
        super().__init__(config)
        self.address, self.browser_url = address, browser_url

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start, print the address, and open the browser."""
        await super().startup(sockets)
        print(f"studio:  {self.address}\npress Ctrl-C to stop the studio; its trainings continue", flush=True)
        if self.browser_url is not None:  # in a thread, because some browsers block their caller
            threading.Thread(target=webbrowser.open, args=(self.browser_url(),), daemon=True).start()


def serve(folder: Path, form: list[FormField], *, host: str | None = None, port: int = 0, browser: bool = True) -> None:
    """Serve the studio of a folder until Ctrl-C."""
    api.load_all()
    studio, token = Studio(folder, form), secrets.token_urlsafe(24)
    listener = open_socket(host, port)
    bound_port = listener.getsockname()[1]
    display_host = "127.0.0.1" if host is None else host
    if host in ALL_INTERFACES:
        display_host = socket.gethostname().lower()
    origin = f"http://{f'[{display_host}]' if ':' in display_host else display_host}:{bound_port}"
    guard = make_guard(studio.app(), token, bound_port, host)
    config = uvicorn.Config(
        guard, log_level="warning", access_log=False, http=LimitedProtocol, timeout_graceful_shutdown=1, server_header=False,
        date_header=False, ws="none",
    )  # fmt: skip
    browser_url = (lambda: f"{origin}/?code={guard.new_code()}") if browser else None
    with suppress(KeyboardInterrupt):  # raised again after shutdown
        Server(config, f"{origin}/?token={token}", browser_url).run([listener])
