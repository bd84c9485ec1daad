"""The time of a whole command: counted from its beginning, and shared out among its stages up to the very end.

A stage that comes after the training steps takes three lines.  Early, and again whenever its time can be estimated better, it
keeps that time back, so that the steps end so much earlier; when its turn comes, it works until its time is over:

    budget.reserve("choosing the sampler", 0.05 * budget.seconds)

    with budget.stage("choosing the sampler") as stage:
        for candidate in candidates:
            if stage.left < price_of_one:  # infinite where the length is given in steps
                break

A stage that can only be left out asks `budget.affords("film", price)` first, which says a line where there is no time for it.
Stages are timed by `budget.clock`, the wall's or the processor's as the user chose, and never by a clock of their own.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from reverie.base.deadline import Deadline

Clock = Callable[[], float]
Say = Callable[[str], None]
Watch = Callable[[str, int, int, float], None]  # (stage, how many are done, of how many, seconds left for all of them)

PATIENCE, SLACK = 1.25, 1.0  # times the time that is left for a stage, and seconds more, up to which it is begun nevertheless


class Budget:
    """The time of a command, which begins when this is made; without a limit until one is set.

    wall, processor: the clocks that time is counted by; say: shows a line to the user; watch: is called when a stage begins.
    """

    def __init__(
        self, wall: Clock = time.monotonic, processor: Clock = time.process_time, say: Say = lambda line: None
    ) -> None:
        self._clocks = {"wall": wall, "processor": processor}
        self._begun = {name: clock() for name, clock in self._clocks.items()}
        self.counted, self.seconds = "wall", math.inf
        self.say = say
        self.watch: Watch = lambda stage, done, of, left: None
        self._kept: dict[str, float] = {}
        self._done = 0

    def limit(self, seconds: float, counted: str = "wall") -> None:
        """Set what the command may take from its beginning to its end.  counted: by which clock, wall or processor."""
        self.seconds, self.counted = seconds, counted

    @property
    def clock(self) -> Clock:
        """What time is counted by."""
        return self._clocks[self.counted]

    @property
    def spent(self) -> float:
        """The seconds since the command began."""
        return self.clock() - self._begun[self.counted]

    @property
    def left(self) -> float:
        """The seconds until the command should have ended, negative where it should have."""
        return self.seconds - self.spent

    @property
    def reserved(self) -> float:
        """The seconds that later stages will take."""
        return math.fsum(self._kept.values())

    @property
    def free(self) -> float:
        """The seconds that are not kept back for later stages."""
        return self.left - self.reserved

    def reserve(self, stage: str, seconds: float, share: float = 1.0) -> None:
        """Keep time back for a later stage; the last estimate counts.

        share: of the whole time, at most; nothing is kept back for what would take more, which then is left out.
        """
        self._kept[stage] = max(0.0, seconds) if seconds <= share * self.seconds else 0.0

    def affords(self, stage: str, seconds: float) -> bool:
        """Tell whether there is time for a stage that would take so long; say that it is left out where there is not."""
        share = self._share(stage)
        if seconds <= PATIENCE * share + SLACK:
            return True
        self._kept.pop(stage, None)
        self.say(f"left out, as the time is over: {stage}, which would take about {seconds:.0f} s")
        return False

    @contextmanager
    def stage(self, name: str) -> Iterator[Deadline]:
        """Begin a stage, which may take what later ones leave; where the time is short, all get a part of it."""
        remaining, share = self.reserved, self._share(name)
        self._kept.pop(name, None)
        self.watch(name, self._done, self._done + 1 + len(self._kept), remaining)
        try:
            yield Deadline(share, self.clock)
        finally:
            self._done += 1

    def _share(self, stage: str) -> float:
        """Return the seconds for a stage: what later ones leave, or where they leave too little, what is left by estimates."""
        own, left = self._kept.get(stage, 0.0), max(0.0, self.left)
        others = self.reserved - own
        return max(left - others, left * own / (own + others) if own else 0.0)

    def part(self, share: float) -> Budget:
        """Return the budget of a part of the command that begins now and gets a share of what is left."""
        clock = self.clock
        inner = Budget(clock, clock, self.say)
        inner.watch = self.watch
        inner.limit(share * max(0.0, self.left))
        return inner
