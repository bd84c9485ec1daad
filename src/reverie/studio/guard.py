"""The guard: what a request must show before anything else sees it, be it of HTTP or of a websocket.

Pages of others can make a browser send requests to this machine.  They cannot choose the headers Host, Origin and
Sec-Fetch-Site, which say where a request comes from, nor read a cookie of ours; so each of these is checked.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Awaitable, Callable, MutableMapping
from http.cookies import CookieError, SimpleCookie
from ipaddress import ip_address
from typing import Any
from urllib.parse import parse_qs

Message = MutableMapping[str, Any]
Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

LOOPBACK = ("127.0.0.1", "localhost", "[::1]")
MOST_BODY = 24 * 2**20  # bytes of a request
REQUESTS = 256  # authenticated ones at a time; others are told to come again
CODE_SECONDS = 60.0  # for which a one-time code is valid
ONCE = ("host", "origin", "cookie", "sec-fetch-site", "content-length")  # headers that may not come twice
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; connect-src 'self';"
    " font-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = (
    (b"content-security-policy", POLICY.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
)


class Refused(Exception):
    """A request that is not let in: the status it gets, and why."""

    def __init__(self, status: int, why: str) -> None:
        super().__init__(why)
        self.status, self.why = status, why


class Guard:
    """Lets in only what comes from our own page, with our token.

    names: what the machine may be called in Host, without the port; a literal address is let in as well where `public`, as
    only names can be made to point here by others (DNS rebinding).  trusts: whether the peer of a connection, its address and
    port, may exchange a one-time code for the cookie.
    """

    def __init__(
        self, app: App, *, port: int, token: str, names: tuple[str, ...] = LOOPBACK, public: bool = False,
        trusts: Callable[[tuple[str, int] | None], bool] = lambda peer: True,
    ) -> None:  # fmt: skip
        self.app, self.port, self.token, self.names, self.public = app, port, token, names, public
        self.cookie = f"reverie-{port}"  # cookies are shared by all ports of a machine
        self.trusts, self.active = trusts, 0
        self._codes: dict[str, float] = {}

    def new_code(self) -> str:
        """Return a code that is exchanged for the cookie once, within CODE_SECONDS: others may read it on a command line."""
        code = secrets.token_urlsafe(24)
        self._codes[code] = time.monotonic() + CODE_SECONDS
        return code

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Refuse, admit with a cookie, or pass on with the headers that keep the page safe."""
        if scope["type"] not in ("http", "websocket"):
            await self.app(scope, receive, send)
            return
        try:
            headers = _headers(scope)
            self.check_origin(scope, headers)
            if self._brings_token(scope) or self._brings_code(scope):
                await _answer(send, 303, "", (b"location", b"/"), (b"set-cookie", self._set_cookie()))
                return
            self.check_token(headers)
            scope.get("state", {}).get("authenticate", lambda: None)()
            length = headers.get("content-length", "0")
            if not length.isdecimal() or int(length) > MOST_BODY:
                raise Refused(413, f"at most {MOST_BODY >> 20} MiB can be sent")
            if self.active >= REQUESTS:
                raise Refused(503, "the studio answers many requests at once already; try again in a few seconds")
        except Refused as refused:
            if scope["type"] == "websocket":
                await receive()
                await send({"type": "websocket.close", "code": 1008, "reason": refused.why})
            else:
                await _answer(send, refused.status, refused.why + "\n", (b"connection", b"close"))
            return
        self.active += 1
        try:
            await self.app(scope, _limited(receive), _covered(send))
        finally:
            self.active -= 1

    def check_origin(self, scope: Scope, headers: dict[str, str]) -> None:
        """Refuse what was meant for another name, or comes from another page."""
        host = headers.get("host", "").lower()
        if not self._is_ours(host):
            raise Refused(421, "this address is not the studio's")
        origin = headers.get("origin")
        acts = scope["type"] == "websocket" or scope["method"] not in ("GET", "HEAD")
        if origin is None and acts:
            raise Refused(403, "a request that does something must say which page it comes from")
        if origin is not None and origin.lower() != f"http://{host}":
            raise Refused(403, "this request comes from another page")
        if headers.get("sec-fetch-site", "none") not in ("same-origin", "none"):
            raise Refused(403, "this request comes from another page; type the address that `reverie studio` printed")

    def check_token(self, headers: dict[str, str]) -> None:
        """Refuse who was not given the token."""
        try:
            found = SimpleCookie(headers.get("cookie", "")).get(self.cookie)
        except CookieError:
            found = None
        if found is None or not secrets.compare_digest(found.value.encode(), self.token.encode()):
            raise Refused(401, "open the address that `reverie studio` printed, with its token; a one-time code is valid once")

    def _is_ours(self, host: str) -> bool:
        name, colon, port = host.rpartition(":")
        if not colon or not port.isdecimal() or int(port) != self.port:
            return False
        return name in self.names or (self.public and _is_address(name))

    def _brings_token(self, scope: Scope) -> bool:
        given = _from_address(scope, "token")
        return given is not None and secrets.compare_digest(given.encode(), self.token.encode())

    def _brings_code(self, scope: Scope) -> bool:
        given = _from_address(scope, "code")
        if given is None or not self.trusts(scope.get("client")):
            return False
        return time.monotonic() <= self._codes.pop(given, 0.0)

    def _set_cookie(self) -> bytes:
        return f"{self.cookie}={self.token}; Path=/; HttpOnly; SameSite=Strict".encode()


def _from_address(scope: Scope, name: str) -> str | None:
    """Return a parameter of the address of the page, if it is there once."""
    if scope["type"] != "http" or scope["method"] != "GET" or scope["path"] != "/":
        return None
    given = parse_qs(scope.get("query_string", b"").decode("latin-1")).get(name, [])
    return given[0] if len(given) == 1 else None


def _is_address(name: str) -> bool:
    try:
        ip_address(name.removeprefix("[").removesuffix("]"))
    except ValueError:
        return False
    return True


def _headers(scope: Scope) -> dict[str, str]:
    """Return the headers by name; refuse one that comes twice and must not."""
    found: dict[str, str] = {}
    for key, value in scope["headers"]:
        name = key.decode("latin-1").lower()
        if name in ONCE and name in found:
            raise Refused(400, f"the header {name} came twice")
        found[name] = value.decode("latin-1")
    return found


def _limited(receive: Receive) -> Receive:
    """Return a receive that breaks off a body that grows too long, whatever its head said."""
    total = 0

    async def limited() -> Message:
        nonlocal total
        message = await receive()
        total += len(message.get("body", b""))
        return {"type": "http.disconnect"} if total > MOST_BODY else message

    return limited


def _covered(send: Send) -> Send:
    """Return a send that adds the headers that keep the page safe."""

    async def covered(message: Message) -> None:
        if message["type"] == "http.response.start":
            message = {**message, "headers": [*message.get("headers", ()), *HEADERS]}
        await send(message)

    return covered


async def _answer(send: Send, status: int, text: str, *headers: tuple[bytes, bytes]) -> None:
    plain = (b"content-type", b"text/plain; charset=utf-8")
    await send({"type": "http.response.start", "status": status, "headers": [plain, *headers, *HEADERS]})
    await send({"type": "http.response.body", "body": text.encode()})
