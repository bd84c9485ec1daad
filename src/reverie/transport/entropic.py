"""Entropic transport: a stabilized, accelerated Sinkhorn algorithm and the Sinkhorn divergence."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace
from numbers import Integral
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from reverie.base.distances import attainable_tolerance
from reverie.base.errors import ReverieWarning, UserError
from reverie.base.validation import Weights, tensor
from reverie.transport.anderson import Anderson
from reverie.transport.problem import CostFunction, Problem, between, finite
from reverie.transport.softmin import SoftMin

ANDERSON_MEMORY = 20  # past iterates that Anderson acceleration combines
EPSILON_DECAY = 0.25  # factor of epsilon from one stage to the next
STAGE_ERROR, STAGE_STEPS = 0.05, 20  # stopping criteria of every stage except the last


@dataclass(frozen=True, eq=False)
class Sinkhorn:
    """The result of Sinkhorn's algorithm, converged or not.

    value: (...), min_P <P, C> + eps KL(P | a b), differentiable in points, weights and costs.
    f: (..., n) and g: (..., m), the potentials: P_ij = a_i b_j exp((f_i + g_j - C_ij)/eps).
    epsilon: (...), in the units of the cost.
    errors: sum_j |sum_i P_ij - b_j| after each iteration, the maximum over a batch; the row sums are exact.
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
        """Number of updates of both potentials, over all stages of epsilon."""
        return len(self.errors)

    @property
    def marginal_error(self) -> float:
        """The L1 distance between the column sums of the plan and b."""
        return self.errors[-1]

    @torch.no_grad()
    def plan(self) -> Tensor:
        """Return the transport plan P: (..., n, m)."""
        p = self.problem
        plan_rows = [_plan(p, self.f, self.g, self.epsilon, rows, p.tile(rows)) for rows in p.blocks()]
        return torch.cat(plan_rows, -2).to(p.dtype)

    @torch.no_grad()
    def cost(self) -> Tensor:
        """Return <P, C>, the transport cost without the entropy term: (...)."""
        p = self.problem
        return p.total(lambda rows, c: _plan(p, self.f, self.g, self.epsilon, rows, c) * finite(c)).to(p.dtype)


def sinkhorn(
    problem: Problem, epsilon: float = 0.01, *, scale: float | Tensor | None = None, tolerance: float | None = None,
    max_iterations: int = 2000, start: Any = None,
) -> Sinkhorn:  # fmt: skip
    """Solve min_P <P, C> + eps KL(P | a b) over plans P with row sums a and column sums b (Cuturi, arXiv:1306.0895).

    eps = epsilon x scale; the scale defaults to the mean cost, and scale=1 makes epsilon absolute.  The iteration stops at a
    marginal error of `tolerance` (default 1e-6 in float64), or unconverged after `max_iterations`.  Epsilon decreases in stages
    from the mean cost, unless `start` gives an initial potential g (..., m).  The gradient of the value is taken at the
    converged potentials (envelope theorem), not through the iterations.  It treats eps and the plan as constants, so second
    derivatives are wrong.
    """
    if not 0 < epsilon < float("inf"):
        raise UserError(f"epsilon must be above 0 and finite, got {epsilon}")
    if tolerance is None:
        tolerance = attainable_tolerance(1e-6, problem.a.dtype, 1 / epsilon)
    with torch.no_grad():
        unit = _unit(problem, scale)
        f, g, errors = solve(problem, epsilon, unit, tolerance, max_iterations, start)
    converged = errors[-1] <= tolerance
    if not converged:
        warnings.warn(
            f"Sinkhorn did not converge in {len(errors)} iterations: the marginal error is {errors[-1]:.1e}, the tolerance"
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
    """Return the debiased divergence OT(x, y) - OT(x, x)/2 - OT(y, y)/2 at one epsilon: (...), 0 for equal sets.

    With the squared cost it is positive and convex (Feydy et al., arXiv:1810.08278).  x: (..., n, d); y: (..., m, d).
    """

    def solve_precisely(
        problem: Problem, scale: float | Tensor | None
    ) -> Sinkhorn:  # in float64, because nearly equal values are subtracted
        problem = replace(problem, dtype=problem.a.dtype)
        return sinkhorn(problem, epsilon, scale=scale, tolerance=tolerance, max_iterations=max_iterations)

    problem = between(x, y, a, b, cost)
    cross = solve_precisely(problem, scale)
    self_values = [solve_precisely(between(z, z, w, w, cost), cross.epsilon / epsilon).value for z, w in ((x, a), (y, b))]
    return (cross.value - (self_values[0] + self_values[1]) / 2).to(problem.dtype)


def _unit(problem: Problem, scale: float | Tensor | None) -> Tensor:
    """Return the unit of epsilon: the scale, or the mean cost: (...)."""
    if scale is not None:
        unit, batch = torch.as_tensor(scale, dtype=problem.a.dtype, device=problem.a.device), problem.shape[:-2]
        if unit.shape not in ((), batch) or not (unit > 0).all() or not unit.isfinite().all():
            raise UserError(f"the scale of epsilon must be positive and finite, with one value or one per problem, got {scale}")
        return unit.expand(batch)
    unit = problem.mean_cost()
    if (unit < 0).any():
        raise UserError("the mean cost is negative, so epsilon cannot be relative to it; pass a scale")
    return unit.masked_fill(unit == 0, 1.0)  # if all costs are 0, epsilon does not matter


def solve(
    problem: Problem, epsilon: float, unit: Tensor, tolerance: float, max_iterations: int, start: Any = None
) -> tuple[Tensor, Tensor, list[float]]:
    """Return both potentials and the marginal error of every iteration, with epsilon x unit decreased in stages."""
    if not 0 < tolerance < float("inf"):
        raise UserError(f"tolerance must be above 0 and finite, got {tolerance}")
    if not isinstance(max_iterations, Integral) or max_iterations < 1:
        raise UserError(f"max_iterations must be a whole number of 1 or more, got {max_iterations}")
    f, g = torch.zeros_like(problem.a), torch.zeros_like(problem.b)
    stages = [epsilon]
    if start is not None:
        start = tensor(start).to(g)
        if start.shape not in (g.shape, g.shape[-1:]) or not start.isfinite().all():
            raise UserError(f"the initial potential must be finite and of shape {tuple(g.shape)}, got {tuple(start.shape)}")
        g = g + start
    else:
        while stages[0] < EPSILON_DECAY:
            stages.insert(0, stages[0] / EPSILON_DECAY)
    iterate = _iterate_symmetric if problem.symmetric else _iterate
    errors: list[float] = []
    for stage in stages[:-1]:
        steps = min(STAGE_STEPS, max_iterations - len(errors) - 1)  # leaves one for the last stage
        if steps > 0:
            f, g = iterate(SoftMin(problem, stage * unit, f, g), g, STAGE_ERROR, steps, errors)
    f, g = iterate(SoftMin(problem, epsilon * unit, f, g), g, tolerance, max_iterations - len(errors), errors)
    return f, g, errors


def _iterate(soft: SoftMin, g: Tensor, tolerance: float, max_iterations: int, errors: list[float]) -> tuple[Tensor, Tensor]:
    """Iterate g -> columns(rows(g)) at one epsilon; append the errors to the list and return the last potentials.

    A plain step never lowers the dual value <a, f> + <b, g>.  An extrapolated step that lowers it is undone at once, so the
    iteration never ends at a failed extrapolation.
    """
    a, b = soft.problem.a, soft.problem.b
    anderson = Anderson(b, ANDERSON_MEMORY)
    best, extrapolated = torch.full_like(a[..., 0], -torch.inf), False
    before: tuple[Tensor, Tensor, Tensor] | None = None
    for k in range(max_iterations):
        f = soft.rows(g)
        mapped = soft.columns(f)
        parts = torch.cat([a * f, b * g], -1)
        dual, rounding = parts.sum(-1), 64 * torch.finfo(parts.dtype).eps * parts.abs().sum(-1)
        worse = extrapolated & ~(dual >= best - rounding)
        failed = before is not None and bool(worse.any())
        if before is not None and failed:
            anderson.reset()
            f, g, mapped = (torch.where(worse[..., None], *both) for both in zip(before, (f, g, mapped), strict=True))
        errors.append(_error(soft, g, mapped))
        if errors[-1] <= tolerance or k == max_iterations - 1:
            break
        before, best = (f, g, mapped), torch.where(worse, best, torch.maximum(best, dual))
        g, extrapolated = (mapped, False) if failed else (anderson.next(g, mapped), True)
    return f, g


def _iterate_symmetric(
    soft: SoftMin, g: Tensor, tolerance: float, max_iterations: int, errors: list[float]
) -> tuple[Tensor, Tensor]:
    """Iterate the symmetric case, f = g: averaging g and rows(g) at least halves the error."""
    for k in range(max_iterations):
        f = soft.rows(g)
        errors.append(_error(soft, g, f))
        if errors[-1] <= tolerance or k == max_iterations - 1:
            break
        g = (f + g) / 2
    return f, g


def _error(soft: SoftMin, g: Tensor, mapped: Tensor) -> float:
    """Return the marginal error sum_j b_j |exp((g_j - mapped_j)/eps) - 1|, the maximum over a batch."""
    b = soft.problem.b
    excess = torch.where(b > 0, (g - mapped) / soft.epsilon, 0.0).expm1()
    return float((b * excess.abs()).sum(-1).max())


def _plan(problem: Problem, f: Tensor, g: Tensor, epsilon: Tensor, rows: slice, c: Tensor) -> Tensor:
    """Return the rows P_ij = a_i b_j exp((f_i + g_j - C_ij)/eps) of the plan: (..., r, m)."""
    exponents = (f[..., rows, None] + g[..., None, :] - c) / epsilon[..., None, None]
    return problem.a[..., rows, None] * problem.b[..., None, :] * exponents.exp()


def _value(problem: Problem, f: Tensor, g: Tensor, epsilon: Tensor) -> Tensor:
    """Return <a, f> + <b, g>, with the gradient of <a, f> + <b, g> + <P, C> at constant potentials and plan: (...)."""
    value = (problem.a * f).sum(-1) + (problem.b * g).sum(-1)
    if not problem.requires_grad:
        return value

    def zero_with_gradient(rows: slice) -> Tensor:
        c = problem.tile(rows)
        plan_rows = _plan(problem, f, g, epsilon, rows, c).detach()
        return (plan_rows * finite(c - c.detach())).sum((-2, -1))

    for rows in problem.blocks():  # recomputed in the backward pass to save memory
        value = value + checkpoint(zero_with_gradient, rows, use_reentrant=False, preserve_rng_state=False)
    return value
