"""Entropic transport: Sinkhorn's algorithm, stable and accelerated, and the divergence made from it."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace
from numbers import Integral
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from reverie.base.distances import attainable
from reverie.base.errors import ReverieWarning, UserError
from reverie.base.points import Weights, tensor
from reverie.transport.anderson import Anderson
from reverie.transport.problem import CostFunction, Problem, between, finite
from reverie.transport.softmin import SoftMin

MEMORY = 20  # past steps that Anderson's acceleration looks back on
SHRINK = 0.25  # epsilon falls by this factor from one stage to the next
STAGE_ERROR, STAGE_STEPS = 0.05, 20  # a stage before the last ends at this marginal error, or after so many steps


@dataclass(frozen=True, eq=False)
class Sinkhorn:
    """The solution of an entropic transport problem, or how far the iteration came.

    value: (...), min_P <P, C> + eps KL(P | a b), differentiable in points, weights and costs.
    f: (..., n) and g: (..., m), the potentials: P_ij = a_i b_j exp((f_i + g_j - C_ij)/eps).
    epsilon: (...), in the units of the cost.
    errors: sum_j |sum_i P_ij - b_j| after each iteration, the largest of a batch; the sums of the rows are exact.
    """

    problem: Problem
    value: Tensor
    f: Tensor
    g: Tensor
    epsilon: Tensor
    errors: tuple[float, ...]
    converged: bool

    @property
    def iterations(self) -> int:
        """How often both potentials were updated, over all stages of epsilon."""
        return len(self.errors)

    @property
    def marginal_error(self) -> float:
        """How far the sums of the plan's columns are from b, added up."""
        return self.errors[-1]

    @torch.no_grad()
    def plan(self) -> Tensor:
        """Return how much goes from each row to each column: (..., n, m)."""
        p = self.problem
        moved = [_plan(p, self.f, self.g, self.epsilon, rows, p.tile(rows)) for rows in p.blocks()]
        return torch.cat(moved, -2).to(p.dtype)

    @torch.no_grad()
    def cost(self) -> Tensor:
        """Return <P, C>, the cost of the plan without its entropy: (...)."""
        p = self.problem
        return p.total(lambda rows, c: _plan(p, self.f, self.g, self.epsilon, rows, c) * finite(c)).to(p.dtype)


def sinkhorn(
    problem: Problem, epsilon: float = 0.01, *, scale: float | Tensor | None = None, tolerance: float | None = None,
    max_iterations: int = 2000, start: Any = None,
) -> Sinkhorn:  # fmt: skip
    """Solve min_P <P, C> + eps KL(P | a b) over plans P with row sums a and column sums b (Cuturi, arXiv:1306.0895).

    eps = epsilon x scale; the scale is the mean cost if none is given, and 1 makes epsilon absolute.  The iteration ends at a
    marginal error of `tolerance`, 1e-6 if none is given and float64 is at hand, or unconverged after `max_iterations`.  Epsilon
    falls from the mean cost in stages, unless a potential g (..., m) to start from is given.  The gradient of the value is
    taken at the converged potentials (the envelope theorem), never through the iterations; eps counts as a constant, and in a
    second derivative the plan would too, so only the first is right.
    """
    if not 0 < epsilon < float("inf"):
        raise UserError(f"epsilon must be above 0 and finite, got {epsilon}")
    if tolerance is None:
        tolerance = attainable(1e-6, problem.a.dtype, 1 / epsilon)
    with torch.no_grad():
        unit = _unit(problem, scale)
        f, g, errors = solve(problem, epsilon, unit, tolerance, max_iterations, start)
    converged = errors[-1] <= tolerance
    if not converged:
        warnings.warn(
            f"Sinkhorn did not converge in {len(errors)} iterations: the marginal error is {errors[-1]:.1e} and not"
            f" {tolerance:.1e}; raise epsilon or max_iterations",
            ReverieWarning,
            stacklevel=2,
        )
    value = _value(problem, f, g, epsilon * unit).to(problem.dtype)
    return Sinkhorn(problem, value, f, g, epsilon * unit, tuple(errors), converged)


def sinkhorn_divergence(
    x: Any, y: Any, a: Weights = None, b: Weights = None, epsilon: float = 0.01, *, cost: str | CostFunction = "squared",
    scale: float | Tensor | None = None, tolerance: float | None = None, max_iterations: int = 2000,
) -> Tensor:  # fmt: skip
    """Return the debiased divergence OT(x, y) - OT(x, x)/2 - OT(y, y)/2, all at one epsilon: (...), 0 for equal sets.

    With the squared cost it is positive and convex (Feydy et al., arXiv:1810.08278).  x: (..., n, d); y: (..., m, d).
    """

    def fine(problem: Problem, scale: float | Tensor | None) -> Sinkhorn:  # nearly equal values are subtracted
        problem = replace(problem, dtype=problem.a.dtype)
        return sinkhorn(problem, epsilon, scale=scale, tolerance=tolerance, max_iterations=max_iterations)

    problem = between(x, y, a, b, cost)
    both = fine(problem, scale)
    own = [fine(between(z, z, w, w, cost), both.epsilon / epsilon).value for z, w in ((x, a), (y, b))]
    return (both.value - (own[0] + own[1]) / 2).to(problem.dtype)


def _unit(problem: Problem, scale: float | Tensor | None) -> Tensor:
    """Return the cost that epsilon is relative to: (...)."""
    if scale is not None:
        unit, batch = torch.as_tensor(scale, dtype=problem.a.dtype, device=problem.a.device), problem.shape[:-2]
        if unit.shape not in ((), batch) or not (unit > 0).all() or not unit.isfinite().all():
            raise UserError(f"the scale of epsilon must be above 0 and finite, one or one for each problem, got {scale}")
        return unit.expand(batch)
    unit = problem.mean_cost()
    if (unit < 0).any():
        raise UserError("the mean cost is negative, so epsilon cannot be relative to it; give a scale")
    return unit.masked_fill(unit == 0, 1.0)  # where no move costs anything, any epsilon gives the same plan


def solve(
    problem: Problem, epsilon: float, unit: Tensor, tolerance: float, most: int, start: Any = None
) -> tuple[Tensor, Tensor, list[float]]:
    """Return both potentials and the marginal error of every iteration, going through the stages of epsilon x unit."""
    if not 0 < tolerance < float("inf"):
        raise UserError(f"tolerance must be above 0 and finite, got {tolerance}")
    if not isinstance(most, Integral) or most < 1:
        raise UserError(f"max_iterations must be a whole number of 1 or more, got {most}")
    f, g = torch.zeros_like(problem.a), torch.zeros_like(problem.b)
    stages = [epsilon]
    if start is not None:
        start = tensor(start).to(g)
        if start.shape not in (g.shape, g.shape[-1:]) or not start.isfinite().all():
            raise UserError(f"a potential to start from is finite and of shape {tuple(g.shape)}, got {tuple(start.shape)}")
        g = g + start
    else:
        while stages[0] < SHRINK:
            stages.insert(0, stages[0] / SHRINK)
    settle = _settle_symmetric if problem.symmetric else _settle
    errors: list[float] = []
    for stage in stages[:-1]:
        steps = min(STAGE_STEPS, most - len(errors) - 1)  # one is left for the last stage
        if steps > 0:
            f, g = settle(SoftMin(problem, stage * unit, f, g), g, STAGE_ERROR, steps, errors)
    f, g = settle(SoftMin(problem, epsilon * unit, f, g), g, tolerance, most - len(errors), errors)
    return f, g, errors


def _settle(soft: SoftMin, g: Tensor, tolerance: float, most: int, errors: list[float]) -> tuple[Tensor, Tensor]:
    """Iterate g -> columns(rows(g)) at one epsilon; add the errors to the list and return the last potentials.

    A plain step never lowers the dual value <a, f> + <b, g>; an accelerated one that does is taken back at once, so that where
    the iteration ends it is never at a guess that failed.
    """
    a, b = soft.problem.a, soft.problem.b
    anderson = Anderson(b, MEMORY)
    best, guessed = torch.full_like(a[..., 0], -torch.inf), False  # rounding alone may lower a plain step's value: no reason
    before: tuple[Tensor, Tensor, Tensor] | None = None
    for k in range(most):
        f = soft.rows(g)
        mapped = soft.columns(f)
        parts = torch.cat([a * f, b * g], -1)
        dual, rounding = parts.sum(-1), 64 * torch.finfo(parts.dtype).eps * parts.abs().sum(-1)
        worse = guessed & ~(dual >= best - rounding)
        failed = before is not None and bool(worse.any())
        if before is not None and failed:
            anderson.forget()
            f, g, mapped = (torch.where(worse[..., None], *both) for both in zip(before, (f, g, mapped), strict=True))
        errors.append(_error(soft, g, mapped))
        if errors[-1] <= tolerance or k == most - 1:
            break
        before, best = (f, g, mapped), torch.where(worse, best, torch.maximum(best, dual))
        g, guessed = (mapped, False) if failed else (anderson.next(g, mapped), True)
    return f, g


def _settle_symmetric(soft: SoftMin, g: Tensor, tolerance: float, most: int, errors: list[float]) -> tuple[Tensor, Tensor]:
    """Do the same where rows and columns are one set, so that f = g: the mean of g and rows(g) halves the error or better."""
    for k in range(most):
        f = soft.rows(g)
        errors.append(_error(soft, g, f))
        if errors[-1] <= tolerance or k == most - 1:
            break
        g = (f + g) / 2
    return f, g


def _error(soft: SoftMin, g: Tensor, mapped: Tensor) -> float:
    """Return the marginal error sum_j b_j |exp((g_j - mapped_j)/eps) - 1|, the largest of a batch."""
    b = soft.problem.b
    excess = torch.where(b > 0, (g - mapped) / soft.epsilon, 0.0).expm1()
    return float((b * excess.abs()).sum(-1).max())


def _plan(problem: Problem, f: Tensor, g: Tensor, epsilon: Tensor, rows: slice, c: Tensor) -> Tensor:
    """Return P_ij = a_i b_j exp((f_i + g_j - C_ij)/eps) for some rows: (..., r, m)."""
    exponents = (f[..., rows, None] + g[..., None, :] - c) / epsilon[..., None, None]
    return problem.a[..., rows, None] * problem.b[..., None, :] * exponents.exp()


def _value(problem: Problem, f: Tensor, g: Tensor, epsilon: Tensor) -> Tensor:
    """Return <a, f> + <b, g>, with the gradient of <a, f> + <b, g> + <P, C> at fixed potentials and plan: (...)."""
    value = (problem.a * f).sum(-1) + (problem.b * g).sum(-1)
    if not problem.requires_grad:
        return value

    def share(rows: slice) -> Tensor:  # its value is 0
        c = problem.tile(rows)
        moved = _plan(problem, f, g, epsilon, rows, c).detach()
        return (moved * finite(c - c.detach())).sum((-2, -1))

    for rows in problem.blocks():  # each is computed anew in the backward pass, so that none is kept in memory
        value = value + checkpoint(share, rows, use_reentrant=False, preserve_rng_state=False)
    return value
