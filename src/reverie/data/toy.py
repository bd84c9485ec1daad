"""Toy datasets of points in the plane.

Each function takes a count and a numpy generator and returns (n, 2) float64 within about [-1, 1].
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.random import Generator

from reverie.data.curve import THETA_MAX, THETA_MIN, Array, spiral_curve

Maker = Callable[[int, Generator], Array]


def spiral(n: int, random: Generator) -> Array:
    """Points of the spiral curve without noise, theta uniform in [1.5 pi, 4.5 pi] (arXiv:1503.03585)."""
    return spiral_curve(random.uniform(THETA_MIN, THETA_MAX, n))


def swiss_roll(n: int, random: Generator) -> Array:
    """A spiral with noise of standard deviation 0.03 across it (arXiv:1503.03585)."""
    return spiral(n, random) + random.normal(0, 0.03, (n, 2))


def _sklearn_seed(random: Generator) -> int:
    return int(random.integers(2**31))


def moons(n: int, random: Generator) -> Array:
    """Two interleaving half circles with noise (Pedregosa et al. 2011)."""
    from sklearn.datasets import make_moons

    x: Array = np.asarray(make_moons(n, noise=0.05, random_state=_sklearn_seed(random))[0])
    return np.asarray((x - np.array([0.5, 0.25])) / 1.6)


def circles(n: int, random: Generator) -> Array:
    """Two concentric circles with noise (Pedregosa et al. 2011)."""
    from sklearn.datasets import make_circles

    return np.asarray(make_circles(n, noise=0.04, factor=0.5, random_state=_sklearn_seed(random))[0]) * 0.9


def eight_gaussians(n: int, random: Generator) -> Array:
    """Eight equal Gaussians of standard deviation 0.06 on a circle of radius 0.85 (arXiv:1810.01367)."""
    angle = 2 * np.pi * random.integers(8, size=n) / 8
    return 0.85 * np.stack([np.cos(angle), np.sin(angle)], -1) + random.normal(0, 0.06, (n, 2))


def checkerboard(n: int, random: Generator) -> Array:
    """The black squares of a 4 x 4 board over [-1, 1]² (arXiv:1810.01367)."""
    column = random.integers(4, size=n)
    row = 2 * random.integers(2, size=n) + column % 2
    return (np.stack([column, row], -1) + random.uniform(size=(n, 2))) / 2 - 1


def pinwheel(n: int, random: Generator) -> Array:
    """Five curved arms (arXiv:1810.01367)."""
    arm = random.integers(5, size=n)
    along, across = random.normal(1.0, 0.3, n), random.normal(0.0, 0.1, n)
    turn = 2 * np.pi * arm / 5 + 0.25 * np.exp(along)
    rotated = [along * np.cos(turn) - across * np.sin(turn), along * np.sin(turn) + across * np.cos(turn)]
    return np.stack(rotated, -1) / 1.8


TOYS: dict[str, Maker] = {
    "spiral": spiral,
    "swiss-roll": swiss_roll,
    "moons": moons,
    "circles": circles,
    "eight-gaussians": eight_gaussians,
    "checkerboard": checkerboard,
    "pinwheel": pinwheel,
}

PATTERNS = ("spiral", "moons", "circles", "checkerboard", "pinwheel")


def patterns(n: int, random: Generator) -> tuple[Array, np.ndarray]:
    """Return points of several toys in equal shares, and labels: (n, 2), (n,) int64 (an index into PATTERNS)."""
    labels = random.permutation(np.arange(n) % len(PATTERNS))
    points = np.empty((n, 2))
    for k, name in enumerate(PATTERNS):
        points[labels == k] = random.permutation(TOYS[name](int((labels == k).sum()), random))
    return points, labels
