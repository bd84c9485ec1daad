"""How well points match: sliced Wasserstein distance for any, the exact curve for the spiral."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from scipy.stats import kstest

from reverie.data.curve import THETA_MAX, THETA_MIN, closest_on_spiral
from reverie.transport.line import sliced_wasserstein


def score_spiral(points: np.ndarray) -> dict[str, float]:
    """Return how far points lie from the spiral and how evenly they cover it.  points: (N, 2).

    mean_distance: to the closest point of the curve, in data units.
    coverage_ks: Kolmogorov-Smirnov distance of theta to the uniform law (0.03 is the 95 % point for 2,000 exact draws).
    """
    theta, distance = closest_on_spiral(points)
    ks = kstest((theta - THETA_MIN) / (THETA_MAX - THETA_MIN), "uniform")
    return {"mean_distance": float(distance.mean()), "coverage_ks": float(ks.statistic)}


EXACT: dict[str, Callable[[np.ndarray], dict[str, float]]] = {"spiral": score_spiral}


def score_points(name: str, samples: np.ndarray, fresh: np.ndarray) -> dict[str, float]:
    """Return all figures for samples of a named data set.  samples: (N, D); fresh: (2N, D) new data.

    sliced_wasserstein (p = 1) is between samples and data; its floor is the same between two halves of the data.
    """
    n = len(samples)
    return {
        "sliced_wasserstein": float(sliced_wasserstein(samples, fresh[:n], p=1)),
        "sliced_wasserstein_floor": float(sliced_wasserstein(fresh[n : 2 * n], fresh[:n], p=1)),
        **(EXACT[name](samples) if name in EXACT else {}),
    }
