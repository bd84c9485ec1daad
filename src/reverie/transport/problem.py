"""What is to be moved, where to, and what a move costs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from typing import Any

import torch
from torch import Tensor

from reverie.distances import euclidean, manhattan, precise, row_blocks, squared, squared_factors
from reverie.errors import UserError, pick
from reverie.inputs import Weights, check_points, check_weights, tensor

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

    factors = squared_factors(x, y) if function is squared else None

    def tile(rows: slice) -> Tensor:
        if factors is None:
            return function(x[..., rows, :], y)
        return (factors[0][..., rows, :] @ factors[1].mT).clamp_(min=0)  # with the work on single points done once

    made = tile(slice(0, 1))
    if made.shape != (*x.shape[:-2], 1, y.shape[-2]):
        raise UserError(f"the cost function gave {tuple(made.shape)} for one point and {y.shape[-2]}; it must give every pair")
    a, b = check_weights(a, x.shape[:-1], "a", x), check_weights(b, y.shape[:-1], "b", y)
    return Problem(a, b, tile, dtype, symmetric)


def costing(matrix: Any, a: Weights = None, b: Weights = None) -> Problem:
    """Move rows to columns at the costs of a matrix, where infinity forbids a move.  matrix: (..., n, m)."""
    matrix = tensor(matrix)
    if matrix.ndim < 2 or 0 in matrix.shape:
        raise UserError(f"a matrix of costs has rows and columns, got the shape {tuple(matrix.shape)}")
    dtype = matrix.dtype if matrix.is_floating_point() else torch.get_default_dtype()
    if matrix.isnan().any() or (matrix == -torch.inf).any():
        raise UserError("the matrix of costs holds NaN or minus infinity; a cost is a number, or infinity to forbid a move")
    matrix = matrix.to(precise(matrix))
    a = check_weights(a, matrix.shape[:-1], "a", matrix)
    b = check_weights(b, (*matrix.shape[:-2], matrix.shape[-1]), "b", matrix)
    allowed = matrix.isfinite()
    to, come = (allowed & (b > 0)[..., None, :]).any(-1), (allowed & (a > 0)[..., None]).any(-2)
    if not (to | (a == 0)).all() or not (come | (b == 0)).all():
        raise UserError("every move from some row or to some column is forbidden; each needs a finite cost")
    matrix = matrix.masked_fill(~to[..., None] | ~come[..., None, :], 0.0)  # of points that are not there
    return Problem(a, b, lambda rows: matrix[..., rows, :], dtype)


def finite(costs: Tensor) -> Tensor:
    """Return costs with 0 for moves that are forbidden, which no plan makes."""
    return torch.where(costs.isfinite(), costs, 0.0)
