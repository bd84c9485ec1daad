"""The server against local programs without a token: incomplete requests and one-time codes."""

from __future__ import annotations

import asyncio
import http.client
import json
import socket
import threading
import time
import webbrowser
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from reverie.base.errors import UserError
from reverie.studio import connections, guard, jobs, server
from reverie.studio.guard import Guard
from reverie.studio.server import open_socket, serve
from tests.studio.asgi import JSON, PORT, TOKEN, call
from tests.studio.conftest import DIGITS, PATTERNS

SECONDS = 60.0  # timeout on a busy machine


class Here:
    """A studio in a thread of this process."""

    def __init__(self) -> None:
        self.servers: list[Any] = []
        self.opened: list[str] = []

    @property
    def port(self) -> int:
        return int(self.servers[0].config.app.port)

    def get(self, path: str, **headers: str) -> http.client.HTTPResponse:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=SECONDS)
        connection.request("GET", path, headers=headers)
        answer = connection.getresponse()
        answer.read()
        return answer

    def status(self) -> int:
        """Return the status of a request with the token."""
        return self.get("/", Cookie=f"reverie-{self.port}={self.servers[0].config.app.token}").status


def until(what: Callable[[], Any]) -> None:
    end = time.monotonic() + SECONDS
    while not what():
        assert time.monotonic() < end
        time.sleep(0.02)


@contextmanager
def serving(folder: Path, monkeypatch: pytest.MonkeyPatch, opens: Callable[[str], object] | None = None) -> Iterator[Here]:
    here, began = Here(), server.Server.__init__

    def note(self: Any, *words: Any) -> None:
        began(self, *words)
        here.servers.append(self)

    monkeypatch.setattr(server.Server, "__init__", note)
    monkeypatch.setattr(server.api, "load_all", lambda: None)
    monkeypatch.setattr(webbrowser, "open", lambda url: (here.opened.append(url), opens and opens(url)))
    thread = threading.Thread(target=serve, args=(folder, []), kwargs={"browser": opens is not None}, daemon=True)
    thread.start()
    until(lambda: here.servers and here.servers[0].started)
    try:
        yield here
    finally:
        here.servers[0].should_exit = True
        thread.join(SECONDS)


def half(port: int) -> socket.socket:
    """Return a connection with an incomplete request."""
    made = socket.create_connection(("127.0.0.1", port), timeout=SECONDS)
    made.sendall(b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nX-")
    return made


def is_closed(connection: socket.socket) -> bool:
    try:
        return connection.recv(100) == b""
    except ConnectionError:
        return True


def test_incomplete_requests_do_not_block_the_owner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "MAX_UNAUTHENTICATED", 40)
    with serving(tmp_path, monkeypatch) as here, ExitStack() as stack:
        sockets = [stack.enter_context(half(here.port)) for _ in range(270)]
        assert here.status() == 200
        until(lambda: len(here.servers[0].server_state.connections) <= 41)
        assert here.status() == 200
        assert is_closed(sockets[0])  # the oldest


def test_an_incomplete_request_times_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "HEADER_TIMEOUT", 0.2)
    with serving(tmp_path, monkeypatch) as here, half(here.port) as made:
        assert is_closed(made)
        assert here.status() == 200
        until(lambda: not here.servers[0].server_state.connections)


def test_the_browser_gets_a_one_time_code_without_the_token(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(tmp_path, monkeypatch, opens=lambda url: None) as here:
        until(lambda: here.opened)
        token = here.servers[0].config.app.token
        assert token not in here.opened[0] and token in here.servers[0].address
        path = "/" + here.opened[0].split("/", 3)[3]
        first = here.get(path)
        assert first.status == 303 and token in str(first.getheader("set-cookie"))
        assert here.get(path).status == 401


def test_a_blocking_browser_does_not_block_the_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gate = threading.Event()
    try:
        with serving(tmp_path, monkeypatch, opens=lambda url: gate.wait(SECONDS)) as here:
            until(lambda: here.opened)
            began = time.monotonic()
            assert here.status() == 200 and time.monotonic() - began < SECONDS / 2
    finally:
        gate.set()


def test_a_code_is_accepted_from_our_own_user_only(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        with socket.create_connection(listener.getsockname()) as client:
            peer, port = client.getsockname(), listener.getsockname()[1]
            assert connections.may_redeem_code(peer, port)
            assert not connections.may_redeem_code(("127.0.0.1", 1), port)  # no such connection
            monkeypatch.setattr(connections.os, "getuid", lambda: 12345)
            monkeypatch.setattr(connections, "ROOT", 12345)
            assert not connections.may_redeem_code(peer, port)


def test_a_code_is_refused_to_other_users_and_after_its_lifetime(monkeypatch: pytest.MonkeyPatch) -> None:
    trusted = [False]
    made = Guard(lambda *_: asyncio.sleep(0), port=PORT, token=TOKEN, trusts=lambda peer: trusted[0])

    def exchange(code: str) -> int:
        return asyncio.run(call(made, "GET", f"/?code={code}", {"cookie": None, "sec-fetch-site": "none"})).status

    code = made.new_code()
    assert exchange(code) == 401
    trusted[0] = True
    assert exchange(code) == 303 and exchange(code) == 401 and exchange("") == 401 and exchange("guess") == 401
    late = made.new_code()
    monkeypatch.setattr(guard, "CODE_LIFETIME", -1.0)
    old = made.new_code()
    assert exchange(old) == 401 and exchange(late) == 303


@pytest.mark.parametrize("host", ["", "0"])
def test_all_interfaces_need_an_explicit_address(host: str) -> None:
    with pytest.raises(UserError, match="all interfaces"):
        open_socket(host, 0)
    open_socket("0.0.0.0", 0).close()
    open_socket(None, 0).close()


def test_the_job_of_a_stalled_client_is_cancelled_for_others(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs, "CONTESTED_TIMEOUT", 0.2)
    with serving(folder, monkeypatch) as here, socket.socket() as deaf:
        guard = here.servers[0].config.app
        head = {"Cookie": f"reverie-{here.port}={guard.token}", "Origin": f"http://127.0.0.1:{here.port}", **JSON}
        deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        deaf.connect(("127.0.0.1", here.port))
        request = json.dumps({"run": PATTERNS, "n": 5000, "steps": 1000}).encode()
        lines = {**head, "Host": f"127.0.0.1:{here.port}", "Content-Length": len(request)}
        words = "".join(f"{key}: {value}\r\n" for key, value in lines.items())
        deaf.sendall(f"POST /api/jobs/sample HTTP/1.1\r\n{words}\r\n".encode() + request)
        until(lambda: guard.active)
        connection = http.client.HTTPConnection("127.0.0.1", here.port, timeout=SECONDS)
        connection.request("POST", "/api/jobs/sample", json.dumps({"run": DIGITS, "n": 1, "steps": 2}), head)
        assert b"event: done" in connection.getresponse().read()
        deaf.settimeout(SECONDS)
        heard = b""
        with suppress(ConnectionError):
            while part := deaf.recv(2**20):
                heard += part
        assert b"event: frame" in heard and b"event: done" not in heard
