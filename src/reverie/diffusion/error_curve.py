"""The mean squared error of x0 by noise level, from which DDPM's optimal variance follows."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from reverie.base.noise import Noise
from reverie.base.scalar import Coefficient, Time, expand
from reverie.diffusion.denoiser import Denoiser
from reverie.diffusion.pair import Pair
from reverie.diffusion.schedule import Schedule

LEVELS = 32  # number of noise levels
MIN_LOG_SNR = -13.8  # below it the error is the variance of the data
MIN_RELATIVE_ERROR = 1e-8  # before the logarithm


@dataclass(frozen=True)
class ErrorCurve:
    """The mean squared error of x0 as a function of the log-SNR.

    log_snr: (K,), increasing; share: (K,), the error relative to sigma² / (alpha² + sigma²), the error for data N(0, I); its
    logarithm is interpolated linearly.
    """

    log_snr: Tensor
    share: Tensor

    def __call__(self, schedule: Schedule, t: Time) -> Tensor:
        """Return the error at times t: (B,) or (1,) float64.

        It is limited to sigma² / alpha², the error of x / alpha and the upper bound for optimal estimates (arXiv:2201.06503,
        theorem 2).  For worse estimates the limited variance still exceeds "forward" and is better.
        """
        alpha, sigma = (torch.as_tensor(c, dtype=torch.float64).reshape(-1) for c in schedule(t))
        log_snr = torch.as_tensor(schedule.log_snr(t), dtype=torch.float64).reshape(-1)
        log_snr = log_snr.clamp(float(self.log_snr[0]), float(self.log_snr[-1]))
        right = torch.searchsorted(self.log_snr, log_snr).clamp(1, len(self.log_snr) - 1)
        low, high = self.log_snr[right - 1], self.log_snr[right]
        logs = self.share.clamp(min=MIN_RELATIVE_ERROR).log()
        relative = torch.lerp(logs[right - 1], logs[right], (log_snr - low) / (high - low)).exp()
        return torch.minimum(relative * sigma**2 / (alpha**2 + sigma**2), (sigma / alpha) ** 2)


@torch.no_grad()
def measure_error_curve(
    denoiser: Denoiser, x0: Tensor, noise: Noise, cond: Tensor | None = None, levels: int = LEVELS
) -> ErrorCurve:
    """Measure the mean squared error of a denoiser's x0 on data, with one noise sample per datum and noise level.

    The resulting variance is optimal for imperfect estimates as well (arXiv:2206.07309).  For optimal ones it equals
    sigma² / alpha² (1 - E|eps_hat|² / D), the form of arXiv:2201.06503, which is inaccurate where alpha is small.
    x0: (B, ...) in model units.
    """
    schedule = denoiser.schedule
    first, last = (float(schedule.log_snr(t)) for t in (1.0, schedule.t_min))
    log_snr = torch.linspace(max(first, MIN_LOG_SNR), last, levels, dtype=torch.float64)
    times = schedule.invert(log_snr)
    relative_errors = []
    for t in torch.as_tensor(times).tolist():
        alpha, sigma = schedule(t)
        truth = Pair(x0, noise.like(x0))
        squared = (denoiser(truth.mix(alpha, sigma), t, cond).x0 - x0).square().mean()
        relative_errors.append(float(squared) * float((alpha**2 + sigma**2) / sigma**2))
    return ErrorCurve(log_snr, torch.tensor(relative_errors, dtype=torch.float64))


class WithVariance(Denoiser):
    """A denoiser with one variance of x0 for all numbers: its mean error at the noise level."""

    def __init__(self, inner: Denoiser, error: ErrorCurve) -> None:
        super().__init__()
        self.inner, self.schedule, self.error = inner, inner.schedule, error

    def forward(self, x: Tensor, t: Time, cond: Tensor | None = None) -> Pair:
        """Return the inner estimate with its mean error as the variance."""
        error: Coefficient = self.error(self.schedule, t)
        variance = expand(error, x)
        assert isinstance(variance, Tensor)
        return replace(self.inner(x, t, cond), variance=variance)
