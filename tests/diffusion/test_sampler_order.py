"""The order of every solver, measured against exact solutions of the probability flow."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from reverie.base.noise import Noise, image_seeds
from reverie.diffusion.denoiser import Denoiser
from reverie.diffusion.oracle import GaussianDenoiser, MixtureDenoiser
from reverie.diffusion.samplers import SAMPLERS, Frame, Sampler, start, trajectory
from reverie.diffusion.samplers.grids import Uniform
from reverie.diffusion.samplers.multistep import DPM2M, DPM3M, AdamsBashforth, UniPC
from reverie.diffusion.samplers.onestep import DDIM
from reverie.diffusion.samplers.rungekutta import RK45, Heun
from reverie.diffusion.schedule import Cosine, Linear, LogLinear, Rectified, Schedule
from reverie.runs.run import Run
from tests.diffusion.test_oracle import COVARIANCE, MEAN
from tests.diffusion.test_samplers import named

FOUR = [Linear(), Cosine(), LogLinear(0.01, 60.0), Rectified()]
BEGIN, END = 0.9, 0.1
# Every solver of the table, and those whose order depends on an option.  A huge tolerance makes rk45 take one step each.
SOLVERS = [
    *(make() for name, make in SAMPLERS.items() if name != "rk45" and make().order is not None),
    RK45(1e9), UniPC(1), AdamsBashforth(1), AdamsBashforth(2),
]  # fmt: skip


def normal(value: float) -> Tensor:
    return torch.tensor([value], dtype=torch.float64)


def line(schedule: Schedule) -> MixtureDenoiser:
    """A mixture on the line, where the flow keeps every point's quantile."""
    parts = [GaussianDenoiser(schedule, normal(m), normal(v)[None]) for m, v in ((1.2, 0.1), (-1.0, 0.3))]
    return MixtureDenoiser(torch.tensor([0.3, 0.7], dtype=torch.float64), parts)


def quantile(oracle: MixtureDenoiser, x: Tensor, t: float) -> Tensor:
    alpha, sigma = (float(c) for c in oracle.schedule(t))
    total = torch.zeros_like(x)
    for log_weight, part in zip(oracle.log_weights, oracle.components, strict=True):
        deviation = math.sqrt(alpha**2 * float(part.values) + sigma**2)
        total += log_weight.exp() * torch.special.ndtr((x - alpha * part.mean) / deviation)
    return total


def exact(oracle: Denoiser, x: Tensor, t: float, s: float) -> Tensor:
    """Carry x along the flow: in closed form for a Gaussian, by equal quantiles for a mixture on the line."""
    if isinstance(oracle, GaussianDenoiser):
        return oracle.flow(x, t, s)
    assert isinstance(oracle, MixtureDenoiser)
    wanted, low, high = quantile(oracle, x, t), torch.full_like(x, -300), torch.full_like(x, 300)
    for _ in range(70):
        middle = (low + high) / 2
        below = quantile(oracle, middle, s) < wanted
        low, high = torch.where(below, middle, low), torch.where(below, high, middle)
    return (low + high) / 2


def measured_order(oracle: Denoiser, sampler: Sampler, dimension: int) -> float:
    """Regress log error on log steps, for x at the end of a grid that is even in t."""
    random = torch.Generator().manual_seed(0)
    x = start(oracle.schedule, BEGIN, torch.randn(20, dimension, dtype=torch.float64, generator=random))
    truth = exact(oracle, x, BEGIN, END)
    counts = (20, 40, 80) if sampler.order == 5 else (60, 120, 240)  # errors of higher order sink into rounding sooner
    errors = []
    for count in counts:
        grid = torch.linspace(BEGIN, END, count + 1, dtype=torch.float64)
        *_, last = trajectory(oracle, sampler, x, grid, Noise(image_seeds(0, 20)))
        errors.append(float((last.x - truth).norm()))
    return float(-np.polyfit(np.log(counts), np.log(errors), 1)[0])


def claims(oracle: Denoiser, sampler: Sampler, order: float) -> bool:
    """Hold a solver to its order, from below everywhere and from above on a mixture.

    Where leading errors nearly cancel at these steps, somewhat more is measured.  The flow of a Gaussian is linear in x, and
    there a solver may well be of a higher order than its own.
    """
    assert sampler.order is not None
    most = math.inf if isinstance(oracle, GaussianDenoiser) else 1.35 * sampler.order
    return 0.85 * sampler.order < order < most


@pytest.mark.parametrize("kind", ["gaussian", "mixture"])
@pytest.mark.parametrize("schedule", FOUR, ids=lambda s: type(s).__name__)
@pytest.mark.parametrize("sampler", SOLVERS, ids=named)
def test_the_order_is_as_claimed(sampler: Sampler, schedule: Schedule, kind: str) -> None:
    oracle = GaussianDenoiser(schedule, MEAN, COVARIANCE) if kind == "gaussian" else line(schedule)
    order = measured_order(oracle, sampler, 2 if kind == "gaussian" else 1)
    assert claims(oracle, sampler, order), f"measured {order:.2f}, claimed {sampler.order}"


class Midpoint(Sampler):
    """The velocity half a step ahead, in t: of second order, and of third for a Gaussian on the straight path."""

    order = 2

    def step(self, denoise: Denoiser, now: Frame, s: float, noise: Noise, memory: None) -> tuple[Tensor, None]:
        middle = (now.t + s) / 2
        half = now.x + (middle - now.t) * now.pair.mix(*denoise.schedule.rates(now.t))
        return now.x + (s - now.t) * denoise(half, middle).mix(*denoise.schedule.rates(middle)), None


def test_a_solver_may_be_faster_than_it_claims_on_gaussians_only() -> None:
    gaussian, mixture = GaussianDenoiser(Rectified(), MEAN, COVARIANCE), line(Rectified())
    orders = measured_order(gaussian, Midpoint(), 2), measured_order(mixture, Midpoint(), 1)
    assert orders == pytest.approx((3, 2), abs=0.1)
    assert claims(gaussian, Midpoint(), orders[0]) and claims(mixture, Midpoint(), orders[1])
    assert not claims(mixture, Midpoint(), orders[0]) and not claims(gaussian, Heun(), 1.5)


class WrongHeun(Heun):
    """The mean of both slopes with weights 0.48 and 0.52."""

    def step(self, denoise: Denoiser, now: Frame, s: float, noise: Noise, memory: None) -> tuple[Tensor, None]:
        x, _ = super().step(denoise, now, s, noise, memory)
        plain = now.pair.mix(*denoise.schedule(s))
        return plain + 1.04 * (x - plain), None


def too_long(kind: type[Sampler]) -> type[Sampler]:
    """Return a multistep solver whose extrapolation from earlier estimates is five per cent too long."""

    class Wrong(kind):
        def step(self, denoise, now, s, noise, memory):
            x, past = super().step(denoise, now, s, noise, memory)
            plain = now.pair.mix(*denoise.schedule(s))
            return (plain + 1.05 * (x - plain) if memory else x), past

    return Wrong


class Uncorrected(UniPC):
    """As UniPC, but the correction counts nothing."""

    def _move(self, schedule, t, s, x, x0, past, ahead):
        return super()._move(schedule, t, s, x, x0, past, None)


WRONG = [WrongHeun, *map(too_long, (DPM2M, DPM3M, AdamsBashforth)), Uncorrected]


@pytest.mark.parametrize("wrong", WRONG, ids=["heun", "2m", "3m", "adams", "unipc"])
def test_a_wrong_coefficient_costs_the_order(wrong: type[Sampler]) -> None:
    oracle = line(Cosine())
    assert not claims(oracle, wrong(), measured_order(oracle, wrong(), 1))


@pytest.mark.parametrize("schedule", FOUR, ids=lambda s: type(s).__name__)
def test_a_third_order_predictor_makes_unipc_no_worse(schedule: Schedule) -> None:
    """Its steps are of fourth order and only the first is not, so more than the third order it claims is measured."""
    assert measured_order(line(schedule), UniPC(3), 1) > 3


@pytest.mark.parametrize(
    "sampler", [DPM2M(), DPM3M(), UniPC(), UniPC(3), AdamsBashforth()], ids=lambda s: f"{type(s).__name__}{s.order}"
)
@pytest.mark.parametrize("schedule", FOUR, ids=named)
def test_few_uneven_steps_of_higher_order_are_no_worse_than_ddim(sampler: Sampler, schedule: Schedule) -> None:
    """Uniform steps are uneven in l, and the last is by far the longest: a polynomial carried that far goes astray."""
    oracle = GaussianDenoiser(schedule, normal(0.3), normal(0.25)[None])
    x = start(schedule, 1.0, torch.linspace(-2, 2, 41, dtype=torch.float64)[:, None])

    def error(walker: Sampler, steps: int) -> float:
        grid = Uniform()(schedule, steps)
        *_, last = trajectory(oracle, walker, x, grid, Noise(image_seeds(0, len(x))))
        return float((last.x - oracle.flow(x, 1.0, float(grid[-1]))).norm())

    assert all(error(sampler, steps) < error(DDIM(), steps) for steps in (10, 20))


def test_the_flow_of_the_line_solves_its_equation() -> None:
    """The exact solution by quantiles agrees with the velocity that samplers follow."""
    oracle, x, step = line(Rectified()), torch.linspace(-2, 2, 9, dtype=torch.float64)[:, None], 1e-5
    slope = (exact(oracle, x, 0.5, 0.5 + step) - exact(oracle, x, 0.5, 0.5 - step)) / (2 * step)
    torch.testing.assert_close(slope, oracle.velocity(x, 0.5), rtol=1e-6, atol=1e-6)


@pytest.mark.slow
def test_on_a_trained_model_the_solvers_agree(spiral_run: Run) -> None:
    """Those of second order and more to 1e-3 (root mean square) at 200 steps; those of first order as fast as they claim."""
    higher = ["heun", "dpm++2m", "dpm++3m", "unipc", "adams-bashforth", "rk45:tolerance=1e-5"]
    drawn = {name: spiral_run.sample(64, sampler=name, steps=200, grid="log-snr").x for name in higher}
    for name, x in drawn.items():
        assert np.sqrt(np.square(x - drawn["unipc"]).mean()) < 1e-3, name
    for name in ("ddim", "sigma-space", "euler"):
        gaps = [
            np.linalg.norm(spiral_run.sample(64, sampler=name, steps=n, grid="log-snr").x - drawn["unipc"]) for n in (50, 200)
        ]
        assert math.log(gaps[0] / gaps[1], 4) == pytest.approx(1, abs=0.25), name
