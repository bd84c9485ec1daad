"""The guard: checks of every HTTP and websocket request before the application receives it.

Other sites can make a browser send requests to this machine.  They cannot set the headers Host, Origin and Sec-Fetch-Site,
nor read our cookie, so all of these are checked.
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
MAX_BODY = 24 * 2**20  # bytes of a request
MAX_REQUESTS = 256  # authenticated ones at a time; further ones get status 503
CODE_LIFETIME = 60.0  # seconds
UNIQUE_HEADERS = ("host", "origin", "cookie", "sec-fetch-site", "content-length")
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
    """A refused request: the status of the response, and the reason."""

    def __init__(self, status: int, why: str) -> None:
        super().__init__(why)
        self.status, self.why = status, why


class Guard:
    """Accepts only requests of our own page with our token.

    names: accepted hosts, without the port; if `public`, any literal address is accepted too, because DNS rebinding needs a
    name.  trusts: whether a peer, by its address and port, may exchange a one-time code for the cookie.
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
        """Return a code that can be exchanged for the cookie once, within CODE_LIFETIME; other users can see command lines."""
        code = secrets.token_urlsafe(24)
        self._codes[code] = time.monotonic() + CODE_LIFETIME
        return code

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Refuse the request, set the cookie, or forward the request and add security headers to the response."""
        if scope["type"] not in ("http", "websocket"):
            await self.app(scope, receive, send)
            return
        try:
            headers = _headers(scope)
            self.check_origin(scope, headers)
            if self._has_token(scope) or self._has_code(scope):
                await _respond(send, 303, "", (b"location", b"/"), (b"set-cookie", self._set_cookie()))
                return
            self.check_token(headers)
            scope.get("state", {}).get("authenticate", lambda: None)()
            length = headers.get("content-length", "0")
            if not length.isdecimal() or int(length) > MAX_BODY:
                raise Refused(413, f"the request is too large; at most {MAX_BODY >> 20} MiB are accepted")
            if self.active >= MAX_REQUESTS:
                raise Refused(503, f"too many requests: {MAX_REQUESTS}; try again in a few seconds")
        except Refused as refused:
            if scope["type"] == "websocket":
                await receive()
                await send({"type": "websocket.close", "code": 1008, "reason": refused.why})
            else:
                await _respond(send, refused.status, refused.why + "\n", (b"connection", b"close"))
            return
        self.active += 1
        try:
            await self.app(scope, _with_body_limit(receive), _with_security_headers(send))
        finally:
            self.active -= 1

    def check_origin(self, scope: Scope, headers: dict[str, str]) -> None:
        """Refuse requests to another host or from another origin."""
        host = headers.get("host", "").lower()
        if not self._is_own_host(host):
            raise Refused(421, "unknown host; open the address that `reverie studio` printed")
        origin = headers.get("origin")
        needs_origin = scope["type"] == "websocket" or scope["method"] not in ("GET", "HEAD")
        if origin is None and needs_origin:
            raise Refused(403, "the Origin header is missing")
        if origin is not None and origin.lower() != f"http://{host}":
            raise Refused(403, "cross-origin request")
        if headers.get("sec-fetch-site", "none") not in ("same-origin", "none"):
            raise Refused(403, "cross-site request; type the address that `reverie studio` printed")

    def check_token(self, headers: dict[str, str]) -> None:
        """Refuse requests without the token."""
        try:
            cookie = SimpleCookie(headers.get("cookie", "")).get(self.cookie)
        except CookieError:
            cookie = None
        if cookie is None or not secrets.compare_digest(cookie.value.encode(), self.token.encode()):
            raise Refused(401, "invalid token or used code; open the address that `reverie studio` printed, with its token")

    def _is_own_host(self, host: str) -> bool:
        name, colon, port = host.rpartition(":")
        if not colon or not port.isdecimal() or int(port) != self.port:
            return False
        return name in self.names or (self.public and _is_address(name))

    def _has_token(self, scope: Scope) -> bool:
        token = _query_parameter(scope, "token")
        return token is not None and secrets.compare_digest(token.encode(), self.token.encode())

    def _has_code(self, scope: Scope) -> bool:
        code = _query_parameter(scope, "code")
        if code is None or not self.trusts(scope.get("client")):
            return False
        return time.monotonic() <= self._codes.pop(code, 0.0)

    def _set_cookie(self) -> bytes:
        return f"{self.cookie}={self.token}; Path=/; HttpOnly; SameSite=Strict".encode()


def _query_parameter(scope: Scope, name: str) -> str | None:
    """Return a query parameter of the page's address, None unless it occurs once."""
    if scope["type"] != "http" or scope["method"] != "GET" or scope["path"] != "/":
        return None
    values = parse_qs(scope.get("query_string", b"").decode("latin-1")).get(name, [])
    return values[0] if len(values) == 1 else None


def _is_address(name: str) -> bool:
    try:
        ip_address(name.removeprefix("[").removesuffix("]"))
    except ValueError:
        return False
    return True


def _headers(scope: Scope) -> dict[str, str]:
    """Return the headers by name; refuse duplicates of UNIQUE_HEADERS."""
    headers: dict[str, str] = {}
    for key, value in scope["headers"]:
        name = key.decode("latin-1").lower()
        if name in UNIQUE_HEADERS and name in headers:
            raise Refused(400, f"duplicate header: {name}")
        headers[name] = value.decode("latin-1")
    return headers


def _with_body_limit(receive: Receive) -> Receive:
    """Return a `receive` that disconnects when a body exceeds MAX_BODY, whatever its Content-Length."""
    total = 0

    async def limited() -> Message:
        nonlocal total
        message = await receive()
        total += len(message.get("body", b""))
        return {"type": "http.disconnect"} if total > MAX_BODY else message

    return limited


def _with_security_headers(send: Send) -> Send:
    """Return a `send` that adds HEADERS to the response."""

    async def extended(message: Message) -> None:
        if message["type"] == "http.response.start":
            message = {**message, "headers": [*message.get("headers", ()), *HEADERS]}
        await send(message)

    return extended


async def _respond(send: Send, status: int, text: str, *headers: tuple[bytes, bytes]) -> None:
    plain = (b"content-type", b"text/plain; charset=utf-8")
    await send({"type": "http.response.start", "status": status, "headers": [plain, *headers, *HEADERS]})
    await send({"type": "http.response.body", "body": text.encode()})
