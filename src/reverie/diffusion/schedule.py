"""Noise schedules: alpha(t) and sigma(t) with x = alpha x0 + sigma eps; t = 0 is data, t = 1 is noise.

A time and its coefficients are floats, a batch of them float64 (B,) on the CPU; `reverie.base.scalar` casts them when they
meet data.
"""

from __future__ import annotations

import math
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import torch
from pydantic import Field
from torch import Tensor, nn

from reverie.base.errors import ReverieWarning, UserError
from reverie.base.scalar import Coefficient, Time, as_time, exp, expm1, log, sqrt

Steps = Annotated[int, Field(ge=2, le=100_000)]

SIGNAL_LIMIT = 0.03  # alpha / sigma at t = 1 above which sampling starts from visibly wrong noise
PURE_NOISE = 1e-7  # alpha / sigma up to which alpha counts as 0, to allow for rounding
INVERSION_BATCH = 4096  # number of times per evaluation in `invert`
BETA_CAP = 0.999  # the largest beta of schedules defined by alpha_bar (arXiv:2102.09672)


class Schedule(nn.Module, ABC):
    """A curve t -> (alpha, sigma) of amplitudes.

    A subclass defines `forward`; the other methods follow from it.  t: float or (B,) in [0, 1].  Requirements: alpha and sigma
    are finite, non-negative and differentiable by torch; alpha / sigma decreases strictly; sigma > 0 from t_min on.  alpha(1)
    may be 0, up to rounding: at most PURE_NOISE sigma counts as 0.
    """

    t_min: float = 1e-3  # the time at which sampling stops and the x0 estimate is taken
    signal_limit: float = SIGNAL_LIMIT
    noisier: str = "raise beta_end or sigma_max"  # how to reach more noise at t = 1

    if TYPE_CHECKING:

        def __call__(self, t: Time) -> tuple[Coefficient, Coefficient]: ...  # noqa: D102

    @abstractmethod
    def forward(self, t: Time) -> tuple[Coefficient, Coefficient]:
        """Return alpha(t), sigma(t)."""

    def log_snr(self, t: Time) -> Coefficient:
        """Return 2 log(alpha / sigma), which decreases with t."""
        alpha, sigma = self(t)
        return 2 * (log(alpha) - log(sigma))

    def rates(self, t: Time) -> tuple[Coefficient, Coefficient]:
        """Return d alpha / dt and d sigma / dt, by forward-mode differentiation."""
        t = as_time(t)
        batch = t if isinstance(t, Tensor) else torch.tensor([t], dtype=torch.float64)
        d_alpha, d_sigma = torch.func.jvp(self, (batch,), (torch.ones_like(batch),))[1]
        return (d_alpha, d_sigma) if isinstance(t, Tensor) else (float(d_alpha), float(d_sigma))

    def invert(self, log_snr: Time) -> Time:
        """Return the t in [0, 1] with the given log-SNR, to float64 precision.  log_snr: float or (B,).

        It divides the interval repeatedly into 2^k parts, fewer for larger batches, so that the time is nearly independent of
        the batch size.  A log-SNR outside the range of the schedule gives the nearer end.
        """
        target = as_time(log_snr)
        if not isinstance(target, Tensor):
            return float(self.invert(torch.tensor([target], dtype=torch.float64)))
        k = min(max((INVERSION_BATCH // max(len(target), 1)).bit_length() - 1, 1), 6)
        inner = torch.arange(1, 2**k, dtype=torch.float64) / 2**k
        low, width = torch.zeros_like(target), 1.0
        for _ in range(math.ceil(64 / k)):
            t = low[:, None] + width * inner
            cleaner = torch.as_tensor(self.log_snr(t.flatten())).view_as(t) >= target[:, None]
            width /= 2**k
            low = low + width * cleaner.sum(1)
        return low + width / 2

    def is_pure_noise(self, t: float) -> bool:
        """Return whether alpha = 0 at a time, up to rounding."""
        alpha, sigma = self(t)
        return bool(alpha <= PURE_NOISE * sigma)

    def remaining_signal(self) -> float:
        """Return alpha / sigma at t = 1, the signal remaining in what should be pure noise."""
        alpha, sigma = self(1.0)
        return float(alpha / sigma)

    def warn_if_signal_remains(self) -> None:
        """Warn if signal remains at t = 1, because sampling then starts from the wrong distribution."""
        if (remaining := self.remaining_signal()) > self.signal_limit:
            alpha, sigma = self(1.0)
            warnings.warn(
                f"the schedule ends at alpha = {float(alpha):.3g}, sigma = {float(sigma):.3g} (ratio {remaining:.2g}, limit"
                f" {self.signal_limit}): signal remains at t = 1, so sampling starts from noise unlike that of training;"
                f" {self.noisier}",
                ReverieWarning,
                stacklevel=3,
            )


class Chain(Schedule):
    """A curve through a value at each step i/T of a discrete chain, with monotone cubic interpolation (PCHIP) in between.

    nodes: (T + 1,), from t = 0 on.
    """

    def __init__(self, nodes: np.ndarray) -> None:
        super().__init__()
        self.steps = len(nodes) - 1
        self.t_min = 1 / self.steps
        from scipy.interpolate import PchipInterpolator

        curve = PchipInterpolator(np.arange(self.steps + 1), nodes)
        self._cubics = torch.from_numpy(curve.c.T.copy())  # (T, 4), a plain attribute: never cast, never moved
        self._rows: list[Any] = curve.c.T.tolist()

    def value(self, t: Time) -> Coefficient:
        """Return the value of the interpolating cubic at t."""
        position = as_time(t) * self.steps
        if isinstance(position, Tensor):
            below = position.detach().floor().clamp(0, self.steps - 1)
            u: Coefficient = position - below
            c3, c2, c1, c0 = self._cubics[below.long()].unbind(-1)
        else:
            first = min(max(int(position), 0), self.steps - 1)
            u = position - first
            c3, c2, c1, c0 = self._rows[first]
        return ((c3 * u + c2) * u + c1) * u + c0


class Table(Chain):
    """A discrete chain beta_1..beta_T, exact at t = i/T and smooth in between.

    alpha² = alpha_bar(t), sigma² = 1 - alpha_bar(t), alpha_bar(i/T) = prod_{j<=i} (1 - beta_j).
    log alpha_bar is a cubic between the nodes.  betas: (T,).
    """

    def __init__(self, betas: np.ndarray, hint: str = "") -> None:
        if len(betas) < 2:
            raise UserError(f"a schedule needs at least 2 steps, got {len(betas)}")
        if not (betas.min() > 0 and betas.max() < 1):
            raise UserError(
                f"every beta must lie strictly between 0 and 1, but this schedule of {len(betas)} steps has betas from"
                f" {betas.min():.4g} to {betas.max():.4g}{hint}"
            )
        super().__init__(np.concatenate([[0.0], np.log1p(-betas).cumsum()]))

    def forward(self, t: Time) -> tuple[Coefficient, Coefficient]:
        """Return alpha, sigma."""
        log_alpha_bar = self.value(t)
        return exp(log_alpha_bar / 2), sqrt(-expm1(log_alpha_bar))


def _count(steps: int) -> int:
    if steps < 2:
        raise UserError(f"a schedule needs at least 2 steps, got {steps}")
    return steps


def _linear_betas(steps: int, beta_start: float, beta_end: float, scale: bool) -> np.ndarray:
    """Return linearly increasing betas, (steps,), scaled from 1,000 steps if `scale`."""
    factor = 1000 / _count(steps) if scale else 1.0
    return np.linspace(beta_start * factor, beta_end * factor, _count(steps))


class Linear(Table):
    """beta grows linearly from beta_start to beta_end, both given for 1,000 steps and scaled by 1000/steps (arXiv:2006.11239).

    With scale=False they are not scaled, and fewer steps leave more signal at t = 1.
    """

    def __init__(self, steps: Steps = 1000, beta_start: float = 1e-4, beta_end: float = 0.02, scale: bool = True) -> None:
        scaled = f"; beta_start and beta_end are scaled by 1000/steps = {1000 / _count(steps):.4g}" if scale else ""
        super().__init__(_linear_betas(steps, beta_start, beta_end, scale), scaled)


class Additive(Chain):
    """Variance exploding by addition (arXiv:2011.13456): x_i = x_(i-1) + sqrt(beta_i) eps, with beta linear as in `linear`.

    alpha = 1, sigma² = beta_1 + ... + beta_i at t = i/T.  A reverse step subtracts less than sqrt(beta) eps, because variances
    add up, not stds: x - (sigma_i - sigma_(i-1)) eps for DDIM, or x - beta_i / sigma_i eps and fresh noise for DDPM.
    """

    def __init__(self, steps: Steps = 1000, beta_start: float = 1e-4, beta_end: float = 5.0, scale: bool = True) -> None:
        betas = _linear_betas(steps, beta_start, beta_end, scale)
        if not 0 < betas.min() <= betas.max() < math.inf:
            raise UserError(f"an additive schedule needs betas above 0, got beta_start {beta_start} and beta_end {beta_end}")
        super().__init__(np.concatenate([[0.0], betas.cumsum()]))

    def forward(self, t: Time) -> tuple[Coefficient, Coefficient]:
        """Return 1, sigma."""
        variance = self.value(t)
        return variance * 0 + 1.0, sqrt(variance)


class ScaledLinear(Table):
    """The square root of beta grows linearly; the values are those of latent diffusion (arXiv:2112.10752)."""

    def __init__(self, steps: Steps = 1000, beta_start: float = 0.00085, beta_end: float = 0.012) -> None:
        scale = 1000 / _count(steps)
        if not (beta_start > 0 and beta_end > 0):
            raise UserError(f"beta_start and beta_end must be positive, got {beta_start} and {beta_end}")
        betas = np.linspace((beta_start * scale) ** 0.5, (beta_end * scale) ** 0.5, steps) ** 2
        super().__init__(betas, f"; beta_start and beta_end are scaled by 1000/steps = {scale:.4g}")


def _capped_betas(alpha_bar: Callable[[np.ndarray], np.ndarray], steps: int) -> np.ndarray:
    nodes = alpha_bar(np.arange(_count(steps) + 1) / steps)
    return np.asarray(np.minimum(1 - nodes[1:] / nodes[:-1], BETA_CAP))


class Cosine(Table):
    """alpha_bar = cos²(pi/2 (t + shift) / (1 + shift)), normalised to 1 at t = 0 (arXiv:2102.09672)."""

    def __init__(self, steps: Steps = 1000, shift: float = 0.008) -> None:
        if not shift >= 0:
            raise UserError(f"the cosine schedule's shift must not be negative, got {shift}")
        super().__init__(_capped_betas(lambda t: np.cos((t + shift) / (1 + shift) * np.pi / 2) ** 2, steps))


class Sigmoid(Table):
    """alpha_bar decreases as a logistic curve over [start, end] with the given temperature (arXiv:2212.11972)."""

    def __init__(self, steps: Steps = 1000, start: float = -3.0, end: float = 3.0, temperature: float = 1.0) -> None:
        if not (end > start and temperature > 0):
            raise UserError(f"a sigmoid schedule needs start < end and temperature > 0, got {start}, {end}, {temperature}")

        def alpha_bar(t: np.ndarray) -> np.ndarray:
            logistic = 1 / (1 + np.exp((start + t * (end - start)) / temperature))
            return np.asarray((logistic - logistic[-1]) / (logistic[0] - logistic[-1]))

        super().__init__(_capped_betas(alpha_bar, steps))


class LogLinear(Schedule):
    """Variance exploding: alpha = 1, sigma = sigma_min (sigma_max / sigma_min)^t (arXiv:2011.13456)."""

    t_min = 0.0  # sigma(0) = sigma_min is already above zero

    def __init__(self, sigma_min: float = 0.005, sigma_max: float = 80.0) -> None:
        super().__init__()
        if not 0 < sigma_min < sigma_max < math.inf:
            raise UserError(f"a log-linear schedule needs 0 < sigma_min < sigma_max, got {sigma_min} and {sigma_max}")
        self.sigma_min, self.sigma_max = sigma_min, sigma_max

    def forward(self, t: Time) -> tuple[Coefficient, Coefficient]:
        """Return 1, sigma(t)."""
        t = as_time(t)
        return t * 0 + 1.0, self.sigma_min * (self.sigma_max / self.sigma_min) ** t


class Rectified(Schedule):
    """The straight path: alpha = 1 - t, sigma = t (arXiv:2209.03003)."""

    def __init__(self) -> None:
        super().__init__()

    def forward(self, t: Time) -> tuple[Coefficient, Coefficient]:
        """Return 1 - t, t."""
        t = as_time(t)
        return 1 - t, t * 1.0
