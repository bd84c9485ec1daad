"""A local HTTP server with range requests, like an object store, which can be made to fail."""

from __future__ import annotations

import hashlib
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape


class Server(ThreadingHTTPServer):
    """Serves files below root.  By path: failing, number of requests that get 503; stalled, cut: send half of the content."""

    daemon_threads = True

    def __init__(self, root: Path) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.root = root
        self.failing: Counter[str] = Counter()
        self.stalled: set[str] = set()
        self.cut: Counter[str] = Counter()
        self.requests: Counter[str] = Counter()
        self.lock = threading.Lock()

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def handle_error(self, *_: object) -> None:  # a client that disconnected is not an error
        pass


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Server

    def log_message(self, *_: object) -> None:
        pass

    def do_HEAD(self) -> None:
        self.answer(head=True)

    def do_GET(self) -> None:
        self.answer(head=False)

    def answer(self, head: bool) -> None:
        parts = urlsplit(self.path)
        name, query = unquote(parts.path).strip("/"), parse_qs(parts.query)
        last = name.rpartition("/")[2]
        with self.server.lock:
            self.server.requests[last] += 1
            fails = self.server.failing[last] > 0
            self.server.failing[last] -= fails
            cut = not head and self.server.cut[last] > 0
            self.server.cut[last] -= cut
        if fails:
            return self.send(503, b"busy", head=head)
        if "list-type" in query:
            return self.listing(name, query)
        path = self.server.root / name
        if not path.is_file():
            return self.send(404, b"not there", head=head)
        content, code, more = path.read_bytes(), 200, {"ETag": f'"{hashlib.md5(path.read_bytes()).hexdigest()}"'}
        total = len(content)
        if (wanted := self.headers.get("Range")) is not None:
            first, _, end = wanted.removeprefix("bytes=").partition("-")
            content, code = content[int(first) : int(end) + 1 if end else None], 206
            more["Content-Range"] = f"bytes {first}-{int(first) + len(content) - 1}/{total}"
        if last in self.server.stalled and not head:
            self.send(code, content, more, only=len(content) // 2)
            time.sleep(30)
            return None
        return self.send(code, content, more, head=head, only=len(content) // 2 if cut else None)

    def listing(self, bucket: str, query: dict[str, list[str]]) -> None:
        prefix = query.get("prefix", [""])[0]
        root = self.server.root / bucket
        rows = []
        for path in sorted(root.rglob("*")):
            key = str(path.relative_to(root))
            if path.is_file() and key.startswith(prefix):
                tag = hashlib.md5(path.read_bytes()).hexdigest()
                rows.append(f"<Contents><Key>{escape(key)}</Key><LastModified>2026-01-01T00:00:00.000Z</LastModified>"
                            f"<ETag>\"{tag}\"</ETag><Size>{path.stat().st_size}</Size></Contents>")  # fmt: skip
        body = f"<?xml version='1.0'?><ListBucketResult><IsTruncated>false</IsTruncated>{''.join(rows)}</ListBucketResult>"
        self.send(200, body.encode(), {"Content-Type": "application/xml"})

    def send(
        self, code: int, body: bytes, more: dict[str, str] | None = None, head: bool = False, only: int | None = None
    ) -> None:
        self.send_response(code)
        for name, value in {"Content-Length": str(len(body)), "Last-Modified": "Thu, 01 Jan 2026 00:00:00 GMT",
                            "Accept-Ranges": "bytes", **(more or {})}.items():  # fmt: skip
            self.send_header(name, value)
        self.end_headers()
        if not head:
            self.wfile.write(body[:only])
            self.wfile.flush()
        if only is not None and self.path.rpartition("/")[2] not in self.server.stalled:
            self.close_connection = True


@contextmanager
def serving(root: Path) -> Iterator[Server]:
    """Serve a folder until the end of the block."""
    with Server(root) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()
