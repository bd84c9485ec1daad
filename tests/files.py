"""Helpers for tests of files: special files, a full disk, and the peak memory of reading."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

KINDS = ("link", "dangling", "endless", "fifo", "folder", "device")


def put(path: Path, kind: str, place: Path) -> None:
    """Create a special file in place of an expected one; links lead to place/precious."""
    path.parent.mkdir(parents=True, exist_ok=True)
    match kind:
        case "link":
            path.symlink_to(place / "precious")
        case "dangling":
            path.symlink_to(place / "nothing")
        case "endless":
            path.symlink_to("/dev/zero")
        case "fifo":
            os.mkfifo(path)
        case "folder":
            path.mkdir()
        case "device":
            path.symlink_to("/dev/full")


@contextmanager
def full_disk(max_bytes: int) -> Iterator[None]:
    """Limit the size of files: writes fail as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (max_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def peak() -> float:
    """Return the peak memory of this process since `forget`, in bytes."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return float(line.split()[1]) * 1024
    return 0.0


def forget() -> None:
    """Reset the peak memory."""
    Path("/proc/self/clear_refs").write_text("5")
