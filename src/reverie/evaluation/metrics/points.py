"""Exact metrics of points whose true distribution is known: the spiral."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from reverie.data.curve import THETA_MAX, THETA_MIN, closest_on_spiral


def score_spiral(points: np.ndarray) -> dict[str, float]:
    """Return the distance of points from the spiral and the evenness of their coverage.  points: (N, 2).

    mean_distance: to the closest point of the curve, in data units.
    coverage_ks: Kolmogorov-Smirnov distance of theta to the uniform distribution (0.03 is the 95% point of 2,000 exact draws).
    """
    theta, distance = closest_on_spiral(points)
    from scipy.stats import kstest

    ks = kstest((theta - THETA_MIN) / (THETA_MAX - THETA_MIN), "uniform")
    return {"mean_distance": float(distance.mean()), "coverage_ks": float(ks.statistic)}


EXACT: dict[str, Callable[[np.ndarray], dict[str, float]]] = {"spiral": score_spiral}
