"""How long this process waits for a processor, which is how a busy machine shows."""

from __future__ import annotations

import os
from pathlib import Path

BUSY = 0.15  # the share of waiting from which a machine is called busy
_TASKS = Path("/proc/self/task")


def let_threads_sleep() -> None:
    """Have threads that wait for each other sleep instead of spin; to be called before torch is loaded.

    A spinning thread holds the processor that the one it waits for could use, so where another program takes a core,
    training becomes many times slower.  What the user has set stays.
    """
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")


class Waiting:
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
