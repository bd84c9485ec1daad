"""Memory limits of reading: sizes are checked before allocation, and threads share a quota."""

from __future__ import annotations

import math
import shutil
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np

from reverie.base.errors import UserError

ALWAYS_ALLOWED = 2**29  # bytes to which any file may expand
MAX_EXPANSION = 50  # maximum ratio of decoded to file size; higher ratios indicate a decompression bomb
BYTES_PER_LABEL = 40  # bytes per label during encoding
MEMORY_LIMIT = 2**30  # bytes of fitted pixels kept in memory; more go to a temporary file
DISK_SHARE = 0.5  # maximum share of the free space for temporary files


def check_expansion(needed: int, packed: int, where: str, advice: str) -> None:
    """Refuse data that expand to far more than the file size.  needed, packed: bytes."""
    if needed > max(ALWAYS_ALLOWED, MAX_EXPANSION * packed):
        raise UserError(
            f"{where} has {packed / 2**20:,.1f} MiB and would expand to {needed / 2**20:,.0f} MiB, like a decompression"
            f" bomb; {advice}"
        )


def array_memory(shape: Sequence[int], itemsize: int) -> int:
    """Return the peak bytes of an array while it becomes a dataset: its values and their converted copies.

    For points, (N,) or (N, D), each number becomes 4 bytes, and each row has a hash of 8; a pixel becomes one byte, and each
    side at least two pixels.
    """
    values = math.prod(shape)
    if len(shape) <= 2:
        return values * (itemsize + 4) + 16 * (shape[0] if shape else 1)
    sides = [max(2, n) for n in shape[1:]]
    return values * (itemsize + 1) + shape[0] * (math.prod(sides) + 16)


def allocate_pixels(shape: tuple[int, ...]) -> np.ndarray | None:
    """Allocate pixels in memory or in an unnamed temporary file; return None if there is no space."""
    size = math.prod(shape)
    if size <= MEMORY_LIMIT:
        return np.empty(shape, np.uint8)
    try:
        if size > DISK_SHARE * shutil.disk_usage(tempfile.gettempdir()).free:
            return None
        with tempfile.TemporaryFile() as file:
            return np.memmap(file, np.uint8, "w+", shape=shape)
    except OSError:
        return None


class Quota:
    """A quota shared by threads, which acquire and release amounts and together never exceed it."""

    def __init__(self, limit: int) -> None:
        self._limit, self._held = limit, 0
        self._changed = threading.Condition()

    @contextmanager
    def of(self, amount: int) -> Iterator[None]:
        """Acquire an amount, waiting until it is free; larger requests get the whole quota."""
        amount = min(amount, self._limit)
        with self._changed:
            self._changed.wait_for(lambda: self._held + amount <= self._limit)
            self._held += amount
        try:
            yield
        finally:
            with self._changed:
                self._held -= amount
                self._changed.notify_all()
