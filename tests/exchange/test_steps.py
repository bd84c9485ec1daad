"""The steps of a sampler as a table yield its samples."""

from __future__ import annotations

import pytest
import torch

from reverie.base.errors import UserError
from reverie.base.noise import Noise
from reverie.diffusion.oracle import GaussianDenoiser
from reverie.diffusion.samplers import GRIDS, SAMPLERS, start, trajectory
from reverie.diffusion.samplers.onestep import DDPM
from reverie.diffusion.samplers.rungekutta import RK45, Heun
from reverie.diffusion.schedule import Schedule
from reverie.diffusion.schedules import SCHEDULES
from reverie.exchange.solver_steps import solver_steps

SEEDS = torch.arange(3)
FIXED = [name for name in SAMPLERS if name != "rk45"]


def walked(denoiser: GaussianDenoiser, sampler: object, grid: torch.Tensor) -> float:
    """Return the largest difference of x0, at any frame, between the sampler and its table."""
    schedule, like = denoiser.schedule, torch.zeros(3, 2, dtype=torch.float64)
    noise = Noise(SEEDS)
    x = start(schedule, float(grid[0]), noise.like(like))
    expected = [frame.x0 for frame in trajectory(denoiser, sampler, x, grid, noise)]  # type: ignore[arg-type]
    x0, eps, found = [], [], []
    for step in solver_steps(sampler, schedule, grid):  # type: ignore[arg-type]
        drawn = torch.zeros_like(like)
        for k, weight in step.noise:
            drawn += weight * Noise(SEEDS, draws=k).like(like)
        x = drawn + sum(w * x0[k] for k, w in step.x0) + sum(w * eps[k] for k, w in step.eps)
        pair = denoiser(x, step.t)
        x0.append(pair.x0)
        eps.append(pair.eps)
        assert (step.alpha, step.sigma) == pytest.approx(tuple(map(float, schedule(step.t))))
        if step.frame:
            found.append(pair.x0)
    return max(float((a - b).abs().max()) for a, b in zip(expected, found, strict=True))


def oracle(schedule: Schedule) -> GaussianDenoiser:
    return GaussianDenoiser(
        schedule, torch.tensor([0.3, -0.2], dtype=torch.float64), torch.tensor([[0.5, 0.2], [0.2, 0.8]], dtype=torch.float64)
    )


@pytest.mark.parametrize("name", FIXED)
@pytest.mark.parametrize("grid", ["uniform", "karras", "zigzag"])
def test_the_table_is_the_sampler(name: str, grid: str) -> None:
    schedule = SCHEDULES["cosine"]()
    assert walked(oracle(schedule), SAMPLERS[name](), GRIDS[grid]()(schedule, 9)) < 1e-12


@pytest.mark.parametrize("schedule", [name for name in SCHEDULES if name != "learned"])
def test_the_table_holds_under_every_schedule(schedule: str) -> None:
    made = SCHEDULES[schedule]()
    for sampler in (DDPM("forward"), Heun(churn=0.2)):
        assert walked(oracle(made), sampler, GRIDS["uniform"]()(made, 7)) < 1e-10


def test_samplers_that_depend_on_the_image_have_no_table() -> None:
    schedule = SCHEDULES["cosine"]()
    grid = GRIDS["uniform"]()(schedule, 5)
    with pytest.raises(UserError, match="adaptive"):
        solver_steps(RK45(), schedule, grid)
    with pytest.raises(UserError, match="'optimal'"):
        solver_steps(DDPM("optimal"), schedule, grid)
    with pytest.raises(UserError, match="at most 2,000"):
        solver_steps(DDPM(), schedule, GRIDS["uniform"]()(schedule, 3000))
