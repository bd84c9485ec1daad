"""Linear programs with differentiable solutions."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from scipy.optimize import linprog
from torch import Tensor

from reverie.autodiff.implicit import implicit
from reverie.base.errors import UserError

TOLERANCE = 1e-9  # tolerance of zero, relative to the largest x and the largest cost


@dataclass(frozen=True, eq=False)
class LinearProgram:
    """The solution of min c.x with A x = b, x >= 0: x (n,), the dual multipliers y (m,), and the value c.x = b.y."""

    x: Tensor
    y: Tensor
    value: Tensor


def _solve(a: Tensor, b: Tensor, c: Tensor) -> Tensor:
    """Solve by the dual simplex of HiGHS; raise an error for a vertex at which the solution is not differentiable."""
    m, n = a.shape
    matrix, right, costs = (t.double().cpu().numpy() for t in (a, b, c))
    x_unit, y_unit = (float(np.abs(t).max(initial=0.0)) or 1.0 for t in (right, costs))  # HiGHS has absolute tolerances
    right, costs = right / x_unit, costs / y_unit
    result = linprog(costs, A_eq=matrix, b_eq=right, bounds=(0, None), method="highs-ds")
    if result.status == 2:
        raise UserError("the linear program is infeasible: no x >= 0 satisfies A x = b")
    if result.status == 3:
        raise UserError("the linear program is unbounded: c.x has no minimum")
    if not result.success:
        raise UserError(f"the linear program could not be solved: {result.message}")
    x, y = np.asarray(result.x), np.asarray(result.eqlin.marginals)
    positive, tight = x > TOLERANCE * x.max(initial=0.0), costs - matrix.T @ y <= TOLERANCE
    if positive.sum() != m:
        raise UserError(
            f"the solution is a degenerate vertex: {positive.sum()} of its {n} numbers are positive, {m} are needed (one per"
            " row of A), so it has no derivative; change b slightly or remove redundant rows"
        )
    if (tight & ~positive).any():
        raise UserError(
            f"the solution is not unique: the reduced cost of x[{int(np.flatnonzero(tight & ~positive)[0])}] is zero, so"
            " it has no derivative; change c slightly"
        )
    return torch.as_tensor(np.concatenate([x_unit * x, y_unit * y])).to(a)


def _conditions(w: Tensor, a: Tensor, b: Tensor, c: Tensor) -> Tensor:
    """Return A x - b and x (A^T y - c), which are zero at the solution."""
    x, y = w[: len(c)], w[len(c) :]
    return torch.cat([a @ x - b, x * (a.T @ y - c)])


def linear_program(a: Tensor, b: Tensor, c: Tensor) -> LinearProgram:
    """Solve min c.x with A x = b, x >= 0, with exact derivatives of x, y and the value in A, b and c.

    The derivatives come from the optimality conditions by the implicit function theorem.  a: (m, n); b: (m,); c: (n,).
    Degenerate vertices and solutions that are not unique raise errors, because the theorem does not hold there.
    """
    if a.ndim != 2 or b.shape != (a.shape[0],) or c.shape != (a.shape[1],):
        raise UserError(f"A must be (m, n), b (m,) and c (n,), got {tuple(a.shape)}, {tuple(b.shape)} and {tuple(c.shape)}")
    w = implicit(_conditions, _solve)(a, b, c)
    x, y = w[: len(c)], w[len(c) :]
    return LinearProgram(x, y, c @ x)
