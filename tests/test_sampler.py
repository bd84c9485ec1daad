"""Samplers against truth: exact flows, exact moments, and a peer."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from reverie.denoiser import Clip, Denoiser, NetDenoiser
from reverie.errors import UserError
from reverie.noise import Noise, image_seeds
from reverie.oracle import GaussianDenoiser, MixtureDenoiser
from reverie.sampler import DDIM, DDPM, GRIDS, SAMPLERS, Frame, Sampler, start, trajectory, uniform
from reverie.schedule import Cosine, Linear, LogLinear, Rectified, Schedule
from tests.test_oracle import COVARIANCE, MEAN

N = 10_000
STOCHASTIC = [DDPM("posterior"), DDPM("forward"), DDIM(0.5), DDIM(1.0)]
FOUR = [Linear(), Cosine(), LogLinear(0.01, 60.0), Rectified()]


def draw(denoise: Denoiser, sampler: Sampler, steps: int, n: int = N, seed: int = 2) -> Tensor:
    noise = Noise(image_seeds(seed, n))
    grid = uniform(denoise.schedule, steps)
    x = start(denoise.schedule, grid[0], noise.like(torch.empty(n, 2, dtype=torch.float64)))
    *_, last = trajectory(denoise, sampler, x, grid, noise)
    return last.x0


def assert_moments(x: Tensor, mean: Tensor, covariance: Tensor) -> None:
    """Mean and covariance lie within three standard errors."""
    n = len(x)
    assert ((x.mean(0) - mean).abs() < 3 * (covariance.diagonal() / n).sqrt()).all()
    error = (covariance.diagonal()[:, None] * covariance.diagonal() + covariance**2).div(n).sqrt()
    assert ((x.T.cov() - covariance).abs() < 3 * error).all()


@pytest.mark.parametrize("schedule", FOUR, ids=lambda s: type(s).__name__)
@pytest.mark.parametrize("sampler", [*STOCHASTIC, DDIM(0.0)], ids=lambda s: f"{type(s).__name__}-{vars(s)}")
def test_the_gaussian_is_drawn_with_its_moments(schedule: Schedule, sampler: Sampler) -> None:
    assert_moments(draw(GaussianDenoiser(schedule, MEAN, COVARIANCE), sampler, 600), MEAN, COVARIANCE)


@pytest.mark.parametrize("sampler", [*STOCHASTIC, DDIM(0.0)], ids=lambda s: f"{type(s).__name__}-{vars(s)}")
def test_the_mixture_is_drawn_with_its_weights_and_moments(sampler: Sampler) -> None:
    schedule = Cosine()
    means = torch.tensor([[1.2, 0.0], [-1.0, 1.0]], dtype=torch.float64)
    weights = torch.tensor([0.3, 0.7], dtype=torch.float64)
    small = torch.eye(2, dtype=torch.float64) * 0.04
    x = draw(MixtureDenoiser(weights, [GaussianDenoiser(schedule, m, small) for m in means]), sampler, 500)
    nearest = torch.cdist(x, means).argmin(1)
    assert abs(float((nearest == 0).double().mean()) - 0.3) < 3 * np.sqrt(0.3 * 0.7 / N)
    for k in range(2):
        assert_moments(x[nearest == k], means[k], small)


def test_a_wrong_variance_is_noticed() -> None:
    """The moment test has two sides: ten per cent too much noise makes it fail."""

    class Wrong(DDPM):
        def step(self, denoise, now, s, noise, memory):
            mean = DDIM(0.0).step(denoise, now, s, noise, None)[0]
            x, _ = super().step(denoise, now, s, noise, memory)
            return x + 0.1 * (x - mean), None

    x = draw(GaussianDenoiser(Cosine(), MEAN, COVARIANCE), Wrong(), 600)
    with pytest.raises(AssertionError):
        assert_moments(x, MEAN, COVARIANCE)


@pytest.mark.parametrize("schedule", FOUR, ids=lambda s: type(s).__name__)
def test_ddim_converges_at_first_order(schedule: Schedule) -> None:
    oracle = GaussianDenoiser(schedule, MEAN, COVARIANCE)
    x = torch.randn(50, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    counts, errors = [40, 80, 160, 320], []
    for count in counts:
        grid = torch.linspace(0.9, 0.1, count + 1, dtype=torch.float64)
        *_, last = trajectory(oracle, DDIM(), x, grid, Noise(image_seeds(0, 50)))
        errors.append(float((last.x - oracle.flow(x, 0.9, 0.1)).norm()))
    order = -np.polyfit(np.log(counts), np.log(errors), 1)[0]
    assert order == pytest.approx(1, abs=0.15)


def test_ddim_with_eta_one_is_ddpm() -> None:
    oracle = GaussianDenoiser(Linear(), MEAN, COVARIANCE)
    torch.testing.assert_close(draw(oracle, DDIM(1.0), 30, 64), draw(oracle, DDPM(), 30, 64))


def test_every_frame_carries_x_and_the_estimate() -> None:
    oracle = GaussianDenoiser(Linear(), MEAN, COVARIANCE)
    calls = []
    oracle.register_forward_hook(lambda *_: calls.append(1))
    grid = uniform(oracle.schedule, 12)
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


@pytest.mark.parametrize("name", GRIDS)
def test_grids_fall_from_one_to_t_min(name: str, schedule: Schedule) -> None:
    grid = GRIDS[name](schedule, 10)
    assert len(grid) == 10 and float(grid[0]) == 1 and float(grid[-1]) == schedule.t_min and (grid.diff() < 0).all()


def test_the_grid_of_all_steps_is_the_discrete_chain() -> None:
    torch.testing.assert_close(uniform(Linear(40), 40), torch.arange(40, 0, -1, dtype=torch.float64) / 40)


@pytest.mark.parametrize("make", [lambda: DDIM(-0.1), lambda: DDIM(1.1), lambda: DDIM(float("nan")), lambda: DDPM("both")])
def test_impossible_samplers_are_refused(make) -> None:
    with pytest.raises(UserError):
        make()


def test_clip_keeps_x0_in_range_and_the_pair_consistent() -> None:
    oracle = Clip(GaussianDenoiser(Linear(), MEAN, COVARIANCE), -0.1, 0.1)
    x = torch.randn(100, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    pair = oracle(x, 0.4)
    assert float(pair.x0.abs().max()) == pytest.approx(0.1)
    torch.testing.assert_close(pair.mix(*oracle.schedule(0.4)), x)
    assert float(draw(oracle, DDPM(), 20, 100).abs().max()) <= 0.1


class Constant(nn.Module):
    """A network that always gives the same answer."""

    def __init__(self, y: Tensor) -> None:
        super().__init__()
        self.y = y

    def forward(self, x: Tensor, level: Tensor, cond: Tensor | None) -> Tensor:
        return self.y


@pytest.mark.parametrize("index", [1, 250, 700, 980])
@pytest.mark.parametrize("target", ["eps", "v"])
@pytest.mark.parametrize(("schedule", "beta_schedule"), [(Linear(), "linear"), (Cosine(), "squaredcos_cap_v2")])
@pytest.mark.parametrize("clip", [False, True])
@pytest.mark.parametrize("kind", ["ddpm-posterior", "ddpm-forward", "ddim-0", "ddim-0.7"])
def test_one_step_equals_diffusers(
    kind: str, clip: bool, schedule: Schedule, beta_schedule: str, target: str, index: int
) -> None:
    from diffusers import DDIMScheduler, DDPMScheduler

    random = torch.Generator().manual_seed(index)
    x, y = torch.randn(4, 3, 8, 8, generator=random), torch.randn(4, 3, 8, 8, generator=random)
    z = torch.randn(x.shape, generator=torch.Generator().manual_seed(99))
    common = {
        "num_train_timesteps": 1000,
        "beta_schedule": beta_schedule,
        "prediction_type": {"eps": "epsilon", "v": "v_prediction"}[target],
        "clip_sample": clip,
    }

    def precise(peer):
        """Their tables are float32, which leaves three digits of 1 - alpha_bar at the first steps: redo them in float64."""
        peer.betas = peer.betas.double()
        peer.alphas = 1 - peer.betas
        peer.alphas_cumprod = peer.alphas.cumprod(0)
        return peer

    name, _, option = kind.partition("-")
    if name == "ddpm":
        peer = precise(DDPMScheduler(variance_type={"posterior": "fixed_small", "forward": "fixed_large"}[option], **common))
        theirs = peer.step(y, index, x, generator=torch.Generator().manual_seed(99))
        sampler: Sampler = DDPM(option)
    else:
        peer = precise(DDIMScheduler(**common))
        peer.set_timesteps(1000)
        # With a clipped x0 its noise must follow, or x = alpha x0 + sigma eps breaks: their switch for it is off by default.
        theirs = peer.step(y, index, x, eta=float(option), variance_noise=z, use_clipped_model_output=True)
        sampler = DDIM(float(option))

    class Drawn(Noise):
        def like(self, x: Tensor) -> Tensor:
            return z.to(x)

    denoise: Denoiser = NetDenoiser(Constant(y), schedule, target)
    denoise = Clip(denoise) if clip else denoise
    t, s = (torch.tensor(k / 1000, dtype=torch.float64) for k in (index + 1, index))
    ours, _ = sampler.step(denoise, Frame(0, 2, t, x, denoise(x, t)), s, Drawn(image_seeds(0, 4)), None)
    # Where x0 is x / alpha with a small alpha, float32 data have only 1e-5 of that in common.
    scale = max(1.0, float(theirs.pred_original_sample.abs().max()))
    torch.testing.assert_close(ours, theirs.prev_sample, rtol=1e-5, atol=1e-5 * scale)
