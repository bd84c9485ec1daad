"""Likelihoods of a diffusion model: log-probabilities by the probability flow, and variational bounds of the chain."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from reverie.base.errors import UserError, pick
from reverie.base.noise import Noise
from reverie.data.codec import Codec
from reverie.diffusion.denoiser import Denoiser, NetDenoiser
from reverie.diffusion.error_curve import ErrorCurve, WithVariance, measure_error_curve
from reverie.diffusion.lattice import LatticeDenoiser
from reverie.diffusion.likelihood.bound import Bound, bound, check_data, continuous_bound
from reverie.diffusion.likelihood.dequantisation import DEQUANTISERS
from reverie.diffusion.likelihood.ends import best_end
from reverie.diffusion.likelihood.flow import LogProb, log_prob
from reverie.diffusion.likelihood.importance import Tightened, importance_weighted
from reverie.families.model import TrainedModel


class DiffusionLikelihood(TrainedModel):
    """Likelihoods of a denoiser with its codec."""

    denoiser: NetDenoiser
    codec: Codec

    @property
    def dequantiser(self) -> str:
        """The default dequantisation noise: that of the diffusion if the denoiser models levels."""
        return "normal" if isinstance(self.denoiser, LatticeDenoiser) else "uniform"

    def log_prob(
        self, x: Tensor, cond: Tensor | None, seeds: Tensor, tolerance: float = 1e-4, probes: int = 1,
        dequantiser: str | None = None,
    ) -> LogProb:  # fmt: skip
        """Return the log-probability of data in user units by the probability flow, in nats.

        For points it is a density.  For 8-bit images, x in [0, 1], it is a lower bound on the log-probability of the levels, by
        dequantising each image once.  seeds: (B,), one per datum; dequantiser: a name of `DEQUANTISERS`.
        """
        cell = self.codec.log_cell(self.shape)  # raises for autoencoder codes, before data are encoded
        z, noise, levels, denoiser = self.codec.encode(x), Noise(seeds), self.codec.levels, self.denoiser
        if levels is None:
            result = log_prob(denoiser, z, noise, cond, probes=probes, tolerance=tolerance)
            return replace(result, nats=result.nats + cell)
        check_data(z, levels)
        dequantised = pick(DEQUANTISERS, dequantiser or self.dequantiser, "dequantiser")(denoiser.schedule, z, noise, levels)
        result = log_prob(denoiser, dequantised.x, noise, cond, probes=probes, tolerance=tolerance, end=dequantised.end)
        return replace(result, nats=result.nats - dequantised.log_q)

    def best_end(self, x: Tensor, cond: Tensor | None, seeds: Tensor) -> float:
        """Return the end time that minimizes the bound of these data; x: (B, ...), seeds: (B,)."""
        return best_end(self.denoiser, self.codec.encode(x), Noise(seeds), cond, self.codec.levels)

    def mean_error(self, x: Tensor, cond: Tensor | None, seeds: Tensor) -> ErrorCurve:
        """Return the error curve of the estimates, for the variance "optimal"; x: (B, ...), seeds: (B,)."""
        return measure_error_curve(self.denoiser, self.codec.encode(x), Noise(seeds), cond)

    def bound(
        self, x: Tensor, cond: Tensor | None, seeds: Tensor, grid: Tensor | None = None, variance: str = "posterior",
        draws: int = 16, end: float | None = None, error: ErrorCurve | None = None,
    ) -> Bound:  # fmt: skip
        """Return the variational bound for data in user units, in nats: of DDPM's chain on a grid, or in continuous time.

        x: (B, ...); seeds: (B,), one per datum; draws: noise levels per datum in continuous time; end: last time of the chain,
        where reconstruction begins, see `best_end`, default the end of the grid or schedule; variance: of the chain's steps, as
        in `DDPM`; error: for "optimal", see `mean_error`.
        """
        denoiser = self.denoiser if grid is None else self._with_variance(variance, error)
        cell = self.codec.log_cell(self.shape)
        z, noise, levels = self.codec.encode(x), Noise(seeds), self.codec.levels
        if grid is None:
            result = continuous_bound(denoiser, z, noise, cond, draws, levels, end=end)
        else:
            result = bound(denoiser, z, _down_to(grid, end), noise, cond, variance, levels)
        if levels is not None:
            return result
        return replace(result, reconstruction=result.reconstruction - cell)

    def importance_weighted(
        self, x: Tensor, cond: Tensor | None, seeds: Tensor, grid: Tensor, variance: str = "posterior", paths: int = 16,
        end: float | None = None, error: ErrorCurve | None = None,
    ) -> Tightened:  # fmt: skip
        """Return the importance-weighted bound of DDPM's chain with several paths per datum, in nats; see `bound`."""
        levels, cell = self.codec.levels, self.codec.log_cell(self.shape)
        z, denoiser = self.codec.encode(x), self._with_variance(variance, error)
        result = importance_weighted(denoiser, z, _down_to(grid, end), Noise(seeds), cond, variance, levels, paths)
        cell = 0.0 if levels is not None else cell
        return replace(result, nats=result.nats - cell, single=result.single - cell)

    def _with_variance(self, variance: str, error: ErrorCurve | None) -> Denoiser:
        """Return the denoiser with the variance that the chain's steps need."""
        if variance != "optimal":
            return self.denoiser
        if error is None:
            raise UserError("variance=optimal needs the error curve of estimates on training data; give error=run.mean_error()")
        return WithVariance(self.denoiser, error)


def _down_to(grid: Tensor, end: float | None) -> Tensor:
    """Return the times of a grid above `end`, followed by `end`."""
    return grid if end is None else torch.cat([grid[grid > end], grid.new_tensor([end])])
