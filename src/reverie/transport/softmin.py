"""The two half steps of Sinkhorn's algorithm: soft minima of the costs along rows and along columns."""

from __future__ import annotations

from math import prod

import torch
from torch import Tensor

from reverie.transport.problem import Problem

MAX_KERNEL_ENTRIES = 2**24  # 128 MB in float64; larger kernels are recomputed in blocks
MAX_ABSORBED = 200.0  # in units of epsilon: largest change of potentials before the kernel is rebuilt


class SoftMin:
    """The soft minimum f_i = -eps log sum_j b_j exp((g_j - C_ij)/eps), and the same along columns.  epsilon: (...).

    Potentials (f0, g0) are absorbed into the kernel K = exp((f0 + g0 - C)/eps) (Schmitzer, arXiv:1610.06519).  A half step is
    then one matrix-vector product, f = f0 - eps log K (b exp((g - g0)/eps)), with the range of the log-domain form.  If it
    would overflow, the step is computed in the log domain and the kernel is rebuilt.
    """

    def __init__(self, problem: Problem, epsilon: Tensor, f: Tensor, g: Tensor) -> None:
        self.problem, self.epsilon = problem, epsilon[..., None]
        self.f, self.g = f, g  # absorbed potentials
        self.keep_kernel = prod(problem.shape) <= MAX_KERNEL_ENTRIES
        self.blocks = problem.blocks()
        self.kernel: Tensor | None = None

    def rows(self, g: Tensor) -> Tensor:
        """Return the soft minimum of C - g in each row: (..., n)."""
        if not self.keep_kernel:  # without a stored kernel, absorbing is free
            self.g = g
        change = (g - self.g) / self.epsilon
        if _within_range(change):
            log_sums = self._row_sums(self.problem.b * change.exp()).log()
            if _within_range(log_sums):
                return self.f - self.epsilon * log_sums
        logs = self.problem.b.log()[..., None, :]
        sums = torch.empty_like(self.problem.a)
        for rows in self.blocks:
            sums[..., rows] = self._exponents(rows, None, g).add_(logs).logsumexp(-1)
        self.f, self.g, self.kernel = -self.epsilon * sums, g, None
        return self.f

    def columns(self, f: Tensor) -> Tensor:
        """Return the soft minimum of C - f in each column: (..., m)."""
        if not self.keep_kernel:
            self.f = f
        change = (f - self.f) / self.epsilon
        if _within_range(change):
            log_sums = self._column_sums(self.problem.a * change.exp()).log()
            if _within_range(log_sums):
                return self.g - self.epsilon * log_sums
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

    def _full_kernel(self) -> Tensor:
        if self.kernel is None:
            self.kernel = torch.cat([self._exponents(rows, self.f, self.g).exp_() for rows in self.blocks], -2)
        return self.kernel

    def _row_sums(self, weights: Tensor) -> Tensor:
        if self.keep_kernel:
            return _matvec(self._full_kernel(), weights)
        sums = torch.empty_like(self.problem.a)  # preallocated: a list of small results would fragment memory
        for rows in self.blocks:
            sums[..., rows] = _matvec(self._exponents(rows, self.f, self.g).exp_(), weights)
        return sums

    def _column_sums(self, weights: Tensor) -> Tensor:
        if self.keep_kernel:
            return _matvec(self._full_kernel().mT, weights)
        sums = torch.zeros_like(self.problem.b)
        for rows in self.blocks:
            sums += _matvec(self._exponents(rows, self.f, self.g).exp_().mT, weights[..., rows])
        return sums


def _within_range(change: Tensor) -> bool:
    return bool((change.abs() < MAX_ABSORBED).all())


def _matvec(matrix: Tensor, vector: Tensor) -> Tensor:
    """Return batched matrix-vector products.  matrix: (..., n, m); vector: (..., m)."""
    return matrix @ vector if matrix.ndim == 2 else (matrix @ vector[..., None])[..., 0]
