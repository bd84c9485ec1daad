"""Where shards lie: a folder, or a bucket or server that is asked for ranges of bytes."""

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
STALL = 30.0  # seconds without a byte, after which a request is made anew
WHOLE = 300.0  # seconds that one request may take
RETRIES, FIRST_PAUSE, LONGEST_PAUSE = 5, 0.2, 10.0  # of requests that fail; each pause is about twice the one before
AHEAD = 4 * 2**20  # bytes that are asked for at a time where a shard is read from end to end

SAID = {
    "kind: Timeout": "the server does not answer", "kind: Interrupted": "the connection was cut off",
    "kind: Connect": "no connection to the server", "kind: Decode": "the connection was cut off",
}  # fmt: skip


class StoreError(UserError):
    """A file of a store could not be read: which, and why."""


@dataclass(frozen=True)
class Stored:
    """A file as its store tells of it.  tag: changes with its content, where the store has such a thing."""

    name: str
    size: int
    tag: str = ""


def is_remote(source: str) -> bool:
    """Tell an address from a path."""
    return REMOTE.match(source) is not None


def is_pattern(source: str) -> bool:
    """Tell a pattern of files here, such as shards/{000..099}.tar, from a path that is there."""
    return BRACES.search(source) is not None and not is_remote(source) and not Path(source).exists()


class Store(ABC):
    """Files by name, read from any byte on.  address: of the folder or prefix that names are relative to."""

    address: str
    remote: bool

    @abstractmethod
    def files(self) -> list[Stored] | None:
        """Return what lies directly in it; None where a server does not say."""

    @abstractmethod
    def stat(self, name: str) -> Stored | None:
        """Return what is known of one file; None where it is not there."""

    @abstractmethod
    def read(self, name: str, offset: int, size: int) -> bytes:
        """Return exactly so many bytes of a file."""

    @abstractmethod
    def open(self, name: str, size: int) -> IO[bytes]:
        """Return a file to be read from its beginning to its end."""

    def where(self, name: str) -> str:
        """Return the whole name of a file, for messages."""
        return f"{self.address.rstrip('/')}/{name}"

    def short(self, name: str, wanted: int, got: int) -> StoreError:
        """Return the error for a file that ended early."""
        return StoreError(f"{self.where(name)} ended {wanted - got:,} bytes early; it was cut off or has changed")


class LocalStore(Store):
    """A folder of this machine."""

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
        """Read from the file, which is opened for it."""
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
    """A bucket, or a server of HTTP.  Requests that fail or stall are made anew by obstore, after longer and longer pauses."""

    remote = True

    def __init__(self, address: str) -> None:
        self.address = address.rstrip("/")
        parts = urlsplit(address)
        if parts.query or parts.fragment or "@" in parts.netloc:
            raise UserError("an address of data has no password, no question mark and no #; give the plain address")
        self.lists = parts.scheme.lower() not in ("http", "https")
        try:
            self._obstore: Any = importlib.import_module("obstore")
            stores: Any = importlib.import_module("obstore.store")
        except ImportError:
            raise UserError(f"{address} needs obstore to be read; install it with: pip install 'reverie[remote]'") from None
        with self._plain(""):
            self._store = stores.from_url(
                self.address,
                client_options={"timeout": timedelta(seconds=WHOLE), "read_timeout": timedelta(seconds=STALL),
                                "connect_timeout": timedelta(seconds=min(10.0, STALL)), "allow_http": True},
                retry_config={"max_retries": RETRIES, "retry_timeout": timedelta(seconds=RETRIES * (STALL + LONGEST_PAUSE)),
                              "backoff": {"init_backoff": timedelta(seconds=FIRST_PAUSE),
                                          "max_backoff": timedelta(seconds=LONGEST_PAUSE), "base": 2.0}},
            )  # fmt: skip

    @contextmanager
    def _plain(self, name: str) -> Iterator[None]:
        """Say what went wrong in one sentence."""
        try:
            yield
        except UserError:
            raise
        except Exception as error:  # obstore has a kind of its own for each store
            raise StoreError(f"{self.where(name)} cannot be read: {_said(error)}") from None

    def files(self) -> list[Stored] | None:
        """List the prefix, without what lies deeper."""
        if not self.lists:
            return None
        with self._plain(""):
            found = self._obstore.list_with_delimiter(self._store)["objects"]
        return sorted((_stored(meta["path"], meta) for meta in found[:MAX_FILES]), key=lambda f: f.name)

    def stat(self, name: str) -> Stored | None:
        """Ask for size and tag."""
        with self._plain(name):
            try:
                return _stored(name, self._obstore.head(self._store, name))
            except FileNotFoundError:
                return None

    def read(self, name: str, offset: int, size: int) -> bytes:
        """Ask for a range of bytes."""
        with self._plain(name):
            data = bytes(self._obstore.get_range(self._store, name, start=offset, length=size)) if size else b""
        if len(data) != size:
            raise self.short(name, size, len(data))
        return data

    def open(self, name: str, size: int) -> IO[bytes]:
        """Return a file of which the next few megabytes are always on their way."""
        return io.BufferedReader(StreamFile(self, name, size), 2**20)


class RangeFile(io.RawIOBase):
    """A file of a store, with a place to read from, that asks for what is read and no more."""

    def __init__(self, store: Store, name: str, size: int) -> None:
        self.store, self.name, self.size, self.place = store, name, size, 0

    def readable(self) -> bool:
        """Yes."""
        return True

    def seekable(self) -> bool:
        """Yes."""
        return True

    def tell(self) -> int:
        """Return the place."""
        return self.place

    def seek(self, offset: int, whence: int = os.SEEK_SET, /) -> int:
        """Go to a place."""
        self.place = offset + (0, self.place, self.size)[whence]
        return self.place

    def readinto(self, buffer: Any, /) -> int:
        """Fill a buffer, as far as the file goes."""
        part = self._some(len(buffer)) if self.place < self.size and len(buffer) else b""
        buffer[: len(part)] = part
        self.place += len(part)
        return len(part)

    def _some(self, most: int) -> bytes:
        return self.store.read(self.name, self.place, min(most, self.size - self.place))


class StreamFile(RangeFile):
    """A file that is read from end to end: the piece that is read from and the one after it are asked for by other threads."""

    def __init__(self, store: Store, name: str, size: int) -> None:
        super().__init__(store, name, size)
        self.pieces: dict[int, Future[bytes]] = {}

    def _some(self, most: int) -> bytes:
        number, within = divmod(self.place, AHEAD)
        wanted = [k for k in (number, number + 1) if k * AHEAD < self.size]
        self.pieces = {k: self.pieces.get(k) or self._ask(k) for k in wanted}
        return self.pieces[number].result()[within : within + most]

    def _ask(self, number: int) -> Future[bytes]:
        begin = number * AHEAD
        return fetch_pool().submit(self.store.read, self.name, begin, min(AHEAD, self.size - begin))


def _stored(name: str, meta: Any) -> Stored:
    return Stored(name, int(meta["size"]), str(meta.get("e_tag") or ""))


def _said(error: Exception) -> str:
    """Say an error of obstore in a few words; what it says of its source is long, and tells more."""
    words = " ".join(str(error).split())
    if isinstance(error, FileNotFoundError):
        return "there is no such file (404)"
    if (status := re.search(r"status code: (\d{3}(?: [A-Z][A-Za-z]+)*)", words)) is not None:
        return f"the server answers {status[1]}"
    for sign, plain in SAID.items():
        if sign in words:
            return plain
    return words.split(" Debug source:")[0][:160]


def expand(pattern: str) -> list[str]:
    """Return the names that a pattern such as {000..099}.tar means."""
    if (braces := BRACES.search(pattern)) is None:
        return [pattern]
    first, last = int(braces[1]), int(braces[2])
    if not first <= last < first + MAX_FILES:
        raise UserError(f"the pattern {pattern!r} means no files, or more than {MAX_FILES:,}; write {{000..099}}")
    numbers = (f"{k:0{len(braces[1])}d}" for k in range(first, last + 1))
    return list(itertools.chain.from_iterable(expand(pattern[: braces.start()] + k + pattern[braces.end() :]) for k in numbers))


def open_store(source: str) -> tuple[Store, list[str] | None]:
    """Return the store of an address or path, and the files of it that are meant, None for all of them."""
    remote = is_remote(source)
    head, _, last = source.rstrip("/").rpartition("/")
    one = "{" in last or last.lower().endswith((".tar", ".parquet", ".arrow"))
    if remote:
        return (RemoteStore(head), expand(last)) if one else (RemoteStore(source), None)
    path = Path(source).expanduser()
    return (LocalStore(path.parent), expand(path.name)) if one else (LocalStore(path), None)
