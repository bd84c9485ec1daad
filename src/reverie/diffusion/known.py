"""Inpainting by replacement, and posterior sampling for y = A(x0) + noise."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Annotated, Any, cast

import torch
from pydantic import Field
from torch import Tensor

from reverie.autodiff.conjugate import LinearSolution, conjugate_residuals
from reverie.base.errors import UserError
from reverie.base.scalar import Time, expand, sqrt
from reverie.diffusion.denoiser import Denoiser, Steer
from reverie.diffusion.measurements import Keep, Measurement
from reverie.diffusion.pair import Pair, pair_of
from reverie.diffusion.samplers.grids import INNER, MAX_NOISE_RATIO

OnSolution = Callable[[LinearSolution], None]

MAX_SHIFT = 10.0  # limit of the shift of x0, see `Posterior`

_vjp: Any = torch.func.vjp  # (f(x), u -> (u^T J,)); works inside no_grad


class Replace(Denoiser):
    """A denoiser whose x0 is replaced by known values; eps is recomputed so that x = alpha x0 + sigma eps holds.

    Under DDPM the known part of x then follows q(x_s | x_t, x0) exactly.  The estimate of the rest depends on the noisy known
    part only, so the result is biased; a zigzag grid reduces the bias (RePaint, arXiv:2201.09865).
    values: (1 or B, ...); known: (...) bool, of one datum.
    """

    def __init__(self, inner: Denoiser, values: Tensor, known: Tensor) -> None:
        super().__init__()
        self.inner, self.schedule, self.values, self.known = inner, inner.schedule, values, known

    def forward(self, x: Tensor, t: Time, cond: Tensor | None = None) -> Pair:
        """Return the inner estimate with the known values."""
        alpha, sigma = self.schedule(t)
        guess, known = self.inner(x, t, cond), self.known.to(x.device)
        pair = pair_of(x, torch.where(known, self.values.to(x), guess.x0), alpha, sigma, "x0")
        return pair if guess.variance is None else replace(pair, variance=torch.where(known, 0.0, guess.variance))


class Posterior(Denoiser):
    """A denoiser conditioned on y = A(x0) + noise: x0 + C A^T w, where C = Cov[x0 | x] and a subclass defines w.

    C = sigma² / alpha J^T with the Jacobian J = dE[x0 | x]/dx (Tweedie's second-order formula), so that C v is one backward
    pass and C A^T w is sigma² / alpha times the gradient of w . A(E[x0 | x]).  The Jacobian of a trained network is not exactly
    symmetric; products use J^T.  Above sigma / alpha = 100 the Jacobian is evaluated at that ratio, where C is within 1e-4 of
    the covariance of the data, because the formula is 0 / 0 at alpha = 0.  An inexact covariance may shift x0 too far, so the
    shift is limited to ten times |gap| + sqrt(d sigma² / (alpha² + sigma²)), the second term being the std for data N(0, I).
    y: (1 or B, ...); measure: any differentiable function of x0.
    """

    def __init__(self, inner: Denoiser, measure: Measurement, y: Tensor) -> None:
        super().__init__()
        self.inner, self.schedule, self.measure, self.y = inner, inner.schedule, measure, y
        self.far = float(self.schedule.invert(-2 * math.log(MAX_NOISE_RATIO)))

    @abstractmethod
    def weigh(self, gap: Tensor, covariance: Callable[[Tensor], Tensor]) -> Tensor:
        """Return w for the residual y - A(x0) and the product u -> A C A^T u.  gap, u, w: shape of y."""

    def forward(self, x: Tensor, t: Time, cond: Tensor | None = None) -> Pair:
        """Return the estimate given x and y."""
        x0, mean_vjp = _vjp(lambda x: self.inner(x, t, cond).x0, x)
        clamped = t.clamp(max=self.far) if isinstance(t, Tensor) else min(t, self.far)
        if bool((clamped != t).any()) if isinstance(clamped, Tensor) else clamped != t:
            _, mean_vjp = _vjp(lambda x: self.inner(x, clamped, cond).x0, x)
        alpha, sigma = self.schedule(clamped)
        scale = expand(sigma**2 / alpha, x)
        predicted, measure_vjp = _vjp(self.measure, x0)

        def covariance_pull(u: Tensor) -> Tensor:
            shift: Tensor = scale * mean_vjp(measure_vjp(u)[0])[0]  # C A^T u
            return shift

        def covariance(u: Tensor) -> Tensor:
            product: Tensor = torch.func.jvp(self.measure, (x0,), (covariance_pull(u),))[1]
            return product

        gap = self.y.to(predicted) - predicted
        shift = covariance_pull(self.weigh(gap, covariance))
        std = sigma / sqrt(alpha**2 + sigma**2)  # std of x0 given x, for data N(0, I)
        limit = _size(gap, x.ndim) + expand(std, x) * math.sqrt(x[0].numel())
        shift = shift * (MAX_SHIFT * limit / _size(shift, x.ndim)).clamp(max=1)
        alpha, sigma = self.schedule(t)
        return pair_of(x, x0 + shift, alpha, sigma, "x0")


def _size(x: Tensor, dimensions: int) -> Tensor:
    """Return the norm of each datum: (B, 1, ...) with the same number of dimensions."""
    size: Tensor = x.flatten(1).norm(dim=1).reshape(-1, *[1] * (dimensions - 1))
    return size


class ResidualGradient(Posterior):
    """Diffusion posterior sampling (DPS, arXiv:2209.14687): the gradient of the residual's norm.

    p(y | x) is approximated by exp(-scale sqrt(m) |y - A(E[x0 | x])|) for m measured numbers, so w = scale sqrt(m) gap / |gap|:
    the step of the paper (eq. 16), independent of the number of steps, the sampler, and the noise of y.
    """

    def __init__(self, inner: Denoiser, measure: Measurement, y: Tensor, scale: float = 3.0) -> None:
        super().__init__(inner, measure, y)
        self.scale = scale

    def weigh(self, gap: Tensor, covariance: Callable[[Tensor], Tensor]) -> Tensor:
        """Return the residual, normalized to the length scale sqrt(m)."""
        size = _size(gap, gap.ndim) / math.sqrt(gap[0].numel())
        return self.scale * gap / torch.where(size > 0, size, 1.0)


class MomentMatching(Posterior):
    """E[x0 | x, y] where x0 given x is taken as Gaussian with the denoiser's own mean and covariance (arXiv:2405.13712).

    It solves (A C A^T + noise² I) w = gap by a few conjugate residual iterations per image.  For Gaussian data and linear A
    this is the exact conditional mean, so samplers sample the exact posterior; other A are linearized at E[x0 | x].  noise:
    std, in model units; products: maximum number of products with A C A^T, each a backward pass; on_solution: called with every
    solution.
    """

    def __init__(
        self,
        inner: Denoiser,
        measure: Measurement,
        y: Tensor,
        noise: float = 0.0,
        products: int = 8,
        tolerance: float = 1e-3,
        on_solution: OnSolution | None = None,
    ) -> None:
        super().__init__(inner, measure, y)
        self.noise, self.products, self.tolerance, self.on_solution = noise, products, tolerance, on_solution

    def weigh(self, gap: Tensor, covariance: Callable[[Tensor], Tensor]) -> Tensor:
        """Solve for w."""
        solved = conjugate_residuals(
            lambda u: covariance(u) + self.noise**2 * u, gap, self.tolerance, min(self.products, gap[0].numel())
        )
        if self.on_solution is not None:
            self.on_solution(solved)
        return solved.x


class Method(ABC):
    """A method of posterior sampling."""

    def grid(self, requested: str | None) -> str | None:
        """Return the time grid for a requested one; None is the default."""
        return requested

    @abstractmethod
    def steer(self, measure: Measurement, y: Tensor, noise: float, on_solution: OnSolution) -> Steer:
        """Return the wrapper for y = measure(x0) + noise, in model units; `on_solution` gets every linear solution."""


@dataclass(frozen=True)
class Replacement(Method):
    """Replace the known values in every estimate of x0 (arXiv:2011.13456, appendix I.2)."""

    def steer(self, measure: Measurement, y: Tensor, noise: float, on_solution: OnSolution) -> Steer:
        """Return the wrapper; measure must be a `Keep`."""
        known = cast(Keep, measure).known
        values = y.new_zeros(len(y), *known.shape)
        values[:, known] = y
        return lambda inner: Replace(inner, values, known)


@dataclass(frozen=True)
class RePaint(Replacement):
    """Replacement with resampling: every few steps are repeated (RePaint, arXiv:2201.09865)."""

    jump: Annotated[int, Field(ge=1, le=10_000)] = 5
    repeats: Annotated[int, Field(ge=1, le=1000)] = 5

    def grid(self, requested: str | None) -> str:
        """Return the zigzag grid on the requested grid."""
        if requested is not None and requested not in INNER:
            raise UserError(f"repaint needs a grid without options, one of {', '.join(INNER)}; got {requested!r}")
        return f"zigzag:grid={requested or 'uniform'},jump={self.jump},repeats={self.repeats}"


@dataclass(frozen=True)
class DPS(Method):
    """Follow the gradient of the residual's norm (arXiv:2209.14687)."""

    scale: Annotated[float, Field(gt=0, le=1e4)] = 3.0

    def steer(self, measure: Measurement, y: Tensor, noise: float, on_solution: OnSolution) -> Steer:
        """Return the wrapper."""
        return lambda inner: ResidualGradient(inner, measure, y, self.scale)


@dataclass(frozen=True)
class Moment(Method):
    """Match the mean and the covariance of x0 given x (arXiv:2405.13712)."""

    products: Annotated[int, Field(ge=1, le=1000)] = 8
    tolerance: Annotated[float, Field(gt=0, lt=1)] = 1e-3

    def steer(self, measure: Measurement, y: Tensor, noise: float, on_solution: OnSolution) -> Steer:
        """Return the wrapper."""
        return lambda inner: MomentMatching(inner, measure, y, noise, self.products, self.tolerance, on_solution)


POSTERIORS: dict[str, type[Method]] = {"moment": Moment, "dps": DPS}
INPAINTERS: dict[str, type[Method]] = {**POSTERIORS, "repaint": RePaint, "replace": Replacement}
