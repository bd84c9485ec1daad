"""Denoisers: noised data in, clean data and noise out.  Wrappers of a denoiser are denoisers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from reverie.base.scalar import Coefficient, Time, expand, log, sqrt
from reverie.diffusion.pair import Pair, decode, pair_of, row
from reverie.diffusion.schedule import Schedule

LEVEL_FLOOR = 1e-6
MOST_LOG_SHARE = 10.0  # how far the variance that a network tells may be from that of the estimate for normal data, in its log


def noise_level(alpha: Coefficient, sigma: Coefficient) -> Coefficient:
    """Return the log-SNR bent smoothly to stay within +-13.8, so that alpha = 0 and sigma = 0 are finite inputs.

    level = log((p + f) / (1 - p + f)),  p = alpha² / (alpha² + sigma²) = sigmoid(log_snr),  f = 1e-6.
    It agrees with the log-SNR to 1e-3 within +-6.
    """
    power = alpha**2 + sigma**2
    return log((alpha**2 / power + LEVEL_FLOOR) / (sigma**2 / power + LEVEL_FLOOR))


class Denoiser(nn.Module, ABC):
    """Estimates the pair (x0, eps) behind noised data.

    x: (B, ...); t: float or (B,); cond: (B,) labels, -1 for none, (B, R) rows, NaN for what is not told, or None for nothing.
    """

    schedule: Schedule
    tells_variance: bool = False  # whether its estimates say how sure they are

    if TYPE_CHECKING:

        def __call__(self, x: Tensor, t: Time, cond: Tensor | None = None) -> Pair: ...  # noqa: D102

    @abstractmethod
    def forward(self, x: Tensor, t: Time, cond: Tensor | None = None) -> Pair:
        """Return E[x0 | x] and the noise that belongs to it."""

    def score(self, x: Tensor, t: Time, cond: Tensor | None = None) -> Tensor:
        """Return the gradient of the log-density of x at time t: -eps / sigma."""
        alpha, sigma = self.schedule(t)
        return self(x, t, cond).mix(*row("score", alpha, sigma))

    def velocity(self, x: Tensor, t: Time, cond: Tensor | None = None) -> Tensor:
        """Return dx/dt of the probability flow: alpha' x0 + sigma' eps."""
        return self(x, t, cond).mix(*self.schedule.rates(t))


Steer = Callable[[Denoiser], Denoiser]  # a wrapper to be put around a denoiser


class NetDenoiser(Denoiser):
    """A network, what it is asked for, and the schedule it is used with.

    The network sees c_in x and the noise level, never t, and its target is taken at alpha and sigma normalised to
    alpha² + sigma² = 1.  All that it knows is therefore a function of the log-SNR: another schedule put in after
    training gives the same x0.  c_in = 1 / sqrt(alpha² k² + sigma²), k = sigma_data (arXiv:2206.00364, table 1).

    tells_variance: a second output of each number is its log-variance given x, counted from the variance k² sigma² c_in² that
    it has for data N(0, k²).  From it follows the variance of a step of any length: interpolating between the two variances of
    a step instead (arXiv:2102.09672, eq. 15) has another share for each length, and is right only for the one that is trained.
    """

    def __init__(
        self, net: nn.Module, schedule: Schedule, target: str = "v", sigma_data: float = 1.0, tells_variance: bool = False
    ) -> None:
        super().__init__()
        self.tells_variance = tells_variance
        self.net = net
        self.schedule = schedule
        self.target = target
        self.sigma_data = sigma_data

    def forward(self, x: Tensor, t: Time, cond: Tensor | None = None) -> Pair:
        """Call the network and solve for x0 and eps."""
        return self.estimate(x, t, cond, None)

    def estimate(self, x: Tensor, t: Time, cond: Tensor | None, told: Tensor | None) -> Pair:
        """Return the pair where the network is told more than the noise level and the condition; see Told."""
        alpha, sigma = self.schedule(t)
        size = sqrt(alpha**2 + sigma**2)
        c_in = 1 / sqrt(alpha**2 * self.sigma_data**2 + sigma**2)
        level = torch.as_tensor(noise_level(alpha, sigma), dtype=torch.float64).to(device=x.device, dtype=x.dtype)
        inputs = (expand(c_in, x) * x, level.expand(x.shape[0]), cond)
        y = (self.net(*inputs) if told is None else self.net(*inputs, told)).to(x.dtype)
        a, b = row(self.target, alpha / size, sigma / size, self.sigma_data)
        if not self.tells_variance:
            return decode(x, y, alpha, sigma, a, b)
        y, share = y.unflatten(1, (x.shape[1], 2)).unbind(2)
        usual = expand((self.sigma_data * sigma * c_in) ** 2, x)
        variance = usual * (MOST_LOG_SHARE * (share / MOST_LOG_SHARE).tanh()).exp()
        return replace(decode(x, y, alpha, sigma, a, b), variance=variance)


class Given(Denoiser):
    """A denoiser with a condition of its own, which holds where none is passed.  cond: as composed, or None."""

    def __init__(self, inner: Denoiser, cond: Tensor | None) -> None:
        super().__init__()
        self.inner, self.schedule, self.cond = inner, inner.schedule, cond

    def forward(self, x: Tensor, t: Time, cond: Tensor | None = None) -> Pair:
        """Return the inner estimate under the condition passed, or else its own."""
        return self.inner(x, t, self.cond if cond is None else cond)


class Told(Denoiser):
    """A network that is told what was done to each image it learns from; one that is not told takes it as nothing.

    told: (B, K), see `reverie.data.augment`.
    """

    def __init__(self, inner: NetDenoiser, told: Tensor) -> None:
        super().__init__()
        self.inner, self.schedule, self.told = inner, inner.schedule, told

    def forward(self, x: Tensor, t: Time, cond: Tensor | None = None) -> Pair:
        """Return the estimate for images that were changed so."""
        return self.inner.estimate(x, t, cond, self.told)


class LowPrecision(Denoiser):
    """A denoiser whose convolutions and matrix products are done in bfloat16, which many processors do faster."""

    def __init__(self, inner: Denoiser) -> None:
        super().__init__()
        self.inner, self.schedule = inner, inner.schedule

    def forward(self, x: Tensor, t: Time, cond: Tensor | None = None) -> Pair:
        """Return the inner estimate, in the precision of x."""
        with torch.autocast(x.device.type, torch.bfloat16):
            pair = self.inner(x, t, cond)
        return Pair(pair.x0.to(x.dtype), pair.eps.to(x.dtype), None if pair.variance is None else pair.variance.to(x.dtype))


class Clip(Denoiser):
    """A denoiser whose x0 is kept within [low, high]; eps is recomputed so that x = alpha x0 + sigma eps still holds."""

    def __init__(self, inner: Denoiser, low: float = -1.0, high: float = 1.0) -> None:
        super().__init__()
        self.inner, self.schedule, self.low, self.high = inner, inner.schedule, low, high

    def forward(self, x: Tensor, t: Time, cond: Tensor | None = None) -> Pair:
        """Return the inner estimate with x0 clipped."""
        alpha, sigma = self.schedule(t)
        guess = self.inner(x, t, cond)
        return replace(pair_of(x, guess.x0.clamp(self.low, self.high), alpha, sigma, "x0"), variance=guess.variance)
