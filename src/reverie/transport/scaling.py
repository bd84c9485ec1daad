"""Matrices scaled to given sums, and what that is a case of: alternating projections in the Kullback-Leibler sense."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from reverie.base.distances import attainable, precise
from reverie.base.errors import ReverieWarning, UserError
from reverie.base.points import real_dtype, tensor
from reverie.transport.entropic import solve
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


def scale_matrix(
    matrix: Any, rows: Any, columns: Any, *, tolerance: float | None = None, max_iterations: int = 2000
) -> Scaling:
    """Scale rows and columns of a matrix without negative entries to given sums: Sinkhorn's algorithm at cost -log K.

    It can only be done if the zeros leave room: then the result is unique, and u and v are up to a factor (Sinkhorn 1967).
    It has no gradient.  rows: (..., n); columns: (..., m), of one total; without a tolerance, 1e-9 in float64.
    """
    matrix, rows, columns = (tensor(part).detach() for part in (matrix, rows, columns))
    if matrix.ndim < 2 or not matrix.isfinite().all() or not (matrix >= 0).all():
        raise UserError("only a matrix of finite numbers that are 0 or more can be scaled to given sums")
    k = matrix.to(precise(matrix))
    rows, columns = rows.to(k), columns.to(k)
    for name, sums, many in (("rows", rows, k.shape[-2]), ("columns", columns, k.shape[-1])):
        if sums.shape[-1:] != (many,) or not sums.isfinite().all() or not (sums >= 0).all():
            raise UserError(f"the sums asked of the {name} must be {many} finite numbers that are 0 or more")
    total, other = rows.sum(-1, keepdim=True), columns.sum(-1, keepdim=True)
    if not ((total - other).abs() <= 1e-5 * total).all() or not (total > 0).all():
        raise UserError("the sums asked of rows and columns must have one total above 0, or no matrix has both")
    there = (k > 0) & (rows > 0)[..., None] & (columns > 0)[..., None, :]
    if not (there.any(-1) | (rows == 0)).all() or not (there.any(-2) | (columns == 0)).all():
        raise UserError("some row or column of the matrix holds only zeros, so it cannot have a sum above 0")
    problem = costing(-k.log(), rows, columns)
    if tolerance is None:
        tolerance = attainable(1e-9, k.dtype)
    one, start = k.new_ones(k.shape[:-2]), torch.zeros_like(problem.b)
    f, g, errors = solve(problem, 1.0, one, tolerance, max_iterations, start)
    if not errors[-1] <= tolerance:
        warnings.warn(
            f"the scaling did not converge in {len(errors)} iterations: the marginal error is {errors[-1]:.1e} and not"
            f" {tolerance:.1e}; raise max_iterations, unless the zeros of the matrix leave no room for these sums",
            ReverieWarning,
            stacklevel=2,
        )
    u, v = total * problem.a * f.exp(), problem.b * g.exp()
    scaled = (u[..., None] * k * v[..., None, :]).to(real_dtype(matrix))
    return Scaling(scaled, u, v, len(errors), errors[-1], errors[-1] <= tolerance)


def doubly_stochastic(matrix: Any, *, tolerance: float | None = None, max_iterations: int = 2000) -> Scaling:
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
    """Arrays whose sums over some axes are given, as numbers of the remaining axes.  The projection scales each part."""

    over: tuple[int, ...]
    to: Any

    def __post_init__(self) -> None:
        object.__setattr__(self, "to", tensor(self.to))
        if not self.to.isfinite().all() or not (self.to >= 0).all():
            raise UserError("the sums of a non-negative array are finite numbers that are 0 or more")

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

    rows: Any
    to: Any

    def __post_init__(self) -> None:
        for name, numbers in (("rows", tensor(self.rows)), ("to", tensor(self.to))):
            if not numbers.isfinite().all():
                raise UserError(f"the {name} of the moments asked hold NaN or infinity")
            object.__setattr__(self, name, numbers)

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
    q: Any, constraints: Sequence[Constraint], *, tolerance: float | None = None, max_iterations: int = 10_000
) -> Projection:
    """Return the non-negative array with least KL(p | q) in the intersection of affine sets, by projecting on each in turn.

    For affine sets the turns converge to the projection on all of them (Bregman 1967; Csiszár 1975).  Sums of rows and sums of
    columns are Sinkhorn's case: q = a b exp(-C/eps).  Without a tolerance of the largest error, 1e-9 in float64.
    """
    q = tensor(q)
    if not q.isfinite().all() or not (q >= 0).all() or not constraints:
        raise UserError("a projection needs an array of finite numbers that are 0 or more, and at least one constraint")
    p = q.to(precise(q))
    if tolerance is None:
        tolerance = attainable(1e-9, p.dtype)
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
    return Projection(p.to(real_dtype(q)), rounds, error, error <= tolerance)
