"""The spiral as a curve, and the closest point on it.

c(theta) = scale theta (cos theta, sin theta) + shift,  theta in [1.5 pi, 4.5 pi], scale = 1/(4 pi), shift = -1/8,
which puts the first coordinate exactly into [-1, 1].
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

THETA_MIN, THETA_MAX = 1.5 * np.pi, 4.5 * np.pi
SCALE, SHIFT = 1 / (4 * np.pi), -1 / 8

_COARSE = 400  # grid cells; each turn of the spiral has over 250, so the best cell and its neighbours hold the minimum
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

    A coarse search brackets the minimum; Newton's method on the derivative of the squared distance narrows it, and
    where a Newton step leaves the bracket (flat gradient, wrong curvature) the bracket is halved instead.  An end of
    the curve is the answer where the distance still falls towards it.
    """
    points = np.asarray(points, dtype=np.float64).reshape(-1, 2)
    grid = np.linspace(THETA_MIN, THETA_MAX, _COARSE + 1)
    curve = spiral_curve(grid)
    coarse = (curve**2).sum(-1) - 2 * points @ curve.T  # squared distance less |point|²
    best = coarse.argmin(1)
    low, high = grid[np.maximum(best - 1, 0)], grid[np.minimum(best + 1, _COARSE)]
    theta = grid[best]
    for _ in range(_ITERATIONS):
        slope, bend = _slopes(theta, points)
        low, high = np.where(slope < 0, theta, low), np.where(slope < 0, high, theta)
        with np.errstate(divide="ignore", invalid="ignore"):
            newton = theta - slope / bend
        inside = (newton > low) & (newton < high) & (bend > 0)
        moved = np.where(inside, newton, (low + high) / 2)
        done = np.abs(moved - theta) <= 1e-15 * THETA_MAX
        theta = moved
        if done.all():
            break
    ends = np.stack([np.full_like(theta, THETA_MIN), theta, np.full_like(theta, THETA_MAX)], -1)
    distances = np.linalg.norm(spiral_curve(ends) - points[:, None], axis=-1)
    choice = distances.argmin(1)[:, None]
    return np.take_along_axis(ends, choice, 1)[:, 0], np.take_along_axis(distances, choice, 1)[:, 0]
