"""The training loss for any schedule, target, weight and measure of an error, and the ways to draw its times."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

from reverie.base.errors import UserError, pick
from reverie.base.scalar import Coefficient, exp, expand, sqrt
from reverie.diffusion.denoiser import Denoiser
from reverie.diffusion.pair import Pair, row
from reverie.diffusion.schedule import Schedule

MIN_SNR_LIMIT = 5.0


def _plain(schedule: Schedule, t: Tensor, unit: Coefficient) -> Coefficient:
    """The plain error of the target; with "eps" the simple loss of DDPM."""
    return unit


def _snr(schedule: Schedule, t: Tensor, unit: Coefficient) -> Tensor:
    """The plain error of eps, whatever the target."""
    return torch.as_tensor(exp(schedule.log_snr(t)))


def _min_snr(schedule: Schedule, t: Tensor, unit: Coefficient) -> Tensor:
    """The error of eps, limited where there is little noise: min(SNR, 5) (arXiv:2303.09556)."""
    return _snr(schedule, t, unit).clamp(max=MIN_SNR_LIMIT)


def _vlb(schedule: Schedule, t: Tensor, unit: Coefficient) -> Coefficient:
    """The variational bound in nats/dim (arXiv:2107.00630, eq. 17)."""
    (alpha, sigma), (d_alpha, d_sigma) = schedule(t), schedule.rates(t)
    # snr times half of -d log_snr / dt, written so that alpha = 0 is no exception
    return alpha**2 * d_sigma / sigma**3 - alpha * d_alpha / sigma**2


# Each weight multiplies the squared error of x0 at times t.  `unit` is the factor that turns the error of x0 into that
# of the target itself.
Weight = Callable[[Schedule, Tensor, Coefficient], Coefficient]

WEIGHTS: dict[str, Weight] = {
    "uniform": _plain,
    "snr": _snr,
    "min-snr": _min_snr,
    "vlb": _vlb,
}


def weight_of(weight: str, schedule: Schedule, t: Tensor, target: str, sigma_data: float = 1.0) -> Tensor:
    """Return the factor of the squared error of x0 under a weight: (B,)."""
    alpha, sigma = schedule(t)
    size = sqrt(alpha**2 + sigma**2)
    a, b = row(target, alpha / size, sigma / size, sigma_data)
    unit = ((alpha * b - sigma * a) / sigma) ** 2
    return torch.as_tensor(pick(WEIGHTS, weight, "weight")(schedule, t, unit), dtype=torch.float64).expand(len(t))


class Measure(ABC):
    """What each number of an error costs.  error: any shape, and so is what is returned."""

    @abstractmethod
    def __call__(self, error: Tensor) -> Tensor:
        """Return the cost of each number."""


class Squared(Measure):
    """The squared error, whose best guess is the mean, as denoising needs it."""

    def __init__(self) -> None: ...

    def __call__(self, error: Tensor) -> Tensor:
        """Return error²."""
        return error.square()


class Absolute(Measure):
    """The absolute error, whose best guess is the median, which samplers take for the mean."""

    def __init__(self) -> None: ...

    def __call__(self, error: Tensor) -> Tensor:
        """Return |error|."""
        return error.abs()


class Huber(Measure):
    """Half the squared error up to delta, and from there on a straight line (Huber 1964).

    error² / 2 where |error| <= delta, else delta (|error| - delta / 2).
    """

    def __init__(self, delta: float = 1.0) -> None:
        if not delta > 0:
            raise UserError(f"the delta of the Huber loss must be above 0, got {delta}")
        self.delta = delta

    def __call__(self, error: Tensor) -> Tensor:
        """Return the cost."""
        return functional.huber_loss(error, torch.zeros_like(error), reduction="none", delta=self.delta)


LOSSES: dict[str, type[Measure]] = {"mse": Squared, "mae": Absolute, "huber": Huber}
SQUARED = Squared()


def loss(
    denoiser: Denoiser,
    truth: Pair,
    t: Tensor,
    cond: Tensor | None = None,
    target: str = "eps",
    weight: str = "uniform",
    sigma_data: float = 1.0,
    measure: Measure = SQUARED,
) -> Tensor:
    """Return the weighted error of the target, measured and averaged over dimensions, for each sample: (B,).

    measure(sqrt(w(t)) (mix_hat(a, b) - mix(a, b))) / D,  w = weight(t) (sigma / (alpha b - sigma a))², because an error of x0
    shows up in the target multiplied by (alpha b - sigma a) / sigma.  Squared, that is the error times w; and under each
    measure a weight means the same for all targets.  truth.x0, truth.eps: (B, ...); t: (B,).
    """
    alpha, sigma = denoiser.schedule(t)
    size = sqrt(alpha**2 + sigma**2)
    a, b = row(target, alpha / size, sigma / size, sigma_data)
    guess = denoiser(truth.mix(alpha, sigma), t, cond)
    error = guess.mix(a, b) - truth.mix(a, b)
    if weight != "uniform":
        w = weight_of(weight, denoiser.schedule, t, target, sigma_data) * (sigma / (alpha * b - sigma * a)) ** 2
        error = expand(sqrt(w), error) * error
    return measure(error).flatten(1).mean(1)


def uniform(n: int, generator: torch.Generator) -> Tensor:
    """Draw n independent times from (0, 1)."""
    return torch.rand(n, generator=generator, dtype=torch.float64)


def stratified(n: int, generator: torch.Generator) -> Tensor:
    """Draw n times, one from each of n equal strata: (u + i/n) mod 1 with one u (arXiv:2107.00630, appendix I)."""
    return (torch.rand(1, generator=generator, dtype=torch.float64) + torch.arange(n, dtype=torch.float64) / n) % 1


def logit_normal(n: int, generator: torch.Generator) -> Tensor:
    """Draw n times whose logit is standard normal: most effort in the middle (arXiv:2403.03206)."""
    return torch.randn(n, generator=generator, dtype=torch.float64).sigmoid()


TIMES: dict[str, Callable[[int, torch.Generator], Tensor]] = {
    "uniform": uniform,
    "stratified": stratified,
    "logit-normal": logit_normal,
}


def draw_times(times: str, schedule: Schedule, n: int, generator: torch.Generator) -> Tensor:
    """Draw n training times in [t_min, 1]: (n,) float64.

    Times that are not uniform multiply the effective weight by their density.
    """
    u = pick(TIMES, times, "way to draw times")(n, generator)
    return schedule.t_min + (1 - schedule.t_min) * u
