"""Transport problems: weights of two point sets and a cost matrix, computed in blocks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import torch
from torch import Tensor

from reverie.base.distances import euclidean, finest_dtype, manhattan, row_blocks, squared, squared_factors
from reverie.base.errors import UserError, pick
from reverie.base.validation import Weights, check_points, check_weights, real_dtype, tensor

CostFunction = Callable[[Tensor, Tensor], Tensor]

COSTS: dict[str, CostFunction] = {"squared": squared, "euclidean": euclidean, "manhattan": manhattan}


@dataclass(frozen=True, eq=False)
class Problem:
    """A transport problem: weights a and b, and the cost of moving mass from row i to column j.

    a: (..., n) and b: (..., m), each with sum 1; tile(rows): (..., r, m), a block of rows of the cost matrix.  Leading axes are
    a batch of problems.  A point with weight 0 is ignored; an infinite cost forbids a move.
    """

    a: Tensor
    b: Tensor
    tile: Callable[[slice], Tensor]
    dtype: torch.dtype  # of the inputs and results; the computation is in float64
    symmetric: bool = False  # x and y are the same set and the cost matrix is symmetric

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape (..., n, m) of the cost matrix, which is never stored as a whole."""
        return (*self.a.shape, self.b.shape[-1])

    def blocks(self) -> list[slice]:
        """Return the row blocks in which the cost matrix is computed."""
        *batch, n, m = self.shape
        return list(row_blocks(n, m * prod(batch)))

    def matrix(self) -> Tensor:
        """Return the whole cost matrix: (..., n, m)."""
        return torch.cat([self.tile(rows) for rows in self.blocks()], -2)

    def total(self, function: Callable[[slice, Tensor], Tensor]) -> Tensor:
        """Return the sum over all pairs of function(rows, costs), one block at a time: (...)."""
        total = self.a.new_zeros(self.a.shape[:-1])
        for rows in self.blocks():
            total = total + function(rows, self.tile(rows)).sum((-2, -1))
        return total

    @torch.no_grad()
    def mean_cost(self) -> Tensor:
        """Return the mean of the finite costs under the product measure a b: (...)."""
        total = mass = torch.zeros((), device=self.a.device)
        for rows in self.blocks():
            c = self.tile(rows)
            weights = self.a[..., rows, None] * self.b[..., None, :] * c.isfinite()
            total, mass = total + (weights * finite(c)).sum((-2, -1)), mass + weights.sum((-2, -1))
        return total / mass

    @property
    def requires_grad(self) -> bool:
        """Whether the weights or costs require a gradient."""
        if not torch.is_grad_enabled():
            return False
        return self.a.requires_grad or self.b.requires_grad or self.tile(slice(0, 1)).requires_grad


def between(x: Any, y: Any, a: Weights = None, b: Weights = None, cost: str | CostFunction = "squared") -> Problem:
    """Return the problem of moving points x to points y.  x: (..., n, d); y: (..., m, d); weights a: (..., n), b: (..., m).

    Weights are normalized to sum 1; None means uniform, and a boolean tensor is a mask.  The cost is a name of COSTS or a
    function (..., r, d), (..., m, d) -> (..., r, m).  It is computed in blocks, so memory is O(n + m).
    """
    symmetric = x is y and a is b and isinstance(cost, str)
    x, y = tensor(x), tensor(y)
    for name, points in (("x", x), ("y", y)):
        check_points(points, name)
    if x.shape[-1] != y.shape[-1]:
        raise UserError(f"the points differ in dimension: x has {x.shape[-1]} coordinates and y has {y.shape[-1]}")
    if x.shape[:-2] != y.shape[:-2]:
        raise UserError(f"x has the batch shape {tuple(x.shape[:-2])} and y has {tuple(y.shape[:-2])}; they must be equal")
    function = pick(COSTS, cost, "cost") if isinstance(cost, str) else cost
    dtype = torch.promote_types(x.dtype, y.dtype)
    x, y = x.to(finest_dtype(x)), y.to(finest_dtype(y))
    a, b = check_weights(a, x.shape[:-1], "a", x), check_weights(b, y.shape[:-1], "b", y)
    if function is squared:
        centre = (b[..., None] * y).detach().sum(-2, keepdim=True)
        left, right = squared_factors(x - centre, y - centre)  # per-point terms are computed once
        return Problem(a, b, lambda rows: (left[..., rows, :] @ right.mT).clamp_(min=0), dtype, symmetric)

    def tile(rows: slice) -> Tensor:
        return function(x[..., rows, :], y).to(x)

    problem = Problem(a, b, tile, dtype, symmetric)
    return problem if isinstance(cost, str) else _check_costs(problem)


def problem_from_costs(matrix: Any, a: Weights = None, b: Weights = None) -> Problem:
    """Return the problem with this cost matrix, in which infinity forbids a move.  matrix: (..., n, m)."""
    matrix = tensor(matrix)
    if matrix.ndim < 2 or 0 in matrix.shape:
        raise UserError(f"a cost matrix must have shape (..., n, m) with n, m > 0, got {tuple(matrix.shape)}")
    dtype = real_dtype(matrix)
    matrix = matrix.to(finest_dtype(matrix))
    a = check_weights(a, matrix.shape[:-1], "a", matrix)
    b = check_weights(b, (*matrix.shape[:-2], matrix.shape[-1]), "b", matrix)
    return _check_costs(Problem(a, b, lambda rows: matrix[..., rows, :], dtype))


def _check_costs(problem: Problem) -> Problem:
    """Check all costs once; points of weight 0 without allowed moves get the cost 0."""
    movable, reachable = torch.empty_like(problem.a, dtype=torch.bool), torch.zeros_like(problem.b, dtype=torch.bool)
    for rows in problem.blocks():
        with torch.no_grad():
            costs = problem.tile(rows)
        shape = (*problem.a[..., rows].shape, problem.b.shape[-1])
        if costs.shape != shape:
            raise UserError(f"the cost function must return the cost of every pair, shape {shape}, got {tuple(costs.shape)}")
        if costs.isnan().any() or (costs == -torch.inf).any():
            raise UserError("the costs contain NaN or minus infinity; a cost is a number, or infinity to forbid a move")
        allowed = costs.isfinite()
        movable[..., rows] = (allowed & (problem.b > 0)[..., None, :]).any(-1)
        reachable |= (allowed & (problem.a > 0)[..., rows, None]).any(-2)
    if not (movable | (problem.a == 0)).all() or not (reachable | (problem.b == 0)).all():
        raise UserError("all moves from some row or to some column are forbidden; each needs a finite cost")
    if movable.all() and reachable.all():
        return problem

    def tile(rows: slice) -> Tensor:
        return problem.tile(rows).masked_fill(~movable[..., rows, None] | ~reachable[..., None, :], 0.0)

    return replace(problem, tile=tile)


def finite(costs: Tensor) -> Tensor:
    """Return costs with 0 in place of infinity, for sums weighted by a plan."""
    return torch.where(costs.isfinite(), costs, 0.0)
