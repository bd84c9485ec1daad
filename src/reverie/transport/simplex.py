"""Exact transport: the linear program, solved by the network simplex of POT."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from reverie.base.errors import UserError
from reverie.transport.problem import Problem, finite

MAX_SIMPLEX_ITERATIONS = 10_000_000  # more than enough for thousands of points


@dataclass(frozen=True, eq=False)
class Exact:
    """The exact solution of a transport problem.

    cost: (...), min_P <P, C>, differentiable in points, weights and costs.  plan: (..., n, m), with at most n + m - 1 entries.
    f: (..., n) and g: (..., m), the potentials: f_i + g_j <= C_ij, with equality where P_ij > 0.
    """

    problem: Problem
    cost: Tensor
    plan: Tensor
    f: Tensor
    g: Tensor


def exact(problem: Problem) -> Exact:
    """Solve min_P <P, C> over plans P with row sums a and column sums b.

    It stores the whole cost matrix.  For a degenerate problem the gradient is one of several subgradients.
    """
    costs = problem.matrix()
    *batch, n, m = problem.shape
    flat = costs.detach().reshape(-1, n, m).cpu().numpy()
    weights = zip(*(w.detach().reshape(-1, w.shape[-1]).cpu().numpy() for w in (problem.a, problem.b)), strict=True)
    solved = [_simplex(c, a, b) for c, (a, b) in zip(flat, weights, strict=True)]
    plan, f, g = (
        torch.from_numpy(np.stack(part)).to(costs).reshape(*batch, *part[0].shape) for part in zip(*solved, strict=True)
    )
    cost = (plan * finite(costs)).sum((-2, -1))
    # 0, with the gradient of the value in the weights
    zero = (f * (problem.a - problem.a.detach())).sum(-1) + (g * (problem.b - problem.b.detach())).sum(-1)
    return Exact(problem, (cost + zero).to(problem.dtype), plan.to(problem.dtype), f, g)


def _simplex(costs: np.ndarray, a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the plan and the potentials of one problem in float64."""
    from ot.lp import emd

    allowed = np.isfinite(costs)
    max_cost = np.abs(costs[allowed]).max()
    if not allowed.all():
        costs = np.where(allowed, costs, (2 * max_cost + 1) * sum(costs.shape))  # above the cost of any detour
    costs = np.ascontiguousarray(costs, dtype=np.float64)
    plan, log = emd(a, b * (a.sum() / b.sum()), costs, numItermax=MAX_SIMPLEX_ITERATIONS, log=True)
    if log["warning"] is not None:
        raise UserError(f"the network simplex failed: {log['warning']}")
    if plan[~allowed].any():
        raise UserError("no plan avoids all forbidden moves; make more costs finite")
    return plan, log["u"], log["v"]
