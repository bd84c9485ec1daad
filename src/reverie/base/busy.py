"""CPU contention: the share of time this process waits for a core, and one thread instead of many when it does."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

BUSY = 0.15  # wait share above which the machine counts as busy
INTERVAL, REPEATS = 1.0, 2  # seconds between measurements, and consecutive busy measurements before a change
# Seconds with one thread before all are tried again: initially, and at most after repeated failures.
RETRY_AFTER, MAX_RETRY_AFTER = 30.0, 480.0
_TASKS = Path("/proc/self/task")


class WaitMeter:
    """Measures the share of runnable time that the threads of this process waited for a core since the last call.

    Linux counts both per thread (run_delay in schedstat, Documentation/scheduler/sched-stats.rst); other systems do not.
    """

    def __init__(self) -> None:
        self.before = self._counts()

    @staticmethod
    def _counts() -> dict[str, tuple[int, int]]:
        """Return nanoseconds (run, waited) of each thread; empty if the system does not count them."""
        counts: dict[str, tuple[int, int]] = {}
        try:
            for task in _TASKS.iterdir():
                ran, waited, _ = (task / "schedstat").read_text().split()
                counts[task.name] = int(ran), int(waited)
        except (OSError, ValueError):  # another system, or a thread that has just ended
            return {}
        return counts

    def share(self) -> float | None:
        """Return the wait share since the last call; None if unknown."""
        now, before = self._counts(), self.before
        self.before = now
        ran, waited = (sum(now[k][j] - before.get(k, (0, 0))[j] for k in now) for j in (0, 1))
        return round(waited / (ran + waited), 3) if before and ran + waited > 0 else None


@contextmanager
def few_threads_when_busy(clock: Callable[[], float] = time.monotonic) -> Iterator[Callable[[], None]]:
    """Yield a function to call between steps, which reduces torch to one thread while another program uses a core.

    Threads that wait for each other spin and occupy the core that the other thread needs: if another program takes one of two
    cores, training is 20 to 50 times slower with two threads and 1.6 times with one.  Sleeping threads
    (OMP_WAIT_POLICY=PASSIVE) are a third slower on an idle machine (docs/benchmarks.md).
    """
    import torch

    max_threads, meter, retry_after = torch.get_num_threads(), WaitMeter(), RETRY_AFTER
    measured = changed = clock()
    busy_count = 0  # consecutive busy measurements: a single one may be a program starting up

    def adjust_threads() -> None:
        nonlocal measured, changed, retry_after, busy_count
        now = clock()
        if max_threads == 1 or now - measured < INTERVAL:
            return
        measured, share = now, meter.share()
        if torch.get_num_threads() == max_threads:
            busy_count = busy_count + 1 if share is not None and share > BUSY else 0
            if busy_count == REPEATS:
                torch.set_num_threads(1)
                changed, busy_count = now, 0
            elif now - changed > MAX_RETRY_AFTER:
                retry_after = RETRY_AFTER
        elif now - changed > retry_after:
            torch.set_num_threads(max_threads)
            changed, retry_after = now, min(2 * retry_after, MAX_RETRY_AFTER)

    try:
        yield adjust_threads
    finally:
        torch.set_num_threads(max_threads)
