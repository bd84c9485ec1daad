"""How well points match: sliced Wasserstein distance for any, the exact curve for the spiral."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from scipy.stats import kstest

from reverie.data.curve import THETA_MAX, THETA_MIN, closest_on_spiral


def sliced_wasserstein(x: np.ndarray, y: np.ndarray, directions: int = 128, seed: int = 0) -> float:
    """Return the mean over random directions of the 1-D Wasserstein-1 distance of the projections.  x, y: (N, D).

    In one dimension the optimal plan joins sorted values, so each distance is a mean of differences.
    """
    if x.shape != y.shape:
        raise ValueError(f"two sets of one size are needed, got {x.shape} and {y.shape}")
    u = np.random.default_rng(seed).normal(size=(x.shape[1], directions))
    u /= np.linalg.norm(u, axis=0)
    return float(np.abs(np.sort(x @ u, axis=0) - np.sort(y @ u, axis=0)).mean())


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

    sliced_wasserstein is between samples and data; its floor is the same between two halves of the data.
    """
    n = len(samples)
    return {
        "sliced_wasserstein": sliced_wasserstein(samples, fresh[:n]),
        "sliced_wasserstein_floor": sliced_wasserstein(fresh[n : 2 * n], fresh[:n]),
        **(EXACT[name](samples) if name in EXACT else {}),
    }
