"""Samplers and time grids by name, and the sampling loop."""

from __future__ import annotations

from reverie.diffusion.samplers.grids import GRIDS, Grid
from reverie.diffusion.samplers.langevin import PREDICTORS, Langevin, PredictorCorrector
from reverie.diffusion.samplers.loop import Frame, Sampler, affordable, start, trajectory

SAMPLERS: dict[str, type[Sampler]] = {
    **PREDICTORS,
    "langevin": Langevin,
    "predictor-corrector": PredictorCorrector,
}

__all__ = ["GRIDS", "SAMPLERS", "Frame", "Grid", "Sampler", "affordable", "start", "trajectory"]
