"""Transport between Gaussians, in closed form."""

from __future__ import annotations

from functools import reduce
from typing import Any

import torch
from torch import Tensor

from reverie.base.distances import root
from reverie.base.errors import UserError
from reverie.base.points import check_gaussian, real_dtype, tensor


def gaussian_wasserstein(mean_x: Any, covariance_x: Any, mean_y: Any, covariance_y: Any) -> Tensor:
    """Return the distance W_2 between two Gaussians, singular ones included.  means: (D,); covariances: (D, D).

    W_2² = |m_x - m_y|² + tr C_x + tr C_y - 2 tr (C_x^1/2 C_y C_x^1/2)^1/2, the last two terms being Bures' distance.  The last
    trace is the sum of the singular values of F_x^T F_y for any factors C = F F^T, so no matrix root is taken.  The gradient is
    0 at equal Gaussians, where there is none, and refused in a singular covariance, where it may be infinite.
    """
    inputs = [tensor(part) for part in (mean_x, covariance_x, mean_y, covariance_y)]
    dtype = reduce(torch.promote_types, map(real_dtype, inputs))
    (mx, cx), (my, cy) = check_gaussian(mean_x, covariance_x), check_gaussian(mean_y, covariance_y)
    if len(mx) != len(my):
        raise UserError(f"the Gaussians differ in dimension: {len(mx)} and {len(my)}")
    cross: Tensor = torch.linalg.svdvals(_factor(cx).T @ _factor(cy)).sum()
    power = ((mx - my) ** 2).sum() + cx.trace() + cy.trace() - 2 * cross
    return root(power).to(dtype)


def _factor(covariance: Tensor) -> Tensor:
    """Return F with F F^T = C: by Cholesky, whose gradient always exists, or by eigenvectors where C is singular."""
    factor: Tensor
    factor, failed = torch.linalg.cholesky_ex(covariance)
    if failed:
        values, vectors = torch.linalg.eigh(covariance)
        factor = vectors * values.clamp(min=0).sqrt()
        if factor.requires_grad:
            factor.register_hook(_refuse)
    return factor


def _refuse(gradient: Tensor) -> None:
    raise UserError("the distance has no gradient in a singular covariance; add a small multiple of the identity, or detach it")
