"""Guidance: denoiser wrappers that follow a condition more, or less, closely."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from reverie.base.errors import UserError
from reverie.base.scalar import Coefficient, Time, combine, expand
from reverie.diffusion.condition import null_condition, split_conditions
from reverie.diffusion.denoiser import Denoiser
from reverie.diffusion.pair import Pair, pair_of
from reverie.diffusion.schedule import Schedule

LogProb = Callable[[Tensor, Time, Tensor], Tensor]  # (x, t, labels) -> log p(label | x at time t), (B,)

MIN_SIGNAL = 1e-4  # alpha / sigma below which the classifier is evaluated at the time with this ratio
MAX_GUIDANCE = 1000
EPSILON = 1e-12  # smaller coefficients count as zero


def check_interval(interval: tuple[float, float]) -> tuple[float, float]:
    """Return the interval; raise an error if it is invalid."""
    low, high = interval
    if not 0 <= low < high <= 1:
        raise UserError(f"a guidance interval needs 0 <= low < high <= 1 (times: 0 is data, 1 is noise), got {low:g},{high:g}")
    return low, high


def check_scale(scale: float, what: str) -> float:
    """Return the scale; raise an error if it is not a number or too large."""
    if not abs(scale) <= MAX_GUIDANCE:
        raise UserError(f"{what} must lie within +-{MAX_GUIDANCE}, got {scale}")
    return scale


def read_numbers(text: str | float | Sequence[float], what: str) -> tuple[float, ...]:
    """Parse `0.2,0.8`, a number, or numbers."""
    if isinstance(text, int | float):
        return (float(text),)
    try:
        numbers = tuple(float(part) for part in (text.split(",") if isinstance(text, str) else text))
    except ValueError:
        raise UserError(f"cannot read {what} {text!r}; write numbers with commas between, such as 0.2,0.8") from None
    if not numbers or not all(map(math.isfinite, numbers)):
        raise UserError(f"{what} must be finite numbers, got {text!r}")
    return numbers


def read_interval(text: str | Sequence[float] | None) -> tuple[float, float]:
    """Parse the time interval of guidance, `LOW,HIGH`; None is all times."""
    if text is None:
        return 0.0, 1.0
    numbers = read_numbers(text, "the guidance interval")
    if len(numbers) != 2:
        raise UserError(f"a guidance interval needs two ends, such as 0.2,0.8, got {text!r}")
    return check_interval((numbers[0], numbers[1]))


class ClassifierFree(Denoiser):
    """Classifier-free guidance (arXiv:2207.12598) by one condition or a weighted sum of several (arXiv:2206.01714).

    none + scale sum_k weight_k (conditional_k - none), for x0 and eps.  All estimates are computed in one batch, except those
    with coefficient 0: conditional sampling (scale 1) and unconditional sampling (scale 0) take one evaluation each.

    interval: the times t with this scale; elsewhere it is 1 (arXiv:2404.07724).  rescale: interpolates the std of each guided
    x0 to its std at scale 1 (arXiv:2305.08891, section 3.4).
    """

    def __init__(
        self,
        inner: Denoiser,
        scale: float,
        interval: tuple[float, float] = (0.0, 1.0),
        rescale: float = 0.0,
        weights: Sequence[float] = (1.0,),
    ) -> None:
        super().__init__()
        if not 0 <= rescale <= 1:
            raise UserError(f"guidance rescale must be between 0 (none) and 1 (full), got {rescale}")
        self.inner, self.schedule, self.scale, self.rescale = inner, inner.schedule, scale, rescale
        self.interval, self.weights = check_interval(interval), tuple(weights)

    def scale_at(self, t: Time) -> Coefficient:
        """Return the scale at time t, 1 outside the interval: float or (B,)."""
        low, high = self.interval
        if isinstance(t, Tensor) and t.ndim:
            t = t.double().cpu()
            return torch.where((t >= low) & (t <= high), torch.tensor(self.scale, dtype=torch.float64), 1.0)
        return self.scale if low <= float(t) <= high else 1.0

    def coefficients(self, scale: Coefficient) -> list[Coefficient]:
        """Return the factors of the conditional estimates and, last, of the unconditional one; they sum to 1."""
        conditional: list[Coefficient] = [scale * weight for weight in self.weights]
        return [*conditional, 1 - sum(conditional)]

    def forward(self, x: Tensor, t: Time, cond: Tensor | None = None) -> Pair:
        """Return the guided estimate.  x: (B, ...); t: float or (B,); cond: one per datum, or K for K weights."""
        if cond is None:
            return self.inner(x, t, None)
        conditions = split_conditions(cond)
        labels = [*conditions, null_condition(conditions[0])]
        if len(labels) != len(self.weights) + 1:
            raise ValueError(f"{len(labels) - 1} conditions were given for {len(self.weights)} weights")
        scale = self.scale_at(t)
        guided, conditional = self.coefficients(scale), self.coefficients(1.0)
        rescaled = self.rescale > 0 and any(_is_nonzero(g - p) for g, p in zip(guided, conditional, strict=True))
        used = [k for k in range(len(labels)) if _is_nonzero(guided[k]) or (rescaled and _is_nonzero(conditional[k]))]
        if len(used) == 1:
            return self.inner(x, t, labels[used[0]])
        times = t.repeat(len(used)) if isinstance(t, Tensor) and t.ndim else t
        stacked = self.inner(x.repeat(len(used), *[1] * (x.ndim - 1)), times, torch.cat([labels[k] for k in used]))
        x0, eps = stacked.x0.chunk(len(used)), stacked.eps.chunk(len(used))
        variance = None if stacked.variance is None else stacked.variance.expand_as(stacked.x0)[: len(x)]  # the first label's
        pair = Pair(_sum([guided[k] for k in used], x0), _sum([guided[k] for k in used], eps), variance)
        if not rescaled:
            return pair
        target_std, guided_std = _std(_sum([conditional[k] for k in used], x0)), _std(pair.x0)
        ratio = torch.where(guided_std > 0, target_std / guided_std, 1.0)
        rescaled_pair = pair_of(x, pair.x0 * (1 + self.rescale * (ratio - 1)), *self.schedule(t), "x0")
        return replace(rescaled_pair, variance=variance)


def _is_nonzero(coefficient: Coefficient) -> bool:
    if isinstance(coefficient, Tensor):
        return bool((coefficient.abs() > EPSILON).any())
    return abs(coefficient) > EPSILON


def _sum(coefficients: Sequence[Coefficient], parts: Sequence[Tensor]) -> Tensor:
    total = expand(coefficients[0], parts[0]) * parts[0]
    for coefficient, part in zip(coefficients[1:], parts[1:], strict=True):
        total = combine(1.0, total, coefficient, part)
    return total


def _std(x: Tensor) -> Tensor:
    """Return the std of each datum, (B, 1, ..., 1)."""
    return x.std(dim=tuple(range(1, x.ndim)), keepdim=True)


class AutoGuided(Denoiser):
    """Autoguidance (arXiv:2406.02507): extrapolation from a weak model, an early checkpoint, to the model.

    strong + (scale - 1) (strong - weak), for x0 and eps; scale 1 is the model.  It reduces errors that both models share, such
    as blur, if the strong model has less of them.
    """

    def __init__(self, strong: Denoiser, weak: Denoiser, scale: float) -> None:
        super().__init__()
        self.strong, self.weak, self.scale, self.schedule = strong, weak, scale, strong.schedule

    def forward(self, x: Tensor, t: Time, cond: Tensor | None = None) -> Pair:
        """Return the guided estimate, one evaluation of each model.  x: (B, ...); t: float or (B,); cond: (B,) or (B, K)."""
        strong, weak = self.strong(x, t, cond), self.weak(x, t, cond)
        x0, eps = (combine(self.scale, a, 1 - self.scale, b) for a, b in ((strong.x0, weak.x0), (strong.eps, weak.eps)))
        return Pair(x0, eps, strong.variance)


class ClassifierGuided(Denoiser):
    """Classifier guidance (arXiv:2105.05233): the score plus scale times g, the gradient of log p(label | x).

    eps <- eps - scale sigma g,  x0 <- x0 + scale sigma² / alpha g.  With an unconditional denoiser, the exact classifier and
    scale 1, conditional sampling is exact.  As alpha -> 0, g / alpha has a limit; below alpha / sigma = 1e-4 it is evaluated at
    that ratio.  weights: one per label, as in `ClassifierFree`.
    """

    def __init__(self, inner: Denoiser, log_prob: LogProb, scale: float, weights: Sequence[float] = (1.0,)) -> None:
        super().__init__()
        self.inner, self.schedule, self.scale, self.weights = inner, inner.schedule, scale, tuple(weights)
        self.log_prob = log_prob
        self.latest = _latest(inner.schedule)

    def gradient(self, x: Tensor, t: Time, cond: Tensor) -> Tensor:
        """Return the gradient of sum_k weight_k log p(label_k | x at time t), (B, ...)."""
        labels = cond.reshape(len(x), -1).unbind(1)

        def total(z: Tensor) -> Tensor:
            parts = zip(self.weights, labels, strict=True)
            return torch.stack([weight * self.log_prob(z, t, label).sum() for weight, label in parts]).sum()

        gradient: Tensor = torch.func.grad(total)(x)  # works inside no_grad
        return gradient

    def forward(self, x: Tensor, t: Time, cond: Tensor | None = None) -> Pair:
        """Return the guided estimate.  x: (B, ...); t: float or (B,); cond: (B,), or (B, K) for K weights."""
        pair = self.inner(x, t, cond)
        if cond is None or self.scale == 0:
            return pair
        alpha, sigma = self.schedule(t)
        clamped = t.clamp(max=self.latest) if isinstance(t, Tensor) else min(t, self.latest)
        alpha_clamped, sigma_clamped = self.schedule(clamped)
        shift = expand(self.scale * sigma_clamped**2 / alpha_clamped, x) * self.gradient(x, clamped, cond)
        return Pair(pair.x0 + shift, combine(1.0, pair.eps, -alpha / sigma, shift), pair.variance)


def _latest(schedule: Schedule) -> float:
    return float(schedule.invert(2 * math.log(MIN_SIGNAL)))
