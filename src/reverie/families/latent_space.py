"""Checks and comparisons of latent spaces."""

from __future__ import annotations

import torch
from torch import Tensor

from reverie.base.errors import UserError


def check_latent(latent: int, size: int) -> None:
    """Raise a UserError for a latent larger than the data."""
    if latent > size:
        raise UserError(f"the latent has more values than the data: {latent:,} > {size:,}; give a smaller latent")


def principal_angles(a: Tensor, b: Tensor) -> Tensor:
    """Return the principal angles between the column spaces of two matrices, ascending, in radians.

    The sines are the singular values of (1 - Qa Qa^T) Qb, which is exact for small angles (Björck and Golub 1973).
    a: (D, p); b: (D, q) with q <= p; returns (q,).
    """
    qa, qb = torch.linalg.qr(a.double())[0], torch.linalg.qr(b.double())[0]
    sines: Tensor = torch.linalg.svdvals(qb - qa @ (qa.T @ qb))
    return sines.clamp(max=1).asin().flip(0)
