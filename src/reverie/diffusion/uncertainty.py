"""The uncertainty of x0 given x, from the denoiser's Jacobian."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from reverie.autodiff.sparse import Coloring, color, detect, diagonal
from reverie.base.errors import UserError
from reverie.base.scalar import Time, expand
from reverie.diffusion.denoiser import Denoiser


def _mean(denoiser: Denoiser, t: Time, cond: Tensor | None) -> Callable[[Tensor], Tensor]:
    return lambda x: denoiser(x, t, cond).x0


def _jacobian_factor(denoiser: Denoiser, t: Time) -> Time:
    """Return sigma² / alpha, the factor of the Jacobian."""
    alpha, sigma = denoiser.schedule(t)
    if not bool(torch.as_tensor(alpha > 0).all()):
        raise UserError("at alpha = 0 the denoiser's Jacobian is zero and does not determine the covariance; use a smaller t")
    return sigma**2 / alpha


def posterior_covariance(denoiser: Denoiser, x: Tensor, t: Time, cond: Tensor | None = None) -> Tensor:
    """Return the covariance of x0 given x, (B, D, D), from the denoiser's Jacobian.

    Cov[x0 | x] = sigma² / alpha dE[x0 | x]/dx, Tweedie's formula of second order (arXiv:2205.15127, eq. 11 for alpha = 1).
    It is exact for an optimal denoiser; for a trained one it may be asymmetric.
    """
    factor, size = _jacobian_factor(denoiser, t), x[0].numel()
    units = torch.eye(size, dtype=x.dtype, device=x.device).reshape(size, 1, *x.shape[1:])
    mean = _mean(denoiser, t, cond)

    def push(unit: Tensor) -> Tensor:
        product: Tensor = torch.func.jvp(mean, (x,), (unit.expand(x.shape),))[1]
        return product.flatten(1)

    columns = torch.func.vmap(push, chunk_size=64)(units)  # (D, B, D): [j, b, i] = d x0_i / d x_j
    jacobian = columns.permute(1, 2, 0)
    return expand(factor, jacobian) * jacobian


def posterior_variance(
    denoiser: Denoiser, x: Tensor, t: Time, cond: Tensor | None = None, plan: Coloring | None = None
) -> Tensor:
    """Return the variance of each number of x0 given x, the diagonal of the covariance, with the shape of x.

    plan: a reusable colouring of one image's Jacobian for "diagonal"; it needs few products for networks with local receptive
    fields.
    """
    factor = _jacobian_factor(denoiser, t)
    if plan is None:
        first = t[:1] if isinstance(t, Tensor) and t.ndim else t
        plan = color(detect(_mean(denoiser, first, cond[:1] if cond is not None else None), x[:1]), "diagonal")
    return expand(factor, x) * diagonal(_mean(denoiser, t, cond), x, plan)
