"""Time grids: where they begin and end, and how they are spaced."""

from __future__ import annotations

import math

import pytest
import torch

from reverie.base.errors import UserError
from reverie.base.noise import Noise, image_seeds
from reverie.base.scalar import Coefficient, Time, as_time
from reverie.base.spec import build
from reverie.diffusion.oracle import GaussianDenoiser
from reverie.diffusion.samplers import SAMPLERS, trajectory
from reverie.diffusion.samplers.grids import GRIDS, INNER, MAX_NOISE_RATIO, Karras, LogSNR, Quadratic, Trailing, Uniform, Zigzag
from reverie.diffusion.schedule import Linear, Rectified, Schedule


@pytest.mark.parametrize("name", INNER)
def test_grids_fall_from_the_noise_to_the_data(name: str, schedule: Schedule) -> None:
    grid = INNER[name]()(schedule, 10)
    assert grid.dtype == torch.float64 and len(grid) == 10 and (grid.diff() < 0).all()
    alpha, sigma = schedule(float(grid[0]))
    assert float(grid[0]) == 1 or sigma / alpha == pytest.approx(MAX_NOISE_RATIO)  # where alpha(1) = 0 some begin just below
    assert float(grid[-1]) == pytest.approx(0.1 if name == "trailing" else schedule.t_min, abs=1e-15)


@pytest.mark.parametrize("name", INNER)
def test_one_step_is_one_time(name: str, schedule: Schedule) -> None:
    (time,) = INNER[name]()(schedule, 1).tolist()
    alpha, sigma = schedule(time)
    assert time == 1 or sigma / alpha == pytest.approx(MAX_NOISE_RATIO)  # all is still to be done


def test_the_grid_of_all_steps_is_the_discrete_chain() -> None:
    chain = torch.arange(40, 0, -1, dtype=torch.float64) / 40
    torch.testing.assert_close(Uniform()(Linear(40), 40), chain)
    torch.testing.assert_close(Trailing()(Linear(40), 40), chain)


def test_a_trailing_grid_may_end_anywhere() -> None:
    """Evenly from the noise to where the last step begins; one step is the whole way."""
    assert Trailing(last=0.4)(Linear(40), 4).tolist() == pytest.approx([1, 0.8, 0.6, 0.4])
    assert Trailing(last=0.4)(Linear(40), 1).tolist() == [1]
    with pytest.raises(UserError, match="0 <= last < start"):
        Trailing(start=0.5, last=0.5)


def test_spacings(schedule: Schedule) -> None:
    def gaps(values: torch.Tensor) -> torch.Tensor:
        return values.diff() / values.diff()[0]

    def noise(grid: torch.Tensor) -> torch.Tensor:
        alpha, sigma = schedule(grid)
        return torch.as_tensor(sigma / alpha)

    one = torch.ones(8, dtype=torch.float64)
    torch.testing.assert_close(gaps(Uniform()(schedule, 9)), one)
    torch.testing.assert_close(gaps(Quadratic()(schedule, 9).sqrt()), one)
    torch.testing.assert_close(gaps(noise(LogSNR()(schedule, 9)).log()), one, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(gaps(noise(Karras(rho=5.0)(schedule, 9)) ** 0.2), one, rtol=1e-6, atol=1e-6)


class Circle(Schedule):
    """alpha = cos(pi t / 2), sigma = sin(pi t / 2): in floating point alpha(1) is 6e-17."""

    def forward(self, t: Time) -> tuple[Coefficient, Coefficient]:
        angle = torch.as_tensor(as_time(t), dtype=torch.float64) * (torch.pi / 2)
        alpha, sigma = angle.cos(), angle.sin()
        return (alpha, sigma) if isinstance(t, torch.Tensor) and t.ndim else (float(alpha), float(sigma))


class WholeCircle(Circle):
    """The same with alpha(1) = 0."""

    def forward(self, t: Time) -> tuple[Coefficient, Coefficient]:
        alpha, sigma = super().forward(t)
        return alpha - math.cos(math.pi / 2), sigma


@pytest.mark.parametrize("name", INNER)
def test_an_alpha_that_is_zero_but_for_rounding_is_zero(name: str) -> None:
    assert 0 < Circle()(1.0)[0] < 1e-16 and WholeCircle()(1.0)[0] == 0
    torch.testing.assert_close(INNER[name]()(Circle(), 10), INNER[name]()(WholeCircle(), 10), rtol=0, atol=1e-12)


def moved(schedule: Schedule, sampler: str, grid: torch.Tensor) -> torch.Tensor:
    oracle = GaussianDenoiser(schedule, torch.tensor([0.5, -0.2]).double(), torch.tensor([[0.6, 0.2], [0.2, 0.9]]).double())
    x = torch.randn(8, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    *_, last = trajectory(oracle, build(SAMPLERS, sampler, "sampler"), x, grid, Noise(image_seeds(0, 8)))
    return last.x0


@pytest.mark.parametrize("sampler", [*SAMPLERS, "sigma-space:gamma=1.5", "heun:churn=0.3"])
def test_no_sampler_stumbles_over_an_alpha_that_is_zero_but_for_rounding(sampler: str) -> None:
    grid = Uniform()(Circle(), 12)
    torch.testing.assert_close(moved(Circle(), sampler, grid), moved(WholeCircle(), sampler, grid), rtol=1e-6, atol=1e-6)


def test_zigzag_walks_each_stretch_again() -> None:
    grid = Zigzag(jump=2, repeats=3)(Rectified(), 5)
    a, b, c, d, e = Uniform()(Rectified(), 5).tolist()
    assert grid.tolist() == [a, b, c, a, b, c, a, b, c, d, e, c, d, e, c, d, e]
    torch.testing.assert_close(Zigzag(repeats=1)(Rectified(), 7), Uniform()(Rectified(), 7))


def test_grids_take_their_ends() -> None:
    grid = build(GRIDS, "karras:rho=3,start=0.6,end=0.05", "grid")(Rectified(), 4)
    assert float(grid[0]) == 0.6 and float(grid[-1]) == 0.05


BAD = [
    "karras:rho=0",
    "uniform:start=2",
    "uniform:start=0.1,end=0.2",
    "level:t=0",
    "zigzag:grid=zigzag",
    "zigzag:jump=0",
    "trailing:start=0",
]


@pytest.mark.parametrize("spec", BAD)
def test_impossible_grids_are_refused(spec: str) -> None:
    with pytest.raises(UserError):
        build(GRIDS, spec, "grid")(Linear(), 10)


def test_a_grid_that_starts_below_the_end_of_the_chain_is_refused() -> None:
    with pytest.raises(UserError, match="cannot decrease"):
        Uniform(start=0.01)(Linear(40), 5)


@pytest.mark.parametrize("grid", [LogSNR, Karras])
def test_a_grid_in_the_noise_level_needs_finite_decreasing_noise(grid: type[LogSNR]) -> None:
    for schedule in (Linear(), Rectified()):
        with pytest.raises(UserError, match="none at t = 0"):
            grid(end=0.0)(schedule, 4)
    with pytest.raises(UserError, match=r"0\.995"):
        grid(end=0.995)(Rectified(), 4)
