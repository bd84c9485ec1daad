"""Start-up: CPU time of the shortest sampling against that of loading torch."""

from __future__ import annotations

import os
import resource
import statistics
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import reverie
from benchmarks.measure import Row

ROUNDS = 7
SAMPLE = ("-m", "reverie", "sample", "{run}", "-n", "1", "--steps", "1", "--out", "{run}/x.png", "--quiet")


def processor_seconds(*words: str) -> float:
    """Run Python in its own process and return its CPU time."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, *words], check=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def startup() -> Row:
    """`reverie sample RUN -n 1 --steps 1` of an image run, against `import torch`, in turn."""
    ours: list[float] = []
    peer: list[float] = []
    with TemporaryDirectory() as folder:
        run = reverie.train("digits8", Path(folder) / "run", steps=1, network="unet-tiny").path
        for k in range(ROUNDS + 1):  # the first is a warm-up
            times = processor_seconds(*(word.format(run=run) for word in SAMPLE)), processor_seconds("-c", "import torch")
            for durations, elapsed in zip((ours, peer), times, strict=True):
                durations.extend([elapsed] * (k > 0))
    note = "python -c 'import torch'; CPU time of one process each"
    row = Row("start-up: reverie sample RUN -n 1 --steps 1", statistics.median(ours), statistics.median(peer), note)
    print(f"{row.what:<58} {row.ours * 1e3:9.2f} ms {row.peer * 1e3:9.2f} ms   x{row.ratio:.2f}", flush=True)
    return row


if __name__ == "__main__":
    startup()
