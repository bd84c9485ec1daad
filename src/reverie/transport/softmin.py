"""The two halves of a Sinkhorn step: the soft minimum of costs along rows and along columns."""

from __future__ import annotations

from math import prod

import torch
from torch import Tensor

from reverie.transport.problem import Problem

KEPT = 2**24  # entries: smaller kernels are kept (128 MB in float64), larger ones computed anew in blocks
FAR = 200.0  # in units of epsilon: so far may potentials be from those that the kernel was built with


class SoftMin:
    """f_i = -eps log sum_j b_j exp((g_j - C_ij)/eps) and the same along columns, at one epsilon: (...).

    Potentials (f0, g0) are absorbed into the kernel, K = exp((f0 + g0 - C)/eps), which makes a half step one product of K
    with a vector, f = f0 - eps log K (b exp((g - g0)/eps)), with the range of the logarithmic form (Schmitzer,
    arXiv:1610.06519).  Where that leaves the range of numbers, the sum is done in logarithms and the kernel is built anew.
    """

    def __init__(self, problem: Problem, epsilon: Tensor, f: Tensor, g: Tensor) -> None:
        self.problem, self.epsilon = problem, epsilon[..., None]
        self.f, self.g = f, g  # as absorbed
        self.keep = prod(problem.shape) <= KEPT
        self.blocks = problem.blocks()
        self.kernel: Tensor | None = None

    def rows(self, g: Tensor) -> Tensor:
        """Return the soft minimum of C - g in each row: (..., n)."""
        if not self.keep:  # no kernel is kept, so the newest potentials are absorbed at no cost
            self.g = g
        change = (g - self.g) / self.epsilon
        if _near(change):
            moved = self._row_sums(self.problem.b * change.exp()).log()
            if _near(moved):
                return self.f - self.epsilon * moved
        logs = self.problem.b.log()[..., None, :]
        sums = torch.empty_like(self.problem.a)
        for rows in self.blocks:
            sums[..., rows] = self._exponents(rows, None, g).add_(logs).logsumexp(-1)
        self.f, self.g, self.kernel = -self.epsilon * sums, g, None
        return self.f

    def columns(self, f: Tensor) -> Tensor:
        """Return the soft minimum of C - f in each column: (..., m)."""
        if not self.keep:
            self.f = f
        change = (f - self.f) / self.epsilon
        if _near(change):
            moved = self._column_sums(self.problem.a * change.exp()).log()
            if _near(moved):
                return self.g - self.epsilon * moved
        logs = self.problem.a.log()[..., None]
        sums = torch.full_like(self.problem.b, -torch.inf)
        for rows in self.blocks:
            part = self._exponents(rows, f, None).add_(logs[..., rows, :])
            sums = torch.logaddexp(sums, part.logsumexp(-2))
        self.f, self.g, self.kernel = f, -self.epsilon * sums, None
        return self.g

    def _exponents(self, rows: slice, f: Tensor | None, g: Tensor | None) -> Tensor:
        """Return (f + g - C)/eps for some rows: (..., r, m)."""
        exponents = self.problem.tile(rows) * (-1 / self.epsilon[..., None])
        if f is not None:
            exponents += (f / self.epsilon)[..., rows, None]
        if g is not None:
            exponents += (g / self.epsilon)[..., None, :]
        return exponents

    def _whole(self) -> Tensor:
        if self.kernel is None:
            self.kernel = torch.cat([self._exponents(rows, self.f, self.g).exp_() for rows in self.blocks], -2)
        return self.kernel

    def _row_sums(self, weights: Tensor) -> Tensor:
        if self.keep:
            return _times(self._whole(), weights)
        sums = torch.empty_like(self.problem.a)  # small results kept one by one would pin the freed blocks between them
        for rows in self.blocks:
            sums[..., rows] = _times(self._exponents(rows, self.f, self.g).exp_(), weights)
        return sums

    def _column_sums(self, weights: Tensor) -> Tensor:
        if self.keep:
            return _times(self._whole().mT, weights)
        sums = torch.zeros_like(self.problem.b)
        for rows in self.blocks:
            sums += _times(self._exponents(rows, self.f, self.g).exp_().mT, weights[..., rows])
        return sums


def _near(change: Tensor) -> bool:
    return bool((change.abs() < FAR).all())


def _times(matrix: Tensor, vector: Tensor) -> Tensor:
    """Return the products of matrices and vectors.  matrix: (..., n, m); vector: (..., m)."""
    return matrix @ vector if matrix.ndim == 2 else (matrix @ vector[..., None])[..., 0]
