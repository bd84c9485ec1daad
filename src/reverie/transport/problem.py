"""What is to be moved, where to, and what a move costs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import torch
from torch import Tensor

from reverie.base.distances import euclidean, manhattan, precise, row_blocks, squared, squared_factors
from reverie.base.errors import UserError, pick
from reverie.base.points import Weights, check_points, check_weights, real_dtype, tensor

CostFunction = Callable[[Tensor, Tensor], Tensor]

COSTS: dict[str, CostFunction] = {"squared": squared, "euclidean": euclidean, "manhattan": manhattan}


@dataclass(frozen=True, eq=False)
class Problem:
    """Weights a and b, and the cost of moving row i to column j, in blocks of rows.

    a: (..., n) and b: (..., m), each with sum 1; tile(rows): (..., r, m), the cost of some rows.  Leading axes are a batch of
    problems.  A weight of 0 is a point that is not there; an infinite cost forbids a move.
    """

    a: Tensor
    b: Tensor
    tile: Callable[[slice], Tensor]
    dtype: torch.dtype  # of the user's numbers; ours are float64
    symmetric: bool = False  # a set moved to itself, at the same cost both ways

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape (..., n, m) of the table of costs, which may never exist as a whole."""
        return (*self.a.shape, self.b.shape[-1])

    def blocks(self) -> list[slice]:
        """Return the blocks of rows that the costs are computed in."""
        *batch, n, m = self.shape
        return list(row_blocks(n, m * prod(batch)))

    def matrix(self) -> Tensor:
        """Return all costs: (..., n, m)."""
        return torch.cat([self.tile(rows) for rows in self.blocks()], -2)

    def total(self, of: Callable[[slice, Tensor], Tensor]) -> Tensor:
        """Return the sum over all pairs of of(rows, costs), a block at a time: (...)."""
        total = self.a.new_zeros(self.a.shape[:-1])
        for rows in self.blocks():
            total = total + of(rows, self.tile(rows)).sum((-2, -1))
        return total

    @torch.no_grad()
    def mean_cost(self) -> Tensor:
        """Return the mean of the finite costs under independent choice of both ends: (...)."""
        total = mass = torch.zeros((), device=self.a.device)
        for rows in self.blocks():
            c = self.tile(rows)
            chosen = self.a[..., rows, None] * self.b[..., None, :] * c.isfinite()
            total, mass = total + (chosen * finite(c)).sum((-2, -1)), mass + chosen.sum((-2, -1))
        return total / mass

    @property
    def requires_grad(self) -> bool:
        """Whether anything that the costs or weights come from wants a gradient."""
        if not torch.is_grad_enabled():
            return False
        return self.a.requires_grad or self.b.requires_grad or self.tile(slice(0, 1)).requires_grad


def between(x: Any, y: Any, a: Weights = None, b: Weights = None, cost: str | CostFunction = "squared") -> Problem:
    """Move the points x to the points y.  x: (..., n, d); y: (..., m, d); a: (..., n) and b: (..., m) weights or masks.

    Weights are scaled to sum 1; none means equal ones; a boolean tensor is a mask.  The cost is one of COSTS or any function of
    two sets of points (..., r, d), (..., m, d) -> (..., r, m); it is computed in blocks, so memory is O(n + m).
    """
    symmetric = x is y and a is b and isinstance(cost, str)
    x, y = tensor(x), tensor(y)
    for name, points in (("x", x), ("y", y)):
        check_points(points, name)
    if x.shape[-1] != y.shape[-1]:
        raise UserError(f"the points differ in dimension: x has {x.shape[-1]} coordinates and y has {y.shape[-1]}")
    if x.shape[:-2] != y.shape[:-2]:
        raise UserError(f"x is a batch of {tuple(x.shape[:-2])} sets and y of {tuple(y.shape[:-2])}; give as many of each")
    function = pick(COSTS, cost, "cost") if isinstance(cost, str) else cost
    dtype = torch.promote_types(x.dtype, y.dtype)
    x, y = x.to(precise(x)), y.to(precise(y))
    a, b = check_weights(a, x.shape[:-1], "a", x), check_weights(b, y.shape[:-1], "b", y)
    if function is squared:
        centre = (b[..., None] * y).detach().sum(-2, keepdim=True)
        left, right = squared_factors(x - centre, y - centre)  # the work on single points is done once
        return Problem(a, b, lambda rows: (left[..., rows, :] @ right.mT).clamp_(min=0), dtype, symmetric)

    def tile(rows: slice) -> Tensor:
        return function(x[..., rows, :], y).to(x)

    problem = Problem(a, b, tile, dtype, symmetric)
    return problem if isinstance(cost, str) else _checked(problem)


def costing(matrix: Any, a: Weights = None, b: Weights = None) -> Problem:
    """Move rows to columns at the costs of a matrix, where infinity forbids a move.  matrix: (..., n, m)."""
    matrix = tensor(matrix)
    if matrix.ndim < 2 or 0 in matrix.shape:
        raise UserError(f"a matrix of costs has rows and columns, got the shape {tuple(matrix.shape)}")
    dtype = real_dtype(matrix)
    matrix = matrix.to(precise(matrix))
    a = check_weights(a, matrix.shape[:-1], "a", matrix)
    b = check_weights(b, (*matrix.shape[:-2], matrix.shape[-1]), "b", matrix)
    return _checked(Problem(a, b, lambda rows: matrix[..., rows, :], dtype))


def _checked(problem: Problem) -> Problem:
    """Look through the costs once for those that make no sense; points that are not there move for nothing."""
    to, come = torch.empty_like(problem.a, dtype=torch.bool), torch.zeros_like(problem.b, dtype=torch.bool)
    for rows in problem.blocks():
        with torch.no_grad():
            costs = problem.tile(rows)
        shape = (*problem.a[..., rows].shape, problem.b.shape[-1])
        if costs.shape != shape:
            raise UserError(f"the cost function gave {tuple(costs.shape)} and not {shape}; it must give every pair")
        if costs.isnan().any() or (costs == -torch.inf).any():
            raise UserError("the costs hold NaN or minus infinity; a cost is a number, or infinity to forbid a move")
        allowed = costs.isfinite()
        to[..., rows] = (allowed & (problem.b > 0)[..., None, :]).any(-1)
        come |= (allowed & (problem.a > 0)[..., rows, None]).any(-2)
    if not (to | (problem.a == 0)).all() or not (come | (problem.b == 0)).all():
        raise UserError("every move from some row or to some column is forbidden; each needs a finite cost")
    if to.all() and come.all():
        return problem

    def tile(rows: slice) -> Tensor:
        return problem.tile(rows).masked_fill(~to[..., rows, None] | ~come[..., None, :], 0.0)

    return replace(problem, tile=tile)


def finite(costs: Tensor) -> Tensor:
    """Return costs with 0 for moves that are forbidden, which no plan makes."""
    return torch.where(costs.isfinite(), costs, 0.0)
