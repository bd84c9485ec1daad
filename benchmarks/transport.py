"""Transport and kernels: speed against POT, and memory of large problems, each in its own process."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from typing import Any

import torch
from torch import Tensor

from benchmarks.measure import Row, side_by_side

SINKHORN = """
from reverie.transport import between, sinkhorn
x, y = (torch.randn(20_000, 64, generator=random, dtype=torch.float64) + shift for shift in (0.0, 0.3))
start = time.perf_counter()
found = sinkhorn(between(x, y), 0.01, tolerance=1e-3)
result = {"iterations": found.iterations, "error": found.marginal_error}
"""
MMD = """
from reverie.kernels import Gaussian, mmd
x, y = (torch.randn(50_000, 64, generator=random) + shift for shift in (0.0, 0.02))
start = time.perf_counter()
found = mmd(x, y, Gaussian(8.0))
result = {"value": float(found.value), "error": found.standard_error}
"""
AROUND = """
import json, resource, time, torch
torch.set_num_threads(2)
random = torch.Generator().manual_seed(0)
{work}
result["seconds"] = time.perf_counter() - start
result["gigabytes"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9  # kilobytes on Linux
print(json.dumps(result))
"""


def in_child_process(work: str) -> dict[str, Any]:
    """Run work in its own process and return its results, with seconds and peak memory."""
    done = subprocess.run([sys.executable, "-c", AROUND.format(work=work)], capture_output=True, text=True, check=True)
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def clouds() -> tuple[Tensor, Tensor]:
    """Return 2,000 points each of two Gaussians in 64 dimensions, one shifted by 0.3 in each coordinate."""
    random = torch.Generator().manual_seed(0)
    x, y = (torch.randn(2000, 64, generator=random, dtype=torch.float64) for _ in range(2))
    return x, y + 0.3


def sinkhorn_rows() -> list[Row]:
    """Compare Sinkhorn with both implementations of POT, including the costs.

    The marginal error here is a sum of absolute values; that of POT is a root of squares, which is smaller.
    """
    import ot

    from reverie.transport import between, exact, sinkhorn

    x, y = clouds()
    a = torch.full((2000,), 1 / 2000, dtype=torch.float64).numpy()

    def peer(method: str) -> object:
        costs = ot.dist(x.numpy(), y.numpy())
        return ot.sinkhorn(a, a, costs, 0.01 * costs.mean(), method, numItermax=5000, stopThr=1e-6)

    def ours() -> object:
        return sinkhorn(between(x, y), 0.01, tolerance=1e-6).plan()

    note = "2,000 x 2,000 in 64 dimensions, epsilon 1 % of the mean cost, marginal error 1e-6, float64"
    return [
        side_by_side("Sinkhorn", ours, lambda: peer("sinkhorn"), f"POT sinkhorn, {note}", 3),
        side_by_side("Sinkhorn in the log domain", ours, lambda: peer("sinkhorn_log"), f"POT sinkhorn_log, {note}", 1),
        side_by_side(
            "exact plan",
            lambda: exact(between(x, y)),
            lambda: ot.emd(a, a, ot.dist(x.numpy(), y.numpy())),
            "POT emd, the underlying solver",
            3,
        ),
    ]


def mmd_row() -> Row:
    """Compare MMD with the three Gram matrices of scikit-learn in memory."""
    from sklearn.metrics.pairwise import rbf_kernel

    from reverie.kernels import Gaussian, mmd

    x, y = clouds()
    u, v = x.numpy(), y.numpy()

    def whole() -> object:
        return [rbf_kernel(p, q, 1 / 128).mean() for p, q in ((u, u), (v, v), (u, v))]

    note = "three scikit-learn rbf_kernel matrices, 2,000 x 2,000 in 64 dimensions; Reverie with its standard error"
    return side_by_side("MMD, Gaussian kernel", lambda: mmd(x, y, Gaussian(8.0), estimator="biased"), whole, note, 5)


def large() -> list[str]:
    """Measure time and peak memory of problems whose matrices would not fit."""
    start = time.perf_counter()
    moved, mmd = in_child_process(SINKHORN), in_child_process(MMD)
    lines = [
        "Peak memory of the process (ru_maxrss), including torch; 2 threads.",
        "",
        "| what | time | peak memory | result |",
        "|---|---|---|---|",
        f"| Sinkhorn, 20,000 x 20,000 points in 64 dimensions, epsilon 1 %, to 1e-3, float64 (a kernel would take 3.2 GB) |"
        f" {moved['seconds']:.0f} s | {moved['gigabytes']:.2f} GB | {moved['iterations']} iterations,"
        f" marginal error {moved['error']:.1e} |",
        f"| MMD, 50,000 x 50,000 points in 64 dimensions, float32 (Gram matrices would take 30 GB) |"
        f" {mmd['seconds']:.0f} s | {mmd['gigabytes']:.2f} GB | {mmd['value']:.1e} ± {mmd['error']:.1e} |",
    ]
    print("\n".join(lines), f"\n({time.perf_counter() - start:.0f} s)", flush=True)
    return lines
