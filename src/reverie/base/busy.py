"""A busy machine: how long this process waits for a processor, and how it gets along with fewer threads."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

BUSY = 0.15  # the share of waiting from which a machine is called busy
LOOK, LOOKS = 1.0, 2  # seconds over which waiting is judged, and how often in a row it must be found
PATIENCE, LONGEST = 30.0, 480.0  # seconds with one thread until all are tried again: at first, and when it was in vain often
_TASKS = Path("/proc/self/task")


class WaitMeter:
    """Tells, again and again, what share of the time in which its threads could have run this process has waited.

    Linux counts both for every thread (run_delay in schedstat, Documentation/scheduler/sched-stats.rst); elsewhere there
    is nothing to tell.
    """

    def __init__(self) -> None:
        self.before = self._counts()

    @staticmethod
    def _counts() -> dict[str, tuple[int, int]]:
        """Return nanoseconds run and waited by each thread; nothing where the system does not count them."""
        found: dict[str, tuple[int, int]] = {}
        try:
            for task in _TASKS.iterdir():
                ran, waited, _ = (task / "schedstat").read_text().split()
                found[task.name] = int(ran), int(waited)
        except (OSError, ValueError):  # no such system, or a thread that ended meanwhile
            return {}
        return found

    def share(self) -> float | None:
        """Return the share since the last call; None where it is not known."""
        now, before = self._counts(), self.before
        self.before = now
        ran, waited = (sum(now[k][j] - before.get(k, (0, 0))[j] for k in now) for j in (0, 1))
        return round(waited / (ran + waited), 3) if before and ran + waited > 0 else None


@contextmanager
def few_threads_when_busy(clock: Callable[[], float] = time.monotonic) -> Iterator[Callable[[], None]]:
    """Yield what is to be called between steps: while another program holds a core, it takes torch down to one thread.

    Threads that wait for each other spin, and hold the processor that the one they wait for needs: where another program
    takes one of two cores, training is 20 to 50 times slower with two threads and 1.6 times with one.  Threads that sleep
    instead (OMP_WAIT_POLICY=PASSIVE) cost a quiet machine a third of its speed (docs/benchmarks.md).
    """
    import torch

    most, waiting, wait = torch.get_num_threads(), WaitMeter(), PATIENCE
    looked = began = clock()
    seen = 0  # looks in a row that found it busy: one alone may be a program that starts

    def mind() -> None:
        nonlocal looked, began, wait, seen
        now = clock()
        if most == 1 or now - looked < LOOK:
            return
        looked, share = now, waiting.share()
        if torch.get_num_threads() == most:
            seen = seen + 1 if share is not None and share > BUSY else 0
            if seen == LOOKS:
                torch.set_num_threads(1)
                began, seen = now, 0
            elif now - began > LONGEST:
                wait = PATIENCE
        elif now - began > wait:
            torch.set_num_threads(most)
            began, wait = now, min(2 * wait, LONGEST)

    try:
        yield mind
    finally:
        torch.set_num_threads(most)
