"""The Fréchet distance between two sets of features."""

from __future__ import annotations

import numpy as np

from reverie.transport.gaussian import gaussian_wasserstein


def frechet_distance(x: np.ndarray, y: np.ndarray) -> float:
    """Return the squared 2-Wasserstein distance between Gaussians fitted to two sets of features.  x: (N, D); y: (M, D).

    |m_x - m_y|² + tr(C_x + C_y - 2 (C_x C_y)^1/2) (arXiv:1706.08500).
    """
    x, y = np.asarray(x, dtype=np.float64), np.asarray(y, dtype=np.float64)
    means_and_covariances = [(z.mean(0), np.atleast_2d(np.cov(z, rowvar=False))) for z in (x, y)]
    return float(gaussian_wasserstein(*means_and_covariances[0], *means_and_covariances[1]) ** 2)
