"""The time budget of a command: counted from its start and divided among its stages.

A stage after the training steps takes three lines.  It reserves its estimated time early, and again when a better estimate is
available, so that training ends earlier; then it runs until its time is used up:

    budget.reserve("choosing the sampler", 0.05 * budget.seconds)

    with budget.stage("choosing the sampler") as stage:
        for candidate in candidates:
            if stage.left < candidate_seconds:  # infinite if the length is given in steps
                break

An optional stage calls `budget.has_time_for("film", seconds)` first, which notifies the user if the stage is skipped.
Stages measure time with `budget.clock`, the wall or processor clock as requested.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from reverie.base.deadline import Deadline

Clock = Callable[[], float]
Notify = Callable[[str], None]
OnStage = Callable[[str, int, int, float], None]  # (stage, number done, total, seconds reserved for all remaining stages)

TOLERANCE, SLACK = 1.25, 1.0  # a stage is started if its estimate is at most TOLERANCE times its share + SLACK seconds


class Budget:
    """The time budget of a command, which starts at construction; unlimited until `limit` is called.

    wall, processor: the clocks; notify: shows a line to the user; on_stage: called at the start of each stage.
    """

    def __init__(
        self, wall: Clock = time.monotonic, processor: Clock = time.process_time, notify: Notify = lambda line: None
    ) -> None:
        self._clocks = {"wall": wall, "processor": processor}
        self._started = {name: clock() for name, clock in self._clocks.items()}
        self.clock_name, self.seconds = "wall", math.inf
        self.notify = notify
        self.on_stage: OnStage = lambda stage, done, of, left: None
        self._reservations: dict[str, float] = {}
        self._done = 0

    def limit(self, seconds: float, clock_name: str = "wall") -> None:
        """Limit the total time of the command.  clock_name: wall or processor."""
        self.seconds, self.clock_name = seconds, clock_name

    @property
    def clock(self) -> Clock:
        """The clock that measures the time."""
        return self._clocks[self.clock_name]

    @property
    def spent(self) -> float:
        """Seconds since the command started."""
        return self.clock() - self._started[self.clock_name]

    @property
    def left(self) -> float:
        """Seconds until the limit, negative after it."""
        return self.seconds - self.spent

    @property
    def reserved(self) -> float:
        """Seconds reserved for later stages."""
        return math.fsum(self._reservations.values())

    @property
    def free(self) -> float:
        """Seconds not reserved for later stages."""
        return self.left - self.reserved

    def reserve(self, stage: str, seconds: float, share: float = 1.0) -> None:
        """Reserve time for a later stage; the last estimate counts.

        share: maximum share of the total time; a stage that needs more gets no reservation and is skipped.
        """
        self._reservations[stage] = max(0.0, seconds) if seconds <= share * self.seconds else 0.0

    def has_time_for(self, stage: str, seconds: float) -> bool:
        """Return whether a stage of this length fits into the budget; notify the user if it is skipped."""
        share = self._share(stage)
        if seconds <= TOLERANCE * share + SLACK:
            return True
        self._reservations.pop(stage, None)
        self.notify(f"skipped for lack of time: {stage}, which needs about {seconds:.0f} s")
        return False

    @contextmanager
    def stage(self, name: str) -> Iterator[Deadline]:
        """Start a stage with the time that later stages leave; if too little is left, all get a share in proportion."""
        remaining, share = self.reserved, self._share(name)
        self._reservations.pop(name, None)
        self.on_stage(name, self._done, self._done + 1 + len(self._reservations), remaining)
        try:
            yield Deadline(share, self.clock)
        finally:
            self._done += 1

    def _share(self, stage: str) -> float:
        """Return the seconds for a stage: the time later stages leave, or at least its proportional share of the time left."""
        own, left = self._reservations.get(stage, 0.0), max(0.0, self.left)
        others = self.reserved - own
        return max(left - others, left * own / (own + others) if own else 0.0)

    def sub_budget(self, share: float) -> Budget:
        """Return the budget of a part of the command that starts now and gets this share of the time left."""
        clock = self.clock
        inner = Budget(clock, clock, self.notify)
        inner.on_stage = self.on_stage
        inner.limit(share * max(0.0, self.left))
        return inner
