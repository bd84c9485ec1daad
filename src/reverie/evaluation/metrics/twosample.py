"""The classifier two-sample test."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from reverie.base.errors import UserError
from reverie.base.noise import check_seed
from reverie.base.validation import check_points, tensor

MIN_COUNT = 8  # of each set


@dataclass(frozen=True)
class TwoSample:
    """The accuracy on test data, its standard error, and the p-value of at least that accuracy by chance."""

    accuracy: float
    standard_error: float
    p_value: float
    train_count: int
    test_count: int


def two_sample(x: Any, y: Any, seed: int = 0) -> TwoSample:
    """Train a logistic classifier on half of each set and test it on the other half (arXiv:1610.06545).

    Its inputs are the features and their squares, so it detects a wrong variance.  Accuracy 0.5 is chance.  x: (n, d); y:
    (m, d), both cut to the smaller set.
    """
    from scipy.stats import binomtest
    from sklearn.linear_model import LogisticRegression

    sets = [tensor(z).double() for z in (x, y)]
    for name, points in zip(("x", "y"), sets, strict=True):
        check_points(points, name)
    count = min(map(len, sets)) // 2 * 2
    if count < MIN_COUNT:
        raise UserError(f"the two-sample test needs at least {MIN_COUNT} of each set, got {len(sets[0])} and {len(sets[1])}")
    random = np.random.default_rng(check_seed(seed))
    rows = np.concatenate([z.numpy()[random.permutation(len(z))[:count]] for z in sets])
    classes = np.repeat([0, 1], count)
    is_train = np.tile(np.arange(count) < count // 2, 2)
    scale = rows[is_train].std(0)
    rows = (rows - rows[is_train].mean(0)) / np.where(scale > 0, scale, 1.0)
    rows = np.clip(rows, -20, 20)  # limits features that hardly vary in training
    rows = np.concatenate([rows, rows**2 / 2], 1)
    classifier = LogisticRegression(C=0.1, max_iter=500).fit(rows[is_train], classes[is_train])
    right = int((classifier.predict(rows[~is_train]) == classes[~is_train]).sum())
    share = right / count
    error = float(np.sqrt(max(share * (1 - share), 1 / count) / count))
    return TwoSample(share, error, float(binomtest(right, count, alternative="greater").pvalue), count, count)
