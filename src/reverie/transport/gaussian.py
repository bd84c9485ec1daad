"""The Wasserstein distance between Gaussians in closed form."""

from __future__ import annotations

from functools import reduce
from typing import Any

import torch
from torch import Tensor

from reverie.base.distances import root
from reverie.base.errors import UserError
from reverie.base.validation import check_gaussian, real_dtype, tensor


def gaussian_wasserstein(mean_x: Any, covariance_x: Any, mean_y: Any, covariance_y: Any) -> Tensor:
    """Return the Wasserstein-2 distance between two Gaussians, which may be singular.  means: (D,); covariances: (D, D).

    W_2² = |m_x - m_y|² + tr C_x + tr C_y - 2 tr (C_x^1/2 C_y C_x^1/2)^1/2; the traces are the squared Bures distance.  The last
    trace equals the sum of the singular values of F_x^T F_y for any factors C = F F^T, so no matrix square root is needed.  The
    gradient at equal Gaussians is defined as 0; at a singular covariance it may be infinite and raises an error.
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
    """Return F with F F^T = C: the Cholesky factor, or one from eigenvectors if C is singular."""
    factor: Tensor
    factor, failed = torch.linalg.cholesky_ex(covariance)
    if failed:
        values, vectors = torch.linalg.eigh(covariance)
        factor = vectors * values.clamp(min=0).sqrt()
        if factor.requires_grad:
            factor.register_hook(_refuse_gradient)
    return factor


def _refuse_gradient(gradient: Tensor) -> None:
    raise UserError("the distance has no gradient at a singular covariance; add a small multiple of the identity, or detach it")
