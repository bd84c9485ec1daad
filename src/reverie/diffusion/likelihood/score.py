"""Losses of score models; the score of the data density minimises each.

With s the model's score, p the data density and q the density of noisy data:

    Fisher divergence         1/2 E_p |s - grad log p|²
    implicit                  E_p [1/2 |s|² + div s], equal up to a constant (Hyvärinen, JMLR 6, 2005, theorem 1)
    sliced                    E_p [1/2 |s|² + v^T ds/dx v] over random v, the same in expectation (arXiv:1905.07088, eq. 8)
    denoising                 1/2 E |s(x0 + sigma eps) + eps / sigma|², the implicit loss of q up to a constant
                              (Vincent, "A connection between score matching and denoising autoencoders", 2011)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from torch import Tensor

from reverie.base.scalar import Coefficient, combine, expand

if TYPE_CHECKING:
    from reverie.autodiff.sparse import Coloring

Score = Callable[[Tensor], Tensor]


def _half_square(x: Tensor) -> Tensor:
    return x.square().flatten(1).sum(1) / 2


def denoising_score_loss(score: Score, x0: Tensor, eps: Tensor, sigma: Coefficient) -> Tensor:
    """Return |s(x0 + sigma eps) + eps / sigma|² / 2 of each datum: (B,).  x0, eps: (B, ...); sigma: float or (B,)."""
    return _half_square(score(combine(1.0, x0, sigma, eps)) + eps / expand(sigma, eps))


def implicit_score_loss(score: Score, x: Tensor, plan: Coloring | None = None) -> Tensor:
    """Return |s(x)|² / 2 + div s(x) of each datum, with the exact divergence: (B,).  x: (B, ...); plan: as for `divergence`."""
    from reverie.autodiff.sparse import divergence

    return _half_square(score(x)) + divergence(score, x, plan)


def sliced_score_loss(score: Score, x: Tensor, probes: Tensor) -> Tensor:
    """Return the implicit loss with the divergence estimated from probes: (B,).

    x: (B, ...); probes: (P, B, ...) of independent entries with mean 0 and variance 1.
    """
    from reverie.autodiff.sparse import hutchinson

    return _half_square(score(x)) + hutchinson(score, x, probes)


def fisher_divergence(score: Score, truth: Score, x: Tensor) -> Tensor:
    """Return |s(x) - grad log p(x)|² / 2 of each datum, for a density whose score is known: (B,).  x: (B, ...)."""
    return _half_square(score(x) - truth(x))
