"""Deadlines for work in parts: the time left, and whether a part will finish in time."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

from reverie.base.progress import OnProgress


class OutOfTime(Exception):
    """A part of the work would not finish in time."""


class Deadline:
    """A time limit: seconds from now on a clock, or infinity."""

    def __init__(self, seconds: float = math.inf, clock: Callable[[], float] = time.monotonic) -> None:
        self.seconds, self.clock, self.started = seconds, clock, clock()
        self.end = self.started + seconds

    @property
    def limited(self) -> bool:
        """Whether the limit is finite."""
        return math.isfinite(self.end)

    @property
    def left(self) -> float:
        """Seconds until the deadline, negative after it."""
        return self.end - self.clock()

    @property
    def elapsed(self) -> float:
        """Seconds since construction."""
        return self.clock() - self.started

    def ensure_left(self, seconds: float) -> None:
        """Extend the deadline so that at least this many seconds are left."""
        self.end = max(self.end, self.clock() + seconds)

    def check(self, seconds: float) -> None:
        """Raise OutOfTime if work of this length would not finish in time."""
        if seconds > self.left:
            raise OutOfTime


class PacedProgress:
    """A progress callback that raises OutOfTime as soon as a part, at its current speed, would not finish in time."""

    def __init__(self, on_progress: OnProgress, deadline: Deadline) -> None:
        self.on_progress, self.deadline = on_progress, deadline
        self.started: dict[str, tuple[float, int]] = {}

    def begin(self) -> None:
        """Reset the speed measurement before a new part."""
        self.started.clear()

    def __call__(self, what: str, done: int, of: int) -> None:
        """Report progress; raise OutOfTime if it is too slow."""
        self.on_progress(what, done, of)
        now = self.deadline.clock()
        since, first = self.started.setdefault(what, (now, done))
        if done < first:  # the same part again
            since, first = self.started[what] = now, done
        if first < done < of:
            self.deadline.check((now - since) / (done - first) * (of - done))
