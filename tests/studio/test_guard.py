"""The guard refuses requests that other sites can make a browser send, over HTTP and websockets."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from reverie.studio.guard import MAX_BODY, Guard
from tests.studio.asgi import HOST, OURS, PORT, TOKEN, Answer, call, websocket

ATTACKS: dict[str, dict[str, Any]] = {
    "foreign origin": {"origin": "http://evil.example"},
    "null origin": {"origin": "null"},
    "origin of another port": {"origin": "http://127.0.0.1:9999"},
    "origin that begins like ours": {"origin": f"http://{HOST}.evil.example"},
    "rebinding host": {"host": f"evil.example:{PORT}", "origin": f"http://evil.example:{PORT}"},
    "host of another port": {"host": "127.0.0.1:80", "origin": "http://127.0.0.1:80"},
    "host without port": {"host": "127.0.0.1", "origin": "http://127.0.0.1"},
    "no host": {"host": None},
    "cross-site fetch": {"sec-fetch-site": "cross-site"},
    "same-site fetch": {"sec-fetch-site": "same-site"},
    "missing token": {"cookie": None},
    "wrong token": {"cookie": f"reverie-{PORT}=guess"},
    "token of another port": {"cookie": f"reverie-1={TOKEN}"},
}


class Inside:
    """An application that records the requests it receives."""

    def __init__(self) -> None:
        self.came: list[str] = []

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.came.append(scope["type"])
        if scope["type"] == "websocket":
            await receive()
            await send({"type": "websocket.accept"})
            return
        body = b""
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                self.came.append("disconnected")
                break
            body += message.get("body", b"")
            if not message.get("more_body"):
                break
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": str(len(body)).encode()})


def guarded(**how: Any) -> tuple[Inside, Guard]:
    inside = Inside()
    return inside, Guard(inside, port=PORT, token=TOKEN, **how)


def fetch(guard: Guard, method: str = "GET", path: str = "/api/runs", **how: Any) -> Answer:
    return asyncio.run(call(guard, method, path, **how))


@pytest.mark.parametrize("attack", ATTACKS)
@pytest.mark.parametrize("method", ["GET", "POST"])
def test_attacks_over_http_are_refused(attack: str, method: str) -> None:
    inside, guard = guarded()
    answer = fetch(guard, method, headers=ATTACKS[attack])
    assert 400 <= answer.status < 500 and not inside.came
    assert "access-control-allow-origin" not in answer.headers


@pytest.mark.parametrize("attack", ATTACKS)
def test_attacks_over_websockets_are_refused(attack: str) -> None:
    inside, guard = guarded()
    sent = asyncio.run(websocket(guard, "/api/runs", ATTACKS[attack]))
    assert [message["type"] for message in sent] == ["websocket.close"] and not inside.came


def test_our_own_page_is_accepted() -> None:
    inside, guard = guarded()
    assert fetch(guard).status == 200
    assert fetch(guard, "POST").status == 200
    assert asyncio.run(websocket(guard, "/x"))[0]["type"] == "websocket.accept"
    assert inside.came == ["http", "http", "websocket"]


def test_requests_with_effects_need_an_origin() -> None:
    _, guard = guarded()
    assert fetch(guard, "POST", headers={"origin": None}).status == 403
    assert fetch(guard, "DELETE", headers={"origin": None}).status == 403
    assert fetch(guard, "GET", headers={"origin": None}).status == 200
    assert asyncio.run(websocket(guard, "/x", {"origin": None}))[0]["type"] == "websocket.close"


def test_a_duplicate_header_is_refused() -> None:
    inside, guard = guarded()
    sent: list[Any] = []

    async def run() -> None:
        twice = [(b"host", HOST.encode()), (b"host", b"evil.example:8765"), (b"cookie", OURS["cookie"].encode())]
        scope = {"type": "http", "method": "GET", "path": "/", "query_string": b"", "headers": twice}

        async def send(message: Any) -> None:
            sent.append(message)

        await guard(scope, None, send)  # type: ignore[arg-type]  # nothing is to be received

    asyncio.run(run())
    assert sent[0]["status"] == 400 and not inside.came


def test_the_token_is_exchanged_for_a_strict_cookie() -> None:
    inside, guard = guarded()
    answer = fetch(guard, path=f"/?token={TOKEN}", headers={"cookie": None, "sec-fetch-site": "none"})
    assert answer.status == 303 and answer.headers["location"] == "/" and not inside.came
    cookie = answer.headers["set-cookie"]
    assert f"reverie-{PORT}={TOKEN}" in cookie and "HttpOnly" in cookie and "SameSite=Strict" in cookie
    for path in ("/?token=guess", "/?token=", f"/?token={TOKEN}&token={TOKEN}", f"/api/runs?token={TOKEN}"):
        assert fetch(guard, path=path, headers={"cookie": None}).status == 401


def test_every_response_forbids_foreign_and_inline_scripts() -> None:
    _, guard = guarded()
    for answer in (fetch(guard), fetch(guard, headers={"cookie": None})):
        policy = answer.headers["content-security-policy"]
        assert "default-src 'none'" in policy and "script-src 'self';" in policy and "unsafe" not in policy
        assert answer.headers["x-content-type-options"] == "nosniff" and "frame-ancestors 'none'" in policy


def test_a_large_body_is_refused_by_its_header_or_cut_off() -> None:
    inside, guard = guarded()
    assert fetch(guard, "POST", headers={"content-length": str(100 * 2**20)}).status == 413 and not inside.came
    assert fetch(guard, "POST", headers={"content-length": "-1"}).status == 413
    fetch(guard, "POST", body=bytes(MAX_BODY + 1))
    assert inside.came == ["http", "disconnected"]


def test_a_public_studio_accepts_addresses_but_not_names() -> None:
    _, guard = guarded(names=("box",), public=True)
    for host in (f"192.168.0.7:{PORT}", f"[fe80::1]:{PORT}", f"box:{PORT}"):
        assert fetch(guard, headers={"host": host, "origin": f"http://{host}"}).status == 200
    assert fetch(guard, headers={"host": f"evil.example:{PORT}", "origin": None}).status == 421
    assert fetch(guard, headers={"host": f"192.168.0.7:{PORT}", "origin": None, "cookie": None}).status == 401
