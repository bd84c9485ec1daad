"""Optimal transport: how far apart two distributions are, and what goes where.

exact(between(x, y)).cost                      the exact plan between points
sinkhorn(between(x, y), epsilon=0.01).value    the entropic one, for many points and for gradients
sinkhorn_divergence(x, y)                      the same made into a distance
"""

from __future__ import annotations

from reverie.transport.entropic import Sinkhorn, sinkhorn, sinkhorn_divergence
from reverie.transport.gaussian import gaussian_wasserstein
from reverie.transport.line import sliced_wasserstein, wasserstein_1d
from reverie.transport.problem import COSTS, Problem, between, costing
from reverie.transport.scaling import Moments, Projection, Scaling, Sums, doubly_stochastic, kl_project, scale_matrix
from reverie.transport.simplex import Exact, exact

__all__ = [
    "COSTS", "Exact", "Moments", "Problem", "Projection", "Scaling", "Sinkhorn", "Sums", "between", "costing",
    "doubly_stochastic", "exact", "gaussian_wasserstein", "kl_project", "scale_matrix", "sinkhorn", "sinkhorn_divergence",
    "sliced_wasserstein", "wasserstein_1d",
]  # fmt: skip
