"""Optimal transport: distances between distributions, and transport plans.

exact(between(x, y)).cost                      the exact cost between two point clouds
sinkhorn(between(x, y), epsilon=0.01).value    the entropic cost, fast and differentiable
sinkhorn_divergence(x, y)                      the debiased entropic cost, 0 for equal sets
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from reverie.base.deprecations import deprecated_names
from reverie.transport.entropic import Sinkhorn, sinkhorn, sinkhorn_divergence
from reverie.transport.gaussian import gaussian_wasserstein
from reverie.transport.line import sliced_wasserstein, wasserstein_1d
from reverie.transport.problem import COSTS, Problem, between, problem_from_costs
from reverie.transport.scaling import Moments, Projection, Scaling, Sums, doubly_stochastic, kl_project, scale_matrix
from reverie.transport.simplex import Exact, exact

__all__ = [
    "COSTS",
    "Exact",
    "Moments",
    "Problem",
    "Projection",
    "Scaling",
    "Sinkhorn",
    "Sums",
    "between",
    "doubly_stochastic",
    "exact",
    "gaussian_wasserstein",
    "kl_project",
    "problem_from_costs",
    "scale_matrix",
    "sinkhorn",
    "sinkhorn_divergence",
    "sliced_wasserstein",
    "wasserstein_1d",
]  # fmt: skip

if not TYPE_CHECKING:
    __getattr__ = deprecated_names(__name__)
