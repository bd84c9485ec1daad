"""The Fréchet distance between two sets of features."""

from __future__ import annotations

import numpy as np


def frechet_distance(x: np.ndarray, y: np.ndarray) -> float:
    """Return the squared 2-Wasserstein distance between Gaussians fitted to two sets of features.  x: (N, D); y: (M, D).

    |m_x - m_y|² + tr(C_x + C_y - 2 (C_x C_y)^1/2) (arXiv:1706.08500).  The last trace is the sum of the square roots of
    the eigenvalues of A C_y A, A the symmetric root of C_x, which is symmetric and so needs no complex root.
    """
    x, y = np.asarray(x, dtype=np.float64), np.asarray(y, dtype=np.float64)
    gap = ((x.mean(0) - y.mean(0)) ** 2).sum()
    cx, cy = np.atleast_2d(np.cov(x, rowvar=False)), np.atleast_2d(np.cov(y, rowvar=False))
    values, vectors = np.linalg.eigh(cx)
    root = (vectors * np.sqrt(values.clip(0))) @ vectors.T
    cross = np.sqrt(np.linalg.eigvalsh(root @ cy @ root).clip(0)).sum()
    return float(gap + np.trace(cx) + np.trace(cy) - 2 * cross)
