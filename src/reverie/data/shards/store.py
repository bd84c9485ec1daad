"""Stores of shards: a folder, or a bucket or server that is read by byte ranges."""

from __future__ import annotations

import importlib
import io
import itertools
import os
import re
from abc import ABC, abstractmethod
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import IO, Any
from urllib.parse import urlsplit

from reverie.base.errors import UserError
from reverie.base.files import reason
from reverie.data.shards.fetching import fetch_pool

REMOTE = re.compile(r"(s3|s3a|gs|az|abfss?|https?)://", re.IGNORECASE)
BRACES = re.compile(r"\{(\d+)\.\.(\d+)\}")
MAX_FILES = 100_000
READ_TIMEOUT = 30.0  # seconds without a byte before a request is repeated
REQUEST_TIMEOUT = 300.0  # maximum seconds of a request
RETRIES, FIRST_PAUSE, MAX_PAUSE = 5, 0.2, 10.0  # of failed requests; each pause is about twice the previous one
CHUNK_BYTES = 4 * 2**20  # bytes requested at a time in sequential reading

CAUSES = {
    "kind: Timeout": "the server does not answer", "kind: Interrupted": "the connection was cut off",
    "kind: Connect": "no connection to the server", "kind: Decode": "the connection was cut off",
}  # fmt: skip


class StoreError(UserError):
    """A file of a store that could not be read."""


@dataclass(frozen=True)
class Stored:
    """A file of a store.  tag: changes with its content, if the store has tags."""

    name: str
    size: int
    tag: str = ""


def is_remote(source: str) -> bool:
    """Return whether a source is an address rather than a path."""
    return REMOTE.match(source) is not None


def is_pattern(source: str) -> bool:
    """Return whether a source is a pattern of local files, such as shards/{000..099}.tar, and not an existing path."""
    return BRACES.search(source) is not None and not is_remote(source) and not Path(source).exists()


class Store(ABC):
    """Files by name with random access.  address: of the folder or prefix that contains them."""

    address: str
    remote: bool

    @abstractmethod
    def files(self) -> list[Stored] | None:
        """Return the files directly in the store; None if a server does not list them."""

    @abstractmethod
    def stat(self, name: str) -> Stored | None:
        """Return size and tag of one file; None if it does not exist."""

    @abstractmethod
    def read(self, name: str, offset: int, size: int) -> bytes:
        """Return exactly `size` bytes of a file."""

    @abstractmethod
    def open(self, name: str, size: int) -> IO[bytes]:
        """Open a file for sequential reading."""

    def where(self, name: str) -> str:
        """Return the full name of a file, for messages."""
        return f"{self.address.rstrip('/')}/{name}"

    def short(self, name: str, wanted: int, got: int) -> StoreError:
        """Return the error for a truncated file."""
        return StoreError(
            f"{self.where(name)} is {wanted - got:,} bytes too short; it was truncated or has changed, so copy it again"
        )


class LocalStore(Store):
    """A folder on this machine."""

    remote = False

    def __init__(self, root: Path) -> None:
        self.root, self.address = root, str(root)

    def files(self) -> list[Stored]:
        """Return the regular files of the folder."""
        try:
            with os.scandir(self.root) as listing:
                return sorted((Stored(f.name, f.stat().st_size) for f in listing if f.is_file()), key=lambda f: f.name)
        except OSError as error:
            raise StoreError(f"{self.root} cannot be read: {reason(error)}") from None

    def stat(self, name: str) -> Stored | None:
        """Return the size of a file."""
        path = self.root / name
        return Stored(name, path.stat().st_size) if path.is_file() else None

    def read(self, name: str, offset: int, size: int) -> bytes:
        """Open the file and read a part."""
        try:
            handle = os.open(self.root / name, os.O_RDONLY | getattr(os, "O_BINARY", 0))
            try:
                data = b"".join(self._pieces(handle, offset, size))
            finally:
                os.close(handle)
        except OSError as error:
            raise StoreError(f"{self.where(name)} cannot be read: {reason(error)}") from None
        if len(data) != size:
            raise self.short(name, size, len(data))
        return data

    @staticmethod
    def _pieces(handle: int, offset: int, size: int) -> Iterator[bytes]:
        os.lseek(handle, offset, os.SEEK_SET)
        while size and (piece := os.read(handle, size)):
            yield piece
            size -= len(piece)

    def open(self, name: str, size: int) -> IO[bytes]:
        """Open the file."""
        try:
            return (self.root / name).open("rb")
        except OSError as error:
            raise StoreError(f"{self.where(name)} cannot be read: {reason(error)}") from None


class RemoteStore(Store):
    """A bucket or an HTTP server.  Failed and stalled requests are repeated by obstore with increasing pauses."""

    remote = True

    def __init__(self, address: str) -> None:
        self.address = address.rstrip("/")
        parts = urlsplit(address)
        if parts.query or parts.fragment or "@" in parts.netloc:
            raise UserError("a data address must not contain a password, a question mark or #; give the plain address")
        self.lists = parts.scheme.lower() not in ("http", "https")
        try:
            self._obstore: Any = importlib.import_module("obstore")
            stores: Any = importlib.import_module("obstore.store")
        except ImportError:
            raise UserError(f"{address} needs obstore; install it with: pip install 'reverie[remote]'") from None
        with self._store_errors(""):
            self._store = stores.from_url(
                self.address,
                client_options={"timeout": timedelta(seconds=REQUEST_TIMEOUT), "read_timeout": timedelta(seconds=READ_TIMEOUT),
                                "connect_timeout": timedelta(seconds=min(10.0, READ_TIMEOUT)), "allow_http": True},
                retry_config={"max_retries": RETRIES, "retry_timeout": timedelta(seconds=RETRIES * (READ_TIMEOUT + MAX_PAUSE)),
                              "backoff": {"init_backoff": timedelta(seconds=FIRST_PAUSE),
                                          "max_backoff": timedelta(seconds=MAX_PAUSE), "base": 2.0}},
            )  # fmt: skip

    @contextmanager
    def _store_errors(self, name: str) -> Iterator[None]:
        """Raise errors of obstore as StoreErrors."""
        try:
            yield
        except UserError:
            raise
        except Exception as error:  # obstore has separate exceptions for each store
            raise StoreError(f"{self.where(name)} cannot be read: {_describe_error(error)}") from None

    def files(self) -> list[Stored] | None:
        """List the files under the prefix, not recursively."""
        if not self.lists:
            return None
        with self._store_errors(""):
            objects = self._obstore.list_with_delimiter(self._store)["objects"]
        return sorted((_stored(meta["path"], meta) for meta in objects[:MAX_FILES]), key=lambda f: f.name)

    def stat(self, name: str) -> Stored | None:
        """Request size and tag."""
        with self._store_errors(name):
            try:
                return _stored(name, self._obstore.head(self._store, name))
            except FileNotFoundError:
                return None

    def read(self, name: str, offset: int, size: int) -> bytes:
        """Request a range of bytes."""
        with self._store_errors(name):
            data = bytes(self._obstore.get_range(self._store, name, start=offset, length=size)) if size else b""
        if len(data) != size:
            raise self.short(name, size, len(data))
        return data

    def open(self, name: str, size: int) -> IO[bytes]:
        """Return a file whose next few megabytes are always prefetched."""
        return io.BufferedReader(StreamFile(self, name, size), 2**20)


class RangeFile(io.RawIOBase):
    """A file of a store with a position, which requests only what is read."""

    def __init__(self, store: Store, name: str, size: int) -> None:
        self.store, self.name, self.size, self.position = store, name, size, 0

    def readable(self) -> bool:
        """Return True."""
        return True

    def seekable(self) -> bool:
        """Return True."""
        return True

    def tell(self) -> int:
        """Return the position."""
        return self.position

    def seek(self, offset: int, whence: int = os.SEEK_SET, /) -> int:
        """Move to a position."""
        self.position = offset + (0, self.position, self.size)[whence]
        return self.position

    def readinto(self, buffer: Any, /) -> int:
        """Fill a buffer, up to the end of the file."""
        part = self._read_part(len(buffer)) if self.position < self.size and len(buffer) else b""
        buffer[: len(part)] = part
        self.position += len(part)
        return len(part)

    def _read_part(self, size: int) -> bytes:
        return self.store.read(self.name, self.position, min(size, self.size - self.position))


class StreamFile(RangeFile):
    """A file for sequential reading, which requests the current and the next piece in other threads."""

    def __init__(self, store: Store, name: str, size: int) -> None:
        super().__init__(store, name, size)
        self.pieces: dict[int, Future[bytes]] = {}

    def _read_part(self, size: int) -> bytes:
        number, within = divmod(self.position, CHUNK_BYTES)
        needed = [k for k in (number, number + 1) if k * CHUNK_BYTES < self.size]
        self.pieces = {k: self.pieces.get(k) or self._request(k) for k in needed}
        return self.pieces[number].result()[within : within + size]

    def _request(self, number: int) -> Future[bytes]:
        begin = number * CHUNK_BYTES
        return fetch_pool().submit(self.store.read, self.name, begin, min(CHUNK_BYTES, self.size - begin))


def _stored(name: str, meta: Any) -> Stored:
    return Stored(name, int(meta["size"]), str(meta.get("e_tag") or ""))


def _describe_error(error: Exception) -> str:
    """Describe an error of obstore in a few words, without its long source."""
    message = " ".join(str(error).split())
    if isinstance(error, FileNotFoundError):
        return "there is no such file (404)"
    if (status := re.search(r"status code: (\d{3}(?: [A-Z][A-Za-z]+)*)", message)) is not None:
        return f"the server answers {status[1]}"
    for mark, cause in CAUSES.items():
        if mark in message:
            return cause
    return message.split(" Debug source:")[0][:160]


def expand(pattern: str) -> list[str]:
    """Return the names that a pattern such as {000..099}.tar matches."""
    if (braces := BRACES.search(pattern)) is None:
        return [pattern]
    first, last = int(braces[1]), int(braces[2])
    if not first <= last < first + MAX_FILES:
        raise UserError(f"the pattern {pattern!r} matches no files, or more than {MAX_FILES:,}; write {{000..099}}")
    numbers = (f"{k:0{len(braces[1])}d}" for k in range(first, last + 1))
    return list(itertools.chain.from_iterable(expand(pattern[: braces.start()] + k + pattern[braces.end() :]) for k in numbers))


def open_store(source: str) -> tuple[Store, list[str] | None]:
    """Return the store of an address or path, and the names of the requested files, None for all."""
    remote = is_remote(source)
    head, _, last = source.rstrip("/").rpartition("/")
    names_files = "{" in last or last.lower().endswith((".tar", ".parquet", ".arrow"))
    if remote:
        return (RemoteStore(head), expand(last)) if names_files else (RemoteStore(source), None)
    path = Path(source).expanduser()
    return (LocalStore(path.parent), expand(path.name)) if names_files else (LocalStore(path), None)
