"""Linear autoregressive series: x_t = mu + sum_k A_k (x_{t-k} - mu) + eps_t, eps ~ N(0, S), with stationary initial values.

For one channel and one lag, x_t = mu + rho (x_{t-1} - mu) + eps_t, the fit is exact maximum likelihood including the first
value, x_1 ~ N(mu, sigma² / (1 - rho²)); otherwise A and mu are least-squares estimates given the first values.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator
from typing import Annotated, Any, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from reverie.base.errors import ReverieWarning, UserError
from reverie.base.noise import Noise
from reverie.data.kind import Kind
from reverie.families.density import Density
from reverie.families.fitted import FittedFamily
from reverie.families.model import FamilySettings

MAX_RADIUS = 0.999  # spectral radius up to which a series counts as stationary
MIN_DISTANCE = 1e-9  # smallest distance of |rho| to 1
FLOOR = 1e-8  # smallest variance of the noise, as a share of that of the data


class SeriesModel(Density):
    """A vector autoregression VAR(p).  x: (B, T, C); mean: (C,); steps A: (p, C, C); noise S: (C, C)."""

    def __init__(self, shape: tuple[int, ...], order: int) -> None:
        super().__init__()
        self.length, self.width = shape
        if self.length <= order:
            raise UserError(f"a series of {self.length} time steps is too short for order {order}; give a larger --window")
        self.order = order
        self.mean = nn.Buffer(torch.zeros(self.width))
        self.steps = nn.Buffer(torch.zeros(order, self.width, self.width))
        self.noise = nn.Buffer(torch.eye(self.width))

    def fit(self, x: Tensor, labels: Tensor | None, seed: int) -> Iterator[float]:
        """Fit in one pass."""
        x = x.double().cpu()
        floor = FLOOR * float(x.flatten(0, 1).var(0).mean()) + 1e-12
        if self.order == self.width == 1:
            rho, mu, variance = fit_first_order(x[..., 0])
            mean, steps, noise = mu.reshape(1), rho.reshape(1, 1, 1), variance.reshape(1, 1)
        else:
            mean, steps, noise = fit_least_squares(x, self.order)
        self.mean.copy_(mean)
        self.steps.copy_(steps)
        self.noise.copy_(noise + floor * torch.eye(self.width))
        yield -float(self.log_prob(x.float(), None, torch.empty(0)).mean()) / (self.length * self.width)

    @property
    def parts(self) -> tuple[Tensor, Tensor, Tensor]:
        """The mean, the companion matrix (p C, p C), and the stationary covariance of p time steps; float64."""
        from scipy.linalg import solve_discrete_lyapunov

        steps, size = self.steps.double().cpu(), self.order * self.width
        step = torch.zeros(size, size, dtype=torch.float64)
        step[: self.width] = steps.movedim(0, 1).flatten(1)
        step[self.width :, : size - self.width] = torch.eye(size - self.width, dtype=torch.float64)
        noise_covariance = torch.zeros_like(step)
        noise_covariance[: self.width, : self.width] = self.noise.double().cpu()
        covariance = torch.from_numpy(solve_discrete_lyapunov(step.numpy(), noise_covariance.numpy()))
        return self.mean.double().cpu(), step, (covariance + covariance.T) / 2

    def autocovariance(self, most: int) -> Tensor:
        """Return gamma(k) = Cov(x_{t+k}, x_t) for k = 0 .. most: (most + 1, C, C).  AR(1): sigma² rho^k / (1 - rho²)."""
        _, step, covariance = self.parts
        covariances, current = [], covariance
        for _ in range(most + 1):
            covariances.append(current[: self.width, : self.width])
            current = step @ current
        return torch.stack(covariances)

    def predict(self, past: Tensor, ahead: int) -> tuple[Tensor, Tensor]:
        """Return mean and standard deviation of the next time steps: (ahead, C) each.  past: (T, C), T >= p."""
        if len(past) < self.order:
            raise UserError(f"a prediction needs {self.order} past time steps, got {len(past)}; give a longer series")
        mean, step, _ = self.parts
        state = (past[-self.order :].double().cpu() - mean).flip(0).flatten()
        noise_covariance = torch.zeros_like(step)
        noise_covariance[: self.width, : self.width] = self.noise.double().cpu()
        means, deviations, covariance = [], [], torch.zeros_like(step)
        for _ in range(ahead):
            state, covariance = step @ state, step @ covariance @ step.T + noise_covariance
            means.append(mean + state[: self.width])
            deviations.append(covariance.diagonal()[: self.width].sqrt())
        return torch.stack(means), torch.stack(deviations)

    def sample(self, seeds: Tensor, cond: Tensor | None) -> Tensor:
        """Sample the first p values from the stationary distribution, and the others by the recursion."""
        mean, step, covariance = self.parts
        eps = Noise(seeds).like(torch.empty(len(seeds), self.length, self.width, dtype=torch.float64))
        size = self.order * self.width
        first = eps[:, : self.order].flatten(1) @ _root(covariance).T  # latest first
        x = torch.empty_like(eps)
        x[:, : self.order] = first.unflatten(1, (self.order, self.width)).flip(1)
        noise, coefficients = eps @ _root(self.noise.double().cpu()).T, step[: self.width]
        for t in range(self.order, self.length):
            x[:, t] = x[:, t - self.order : t].flip(1).reshape(-1, size) @ coefficients.T + noise[:, t]
        return (x + mean).float().to(self.mean.device)

    def log_prob(self, x: Tensor, cond: Tensor | None, seeds: Tensor) -> Tensor:
        """Return log p of the first p values in the stationary distribution, and of each later one given the past: (B,)."""
        mean, step, covariance = self.parts
        d = x.double().cpu() - mean
        lagged = torch.stack([d[:, self.order - k : d.shape[1] - k] for k in range(1, self.order + 1)], 2).flatten(2)
        residual = d[:, self.order :] - lagged @ step[: self.width].T
        first = _log_normal(d[:, : self.order].flip(1).flatten(1), covariance)
        return first + _log_normal(residual, self.noise.double().cpu()).sum(1)

    def facts(self) -> dict[str, Any]:
        """Return the fitted parameters."""
        if self.order == self.width == 1:
            return {"rho": float(self.steps), "mu": float(self.mean), "sigma": float(self.noise.sqrt())}
        largest = float(torch.linalg.eigvals(self.parts[1]).abs().max())
        return {
            "order": self.order,
            "coefficients": self.steps.tolist(),
            "mu": self.mean.tolist(),
            "largest_eigenvalue": largest,
        }


def fit_first_order(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the maximum-likelihood rho, mu and sigma² of independent series.  x: (N, T) float64.

    -2 log L = N T log sigma² - N log(1 - rho²) + const, minimised over mu and sigma² for each rho.
    """
    from scipy.optimize import minimize_scalar

    count, length = x.shape
    if float(x.var()) == 0:
        return x.new_zeros(()), x.mean(), x.new_zeros(())

    def best(rho: float) -> tuple[float, float]:
        """Return mu and sigma² for a rho."""
        weight = count * (1 - rho**2) + count * (length - 1) * (1 - rho) ** 2
        mu = float((1 - rho**2) * x[:, 0].sum() + (1 - rho) * (x[:, 1:] - rho * x[:, :-1]).sum()) / weight
        d = x - mu
        squares = (1 - rho**2) * d[:, 0].square().sum() + (d[:, 1:] - rho * d[:, :-1]).square().sum()
        return mu, float(squares) / (count * length)

    def cost(rho: float) -> float:
        return count * length * math.log(best(rho)[1]) - count * math.log(1 - rho**2)

    rho = float(
        minimize_scalar(cost, bounds=(MIN_DISTANCE - 1, 1 - MIN_DISTANCE), method="bounded", options={"xatol": 1e-10}).x
    )
    mu, variance = best(rho)
    return x.new_tensor(rho), x.new_tensor(mu), x.new_tensor(variance)


def fit_least_squares(x: Tensor, order: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return mean (C,), steps (p, C, C) and noise (C, C) by least squares.  x: (N, T, C) float64.

    Coefficients of a non-stationary series are shrunk until it is stationary.
    """
    width, centre = x.shape[2], x.flatten(0, 1).mean(0)
    d = x - centre
    predictors = torch.stack([d[:, order - k : d.shape[1] - k] for k in range(1, order + 1)], 2).flatten(2)  # (N, T - p, p C)
    rows = torch.cat([predictors, torch.ones_like(predictors[..., :1])], 2).flatten(0, 1)
    solution = torch.linalg.lstsq(rows, d[:, order:].flatten(0, 1), driver="gelsd").solution  # (p C + 1, C)
    steps = solution[:-1].unflatten(0, (order, width)).transpose(1, 2)
    radius = _radius(steps)
    if radius >= MAX_RADIUS:
        warnings.warn(
            f"the series is not stationary: spectral radius {radius:.4g}, shrunk to {MAX_RADIUS:g}; take differences of it, or"
            " remove its trend",
            ReverieWarning,
            stacklevel=2,
        )
        steps = steps * (MAX_RADIUS / radius) ** torch.arange(1, order + 1, dtype=x.dtype)[:, None, None]
    mean = centre + torch.linalg.lstsq(torch.eye(width, dtype=x.dtype) - steps.sum(0), solution[-1][:, None]).solution[:, 0]
    e = x - mean
    lagged = torch.stack([e[:, order - k : e.shape[1] - k] for k in range(1, order + 1)], 2)
    residual = (e[:, order:] - torch.einsum("kij,ntkj->nti", steps, lagged)).flatten(0, 1)
    return mean, steps, residual.T @ residual / len(residual)


def _radius(steps: Tensor) -> float:
    """Return the spectral radius of the companion matrix.  steps: (p, C, C)."""
    order, width, _ = steps.shape
    companion = torch.zeros(order * width, order * width, dtype=steps.dtype)
    companion[:width] = steps.movedim(0, 1).flatten(1)
    companion[width:, : (order - 1) * width] = torch.eye((order - 1) * width, dtype=steps.dtype)
    return float(torch.linalg.eigvals(companion).abs().max())


def _root(covariance: Tensor) -> Tensor:
    """Return L with L L^T the covariance, which may be singular."""
    values, vectors = torch.linalg.eigh(covariance)
    root: Tensor = vectors * values.clamp_min(0).sqrt()
    return root


def _log_normal(x: Tensor, covariance: Tensor) -> Tensor:
    """Return log N(x; 0, covariance): (...,).  x: (..., D) float64."""
    lower = torch.linalg.cholesky(covariance)
    white = torch.linalg.solve_triangular(lower, x.movedim(-1, 0).flatten(1), upper=False)
    log_det = 2 * lower.diagonal().log().sum() + len(lower) * math.log(2 * math.pi)
    log_p: Tensor = -(white.square().sum(0) + log_det) / 2
    return log_p.reshape(x.shape[:-1])


class AR1Settings(FamilySettings):
    """A first-order autoregressive series."""

    name: Literal["ar1"] = "ar1"


class ARSettings(FamilySettings):
    """An autoregressive series; order: number of lags."""

    name: Literal["ar"] = "ar"
    order: Annotated[int, Field(ge=1, le=256)] = 2


class AR1Family(FittedFamily[AR1Settings]):
    """First-order autoregressive series, AR(1)."""

    name = "ar1"
    summary = "AR(1), a stationary autoregressive series, by exact maximum likelihood (Box and Jenkins 1970)."
    kinds: ClassVar[tuple[Kind, ...]] = ("series",)
    settings = AR1Settings

    def density(self, settings: AR1Settings, shape: tuple[int, ...], labels: int, levels: int | None) -> Density:
        """Build the model."""
        return SeriesModel(shape, 1)


class ARFamily(FittedFamily[ARSettings]):
    """Vector autoregressions."""

    name = "ar"
    default_for: ClassVar[frozenset[Kind]] = frozenset({"series"})
    summary = "A vector autoregression of a given order, by least squares (Box and Jenkins 1970)."
    kinds: ClassVar[tuple[Kind, ...]] = ("series",)
    settings = ARSettings

    def density(self, settings: ARSettings, shape: tuple[int, ...], labels: int, levels: int | None) -> Density:
        """Build the model."""
        return SeriesModel(shape, settings.order)
