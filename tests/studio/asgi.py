"""A client of ASGI applications in this process, without a socket."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

PORT, TOKEN = 8765, "the-token-of-the-tests"
HOST = f"127.0.0.1:{PORT}"
OURS = {"host": HOST, "origin": f"http://{HOST}", "sec-fetch-site": "same-origin", "cookie": f"reverie-{PORT}={TOKEN}"}
JSON = {"content-type": "application/json"}


@dataclass
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)

    def events(self) -> list[tuple[str, Any]]:
        """Return the events of a stream, by name."""
        found = []
        for block in self.body.decode().split("\n\n"):
            lines = dict(line.split(": ", 1) for line in block.splitlines() if not line.startswith(":"))
            if "data" in lines:
                found.append((lines["event"], json.loads(lines["data"])))
        return found


def scope(kind: str, method: str, path: str, headers: dict[str, str]) -> dict[str, Any]:
    address, _, query = path.partition("?")
    return {
        "type": kind, "asgi": {"version": "3.0"}, "http_version": "1.1", "method": method, "path": unquote(address),
        "raw_path": address.encode(), "query_string": query.encode(), "scheme": "http", "server": ("127.0.0.1", PORT),
        "client": ("127.0.0.1", 1), "headers": [(k.encode(), v.encode("latin-1")) for k, v in headers.items() if v is not None],
        "subprotocols": [],
    }  # fmt: skip


async def call(
    app: Any, method: str, path: str, headers: dict[str, Any] | None = None, body: Any = None,
    until: Callable[[bytes], bool] | None = None,
) -> Answer:  # fmt: skip
    """Send a request and return the response.  until: disconnects when it returns True for the body so far."""
    content = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
    all_headers = {**OURS, **(JSON if body is not None else {}), **(headers or {})}
    sent, gone, parts, answer = False, asyncio.Event(), [], Answer(0, {}, b"")

    async def receive() -> dict[str, Any]:
        nonlocal sent
        if not sent:
            sent = True
            return {"type": "http.request", "body": content, "more_body": False}
        await gone.wait()
        return {"type": "http.disconnect"}

    async def send(message: dict[str, Any]) -> None:
        if message["type"] == "http.response.start":
            answer.status = message["status"]
            answer.headers.update({k.decode().lower(): v.decode("latin-1") for k, v in message["headers"]})
        else:
            parts.append(message.get("body", b""))
            if until is not None and until(b"".join(parts)):
                gone.set()

    await app(scope("http", method, path, all_headers), receive, send)
    gone.set()
    answer.body = b"".join(parts)
    return answer


async def websocket(app: Any, path: str, headers: dict[str, Any] | None = None) -> list[dict[str, Any]]:
    """Open a websocket and return the messages that are sent."""
    sent: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        return {"type": "websocket.connect"} if not sent else {"type": "websocket.disconnect", "code": 1000}

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    request = scope("websocket", "GET", path, {**OURS, **(headers or {})})
    del request["method"]
    await app(request, receive, send)
    return sent
