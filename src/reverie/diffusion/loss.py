"""Training losses for any schedule and target: weightings, error functions, and distributions of training times."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import cache
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional

from reverie.base.errors import UserError, pick
from reverie.base.scalar import Coefficient, exp, expand, sqrt
from reverie.base.spec import build
from reverie.diffusion.denoiser import Denoiser
from reverie.diffusion.likelihood.steps import step_end, step_weight
from reverie.diffusion.pair import Pair, row
from reverie.diffusion.schedule import Schedule

MIN_SNR_LIMIT = 5.0
BIAS = 2.0  # log-SNR at which the perceptual weight is half its maximum


class Weight(ABC):
    """The weight of the squared error of x0 at times t.

    unit: the factor from the squared error of x0 to that of the target; steps: train only the times of a chain of this many
    steps, 0 for all times.
    """

    steps: int = 0

    @abstractmethod
    def __call__(self, schedule: Schedule, t: Tensor, unit: Coefficient) -> Coefficient:
        """Return the factor: float or (B,)."""


class Plain(Weight):
    """The unweighted error of the target (arXiv:2006.11239, eq. 14); with "eps" the simple loss of DDPM."""

    def __init__(self) -> None: ...

    def __call__(self, schedule: Schedule, t: Tensor, unit: Coefficient) -> Coefficient:
        """Return the unit."""
        return unit


class SNR(Weight):
    """The error of eps, for any target (arXiv:2202.00512)."""

    def __init__(self) -> None: ...

    def __call__(self, schedule: Schedule, t: Tensor, unit: Coefficient) -> Coefficient:
        """Return the SNR."""
        return exp(schedule.log_snr(t))


class MinSNR(Weight):
    """The error of eps, limited at low noise: min(SNR, 5) (arXiv:2303.09556)."""

    def __init__(self) -> None: ...

    def __call__(self, schedule: Schedule, t: Tensor, unit: Coefficient) -> Coefficient:
        """Return the limited SNR."""
        return torch.as_tensor(exp(schedule.log_snr(t))).clamp(max=MIN_SNR_LIMIT)


class VLB(Weight):
    """The variational bound in nats/dim (arXiv:2107.00630): in continuous time (steps=0), or of a chain of `steps` steps.

    -1/2 dSNR/dt (arXiv:2107.00630, eq. 17), or with T steps of equal length T/2 (SNR(s) - SNR(t)) for a step from t to s,
    whose mean over the T times is the sum over the steps (its eq. 13).
    """

    def __init__(self, steps: Annotated[int, Field(ge=0, le=100_000)] = 0) -> None:
        self.steps = steps

    def __call__(self, schedule: Schedule, t: Tensor, unit: Coefficient) -> Coefficient:
        """Return the factor of the bound."""
        if self.steps:
            return self.steps * step_weight(schedule, t, step_end(schedule, t, self.steps))
        (alpha, sigma), (d_alpha, d_sigma) = schedule(t), schedule.rates(t)
        # SNR times half of -d log_snr / dt, in a form that is finite at alpha = 0
        return alpha**2 * d_sigma / sigma**3 - alpha * d_alpha / sigma**2


class Mixed(Weight):
    """A mixture of the variational bound and a perceptual weight for high noise, which is a bound as well (arXiv:2303.00848).

    share + (1 - share) sigmoid(2 - log_snr) times the weight of the bound.  It decreases with the log-SNR, so the loss is an
    average of bounds of data with noise of all levels (arXiv:2303.00848, theorem 1): share=1 is "vlb", and share=0 puts the
    least weight on imperceptible detail.
    """

    def __init__(self, share: Annotated[float, Field(ge=0, le=1)] = 0.5) -> None:
        self.share = share

    def __call__(self, schedule: Schedule, t: Tensor, unit: Coefficient) -> Coefficient:
        """Return the factor of the bound times the decreasing factor."""
        perceptual = torch.as_tensor(BIAS - schedule.log_snr(t)).sigmoid()
        return VLB()(schedule, t, unit) * (self.share + (1 - self.share) * perceptual)


WEIGHTS: dict[str, type[Weight]] = {"uniform": Plain, "snr": SNR, "min-snr": MinSNR, "vlb": VLB, "mixed": Mixed}


@cache
def build_weight(weight: str) -> Weight:
    """Return the weight of a spec, such as `vlb:steps=16`."""
    return build(WEIGHTS, weight, "weight")


def weight_of(weight: str, schedule: Schedule, t: Tensor, target: str, sigma_data: float = 1.0) -> Tensor:
    """Return the factor of the squared error of x0 under a weight: (B,)."""
    alpha, sigma = schedule(t)
    size = sqrt(alpha**2 + sigma**2)
    a, b = row(target, alpha / size, sigma / size, sigma_data)
    unit = ((alpha * b - sigma * a) / sigma) ** 2
    return torch.as_tensor(build_weight(weight)(schedule, t, unit), dtype=torch.float64).expand(len(t))


class Measure(ABC):
    """An elementwise loss.  error: any shape, which the result shares."""

    @abstractmethod
    def __call__(self, error: Tensor) -> Tensor:
        """Return the loss of each number."""


class Squared(Measure):
    """The squared error, whose minimizer is the posterior mean, as samplers need (Bishop 2006, section 1.5.5)."""

    def __init__(self) -> None: ...

    def __call__(self, error: Tensor) -> Tensor:
        """Return error²."""
        return error.square()


class Absolute(Measure):
    """The absolute error, whose minimizer is the median (Bishop 2006, section 1.5.5); samplers treat it as the mean."""

    def __init__(self) -> None: ...

    def __call__(self, error: Tensor) -> Tensor:
        """Return |error|."""
        return error.abs()


class Huber(Measure):
    """The Huber loss: half the squared error up to delta, linear beyond (Huber 1964).

    error² / 2 where |error| <= delta, else delta (|error| - delta / 2).
    """

    def __init__(self, delta: float = 1.0) -> None:
        if not delta > 0:
            raise UserError(f"the delta of the Huber loss must be above 0, got {delta}")
        self.delta = delta

    def __call__(self, error: Tensor) -> Tensor:
        """Return the loss."""
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
    """Return the weighted loss of the target, averaged over dimensions, for each sample: (B,).

    measure(sqrt(w(t)) (mix_hat(a, b) - mix(a, b))) / D,  w = weight(t) (sigma / (alpha b - sigma a))², because an error of x0
    is multiplied by (alpha b - sigma a) / sigma in the target.  Weights therefore have the same meaning for all targets.
    truth.x0, truth.eps: (B, ...); t: (B,).
    """
    guess = denoiser(truth.mix(*denoiser.schedule(t)), t, cond)
    return loss_of(guess, denoiser.schedule, truth, t, target, weight, sigma_data, measure)


def loss_of(
    guess: Pair, schedule: Schedule, truth: Pair, t: Tensor, target: str, weight: str, sigma_data: float, measure: Measure
) -> Tensor:
    """Return the loss of an estimate, see `loss`: (B,)."""
    alpha, sigma = schedule(t)
    size = sqrt(alpha**2 + sigma**2)
    a, b = row(target, alpha / size, sigma / size, sigma_data)
    error = guess.mix(a, b) - truth.mix(a, b)
    if weight != "uniform":
        w = weight_of(weight, schedule, t, target, sigma_data) * (sigma / (alpha * b - sigma * a)) ** 2
        error = expand(sqrt(w), error) * error
    return measure(error).flatten(1).mean(1)


def variance_loss(guess: Pair, schedule: Schedule, truth: Pair, t: Tensor, steps: int) -> Tensor:
    """Return the loss of the estimated variance in a chain of `steps` steps, in nats/dim: (B,).

    Only the variance receives gradients (arXiv:2102.09672, section 3.1).  With the squared error e and the variance v of a
    number of x0, and w = SNR(s) - SNR(t), the loss of a step is (w (e - v) / (1 + w v) + log(1 + w v)) / 2, minimal in
    expectation if v is the mean of e, for any step.
    """
    assert guess.variance is not None
    w = 2 * torch.as_tensor(step_weight(schedule, t, step_end(schedule, t, steps))).detach()
    v, w = guess.variance, torch.as_tensor(expand(w, guess.x0))
    e = (guess.x0.detach() - truth.x0).square()
    kl = (w * (e - v) / (1 + w * v) + torch.log1p(w * v)) / 2
    return steps * kl.flatten(1).mean(1)


def uniform(n: int, generator: torch.Generator) -> Tensor:
    """Draw n independent times from (0, 1) (arXiv:2006.11239, algorithm 1)."""
    return torch.rand(n, generator=generator, dtype=torch.float64)


def stratified(n: int, generator: torch.Generator) -> Tensor:
    """Draw n times, one from each of n equal strata: (u + i/n) mod 1 with one u (arXiv:2107.00630, appendix I)."""
    return (torch.rand(1, generator=generator, dtype=torch.float64) + torch.arange(n, dtype=torch.float64) / n) % 1


def logit_normal(n: int, generator: torch.Generator) -> Tensor:
    """Draw n times with a standard normal logit, most of them near the middle (arXiv:2403.03206)."""
    return torch.randn(n, generator=generator, dtype=torch.float64).sigmoid()


TIMES: dict[str, Callable[[int, torch.Generator], Tensor]] = {
    "uniform": uniform,
    "stratified": stratified,
    "logit-normal": logit_normal,
}


def draw_times(times: str, schedule: Schedule, n: int, generator: torch.Generator, steps: int = 0) -> Tensor:
    """Draw n training times in [t_min, 1]: (n,) float64; with steps, times of a chain of equal steps.

    The density of non-uniform times multiplies the effective weight.
    """
    u = pick(TIMES, times, "way to draw times")(n, generator)
    if steps:
        u = (u * steps).ceil().clamp(min=1) / steps
    return schedule.t_min + (1 - schedule.t_min) * u
