"""Denoisers: estimates of clean data and noise from noisy samples.  Wrappers of denoisers are denoisers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from reverie.base.deprecations import deprecated_names
from reverie.base.scalar import Coefficient, Time, expand, log, sqrt
from reverie.diffusion.pair import Pair, decode, pair_of, row
from reverie.diffusion.schedule import Schedule

LEVEL_FLOOR = 1e-6
MAX_LOG_RATIO = 10.0  # limit of the learned log-variance relative to that of normal data


def noise_level(alpha: Coefficient, sigma: Coefficient) -> Coefficient:
    """Return the log-SNR, smoothly limited to +-13.8, so that alpha = 0 and sigma = 0 are finite inputs.

    level = log((p + f) / (1 - p + f)),  p = alpha² / (alpha² + sigma²) = sigmoid(log_snr),  f = 1e-6.
    It agrees with the log-SNR to 1e-3 within +-6.
    """
    power = alpha**2 + sigma**2
    return log((alpha**2 / power + LEVEL_FLOOR) / (sigma**2 / power + LEVEL_FLOOR))


class Denoiser(nn.Module, ABC):
    """Estimates the pair (x0, eps) of a noisy sample.

    x: (B, ...); t: float or (B,); cond: (B,) labels (-1: null), (B, R) condition vectors (NaN: missing), or None.
    """

    schedule: Schedule
    has_variance: bool = False  # whether its estimates have a variance

    if TYPE_CHECKING:

        def __call__(self, x: Tensor, t: Time, cond: Tensor | None = None) -> Pair: ...  # noqa: D102

    @abstractmethod
    def forward(self, x: Tensor, t: Time, cond: Tensor | None = None) -> Pair:
        """Return E[x0 | x] and the corresponding noise."""

    def score(self, x: Tensor, t: Time, cond: Tensor | None = None) -> Tensor:
        """Return the gradient of the log-density of x at time t: -eps / sigma."""
        alpha, sigma = self.schedule(t)
        return self(x, t, cond).mix(*row("score", alpha, sigma))

    def velocity(self, x: Tensor, t: Time, cond: Tensor | None = None) -> Tensor:
        """Return dx/dt of the probability flow: alpha' x0 + sigma' eps."""
        return self(x, t, cond).mix(*self.schedule.rates(t))


Steer = Callable[[Denoiser], Denoiser]  # wraps a denoiser in another


class NetDenoiser(Denoiser):
    """A network with its prediction target and its schedule.

    The network receives c_in x and the noise level instead of t, and its target is defined at alpha and sigma normalized to
    alpha² + sigma² = 1.  It is therefore a function of the log-SNR: replacing the schedule after training gives the same x0.
    c_in = 1 / sqrt(alpha² k² + sigma²), k = sigma_data (arXiv:2206.00364, table 1).

    has_variance: a second output per number is its log-variance given x, relative to the variance k² sigma² c_in² for data
    N(0, k²).  It gives the variance of a step of any length; an interpolation between the two variances of a step
    (arXiv:2102.09672, eq. 15) holds only for the step length of training.
    """

    def __init__(
        self, net: nn.Module, schedule: Schedule, target: str = "v", sigma_data: float = 1.0, has_variance: bool = False
    ) -> None:
        super().__init__()
        self.has_variance = has_variance
        self.net = net
        self.schedule = schedule
        self.target = target
        self.sigma_data = sigma_data

    def forward(self, x: Tensor, t: Time, cond: Tensor | None = None) -> Pair:
        """Evaluate the network and solve for x0 and eps."""
        return self.estimate(x, t, cond, None)

    def estimate(self, x: Tensor, t: Time, cond: Tensor | None, conditioning: Tensor | None) -> Pair:
        """Return the estimate given further conditioning of the network, see `WithConditioning`."""
        alpha, sigma = self.schedule(t)
        size = sqrt(alpha**2 + sigma**2)
        c_in = 1 / sqrt(alpha**2 * self.sigma_data**2 + sigma**2)
        level = torch.as_tensor(noise_level(alpha, sigma), dtype=torch.float64).to(device=x.device, dtype=x.dtype)
        inputs = (expand(c_in, x) * x, level.expand(x.shape[0]), cond)
        y = (self.net(*inputs) if conditioning is None else self.net(*inputs, conditioning)).to(x.dtype)
        a, b = row(self.target, alpha / size, sigma / size, self.sigma_data)
        if not self.has_variance:
            return decode(x, y, alpha, sigma, a, b)
        y, log_ratio = y.unflatten(1, (x.shape[1], 2)).unbind(2)
        gaussian_variance = expand((self.sigma_data * sigma * c_in) ** 2, x)
        variance = gaussian_variance * (MAX_LOG_RATIO * (log_ratio / MAX_LOG_RATIO).tanh()).exp()
        return replace(decode(x, y, alpha, sigma, a, b), variance=variance)


class WithCondition(Denoiser):
    """A denoiser with a default condition, used if none is passed.  cond: possibly composed, or None."""

    def __init__(self, inner: Denoiser, cond: Tensor | None) -> None:
        super().__init__()
        self.inner, self.schedule, self.cond = inner, inner.schedule, cond

    def forward(self, x: Tensor, t: Time, cond: Tensor | None = None) -> Pair:
        """Return the inner estimate for the given condition or the default."""
        return self.inner(x, t, self.cond if cond is None else cond)


class WithConditioning(Denoiser):
    """A network conditioned on further parameters (augmentation, cluster); without this wrapper they are null.

    conditioning: (B, K), see `reverie.data.augment`.
    """

    def __init__(self, inner: NetDenoiser, conditioning: Tensor) -> None:
        super().__init__()
        self.inner, self.schedule, self.conditioning = inner, inner.schedule, conditioning

    def forward(self, x: Tensor, t: Time, cond: Tensor | None = None) -> Pair:
        """Return the estimate given these parameters."""
        return self.inner.estimate(x, t, cond, self.conditioning)


class LowPrecision(Denoiser):
    """A denoiser evaluated in bfloat16 (autocast), which is faster on many devices."""

    def __init__(self, inner: Denoiser) -> None:
        super().__init__()
        self.inner, self.schedule = inner, inner.schedule

    def forward(self, x: Tensor, t: Time, cond: Tensor | None = None) -> Pair:
        """Return the inner estimate, in the precision of x."""
        with torch.autocast(x.device.type, torch.bfloat16):
            pair = self.inner(x, t, cond)
        return Pair(pair.x0.to(x.dtype), pair.eps.to(x.dtype), None if pair.variance is None else pair.variance.to(x.dtype))


class Clip(Denoiser):
    """A denoiser whose x0 is clipped to [low, high]; eps is recomputed so that x = alpha x0 + sigma eps holds."""

    def __init__(self, inner: Denoiser, low: float = -1.0, high: float = 1.0) -> None:
        super().__init__()
        self.inner, self.schedule, self.low, self.high = inner, inner.schedule, low, high

    def forward(self, x: Tensor, t: Time, cond: Tensor | None = None) -> Pair:
        """Return the inner estimate with x0 clipped."""
        alpha, sigma = self.schedule(t)
        guess = self.inner(x, t, cond)
        return replace(pair_of(x, guess.x0.clamp(self.low, self.high), alpha, sigma, "x0"), variance=guess.variance)


if not TYPE_CHECKING:
    __getattr__ = deprecated_names(__name__)
