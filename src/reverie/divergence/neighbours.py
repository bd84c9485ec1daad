"""Nearest-neighbour estimates of divergences from samples, in nats.  x: (n, d) from p; y: (m, d) from q."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from scipy.spatial import cKDTree
from scipy.special import gammaln

from reverie.base.errors import UserError

FOLDS = 10  # of cross-validation


def _nearest(points: np.ndarray, queries: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
    """Return distances and indices of the k nearest points to each query: (n, k) each."""
    distance, index = cKDTree(points).query(queries, np.arange(1, k + 1))
    return np.asarray(distance), np.asarray(index)


def _radii(x: np.ndarray, y: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the distance from each x to its k-th neighbour among the other x, and among y: (n,) each."""
    own, across = _nearest(x, x, k + 1)[0][:, -1], _nearest(y, x, k)[0][:, -1]
    if (own == 0).any() or (across == 0).any():
        raise UserError(
            f"more than {k} samples are equal, so the distribution is not continuous; use the discrete form with counts"
        )
    return own, across


def kl(x: np.ndarray, y: np.ndarray, k: int, order: float) -> float:
    """Return d mean log(r_y / r_x) + log(m / (n - 1)) (Wang, Kulkarni and Verdú, doi:10.1109/TIT.2009.2016060)."""
    own, across = _radii(x, y, k)
    return float(x.shape[1] * np.log(across / own).mean() + np.log(len(y) / (len(x) - 1)))


def reverse_kl(x: np.ndarray, y: np.ndarray, k: int, order: float) -> float:
    """Return the estimate of KL(q | p)."""
    return kl(y, x, k, order)


def renyi(x: np.ndarray, y: np.ndarray, k: int, order: float) -> float:
    """Return log(B mean(((n-1) r_x^d / (m r_y^d))^(1-order))) / (order - 1) (Póczos and Schneider, AISTATS 2011).

    B = Gamma(k)² / (Gamma(k - order + 1) Gamma(k + order - 1)) corrects the bias; it needs |order - 1| < k.
    """
    if order == 1:
        return kl(x, y, k, order)
    if abs(order - 1) >= k:
        raise UserError(f"the estimate at order {order:g} needs more than {abs(order - 1):g} neighbours, got k = {k}")
    own, across = _radii(x, y, k)
    logs = (1 - order) * (np.log((len(x) - 1) / len(y)) + x.shape[1] * np.log(own / across))
    bias = 2 * gammaln(k) - gammaln(k - order + 1) - gammaln(k + order - 1)
    return float((np.logaddexp.reduce(logs) - np.log(len(logs)) + bias) / (order - 1))


def _cross_validated_shares(x: np.ndarray, y: np.ndarray, k: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield the weighted share of x among the k nearest neighbours of points of x and of points of y, each in (0, 1).

    Neighbours are searched in the other folds, so that the classifier is independent of the point it is evaluated at.
    """
    folds = min(FOLDS, len(x), len(y))
    fold_x, fold_y = np.arange(len(x)) % folds, np.arange(len(y)) % folds
    for part in range(folds):
        train_x, train_y = x[fold_x != part], y[fold_y != part]
        both = np.concatenate([train_x, train_y])

        def share(queries: np.ndarray, both: np.ndarray = both, n: int = len(train_x), m: int = len(train_y)) -> np.ndarray:
            count_x = (_nearest(both, queries, k)[1] < n).sum(1) + 0.5  # a pseudocount of 1/2, so that no share is 0
            return np.asarray(count_x / n / (count_x / n + (k + 1 - count_x) / m))

        yield share(x[fold_x == part]), share(y[fold_y == part])


def jensen_shannon(x: np.ndarray, y: np.ndarray, k: int, order: float) -> float:
    """Return log 2 minus the cross-entropy of the k-nearest-neighbour classifier of x and y: on average a lower bound."""
    return float(
        np.mean(
            [np.log(2) + (np.log(in_x).mean() + np.log(1 - in_y).mean()) / 2 for in_x, in_y in _cross_validated_shares(x, y, k)]
        )
    )


def total_variation(x: np.ndarray, y: np.ndarray, k: int, order: float) -> float:
    """Return 1 minus twice the error of the k-nearest-neighbour classifier of x and y: on average a lower bound.

    For equal distributions it is 0 on average.
    """

    def accuracy(share: np.ndarray) -> float:
        return float(((share > 0.5) + 0.5 * (share == 0.5)).mean())

    return float(np.mean([accuracy(in_x) + accuracy(1 - in_y) - 1 for in_x, in_y in _cross_validated_shares(x, y, k)]))


def fisher(x: np.ndarray, y: np.ndarray, k: int, order: float) -> float:
    """Return mean |s_p - s_q|² over x, with mean-shift estimates of the scores, s = (d + 2)/r² mean(neighbours - x).

    (Fukunaga and Hostetler, doi:10.1109/TIT.1975.1055330.)  The square is the product of two estimates from neighbours of odd
    and of even rank, whose noise is independent, so that it does not add a bias.  Averaging over a ball underestimates the
    tails.
    """
    if k < 2:
        raise UserError(f"the estimate of the Fisher divergence needs at least 2 neighbours, got k = {k}")
    scores = []
    for points, skip in ((x, 1), (y, 0)):  # a point of x is its own first neighbour
        distance, near = _nearest(points, x, k + skip + 1)
        radius = distance[:, -1:]  # the farthest neighbour only defines the radius
        if (radius == 0).any():
            raise UserError(f"more than {k} samples are equal, so the distribution has no score")
        shift = points[near[:, skip:-1]] - x[:, None]
        scores.append([(x.shape[1] + 2) / radius**2 * shift[:, part::2].mean(1) for part in (0, 1)])
    halves = [scores[0][part] - scores[1][part] for part in (0, 1)]
    return float((halves[0] * halves[1]).sum(1).mean())
