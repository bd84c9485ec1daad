"""Matrix scaling to given row and column sums, and its generalization: alternating Kullback-Leibler projections."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from reverie.base.distances import attainable_tolerance, finest_dtype
from reverie.base.errors import ReverieWarning, UserError
from reverie.base.validation import real_dtype, tensor
from reverie.transport.entropic import solve
from reverie.transport.problem import problem_from_costs

NEWTON_STEPS = 100


@dataclass(frozen=True, eq=False)
class Scaling:
    """A matrix diag(u) K diag(v) with given row and column sums.  u: (..., n); v: (..., m); matrix: (..., n, m).

    marginal_error: the L1 distance between actual and requested column sums, relative to the total.
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
    """Scale rows and columns of a non-negative matrix to given sums: Sinkhorn's algorithm with cost -log K.

    A solution exists only if the zero pattern of K admits one; then it is unique, u and v up to a factor (Sinkhorn 1967).  The
    result has no gradient.  rows: (..., n); columns: (..., m), with equal totals.  tolerance: default 1e-9 in float64.
    """
    matrix, rows, columns = (tensor(part).detach() for part in (matrix, rows, columns))
    if matrix.ndim < 2 or not matrix.isfinite().all() or not (matrix >= 0).all():
        raise UserError("a matrix to be scaled must have finite entries that are 0 or more")
    k = matrix.to(finest_dtype(matrix))
    rows, columns = rows.to(k), columns.to(k)
    for name, sums, size in (("rows", rows, k.shape[-2]), ("columns", columns, k.shape[-1])):
        if sums.shape[-1:] != (size,) or not sums.isfinite().all() or not (sums >= 0).all():
            raise UserError(f"the requested sums of the {name} must be {size} finite numbers that are 0 or more")
    total, other = rows.sum(-1, keepdim=True), columns.sum(-1, keepdim=True)
    if not ((total - other).abs() <= 1e-5 * total).all() or not (total > 0).all():
        raise UserError("the requested row sums and column sums must have one total above 0")
    support = (k > 0) & (rows > 0)[..., None] & (columns > 0)[..., None, :]
    if not (support.any(-1) | (rows == 0)).all() or not (support.any(-2) | (columns == 0)).all():
        raise UserError("a row or column of the matrix is zero, so it cannot have a positive sum")
    problem = problem_from_costs(-k.log(), rows, columns)
    if tolerance is None:
        tolerance = attainable_tolerance(1e-9, k.dtype)
    unit, start = k.new_ones(k.shape[:-2]), torch.zeros_like(problem.b)
    f, g, errors = solve(problem, 1.0, unit, tolerance, max_iterations, start)
    if not errors[-1] <= tolerance:
        warnings.warn(
            f"matrix scaling did not converge in {len(errors)} iterations: the marginal error is {errors[-1]:.1e}, the"
            f" tolerance {tolerance:.1e}; raise max_iterations, or check whether the zeros of the matrix allow these sums",
            ReverieWarning,
            stacklevel=2,
        )
    u, v = total * problem.a * f.exp(), problem.b * g.exp()
    scaled = (u[..., None] * k * v[..., None, :]).to(real_dtype(matrix))
    return Scaling(scaled, u, v, len(errors), errors[-1], errors[-1] <= tolerance)


def doubly_stochastic(matrix: Any, *, tolerance: float | None = None, max_iterations: int = 2000) -> Scaling:
    """Scale a square non-negative matrix so that all row and column sums are 1 (Sinkhorn and Knopp 1967)."""
    matrix = tensor(matrix)
    if matrix.ndim < 2 or matrix.shape[-1] != matrix.shape[-2]:
        raise UserError(f"a doubly stochastic matrix is square, got the shape {tuple(matrix.shape)}")
    ones = torch.ones(matrix.shape[:-1], dtype=finest_dtype(matrix), device=matrix.device)
    return scale_matrix(matrix, ones, ones, tolerance=tolerance, max_iterations=max_iterations)


class Constraint(Protocol):
    """An affine set of non-negative arrays."""

    def project(self, p: Tensor) -> Tensor:
        """Return the KL projection of p on the set, argmin_q KL(q | p)."""

    def error(self, p: Tensor) -> float:
        """Return the violation of the constraint by p, as a sum of absolute differences."""


@dataclass(frozen=True, eq=False)
class Sums:
    """The constraint that the sums over the axes `over` equal `to`, one number per remaining index.  Projecting rescales."""

    over: tuple[int, ...]
    to: Any

    def __post_init__(self) -> None:
        object.__setattr__(self, "to", tensor(self.to))
        if not self.to.isfinite().all() or not (self.to >= 0).all():
            raise UserError("the sums of a non-negative array must be finite and 0 or more")

    def _ratio(self, p: Tensor) -> tuple[Tensor, Tensor]:
        sums = p.sum(self.over, keepdim=True)
        if self.to.numel() != sums.numel():
            raise UserError(
                f"the shape {tuple(p.shape)} summed over axes {self.over} has {sums.numel()} sums, got {self.to.numel()}"
            )
        return sums, self.to.to(p).reshape(sums.shape)

    def project(self, p: Tensor) -> Tensor:
        """Return p x (target sums) / (sums of p)."""
        sums, target = self._ratio(p)
        return p * torch.where(sums > 0, target / sums, 0.0)

    def error(self, p: Tensor) -> float:
        """Return the L1 distance between the sums of p and the target sums."""
        sums, target = self._ratio(p)
        return float((sums - target).abs().sum())


@dataclass(frozen=True, eq=False)
class Moments:
    """The constraint <rows_k, p> = to_k.  rows: (k, ...) of p's shape, linearly independent; to: (k,).

    The projection is p exp(sum_k l_k rows_k), with l from Newton's method on the convex dual.
    """

    rows: Any
    to: Any

    def __post_init__(self) -> None:
        for name, numbers in (("rows", tensor(self.rows)), ("to", tensor(self.to))):
            if not numbers.isfinite().all():
                raise UserError(f"`{name}` of a moment constraint contains NaN or infinity")
            object.__setattr__(self, name, numbers)

    def project(self, p: Tensor) -> Tensor:
        """Return the KL projection of p on arrays with these moments."""
        rows, to, flat = self.rows.to(p).flatten(1), self.to.to(p), p.flatten()

        def tilt(by: Tensor) -> tuple[Tensor, float]:
            q = flat * (by @ rows).exp()
            return q, float(q.sum() - to @ by)  # the dual objective, to be minimized

        by = torch.zeros_like(to)
        q, value = tilt(by)
        for _ in range(NEWTON_STEPS):
            gap = to - rows @ q
            if gap.abs().sum() <= 1e-14 * (1 + to.abs().sum()):
                break
            step = torch.linalg.lstsq((rows * q) @ rows.T, gap[:, None]).solution[:, 0]
            size = 1.0
            while size > 1e-10 and not tilt(by + size * step)[1] <= value + 1e-14 * abs(value):
                size /= 2
            by = by + size * step
            q, value = tilt(by)
        return q.reshape(p.shape)

    def error(self, p: Tensor) -> float:
        """Return the L1 distance between the moments of p and `to`."""
        return float((self.rows.to(p).flatten(1) @ p.flatten() - self.to.to(p)).abs().sum())


@dataclass(frozen=True, eq=False)
class Projection:
    """The result of alternating projections, converged or not; error is the maximum over the constraints."""

    p: Tensor
    iterations: int
    error: float
    converged: bool


def kl_project(
    q: Any, constraints: Sequence[Constraint], *, tolerance: float | None = None, max_iterations: int = 10_000
) -> Projection:
    """Return argmin_p KL(p | q) over non-negative p in an intersection of affine sets, by cyclic projections.

    For affine sets the cyclic projections converge (Bregman 1967; Csiszár 1975).  Row sums and column sums with
    q = a b exp(-C/eps) give Sinkhorn's algorithm.  tolerance: of the largest error, default 1e-9 in float64.
    """
    q = tensor(q)
    if not q.isfinite().all() or not (q >= 0).all() or not constraints:
        raise UserError("a projection needs a finite array without negative entries and at least one constraint")
    p = q.to(finest_dtype(q))
    if tolerance is None:
        tolerance = attainable_tolerance(1e-9, p.dtype)
    error, rounds = float("inf"), 0
    while not error <= tolerance and rounds < max_iterations:
        for constraint in constraints:
            p = constraint.project(p)
        error = max(constraint.error(p) for constraint in constraints)
        rounds += 1
    if not error <= tolerance:
        warnings.warn(
            f"the projections did not converge in {rounds} rounds: the error is {error:.1e}, the tolerance {tolerance:.1e};"
            " the constraints may be inconsistent",
            ReverieWarning,
            stacklevel=2,
        )
    return Projection(p.to(real_dtype(q)), rounds, error, error <= tolerance)
