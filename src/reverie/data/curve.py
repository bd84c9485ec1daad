"""The spiral as a curve, and the closest point on it.

c(theta) = scale theta (cos theta, sin theta) + shift,  theta in [1.5 pi, 4.5 pi], scale = 1/(4 pi), shift = -1/8, so that both
coordinates lie in about [-1, 1].
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

THETA_MIN, THETA_MAX = 1.5 * np.pi, 4.5 * np.pi
SCALE, SHIFT = 1 / (4 * np.pi), -1 / 8

_HALF_TURNS = 3
_COARSE = 402  # grid cells, over 250 per turn
_ITERATIONS = 60  # bisection alone narrows a bracket by 2^60


def spiral_curve(theta: Array) -> Array:
    """Return the points of the curve: (...,) -> (..., 2)."""
    return SCALE * np.stack([theta * np.cos(theta), theta * np.sin(theta)], -1) + SHIFT


def _slopes(theta: Array, points: Array) -> tuple[Array, Array]:
    """Return the first and second derivative by theta of half the squared distance to each point."""
    cos, sin = np.cos(theta), np.sin(theta)
    gap = spiral_curve(theta) - points
    first = SCALE * np.stack([cos - theta * sin, sin + theta * cos], -1)
    second = SCALE * np.stack([-2 * sin - theta * cos, 2 * cos - theta * sin], -1)
    return (gap * first).sum(-1), (first * first).sum(-1) + (gap * second).sum(-1)


def closest_on_spiral(points: Array) -> tuple[Array, Array]:
    """Return theta of the closest point of the curve and the distance to it, for each point.  (N, 2) -> (N,), (N,).

    A coarse search brackets the best candidate of each half turn, because the coarse grid alone cannot decide between two
    turns.  Newton's method on the derivative of the squared distance narrows each bracket; where a Newton step leaves it (flat
    gradient, wrong curvature), the bracket is bisected instead.  The ends of the curve are candidates too.
    """
    points = np.asarray(points, dtype=np.float64).reshape(-1, 2)
    grid = np.linspace(THETA_MIN, THETA_MAX, _COARSE + 1)
    curve = spiral_curve(grid)
    coarse = (curve**2).sum(-1) - 2 * points @ curve.T  # squared distance less |point|²
    edges = np.linspace(0, _COARSE, _HALF_TURNS + 1).round().astype(int)
    best = np.stack([a + coarse[:, a : b + 1].argmin(1) for a, b in pairwise(edges)], -1)  # (N, 3)
    low, high = grid[np.maximum(best - 1, 0)], grid[np.minimum(best + 1, _COARSE)]
    theta, target = grid[best], points[:, None]
    for _ in range(_ITERATIONS):
        slope, bend = _slopes(theta, target)
        low, high = np.where(slope < 0, theta, low), np.where(slope < 0, high, theta)
        with np.errstate(divide="ignore", invalid="ignore"):
            newton = theta - slope / bend
        inside = (newton > low) & (newton < high) & (bend > 0)
        moved = np.where(inside, newton, (low + high) / 2)
        done = np.abs(moved - theta) <= 1e-15 * THETA_MAX
        theta = moved
        if done.all():
            break
    ends = np.broadcast_to([THETA_MIN, THETA_MAX], (len(points), 2))
    candidates = np.concatenate([theta, ends], -1)
    distances = np.linalg.norm(spiral_curve(candidates) - target, axis=-1)
    choice = distances.argmin(1)[:, None]
    return np.take_along_axis(candidates, choice, 1)[:, 0], np.take_along_axis(distances, choice, 1)[:, 0]
