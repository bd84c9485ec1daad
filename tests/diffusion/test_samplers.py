"""Samplers against truth: exact flows, exact moments, and a peer."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from reverie.base.errors import UserError
from reverie.base.noise import Noise, image_seeds
from reverie.base.spec import build
from reverie.diffusion.denoiser import Clip, Denoiser, WithCondition
from reverie.diffusion.guidance import ClassifierFree
from reverie.diffusion.oracle import GaussianDenoiser, MixtureDenoiser
from reverie.diffusion.process import transition
from reverie.diffusion.samplers import GRIDS, SAMPLERS, Sampler, start, trajectory
from reverie.diffusion.samplers.grids import Level, Uniform
from reverie.diffusion.samplers.langevin import Langevin, PredictorCorrector
from reverie.diffusion.samplers.multistep import DPMSDE, UniPC
from reverie.diffusion.samplers.onestep import DDIM, DDPM, EulerMaruyama, SigmaSpace
from reverie.diffusion.samplers.rungekutta import RK45, Heun
from reverie.diffusion.schedule import Cosine, Linear, LogLinear, Rectified, Schedule
from tests.diffusion.test_oracle import COVARIANCE, MEAN

N = 5000
FOUR = [Linear(), Cosine(), LogLinear(0.01, 60.0), Rectified()]
# Every sampler that draws noise, and how many steps bring its bias below the standard errors of N samples.
STOCHASTIC = [
    (DDPM("posterior"), 400),
    (DDPM("forward"), 400),
    (DDIM(0.5), 400),
    (SigmaSpace(0.5), 400),
    (SigmaSpace(0.25, 1.5), 400),
    (EulerMaruyama(), 900),
    (Heun(churn=0.1), 60),
    (DPMSDE(), 150),
    (Langevin(count=20, size=0.15), 125),
    (PredictorCorrector("ddim", snr=0.1), 300),
    (PredictorCorrector("heun", snr=0.1), 60),
]

# Those of many evaluations are left to `make test-all`; by default tests/diffusion/test_known.py draws from them.
MANY = 900
MANY_STEPS = [
    pytest.param(*row, marks=[pytest.mark.slow] if row[1] * getattr(row[0], "count", 1) >= MANY else []) for row in STOCHASTIC
]


def named(sampler: object) -> str:
    options = {k: v if isinstance(v, float | int | str) else type(v).__name__ for k, v in vars(sampler).items()}
    return "-".join([type(sampler).__name__, *map(str, options.values())])


def draw(denoise: Denoiser, sampler: Sampler, steps: int, n: int = N, seed: int = 2, grid: str = "log-snr") -> Tensor:
    noise = Noise(image_seeds(seed, n))
    times = build(GRIDS, grid, "grid")(denoise.schedule, steps)
    x = start(denoise.schedule, float(times[0]), noise.like(torch.empty(n, 2, dtype=torch.float64)))
    *_, last = trajectory(denoise, sampler, x, times, noise)
    return last.x0


def assert_moments(x: Tensor, mean: Tensor, covariance: Tensor) -> None:
    """Mean and covariance lie within three standard errors."""
    n = len(x)
    assert ((x.mean(0) - mean).abs() < 3 * (covariance.diagonal() / n).sqrt()).all()
    error = (covariance.diagonal()[:, None] * covariance.diagonal() + covariance**2).div(n).sqrt()
    assert ((x.T.cov() - covariance).abs() < 3 * error).all()


@pytest.mark.parametrize("schedule", FOUR, ids=lambda s: type(s).__name__)
@pytest.mark.parametrize(("sampler", "steps"), MANY_STEPS, ids=lambda v: named(v) if isinstance(v, Sampler) else str(v))
def test_the_gaussian_is_drawn_with_its_moments(schedule: Schedule, sampler: Sampler, steps: int) -> None:
    assert_moments(draw(GaussianDenoiser(schedule, MEAN, COVARIANCE), sampler, steps), MEAN, COVARIANCE)


@pytest.mark.parametrize(("sampler", "steps"), MANY_STEPS, ids=lambda v: named(v) if isinstance(v, Sampler) else str(v))
def test_the_mixture_is_drawn_with_its_weights_and_moments(sampler: Sampler, steps: int) -> None:
    schedule = Cosine()
    means = torch.tensor([[1.2, 0.0], [-1.0, 1.0]], dtype=torch.float64)
    weights = torch.tensor([0.3, 0.7], dtype=torch.float64)
    small = torch.eye(2, dtype=torch.float64) * 0.04
    x = draw(MixtureDenoiser(weights, [GaussianDenoiser(schedule, m, small) for m in means]), sampler, steps)
    nearest = torch.cdist(x, means).argmin(1)
    assert abs(float((nearest == 0).double().mean()) - 0.3) < 3 * np.sqrt(0.3 * 0.7 / N)
    for k in range(2):
        assert_moments(x[nearest == k], means[k], small)


def test_every_sampler_without_an_order_is_among_them() -> None:
    assert {make for make in SAMPLERS.values() if make().order is None} <= {type(sampler) for sampler, _ in STOCHASTIC}


def test_a_wrong_variance_is_noticed() -> None:
    """The moment test has two sides: ten per cent too much noise makes it fail."""

    class Wrong(DDPM):
        def step(self, denoise, now, s, noise, memory):
            mean = DDIM(0.0).step(denoise, now, s, noise, None)[0]
            x, _ = super().step(denoise, now, s, noise, memory)
            return x + 0.1 * (x - mean), None

    x = draw(GaussianDenoiser(Cosine(), MEAN, COVARIANCE), Wrong(), 400)
    with pytest.raises(AssertionError):
        assert_moments(x, MEAN, COVARIANCE)


def test_ddim_with_eta_one_is_ddpm() -> None:
    oracle = GaussianDenoiser(Linear(), MEAN, COVARIANCE)
    torch.testing.assert_close(draw(oracle, DDIM(1.0), 30, 64), draw(oracle, DDPM(), 30, 64))


def test_every_frame_carries_x_and_the_estimate() -> None:
    oracle = GaussianDenoiser(Linear(), MEAN, COVARIANCE)
    calls = []
    oracle.register_forward_hook(lambda *_: calls.append(1))
    grid = Uniform()(oracle.schedule, 12)
    frames = list(trajectory(oracle, DDIM(), torch.ones(3, 2, dtype=torch.float64), grid, Noise(image_seeds(0, 3))))
    assert [f.i for f in frames] == list(range(12)) and len(calls) == 12  # one evaluation a step
    assert [float(f.t) for f in frames] == grid.tolist()
    for frame in frames:
        torch.testing.assert_close(frame.pair.mix(*oracle.schedule(frame.t)), frame.x)
        torch.testing.assert_close(frame.x0, oracle(frame.x, frame.t).x0)


@pytest.mark.parametrize("name", SAMPLERS)
def test_samples_do_not_depend_on_the_batch(name: str) -> None:
    oracle = GaussianDenoiser(Linear(), MEAN, COVARIANCE)
    whole = draw(oracle, SAMPLERS[name](), 20, 50)
    torch.testing.assert_close(draw(oracle, SAMPLERS[name](), 20, 7), whole[:7], rtol=0, atol=1e-12)


BAD = [
    "ddim:eta=-0.1", "ddim:eta=1.1", "ddpm:variance=both", "sigma-space:mu=1", "sigma-space:mu=-0.1", "sigma-space:gamma=0.5",
    "heun:churn=0.5", "heun:low=2,high=1", "rk45:tolerance=0", "unipc:order=4", "adams-bashforth:order=0", "dpm++sde:eta=2",
    "langevin:count=0", "langevin:size=0", "predictor-corrector:snr=0", "predictor-corrector:predictor=langevin", "dpm++",
]  # fmt: skip


@pytest.mark.parametrize("spec", BAD)
def test_impossible_samplers_are_refused(spec: str) -> None:
    with pytest.raises(UserError):
        build(SAMPLERS, spec, "sampler")


@pytest.mark.parametrize("schedule", FOUR, ids=lambda s: type(s).__name__)
def test_the_sigma_space_sampler_holds_ddim_and_ddpm(schedule: Schedule) -> None:
    oracle = GaussianDenoiser(schedule, MEAN, COVARIANCE)
    torch.testing.assert_close(draw(oracle, SigmaSpace(), 12, 64), draw(oracle, DDIM(), 12, 64))
    torch.testing.assert_close(draw(oracle, SigmaSpace(mu=0.5), 12, 64), draw(oracle, DDPM(), 12, 64))


def test_one_step_of_dpm_sde_is_ddpm_and_without_noise_it_is_2m() -> None:
    oracle = GaussianDenoiser(Rectified(), MEAN, COVARIANCE)
    torch.testing.assert_close(draw(oracle, DPMSDE(), 2, 64, grid="uniform"), draw(oracle, DDPM(), 2, 64, grid="uniform"))
    torch.testing.assert_close(draw(oracle, DPMSDE(0.0), 12, 64), draw(oracle, SAMPLERS["dpm++2m"](), 12, 64))


def test_gamma_makes_the_sigma_space_sampler_more_precise() -> None:
    oracle = GaussianDenoiser(Cosine(), MEAN, COVARIANCE)
    truth = draw(oracle, UniPC(), 200, 64)
    plain, fast = (float((draw(oracle, SigmaSpace(0.0, gamma), 30, 64) - truth).norm()) for gamma in (1.0, 1.5))
    assert fast < 0.5 * plain


@pytest.mark.parametrize("grid", ["uniform", "log-snr", "zigzag:jump=3", "level"])
@pytest.mark.parametrize("name", SAMPLERS)
def test_evaluations_are_as_announced(name: str, grid: str) -> None:
    oracle, sampler = GaussianDenoiser(Rectified(), MEAN, COVARIANCE), SAMPLERS[name]()
    if grid == "level" and not sampler.allows_equal_times:
        with pytest.raises(UserError, match="--sampler langevin"):
            draw(oracle, sampler, 7, 5, grid=grid)
        return
    calls: list[int] = []
    oracle.register_forward_hook(lambda *_: calls.append(1))
    draw(oracle, sampler, 7, 5, grid=grid)
    announced = sampler.evaluations(build(GRIDS, grid, "grid")(oracle.schedule, 7))
    assert len(calls) > 7 if announced is None else len(calls) == announced


@pytest.mark.parametrize("name", SAMPLERS)
def test_refusals_come_before_the_first_evaluation(name: str) -> None:
    oracle = GaussianDenoiser(Linear(40), MEAN, COVARIANCE)
    calls: list[int] = []
    oracle.register_forward_hook(lambda *_: calls.append(1))
    for grid in ("trailing", "uniform:end=0.001"):
        with pytest.raises(UserError, match="the model is defined only above"):
            draw(oracle, SAMPLERS[name](), 100, 5, grid=grid)
    assert not calls


@pytest.mark.parametrize("name", SAMPLERS)
def test_every_sampler_takes_every_grid_schedule_and_guidance(name: str, schedule: Schedule) -> None:
    parts = [GaussianDenoiser(schedule, MEAN + k, COVARIANCE) for k in range(2)]
    oracle = MixtureDenoiser(torch.ones(2, dtype=torch.float64), parts)
    steered = WithCondition(ClassifierFree(oracle, 1.5), torch.arange(6) % 2)
    for grid in GRIDS:
        if grid == "level" and name != "langevin":
            continue
        x = draw(steered, SAMPLERS[name](), 6, 6, grid=grid)
        assert x.isfinite().all()
        # Euler's methods in t are not stable over steps as long as these.
        assert float(x.abs().max()) < 100 or name in ("euler", "euler-maruyama")


def test_a_rising_grid_noises_again_by_the_transition() -> None:
    """Down and up again: the moments at the top are those of q(x_t | x_s), for a sampler that changes nothing in between."""
    schedule = Linear()
    oracle = GaussianDenoiser(schedule, MEAN, COVARIANCE)
    noise, x = Noise(image_seeds(0, N)), torch.ones(N, 2, dtype=torch.float64)
    grid = torch.tensor([0.2, 0.6, 0.3], dtype=torch.float64)
    frames = list(trajectory(oracle, DDIM(), x, grid, noise))
    assert [f.t for f in frames] == [0.6, 0.3]  # no estimate is made where the grid turns up
    scale, std = transition(schedule, 0.2, 0.6)
    assert_moments(frames[0].x, torch.full((2,), float(scale)).double(), torch.eye(2).double() * float(std) ** 2)


@pytest.mark.parametrize(("sampler", "steps"), [(UniPC(), 300), (DDPM(), 600)], ids=["unipc", "ddpm"])
def test_zigzag_leaves_the_law_as_it_is(sampler: Sampler, steps: int) -> None:
    oracle = GaussianDenoiser(Cosine(), MEAN, COVARIANCE)
    grid = "zigzag:grid=log-snr,jump=60,repeats=2"
    assert_moments(draw(oracle, sampler, steps, grid=grid), MEAN, COVARIANCE)


def test_langevin_at_one_level_reaches_the_law_of_that_level() -> None:
    """Also the known bias of unadjusted steps: a variance v becomes v / (1 - h / (2 v))."""
    schedule, size, t = Rectified(), 0.3, 0.5
    oracle = GaussianDenoiser(schedule, torch.zeros(2).double(), torch.eye(2).double() * 0.5)
    noise, grid = Noise(image_seeds(1, N)), Level(t)(schedule, 20)
    x = start(schedule, t, noise.like(torch.empty(N, 2, dtype=torch.float64)))
    *_, last = trajectory(oracle, Langevin(count=5, size=size), x, grid, noise)
    alpha, sigma = schedule(t)
    v = alpha**2 * 0.5 + sigma**2
    biased = v / (1 - size * sigma**2 / (2 * v))
    assert_moments(last.x, torch.zeros(2).double(), torch.eye(2).double() * biased)
    with pytest.raises(AssertionError):
        assert_moments(last.x, torch.zeros(2).double(), torch.eye(2).double() * v)


def test_churn_raises_the_noise_by_its_share() -> None:
    schedule = LogLinear(0.01, 60.0)
    x, noise = torch.zeros(N, 2, dtype=torch.float64), Noise(image_seeds(0, N))
    stirred, t = Heun(churn=0.2).renoise(schedule, x, 0.5, noise)
    before, after = schedule(0.5)[1], schedule(t)[1]
    assert after == pytest.approx(1.2 * before)
    assert_moments(stirred, torch.zeros(2).double(), torch.eye(2).double() * (after**2 - before**2))
    assert Heun(churn=0.2, high=0.1).renoise(schedule, x, 0.5, noise)[1] == 0.5  # only within its range


def test_rk45_takes_the_steps_each_image_needs() -> None:
    """Errors follow the tolerance, images do not depend on their batch, and an impossible tolerance raises an error."""
    oracle = MixtureDenoiser(
        torch.ones(2, dtype=torch.float64), [GaussianDenoiser(Rectified(), MEAN * k, COVARIANCE / 9) for k in (-3, 3)]
    )
    truth = draw(oracle, RK45(1e-9), 2, 20, grid="uniform")
    errors = [float((draw(oracle, RK45(tol), 2, 20, grid="uniform") - truth).abs().max()) for tol in (1e-2, 1e-4, 1e-6)]
    assert errors[0] > 10 * errors[1] > 100 * errors[2] and errors[2] < 1e-4
    torch.testing.assert_close(
        draw(oracle, RK45(1e-3), 2, 3, grid="uniform"), draw(oracle, RK45(1e-3), 2, 9, grid="uniform")[:3]
    )
    with pytest.raises(UserError, match="tolerance"):
        draw(oracle, RK45(1e-30), 2, 3, grid="uniform")


def test_clip_keeps_x0_in_range_and_the_pair_consistent() -> None:
    oracle = Clip(GaussianDenoiser(Linear(), MEAN, COVARIANCE), -0.1, 0.1)
    x = torch.randn(100, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    pair = oracle(x, 0.4)
    assert float(pair.x0.abs().max()) == pytest.approx(0.1)
    torch.testing.assert_close(pair.mix(*oracle.schedule(0.4)), x)
    assert float(draw(oracle, DDPM(), 20, 100).abs().max()) <= 0.1
