"""Downloads: with progress, resumed after an interruption, verified by checksum, and renamed only when complete."""

from __future__ import annotations

import hashlib
import http.client
import os
import re
import tempfile
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from reverie.base.errors import UserError
from reverie.base.files import reason
from reverie.data.reading import ReadingOptions

CHUNK_BYTES = 256 * 1024
TIMEOUT = 20.0
MAX_SIZE = 2**30


class Unreachable(Exception):
    """A file that could not be downloaded from this address; another may work."""


@dataclass(frozen=True)
class RemoteFile:
    """A file by name and SHA-256 checksum."""

    name: str
    sha256: str


def fetch(remote: RemoteFile, addresses: Sequence[str], folder: Path, options: ReadingOptions) -> Path:
    """Return the file in the folder, downloaded from the first address that works."""
    path = folder / remote.name
    if path.is_file() and _sha256(path) == remote.sha256:
        return path
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"cannot create the folder {folder} for downloads: {reason(error)}; set XDG_CACHE_HOME") from None
    why = "no address is known"
    try:
        with _part(path) as part:
            for address in addresses:
                try:
                    _receive(address.rstrip("/") + "/" + remote.name, part, options)
                    if _sha256(part) != remote.sha256:
                        part.unlink(missing_ok=True)  # nothing to resume from
                        raise Unreachable(f"{address} sent {remote.name} with a wrong checksum")
                    part.replace(path)
                    return path
                except Unreachable as error:
                    why = str(error)
    except OSError as error:
        raise UserError(f"cannot write {path}: {reason(error)}; free space, or set XDG_CACHE_HOME") from None
    raise Unreachable(f"{path} is damaged, and {why}" if path.is_file() else why)


@contextmanager
def _part(path: Path) -> Iterator[Path]:
    """Yield the path of a partial download that only this process writes.

    An earlier partial download is resumed; while another process writes it, a private file is used instead.
    """
    with ExitStack() as stack:
        folder = path.parent
        if not _try_lock(folder, stack):
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix=f".{path.name}-", dir=folder)))
        yield folder / f"{path.name}.part"


def _try_lock(folder: Path, stack: ExitStack) -> bool:
    """Lock a folder until the stack closes; return whether no other process holds the lock."""
    try:
        import fcntl
    except ImportError:  # a system without these locks
        return True
    handle = os.open(folder, os.O_RDONLY)
    stack.callback(os.close, handle)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # a file system without locks
        pass
    return True


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _receive(url: str, part: Path, options: ReadingOptions) -> None:
    """Download into part, resuming if the server supports ranges."""
    received = part.stat().st_size if part.is_file() else 0
    request = urllib.request.Request(url, headers={"User-Agent": "reverie", "Accept-Encoding": "identity"})
    if received:
        request.add_header("Range", f"bytes={received}-")
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT) as response:
            length = int(response.headers.get("Content-Length") or 0)
            content_range = re.match(r"bytes (\d+)-", response.headers.get("Content-Range") or "")
            is_resumed = response.status == 206 and content_range is not None and int(content_range[1]) == received
            if response.status == 206 and not is_resumed:
                part.unlink(missing_ok=True)
                raise Unreachable(f"{url} sent another range than requested")
            received = received if is_resumed else 0
            total = received + length
            with part.open("ab" if is_resumed else "wb") as file:
                while chunk := _read_chunk(response, url):
                    file.write(chunk)
                    received += len(chunk)
                    if received > MAX_SIZE:
                        raise Unreachable(f"{url} sends more than {MAX_SIZE:,} bytes")
                    options.report_progress(f"downloading {part.name.removesuffix('.part')}", received, max(total, received))
            if received < total:
                raise Unreachable(f"{url} broke off after {received} of {total} bytes; the next download resumes there")
    except urllib.error.HTTPError as error:
        if error.code == 416:  # complete already, or a stale part: the checksum decides
            return
        raise Unreachable(f"{url} answered {error.code} {error.reason}") from None
    except (urllib.error.URLError, http.client.HTTPException, ValueError) as error:
        cause = error.reason if isinstance(error, urllib.error.URLError) else error
        raise Unreachable(f"{url} cannot be reached: {_describe_cause(cause)}") from None
    except TimeoutError:
        raise Unreachable(f"{url} did not answer in {TIMEOUT:.0f} seconds") from None


def _read_chunk(response: http.client.HTTPResponse, url: str) -> bytes:
    """Read a chunk; raise Unreachable for a broken connection, but not for a full disk."""
    try:
        return response.read(CHUNK_BYTES)
    except (OSError, http.client.HTTPException) as error:
        raise Unreachable(f"{url} broke off ({_describe_cause(error)}); the next download resumes there") from None


def _describe_cause(cause: object) -> str:
    return reason(cause) if isinstance(cause, OSError) else " ".join(str(cause).split()).lower()
