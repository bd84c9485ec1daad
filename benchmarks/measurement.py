"""Speed and memory of metrics, and the time of an evaluation."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch

import reverie
from benchmarks.measure import Row, side_by_side
from benchmarks.transport import clouds, in_child_process
from reverie.base.distances import nearest
from reverie.evaluation.metrics.kid import kid

KID = """
from reverie.evaluation.metrics.kid import kid
x, y = (torch.randn(50_000, 64, generator=random) + shift for shift in (0.0, 0.02))
start = time.perf_counter()
found = kid(x, y)
result = {"value": float(found.value), "error": found.standard_error}
"""
NEAREST = """
from reverie.evaluation.metrics.neighbours import neighbours
data, x = torch.rand(60_000, 784, generator=random), torch.rand(2_000, 784, generator=random)
start = time.perf_counter()
found = neighbours(x, lambda: data.split(2048), lambda index: data[index])
result = {"copies": found.share}
"""


def measure_rows() -> list[Row]:
    """Compare KID and nearest neighbours with scikit-learn."""
    from sklearn.metrics.pairwise import polynomial_kernel
    from sklearn.neighbors import NearestNeighbors

    x, y = (z.float() for z in clouds())
    u, v = x.numpy(), y.numpy()
    random = torch.Generator().manual_seed(0)
    data, queries = torch.rand(20_000, 784, generator=random), torch.rand(500, 784, generator=random)

    def whole() -> object:
        return [polynomial_kernel(p, q, degree=3, gamma=1 / 64, coef0=1).mean() for p, q in ((u, u), (v, v), (u, v))]

    def brute() -> object:
        return NearestNeighbors(n_neighbors=1, algorithm="brute").fit(data.numpy()).kneighbors(queries.numpy())

    return [
        side_by_side(
            "KID", lambda: kid(x, y), whole,
            "three scikit-learn polynomial_kernel matrices, 2,000 x 2,000 in 64 dimensions; Reverie with its standard error", 5,
        ),
        side_by_side(
            "nearest neighbours", lambda: nearest(queries, data.split(2048)), brute,
            "scikit-learn NearestNeighbors, brute force, 500 among 20,000 images of 784 pixels", 5,
        ),
    ]  # fmt: skip


def measurement(minutes: float = 1.0) -> list[str]:
    """Measure large problems, each in its own process, and an evaluation of the digits model."""
    kid_result, nearest_result = in_child_process(KID), in_child_process(NEAREST)
    with tempfile.TemporaryDirectory() as place:
        run = reverie.train("digits", Path(place) / "run", minutes=minutes)
        command = [sys.executable, "-m", "reverie", "evaluate", str(run.path), "--quick", "--quiet", "--out", f"{place}/r.html"]
        times = []
        for cached in (False, True):
            start = time.perf_counter()
            subprocess.run(command, check=True, env={"XDG_CACHE_HOME": place, "PATH": ""})
            times.append((time.perf_counter() - start, cached))
    lines = [
        "Peak memory of the process (ru_maxrss), including torch; 2 threads.",
        "",
        "| what | time | peak memory | result |",
        "|---|---|---|---|",
        f"| KID with its error, 50,000 x 50,000 features of 64 numbers | {kid_result['seconds']:.0f} s |"
        f" {kid_result['gigabytes']:.2f} GB | {kid_result['value']:.1e} ± {kid_result['error']:.1e} |",
        f"| nearest of 60,000 images of 784 pixels for 2,000 samples, and the nearest neighbour of each found image |"
        f" {nearest_result['seconds']:.1f} s | {nearest_result['gigabytes']:.2f} GB | {nearest_result['copies']:.0%} copies |",
        *(
            f"| `reverie evaluate RUN --quick --out report.html`, digits, {'classifier cached' if cached else 'first time'} |"
            f" {seconds:.0f} s | | |"
            for seconds, cached in times
        ),
    ]
    print("\n".join(lines), flush=True)
    return lines
