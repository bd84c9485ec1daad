"""Fetching files: with progress, resumed where it broke off, checked, and renamed only when whole."""

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

PIECE = 256 * 1024
TIMEOUT = 20.0
MAX_SIZE = 2**30


class Unreachable(Exception):
    """Why a file could not be fetched; another place may have it."""


@dataclass(frozen=True)
class RemoteFile:
    """A file by name and SHA-256 sum, to be had under any of some addresses."""

    name: str
    sha256: str


def fetch(remote: RemoteFile, addresses: Sequence[str], folder: Path, options: ReadingOptions) -> Path:
    """Return the file in the folder, fetched from the first address that gives it whole."""
    path = folder / remote.name
    if path.is_file() and _sha256(path) == remote.sha256:
        return path
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"cannot make the folder {folder} for downloads: {reason(error)}; set XDG_CACHE_HOME") from None
    why = "no address is known"
    try:
        with _part(path) as part:
            for address in addresses:
                try:
                    _receive(address.rstrip("/") + "/" + remote.name, part, options)
                    if _sha256(part) != remote.sha256:
                        part.unlink(missing_ok=True)  # nothing to resume from
                        raise Unreachable(f"what {address} sent for {remote.name} has a wrong checksum")
                    part.replace(path)
                    return path
                except Unreachable as error:
                    why = str(error)
    except OSError as error:
        raise UserError(f"cannot write {path}: {reason(error)}; make room, or set XDG_CACHE_HOME") from None
    raise Unreachable(f"{path} is damaged, and {why}" if path.is_file() else why)


@contextmanager
def _part(path: Path) -> Iterator[Path]:
    """Yield the file that a download is written to, which is for this process alone.

    What another one left there is gone on with; while another one writes to it, a file of our own is taken instead.
    """
    with ExitStack() as stack:
        folder = path.parent
        if not _alone(folder, stack):
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix=f".{path.name}-", dir=folder)))
        yield folder / f"{path.name}.part"


def _alone(folder: Path, stack: ExitStack) -> bool:
    """Lock a folder until the stack ends, however that is; tell whether nobody else had."""
    try:
        import fcntl
    except ImportError:  # no such locks on this system
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
    """Fetch into part, going on from what it holds if the server can do that."""
    have = part.stat().st_size if part.is_file() else 0
    request = urllib.request.Request(url, headers={"User-Agent": "reverie", "Accept-Encoding": "identity"})
    if have:
        request.add_header("Range", f"bytes={have}-")
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT) as answer:
            length = int(answer.headers.get("Content-Length") or 0)
            stated = re.match(r"bytes (\d+)-", answer.headers.get("Content-Range") or "")
            goes_on = answer.status == 206 and stated is not None and int(stated[1]) == have
            if answer.status == 206 and not goes_on:
                part.unlink(missing_ok=True)
                raise Unreachable(f"{url} sent another part than asked for")
            have = have if goes_on else 0
            total = have + length
            with part.open("ab" if goes_on else "wb") as file:
                while piece := _piece(answer, url):
                    file.write(piece)
                    have += len(piece)
                    if have > MAX_SIZE:
                        raise Unreachable(f"{url} sends without end")
                    options.report_progress(f"downloading {part.name.removesuffix('.part')}", have, max(total, have))
            if have < total:
                raise Unreachable(f"{url} broke off after {have} of {total} bytes; the next try goes on from there")
    except urllib.error.HTTPError as error:
        if error.code == 416:  # all there already, or a stale part: the checksum tells
            return
        raise Unreachable(f"{url} answered {error.code} {error.reason}") from None
    except (urllib.error.URLError, http.client.HTTPException, ValueError) as error:
        cause = error.reason if isinstance(error, urllib.error.URLError) else error
        raise Unreachable(f"{url} cannot be reached: {_words(cause)}") from None
    except TimeoutError:
        raise Unreachable(f"{url} did not answer in {TIMEOUT:.0f} seconds") from None


def _piece(answer: http.client.HTTPResponse, url: str) -> bytes:
    """Read on, telling a broken connection from a full disk."""
    try:
        return answer.read(PIECE)
    except (OSError, http.client.HTTPException) as error:
        raise Unreachable(f"{url} broke off ({_words(error)}); the next try goes on from there") from None


def _words(cause: object) -> str:
    return reason(cause) if isinstance(cause, OSError) else " ".join(str(cause).split()).lower()
