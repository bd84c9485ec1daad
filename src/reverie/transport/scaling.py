"""Matrices scaled to given sums, and what that is a case of: alternating projections in the Kullback-Leibler sense."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from reverie.distances import precise
from reverie.errors import ReverieWarning, UserError
from reverie.inputs import tensor
from reverie.transport.entropic import sinkhorn
from reverie.transport.problem import costing

NEWTON_STEPS = 100


@dataclass(frozen=True, eq=False)
class Scaling:
    """A matrix diag(u) K diag(v) with given sums of rows and columns.  u: (..., n); v: (..., m); matrix: (..., n, m).

    marginal_error is the sum over columns of the distance to what was asked, relative to the total.
    """

    matrix: Tensor
    u: Tensor
    v: Tensor
    iterations: int
    marginal_error: float
    converged: bool


def scale_matrix(matrix: Any, rows: Tensor, columns: Tensor, *, tolerance: float = 1e-9, max_iterations: int = 2000) -> Scaling:
    """Scale rows and columns of a matrix without negative entries to given sums: Sinkhorn's algorithm at cost -log K.

    It can only be done if the zeros leave room: then the result is unique, and u and v are up to a factor (Sinkhorn 1967).
    rows: (..., n); columns: (..., m), of one total.
    """
    matrix, rows, columns = (tensor(part) for part in (matrix, rows, columns))
    if not (matrix >= 0).all():
        raise UserError("only a matrix of numbers that are 0 or more can be scaled to given sums")
    total, other = rows.sum(-1, keepdim=True), columns.sum(-1, keepdim=True)
    if not torch.allclose(total.double(), other.double()):
        raise UserError("the sums asked of rows and columns have different totals, so no matrix has both")
    dtype = matrix.dtype if matrix.is_floating_point() else torch.get_default_dtype()
    k = matrix.to(precise(matrix))
    problem = costing(-k.log(), rows, columns)
    found = sinkhorn(
        problem, 1.0, scale=1.0, tolerance=tolerance, max_iterations=max_iterations, start=torch.zeros_like(problem.b)
    )
    u, v = total.to(k) * problem.a * found.f.exp(), problem.b * found.g.exp()
    scaled = (u[..., None] * k * v[..., None, :]).to(dtype)
    return Scaling(scaled, u, v, found.iterations, found.marginal_error, found.converged)


def doubly_stochastic(matrix: Any, *, tolerance: float = 1e-9, max_iterations: int = 2000) -> Scaling:
    """Scale a square matrix without negative entries so that every row and column has the sum 1 (Sinkhorn and Knopp 1967)."""
    matrix = tensor(matrix)
    if matrix.ndim < 2 or matrix.shape[-1] != matrix.shape[-2]:
        raise UserError(f"only a square matrix can be made doubly stochastic, got {tuple(matrix.shape)}")
    ones = torch.ones(matrix.shape[:-1], dtype=precise(matrix), device=matrix.device)
    return scale_matrix(matrix, ones, ones, tolerance=tolerance, max_iterations=max_iterations)


class Constraint(Protocol):
    """An affine set of non-negative arrays."""

    def project(self, p: Tensor) -> Tensor:
        """Return the array of the set that is closest to p: least KL(. | p)."""

    def error(self, p: Tensor) -> float:
        """Return how far p is from the set, as a sum of absolute differences."""


@dataclass(frozen=True, eq=False)
class Sums:
    """Arrays whose sums over some axes are given, as a tensor of the remaining axes.  The projection scales each part."""

    over: tuple[int, ...]
    to: Tensor

    def _ratio(self, p: Tensor) -> tuple[Tensor, Tensor]:
        sums = p.sum(self.over, keepdim=True)
        if self.to.numel() != sums.numel():
            raise UserError(f"sums over the axes {self.over} of {tuple(p.shape)} are {sums.numel()}, got {self.to.numel()}")
        return sums, self.to.to(p).reshape(sums.shape)

    def project(self, p: Tensor) -> Tensor:
        """Return p x (sums asked) / (sums of p)."""
        sums, asked = self._ratio(p)
        return p * torch.where(sums > 0, asked / sums, 0.0)

    def error(self, p: Tensor) -> float:
        """Return the sum of the differences to the sums asked."""
        sums, asked = self._ratio(p)
        return float((sums - asked).abs().sum())


@dataclass(frozen=True, eq=False)
class Moments:
    """Arrays p with <rows_k, p> = to_k.  rows: (k, ...) of p's shape, linearly independent; to: (k,).

    The projection is p exp(sum_k l_k rows_k), with l from Newton's method on the convex dual.
    """

    rows: Tensor
    to: Tensor

    def project(self, p: Tensor) -> Tensor:
        """Return the closest array with these moments."""
        rows, to, flat = self.rows.to(p).flatten(1), self.to.to(p), p.flatten()

        def tilted(by: Tensor) -> tuple[Tensor, float]:
            q = flat * (by @ rows).exp()
            return q, float(q.sum() - to @ by)  # the dual, to be made least

        by = torch.zeros_like(to)
        q, value = tilted(by)
        for _ in range(NEWTON_STEPS):
            gap = to - rows @ q
            if gap.abs().sum() <= 1e-14 * (1 + to.abs().sum()):
                break
            step = torch.linalg.lstsq((rows * q) @ rows.T, gap[:, None]).solution[:, 0]
            size = 1.0
            while size > 1e-10 and not tilted(by + size * step)[1] <= value + 1e-14 * abs(value):
                size /= 2
            by = by + size * step
            q, value = tilted(by)
        return q.reshape(p.shape)

    def error(self, p: Tensor) -> float:
        """Return the sum of the differences to the moments asked."""
        return float((self.rows.to(p).flatten(1) @ p.flatten() - self.to.to(p)).abs().sum())


@dataclass(frozen=True, eq=False)
class Projection:
    """The array closest to a given one in all sets, or how far the iteration came; error is the largest over the sets."""

    p: Tensor
    iterations: int
    error: float
    converged: bool


def kl_project(
    q: Any, constraints: Sequence[Constraint], *, tolerance: float = 1e-9, max_iterations: int = 10_000
) -> Projection:
    """Return the non-negative array with least KL(p | q) in the intersection of affine sets, by projecting on each in turn.

    For affine sets the turns converge to the projection on all of them (Bregman 1967; Csiszár 1975).  Sums of rows and sums of
    columns are Sinkhorn's case: q = a b exp(-C/eps).
    """
    q = tensor(q)
    if not (q >= 0).all() or not constraints:
        raise UserError("a projection needs an array of numbers that are 0 or more, and at least one constraint")
    dtype, p = q.dtype, q.to(precise(q))
    error, rounds = float("inf"), 0
    while not error <= tolerance and rounds < max_iterations:
        for constraint in constraints:
            p = constraint.project(p)
        error = max(constraint.error(p) for constraint in constraints)
        rounds += 1
    if not error <= tolerance:
        warnings.warn(
            f"the projections did not converge in {rounds} rounds: error {error:.1e}, asked for {tolerance:.1e};"
            " the constraints may exclude each other",
            ReverieWarning,
            stacklevel=2,
        )
    return Projection(p.to(dtype), rounds, error, error <= tolerance)
