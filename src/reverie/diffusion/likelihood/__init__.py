"""Likelihood: variational bounds, exact log-probability by the probability flow, losses of score models.

Functions of a denoiser take data in model units and return nats.  `Diffusion.bound` and `Diffusion.log_prob` take data in
user units.  The nats of a bound are an upper bound on -log p(x) in expectation.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from reverie.base.deprecations import deprecated_names
from reverie.diffusion.likelihood.bound import Bound, bound, by_joint_chain, continuous_bound
from reverie.diffusion.likelihood.dequantisation import DEQUANTISERS, dequantise
from reverie.diffusion.likelihood.ends import best_end
from reverie.diffusion.likelihood.flow import PROBES, LogProb, log_prob
from reverie.diffusion.likelihood.importance import Tightened, importance_weighted
from reverie.diffusion.likelihood.normal import discretised, mean_and_error
from reverie.diffusion.likelihood.score import (
    denoising_score_loss,
    fisher_divergence,
    implicit_score_loss,
    sliced_score_loss,
)
from reverie.diffusion.likelihood.steps import FORMS, step_kl, step_weight

__all__ = [
    "DEQUANTISERS",
    "FORMS",
    "PROBES",
    "Bound",
    "LogProb",
    "Tightened",
    "best_end",
    "bound",
    "by_joint_chain",
    "continuous_bound",
    "denoising_score_loss",
    "dequantise",
    "discretised",
    "fisher_divergence",
    "implicit_score_loss",
    "importance_weighted",
    "log_prob",
    "mean_and_error",
    "sliced_score_loss",
    "step_kl",
    "step_weight",
]

if not TYPE_CHECKING:
    __getattr__ = deprecated_names(__name__)
