"""How much memory data may take: counted before anything is allocated, and shared out among the threads that read."""

from __future__ import annotations

import math
import shutil
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np

from reverie.base.errors import UserError

ALWAYS_ALLOWED = 2**29  # bytes that the data of any file may take
MAX_EXPANSION = 50  # as many times a file's own size may its data take; what shrinks further hides its size
BYTES_PER_LABEL = 40  # bytes for each label while labels are told apart
MEMORY_LIMIT = 2**30  # bytes of fitted pixels that are kept in memory; more go to a file that is gone when the program ends
DISK_SHARE = 0.5  # of the free space for temporary files, at most


def check_expansion(needed: int, packed: int, where: str, advice: str) -> None:
    """Refuse data that would take much more memory than their file is large.  needed, packed: bytes."""
    if needed > max(ALWAYS_ALLOWED, MAX_EXPANSION * packed):
        raise UserError(
            f"{where} has {packed / 2**20:,.1f} MiB and would become {needed / 2**20:,.0f} MiB, as files do that are"
            f" made to fill the memory; {advice}"
        )


def array_memory(shape: Sequence[int], itemsize: int) -> int:
    """Return how many bytes an array takes while a data set is made of it: the values there are and those it is turned into.

    Of points, (N,) or (N, D), each number becomes one of 4 bytes, and each row has a hash of 8; a pixel becomes one byte, and
    each side at least two pixels.
    """
    values = math.prod(shape)
    if len(shape) <= 2:
        return values * (itemsize + 4) + 16 * (shape[0] if shape else 1)
    sides = [max(2, n) for n in shape[1:]]
    return values * (itemsize + 1) + shape[0] * (math.prod(sides) + 16)


def allocate_pixels(shape: tuple[int, ...]) -> np.ndarray | None:
    """Return where pixels go: memory, a temporary file without a name, or None if there is room for neither."""
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
    """A quantity that threads take parts of and give back, so that together they never hold more than all of it."""

    def __init__(self, most: int) -> None:
        self._most, self._held = most, 0
        self._changed = threading.Condition()

    @contextmanager
    def of(self, amount: int) -> Iterator[None]:
        """Wait until so much is free, and hold it; who asks for more than there is gets all of it."""
        amount = min(amount, self._most)
        with self._changed:
            self._changed.wait_for(lambda: self._held + amount <= self._most)
            self._held += amount
        try:
            yield
        finally:
            with self._changed:
                self._held -= amount
                self._changed.notify_all()
