"""A time limit for work that is done in parts: what is left of it, and whether a part will end in time."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

from reverie.base.progress import OnProgress


class OutOfTime(Exception):
    """A part of the work would not end in time."""


class Deadline:
    """A moment by which work should end: so many seconds from now by a clock, or never."""

    def __init__(self, seconds: float = math.inf, clock: Callable[[], float] = time.monotonic) -> None:
        self.seconds, self.clock, self.begun = seconds, clock, clock()
        self.end = self.begun + seconds

    @property
    def limited(self) -> bool:
        """Whether there is such a moment."""
        return math.isfinite(self.end)

    @property
    def left(self) -> float:
        """Seconds until then, negative after it."""
        return self.end - self.clock()

    @property
    def elapsed(self) -> float:
        """Seconds since the work began."""
        return self.clock() - self.begun

    def ensure_left(self, seconds: float) -> None:
        """Move the moment so that at least so many seconds are left."""
        self.end = max(self.end, self.clock() + seconds)

    def check(self, seconds: float) -> None:
        """Raise OutOfTime if work that takes so many seconds would not end in time."""
        if seconds > self.left:
            raise OutOfTime


class PacedProgress:
    """Progress that raises OutOfTime as soon as a part, at its speed so far, would not end in time."""

    def __init__(self, on_progress: OnProgress, deadline: Deadline) -> None:
        self.on_progress, self.deadline = on_progress, deadline
        self.begun: dict[str, tuple[float, int]] = {}

    def begin(self) -> None:
        """Forget the speed of the part before."""
        self.begun.clear()

    def __call__(self, what: str, done: int, of: int) -> None:
        """Pass progress on, unless it is too slow."""
        self.on_progress(what, done, of)
        now = self.deadline.clock()
        since, first = self.begun.setdefault(what, (now, done))
        if done < first:  # the same kind of work once more
            since, first = self.begun[what] = now, done
        if first < done < of:
            self.deadline.check((now - since) / (done - first) * (of - done))
