"""The kernel inception distance, unbiased at any count."""

from __future__ import annotations

from typing import Any

from reverie.base.validation import tensor
from reverie.kernels import MMD, Polynomial, mmd


def kid(x: Any, y: Any) -> MMD:
    """Return the unbiased MMD² of features under (x · y / d + 1)³, with its standard error (arXiv:1801.01401).

    x: (n, d); y: (m, d).  All pairs are used; Gram matrices exist in blocks only.
    """
    x, y = tensor(x), tensor(y)
    return mmd(x, y, Polynomial(3, 1.0, 1 / x.shape[-1]))
