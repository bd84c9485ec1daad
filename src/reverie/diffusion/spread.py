"""How far estimates of x0 are from the truth at each noise level, by which the variance of DDPM's steps is the best one."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from reverie.base.noise import Noise
from reverie.base.scalar import Coefficient, Time, expand
from reverie.diffusion.denoiser import Denoiser
from reverie.diffusion.pair import Pair
from reverie.diffusion.schedule import Schedule

PLACES = 32  # noise levels at which the error is measured
LEAST_LOG_SNR = -13.8  # below which the error is that of the mean of the data
LEAST_SHARE = 1e-8


@dataclass(frozen=True)
class MeanError:
    """The mean squared error of x0, of all numbers and data, as a function of the log-SNR alone.

    log_snr: (K,) that rise; share: (K,) the error over sigma² / (alpha² + sigma²), which it is for data N(0, I), and between
    whose logarithms lines are drawn.
    """

    log_snr: Tensor
    share: Tensor

    def __call__(self, schedule: Schedule, t: Time) -> Tensor:
        """Return the error at times t: (B,) or (1,) float64.

        It is cut at sigma² / alpha², the error of x / alpha, which no optimal estimate exceeds (arXiv:2201.06503, theorem 2).
        An estimate that does is costly either way: the cut variance is above "forward" and still the better one.
        """
        alpha, sigma = (torch.as_tensor(c, dtype=torch.float64).reshape(-1) for c in schedule(t))
        place = torch.as_tensor(schedule.log_snr(t), dtype=torch.float64).reshape(-1)
        place = place.clamp(float(self.log_snr[0]), float(self.log_snr[-1]))
        right = torch.searchsorted(self.log_snr, place).clamp(1, len(self.log_snr) - 1)
        low, high = self.log_snr[right - 1], self.log_snr[right]
        logs = self.share.clamp(min=LEAST_SHARE).log()
        share = torch.lerp(logs[right - 1], logs[right], (place - low) / (high - low)).exp()
        return torch.minimum(share * sigma**2 / (alpha**2 + sigma**2), (sigma / alpha) ** 2)


@torch.no_grad()
def mean_error(denoiser: Denoiser, x0: Tensor, noise: Noise, cond: Tensor | None = None, places: int = PLACES) -> MeanError:
    """Measure the mean squared error of a denoiser's x0 on data, with one draw of noise for each datum and noise level.

    It makes the variance the best one for estimates that are not perfect as well (arXiv:2206.07309).  For perfect ones it is
    sigma² / alpha² (1 - E|eps_hat|² / D), the form of arXiv:2201.06503, which has no digits where alpha is small.
    x0: (B, ...) in model units.
    """
    schedule = denoiser.schedule
    first, last = (float(schedule.log_snr(t)) for t in (1.0, schedule.t_min))
    log_snr = torch.linspace(max(first, LEAST_LOG_SNR), last, places, dtype=torch.float64)
    times = schedule.invert(log_snr)
    shares = []
    for t in torch.as_tensor(times).tolist():
        alpha, sigma = schedule(t)
        truth = Pair(x0, noise.like(x0))
        squared = (denoiser(truth.mix(alpha, sigma), t, cond).x0 - x0).square().mean()
        shares.append(float(squared) * float((alpha**2 + sigma**2) / sigma**2))
    return MeanError(log_snr, torch.tensor(shares, dtype=torch.float64))


class Unsure(Denoiser):
    """A denoiser that tells one variance of x0 for all numbers: its mean error at each noise level."""

    def __init__(self, inner: Denoiser, error: MeanError) -> None:
        super().__init__()
        self.inner, self.schedule, self.error = inner, inner.schedule, error

    def forward(self, x: Tensor, t: Time, cond: Tensor | None = None) -> Pair:
        """Return the inner estimate, as sure as it is on average."""
        error: Coefficient = self.error(self.schedule, t)
        variance = expand(error, x)
        assert isinstance(variance, Tensor)
        return replace(self.inner(x, t, cond), variance=variance)
