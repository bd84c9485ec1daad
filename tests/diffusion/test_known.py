"""Replacement, the residual's gradient and moment matching against conditional Gaussians; all samplers under all of them."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import pytest
import torch
from torch import Tensor

from reverie.base.noise import Noise, image_seeds
from reverie.base.scalar import Time
from reverie.base.spec import build
from reverie.diffusion.denoiser import Denoiser, NetDenoiser, Steer
from reverie.diffusion.known import MomentMatching, Replace, ResidualGradient
from reverie.diffusion.measurements import Keep
from reverie.diffusion.oracle import GaussianDenoiser, MixtureDenoiser
from reverie.diffusion.pair import Pair, pair_of
from reverie.diffusion.process import jump, posterior
from reverie.diffusion.samplers import GRIDS, SAMPLERS, Sampler, start, trajectory
from reverie.diffusion.samplers.grids import LogSNR, Uniform
from reverie.diffusion.samplers.langevin import Langevin, PredictorCorrector
from reverie.diffusion.samplers.multistep import DPMSDE
from reverie.diffusion.samplers.onestep import DDPM, EulerMaruyama
from reverie.diffusion.schedule import Cosine, Linear, Rectified, Schedule
from reverie.diffusion.uncertainty import posterior_covariance
from reverie.nets.mlp import ConditionalMLP
from tests.diffusion.test_samplers import assert_moments

F = torch.float64
MEAN = torch.tensor([0.3, -0.4, 0.1, 0.2], dtype=F)
ROOT = torch.tensor([[0.9, 0.0, 0.0, 0.0], [0.6, 0.5, 0.0, 0.0], [-0.3, 0.4, 0.6, 0.0], [0.5, -0.2, 0.3, 0.4]], dtype=F)
COVARIANCE = ROOT @ ROOT.T
KNOWN = torch.tensor([True, False, True, False])
SEEN = torch.tensor([[1.0, -0.5]], dtype=F)


def average(x: Tensor) -> Tensor:
    return x.mean(1, keepdim=True)


def row_of(measure: Callable[[Tensor], Tensor]) -> Tensor:
    """Return the matrix of a linear measurement of four numbers."""
    return measure(torch.eye(4, dtype=F)).T


def conditional(matrix: Tensor, y: Tensor, noise: float) -> tuple[Tensor, Tensor]:
    """Return mean and covariance of x0 given y, by the formula of textbooks."""
    gain = COVARIANCE @ matrix.T @ torch.linalg.inv(matrix @ COVARIANCE @ matrix.T + noise**2 * torch.eye(len(matrix), dtype=F))
    return MEAN + gain @ (y - matrix @ MEAN), COVARIANCE - gain @ matrix @ COVARIANCE


PROBLEMS = {
    "inpainting": (Keep(KNOWN), SEEN, 0.0),
    "inpainting with noise": (Keep(KNOWN), SEEN, 0.3),
    "averaging": (average, torch.tensor([[0.7]], dtype=F), 0.0),
    "averaging with noise": (average, torch.tensor([[0.7]], dtype=F), 0.2),
}


def draw(denoise: Denoiser, sampler: Sampler, times: Tensor, n: int, size: int = 4, seed: int = 2) -> Tensor:
    noise = Noise(image_seeds(seed, n))
    x = start(denoise.schedule, float(times[0]), noise.like(torch.empty(n, size, dtype=F)))
    *_, last = trajectory(denoise, sampler, x, times, noise)
    return last.x0


@pytest.mark.parametrize("problem", PROBLEMS)
def test_moment_matching_of_a_gaussian_is_the_denoiser_of_the_conditional_one(schedule: Schedule, problem: str) -> None:
    """The same estimate at every x and t is the same samples under every sampler and grid."""
    measure, y, noise = PROBLEMS[problem]
    mean, covariance = conditional(row_of(measure), y[0], noise)
    guided = MomentMatching(GaussianDenoiser(schedule, MEAN, COVARIANCE), measure, y, noise, tolerance=1e-12)
    truth = GaussianDenoiser(schedule, mean, covariance)
    x = 1.5 * torch.randn(5, 4, dtype=F, generator=torch.Generator().manual_seed(0))
    for t in (0.02, 0.3, 0.7, 0.9):
        torch.testing.assert_close(guided(x, t).x0, truth(x, t).x0, rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(guided(x, t).mix(*schedule(t)), x)
    # at alpha = 0 the covariance is taken at sigma / alpha = 100, where it is right to 1e-4
    torch.testing.assert_close(guided(x, 1.0).x0, truth(x, 1.0).x0, rtol=0, atol=2e-4)
    t = torch.tensor([0.1, 0.4, 0.6, 0.9, 1.0], dtype=F)
    torch.testing.assert_close(guided(x, t).x0, truth(x, t).x0, rtol=0, atol=2e-4)


# Every sampler, with as many steps as bring its bias below the standard errors of 500 samples.
STEPS: dict[str, tuple[Sampler, int]] = {
    **{name: (make(), 50) for name, make in SAMPLERS.items()},
    "ddpm": (DDPM(), 250),
    "euler-maruyama": (EulerMaruyama(), 450),
    "rk45": (build(SAMPLERS, "rk45:tolerance=1e-4", "sampler"), 4),
    "euler": (SAMPLERS["euler"](), 250),
    "ddim": (SAMPLERS["ddim"](), 250),
    "sigma-space": (SAMPLERS["sigma-space"](), 250),
    "dpm++sde": (DPMSDE(), 100),
    "langevin": (Langevin(count=8, size=0.15), 100),
    "predictor-corrector": (PredictorCorrector("heun", snr=0.1), 40),
}
FLOW_ERROR = {1: 0.06, 2: 0.02}  # by the order of the sampler, higher ones as the second


@pytest.mark.parametrize("name", SAMPLERS)
def test_every_sampler_draws_the_conditional_gaussian_under_moment_matching(name: str) -> None:
    measure, y, noise = PROBLEMS["inpainting with noise"]
    mean, covariance = conditional(row_of(measure), y[0], noise)
    schedule, (sampler, steps) = Cosine(), STEPS[name]
    guided = MomentMatching(GaussianDenoiser(schedule, MEAN, COVARIANCE), measure, y, noise, tolerance=1e-6)
    times = LogSNR()(schedule, steps)
    if sampler.order is None:
        assert_moments(draw(guided, sampler, times, 500), mean, covariance)
        return
    noise_ = Noise(image_seeds(1, 40))
    x = start(schedule, float(times[0]), noise_.like(torch.empty(40, 4, dtype=F)))
    *_, last = trajectory(guided, sampler, x, times, noise_)
    truth = GaussianDenoiser(schedule, mean, covariance).flow(x, float(times[0]), float(times[-1]))
    assert float((last.x - truth).abs().max()) < FLOW_ERROR[min(sampler.order, 2)]


@pytest.mark.parametrize("make", [Linear, Rectified])
@pytest.mark.parametrize("problem", ["inpainting", "averaging with noise"])
def test_ddpm_draws_the_conditional_gaussian_under_other_schedules(make: type[Schedule], problem: str) -> None:
    measure, y, noise = PROBLEMS[problem]
    mean, covariance = conditional(row_of(measure), y[0], noise)
    guided = MomentMatching(GaussianDenoiser(make(), MEAN, COVARIANCE), measure, y, noise, tolerance=1e-8)
    x = draw(guided, DDPM(), LogSNR()(guided.schedule, 250), 1000)
    free = covariance.diagonal() > 1e-9
    torch.testing.assert_close(x[:, ~free], SEEN.expand(1000, 2)[:, : int((~free).sum())], rtol=0, atol=1e-6)
    assert_moments(x[:, free], mean[free], covariance[free][:, free])


def wrappers(measure: Keep, y: Tensor, values: Tensor) -> dict[str, Steer]:
    return {
        "replace": lambda inner: Replace(inner, values, measure.known),
        "dps": lambda inner: ResidualGradient(inner, measure, y, scale=1.0),
        "moment": lambda inner: MomentMatching(inner, measure, y, 0.1),
    }


@pytest.mark.parametrize("name", SAMPLERS)
def test_what_is_independent_of_the_measurement_is_left_alone_by_every_wrapper_and_sampler(name: str) -> None:
    """Known is a number that says nothing about the other two, so these must come out as without steering."""
    covariance = torch.tensor([[0.6, 0.0, 0.0], [0.0, 0.8, 0.3], [0.0, 0.3, 0.5]], dtype=F)
    schedule, mean = Cosine(), torch.tensor([0.2, 0.3, -0.4], dtype=F)
    oracle, (sampler, steps) = GaussianDenoiser(schedule, mean, covariance), STEPS[name]
    times = LogSNR()(schedule, min(steps, 30))
    plain = draw(oracle, sampler, times, 20, 3)
    for wrapper in wrappers(
        Keep(torch.tensor([True, False, False])), torch.ones(1, 1, dtype=F), torch.ones(1, 3, dtype=F)
    ).values():
        steered = draw(wrapper(oracle), sampler, times, 20, 3)
        # rk45 takes other steps where another coordinate moves
        torch.testing.assert_close(steered[:, 1:], plain[:, 1:], rtol=0, atol=5e-3 if name == "rk45" else 1e-9)
        assert (steered[:, 0] - 1).abs().mean() < (plain[:, 0] - 1).abs().mean()


CHEAP = {"rk45": "rk45:tolerance=0.05"}  # a network that learned nothing is not smooth


@pytest.mark.parametrize("name", SAMPLERS)
@pytest.mark.parametrize("grid", ["uniform", "zigzag:jump=2,repeats=2"])
def test_all_samplers_run_under_all_wrappers_on_a_network(name: str, grid: str) -> None:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        net = NetDenoiser(ConditionalMLP(channels=3, hidden=16), Rectified(), "flow").double()
    values = torch.tensor([[0.5, 0.0, 0.0]], dtype=F)
    times, sampler = build(GRIDS, grid, "grid")(net.schedule, 6), build(SAMPLERS, CHEAP.get(name, name), "sampler")
    for wrapper in wrappers(Keep(torch.tensor([True, False, False])), values[:, :1], values).values():
        x = draw(wrapper(net), sampler, times, 5, 3)
        assert x.isfinite().all()
        if name != "rk45":  # an image does not depend on its batch
            torch.testing.assert_close(draw(wrapper(net), sampler, times, 2, 3), x[:2])


def test_the_known_part_follows_the_forward_process_under_ddpm() -> None:
    """Replacement makes each step of the known part a draw of q(x_s | x_t, x0): the same noise gives the same x."""
    schedule, values = Cosine(), torch.tensor([[1.0, 0.0, -0.5, 0.0]], dtype=F)
    denoise = Replace(GaussianDenoiser(schedule, MEAN, COVARIANCE), values, KNOWN)
    times = Uniform()(schedule, 12)
    x = jump(schedule, values.expand(7, 4), float(times[0]), Noise(image_seeds(0, 7)))
    frames = list(trajectory(denoise, DDPM(), x, times, Noise(image_seeds(1, 7))))
    noise = Noise(image_seeds(1, 7))
    for t, s, now in zip(times.tolist(), times.tolist()[1:], frames, strict=False):
        torch.testing.assert_close(now.x[:, KNOWN], x[:, KNOWN])
        mean, variance = posterior(schedule, x, values, t, s)
        x = mean + variance**0.5 * noise.like(x)
    assert torch.equal(frames[-1].x0[:, KNOWN], values[:, KNOWN].expand(7, 2))


def bias(steer: Steer, repeats: int = 1, n: int = 4000) -> tuple[float, float]:
    """Return the errors of mean and deviation of y given x = 1 for a plane Gaussian of correlation 0.9; exact: 0.9, 0.436."""
    covariance = torch.tensor([[1.0, 0.9], [0.9, 1.0]], dtype=F)
    denoise = steer(GaussianDenoiser(Cosine(), torch.zeros(2, dtype=F), covariance))
    grid = f"zigzag:grid=log-snr,jump=10,repeats={repeats}"
    x = draw(denoise, DDPM(), build(GRIDS, grid, "grid")(denoise.schedule, 200), n, 2)[:, 1]
    return float(x.mean()) - 0.9, float(x.std()) - 0.19**0.5


KNOWN_X, ONE = torch.tensor([True, False]), torch.ones(1, 2, dtype=F)


def test_replacement_is_biased_and_resampling_lessens_it() -> None:
    """The same problem as in docs/inverse.md.  The standard error of a mean is 0.007, and the draws share their seeds."""
    errors = [bias(lambda inner: Replace(inner, ONE, KNOWN_X), repeats) for repeats in (1, 2, 4, 8)]
    means = [abs(mean) for mean, _ in errors]
    assert means[0] > 0.2 and means[-1] < means[0] / 3 and all(a > b for a, b in pairwise(means)), errors


def test_the_residual_gradient_is_biased_and_moment_matching_is_not() -> None:
    measure = Keep(KNOWN_X)
    gradient = bias(lambda inner: ResidualGradient(inner, measure, ONE[:, :1]))
    mean, deviation = bias(lambda inner: MomentMatching(inner, measure, ONE[:, :1]))
    assert max(map(abs, gradient)) > 0.03, gradient
    assert abs(mean) < 3 * 0.007 and abs(deviation) < 3 * 0.005, (mean, deviation)


def test_the_residual_gradient_is_a_gradient() -> None:
    """The score is shifted by the gradient of -scale sqrt(m) |y - A(x0)|, here by central differences, for a curved A."""
    schedule = Cosine()
    parts = [
        GaussianDenoiser(schedule, torch.tensor(m, dtype=F), COVARIANCE * c)
        for m, c in (([1, 0, 0, 1], 0.2), ([-1, 1, 0, 0], 0.3))
    ]
    inner = MixtureDenoiser(torch.tensor([0.4, 0.6], dtype=F), parts)
    y = torch.tensor([[0.3, 0.8]], dtype=F)

    def measure(x0: Tensor) -> Tensor:
        return torch.stack([x0[:, 0] * x0[:, 1], x0[:, 2].exp()], 1)

    x = torch.randn(1, 4, dtype=F, generator=torch.Generator().manual_seed(3))
    shift = ResidualGradient(inner, measure, y, scale=2.0).score(x, 0.4) - inner.score(x, 0.4)

    def potential(x: Tensor) -> float:
        return -2.0 * 2**0.5 * float((y - measure(inner(x, 0.4).x0)).norm())

    h = 1e-5
    slope = [(potential(x + h * unit) - potential(x - h * unit)) / (2 * h) for unit in torch.eye(4, dtype=F)]
    torch.testing.assert_close(shift[0], torch.tensor(slope, dtype=F), rtol=1e-6, atol=1e-8)


def test_moment_matching_uses_the_covariance_of_a_mixture_and_linearises_what_is_curved() -> None:
    schedule = Cosine()
    parts = [
        GaussianDenoiser(schedule, torch.tensor(m, dtype=F), COVARIANCE * c)
        for m, c in (([1, 0, 0, 1], 0.2), ([-1, 1, 0, 0], 0.3))
    ]
    inner, noise = MixtureDenoiser(torch.tensor([0.4, 0.6], dtype=F), parts), 0.2
    y = torch.tensor([[0.3, 0.8]], dtype=F)

    def measure(x0: Tensor) -> Tensor:
        return torch.stack([x0[:, 0] * x0[:, 1], x0[:, 2].exp()], 1)

    x = torch.randn(3, 4, dtype=F, generator=torch.Generator().manual_seed(3))
    x0, covariance = inner(x, 0.4).x0, posterior_covariance(inner, x, 0.4)
    found = MomentMatching(inner, measure, y, noise, tolerance=1e-12)(x, 0.4).x0
    for k in range(3):
        slope = torch.func.jacrev(measure)(x0[k : k + 1])[0, :, 0]
        system = slope @ covariance[k] @ slope.T + noise**2 * torch.eye(2, dtype=F)
        expected = x0[k] + covariance[k] @ slope.T @ torch.linalg.solve(system, (y - measure(x0[k : k + 1]))[0])
        torch.testing.assert_close(found[k], expected, rtol=1e-9, atol=1e-9)


def test_wrappers_wrap_each_other() -> None:
    """Two independent measurements, one wrapped around the other, are both together."""
    oracle = GaussianDenoiser(Rectified(), MEAN, COVARIANCE)
    first, second = Keep(torch.tensor([True, False, False, False])), Keep(torch.tensor([False, False, True, False]))
    inner = MomentMatching(oracle, first, SEEN[:, :1], 0.3, tolerance=1e-12)
    x = torch.randn(3, 4, dtype=F, generator=torch.Generator().manual_seed(1))
    both = MomentMatching(oracle, Keep(KNOWN), SEEN, 0.3, tolerance=1e-12)
    found = MomentMatching(inner, second, SEEN[:, 1:], 0.3, tolerance=1e-12)
    torch.testing.assert_close(found(x, 0.4).x0, both(x, 0.4).x0, rtol=1e-8, atol=1e-8)


def test_gradients_are_taken_where_they_are_switched_off_and_leave_no_graph() -> None:
    guided = MomentMatching(GaussianDenoiser(Rectified(), MEAN, COVARIANCE), Keep(KNOWN), SEEN)
    with torch.no_grad():
        pair = guided(torch.zeros(2, 4, dtype=F), 0.5)
    assert not pair.x0.requires_grad and pair.x0.grad_fn is None


class Misled(Denoiser):
    """A network whose Jacobian is no covariance: the known number hardly moves with x, the other moves a lot with it."""

    def __init__(self, schedule: Schedule) -> None:
        super().__init__()
        self.schedule = schedule

    def forward(self, x: Tensor, t: Time, cond: Tensor | None = None) -> Pair:
        x0 = torch.stack([1e-6 * x[:, 0] + x[:, 1], 0 * x[:, 1]], dim=1)
        return pair_of(x, x0, *self.schedule(t), "x0")


def test_a_jacobian_that_is_no_covariance_does_not_send_x0_away() -> None:
    x = torch.randn(50, 2, dtype=F, generator=torch.Generator().manual_seed(0))
    steered = MomentMatching(Misled(Rectified()), Keep(torch.tensor([True, False])), torch.tensor([[0.7]], dtype=F))
    for t in (0.05, 0.5, 0.95, 1.0):
        assert float(steered(x, t).x0.abs().max()) < 60  # and not a million
