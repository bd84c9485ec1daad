"""Variances of DDPM's steps against closed forms: the exact conditional of Gaussian data, and the order of the bounds."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from torch import Tensor, nn

from reverie.base.errors import UserError
from reverie.base.noise import Noise, image_seeds
from reverie.diffusion.denoiser import Clip, Denoiser, LowPrecision, NetDenoiser
from reverie.diffusion.error_curve import ErrorCurve, WithVariance, measure_error_curve
from reverie.diffusion.guidance import AutoGuided, ClassifierFree
from reverie.diffusion.known import Replace
from reverie.diffusion.likelihood import bound, by_joint_chain, mean_and_error
from reverie.diffusion.likelihood.bound import denoising_kl
from reverie.diffusion.loss import variance_loss
from reverie.diffusion.oracle import GaussianDenoiser, MixtureDenoiser
from reverie.diffusion.pair import Pair
from reverie.diffusion.process import transition
from reverie.diffusion.samplers import GRIDS, trajectory
from reverie.diffusion.samplers.onestep import DDPM, VARIANCES, step_variance
from reverie.diffusion.schedule import Cosine, Linear, LogLinear, Rectified, Schedule

F = torch.float64


def normal(schedule: Schedule, *variances: float) -> GaussianDenoiser:
    return GaussianDenoiser(schedule, torch.zeros(len(variances), dtype=F), torch.diag(torch.tensor(variances, dtype=F)))


def mixture(schedule: Schedule) -> MixtureDenoiser:
    first = GaussianDenoiser(schedule, torch.tensor([1.0, 0.2], dtype=F), 0.05 * torch.eye(2, dtype=F))
    covariance = torch.tensor([[0.3, 0.1], [0.1, 0.2]], dtype=F)
    return MixtureDenoiser(torch.tensor([1.0, 2.0], dtype=F), [first, GaussianDenoiser(schedule, -first.mean, covariance)])


def of_the_mixture(n: int) -> Tensor:
    random = torch.Generator().manual_seed(3)
    z = torch.randn(n, 2, dtype=F, generator=random)
    parts = [c.mean + z * c.values.sqrt() @ c.vectors.T for c in mixture(Linear()).components]
    return torch.where(torch.rand(n, 1, generator=random) < 1 / 3, *parts)


def truth(x0: Tensor, seed: int = 1) -> Pair:
    return Pair(x0, torch.randn(x0.shape, dtype=F, generator=torch.Generator().manual_seed(seed)))


@pytest.mark.parametrize("t, s", [(1.0, 0.7), (0.9, 0.3), (0.5, 0.4), (0.02, 0.01)])
def test_the_variance_of_a_step_is_that_of_the_data_under_every_schedule(schedule: Schedule, t: float, s: float) -> None:
    """For data N(0, c), x_s given x_t has the variance v_s - scale² v_s² / v_t, by Bayes' rule alone."""
    spreads = (0.01, 0.3, 1.0, 4.0)
    guess = normal(schedule, *spreads)(torch.zeros(1, 4, dtype=F), t)
    found = step_variance("learned", schedule, t, s, guess)
    scale, std = (float(c) for c in transition(schedule, s, t))
    alpha, sigma = (float(c) for c in schedule(s))
    v = alpha**2 * torch.tensor(spreads, dtype=F) + sigma**2
    torch.testing.assert_close(found, (v - scale**2 * v**2 / (scale**2 * v + std**2))[None], rtol=1e-6, atol=1e-12)
    assert float(found[0, 2]) == pytest.approx(float(VARIANCES["forward"](schedule, t, s)), rel=1e-6)
    sure = replace(guess, variance=torch.zeros(1, 4, dtype=F))
    assert float(step_variance("optimal", schedule, t, s, sure)[0, 0]) == pytest.approx(
        float(VARIANCES["posterior"](schedule, t, s)), rel=1e-9
    )


@pytest.mark.parametrize("schedule", [Rectified(), Linear(), LogLinear()], ids=["rectified", "linear", "log-linear"])
def test_the_mean_error_is_the_mean_variance_of_the_data(schedule: Schedule) -> None:
    spreads, n = torch.tensor([0.1, 0.5], dtype=F), 20_000
    x0 = spreads.sqrt() * torch.randn(n, 2, dtype=F, generator=torch.Generator().manual_seed(0))
    error = measure_error_curve(normal(schedule, 0.1, 0.5), x0, Noise(image_seeds(0, n)), levels=16)
    for t in (0.999, 0.6, 0.2, 0.01):
        alpha, sigma = (float(c) for c in schedule(t))
        exact = float((spreads * sigma**2 / (alpha**2 * spreads + sigma**2)).mean())
        assert float(error(schedule, t)) == pytest.approx(exact, rel=0.05)
    assert error(schedule, torch.tensor([0.2, 0.6], dtype=F)).shape == (2,)


def test_the_mean_error_is_what_the_norm_of_the_noise_says() -> None:
    """sigma² / alpha² (1 - E|eps_hat|² / D), arXiv:2201.06503, for an optimal denoiser."""
    oracle, x0 = mixture(Cosine()), of_the_mixture(40_000)
    error = measure_error_curve(oracle, x0, Noise(image_seeds(1, len(x0))), levels=24)
    for t in (0.3, 0.5, 0.7):
        alpha, sigma = (float(c) for c in Cosine()(t))
        eps = oracle(truth(x0, 7).mix(alpha, sigma), t).eps
        assert float(error(Cosine(), t)) == pytest.approx((sigma / alpha) ** 2 * (1 - float(eps.square().mean())), rel=0.05)


def test_the_error_is_cut_where_an_estimate_is_worse_than_none() -> None:
    wild = ErrorCurve(torch.tensor([-10.0, 10.0], dtype=F), torch.tensor([1e6, 1e6], dtype=F))
    for t in (0.2, 0.9):
        alpha, sigma = (float(c) for c in Cosine()(t))
        assert float(wild(Cosine(), t)) == pytest.approx((sigma / alpha) ** 2)
    assert math.isfinite(float(wild(Rectified(), 1.0)))  # alpha = 0, and no limit


@pytest.mark.parametrize("steps", [4, 8, 32])
def test_the_optimal_variance_has_a_lower_bound_than_the_fixed_ones_and_that_of_each_number_the_lowest(steps: int) -> None:
    oracle, x0 = mixture(Cosine()), of_the_mixture(4000)
    seeds = image_seeds(0, len(x0))
    grid = GRIDS["uniform"]()(Cosine(), steps + 1)
    with_variance = WithVariance(oracle, measure_error_curve(oracle, of_the_mixture(2000), Noise(image_seeds(5, 2000))))
    denoisers = {"posterior": oracle, "forward": oracle, "optimal": with_variance, "learned": oracle}
    nats = {name: bound(d, x0, grid, Noise(seeds), variance=name).nats for name, d in denoisers.items()}
    for better, worse in (("optimal", "posterior"), ("optimal", "forward"), ("learned", "optimal")):
        gain, error = mean_and_error(nats[worse] - nats[better])  # of the same noise
        assert error is not None and gain > 3 * error > 0, (better, worse, gain, error)
    exact = -mean_and_error(oracle.log_prob(x0, 0.0))[0]
    assert mean_and_error(nats["learned"])[0] > exact - 0.02


@pytest.mark.parametrize("variance", ["optimal", "learned"])
def test_both_derivations_give_one_number(variance: str) -> None:
    oracle, x0 = mixture(Cosine()), of_the_mixture(4000)
    with_variance: Denoiser = oracle
    if variance == "optimal":
        with_variance = WithVariance(oracle, measure_error_curve(oracle, of_the_mixture(2000), Noise(image_seeds(5, 2000))))
    grid, n = GRIDS["uniform"]()(Cosine(), 10), len(x0)
    first, first_error = mean_and_error(bound(with_variance, x0, grid, Noise(image_seeds(0, n)), variance=variance).nats)
    second, second_error = mean_and_error(by_joint_chain(with_variance, x0, grid, Noise(image_seeds(1, n)), variance=variance))
    assert first_error is not None and second_error is not None
    assert abs(first - second) < 4 * math.hypot(first_error, second_error) < 0.5


def test_few_steps_of_the_right_variance_draw_from_the_truth() -> None:
    """The mean and the variance of p(x_s | x_t) are exact for Gaussian data, so that three steps suffice."""
    schedule, n = Rectified(), 20_000
    oracle, grid = normal(schedule, 0.3, 0.3), GRIDS["uniform"](end=0.1)(schedule, 4)
    x0 = math.sqrt(0.3) * torch.randn(4000, 2, dtype=F, generator=torch.Generator().manual_seed(0))
    with_variance = WithVariance(oracle, measure_error_curve(oracle, x0, Noise(image_seeds(9, 4000))))
    alpha, sigma = (float(c) for c in schedule(0.1))
    exact, found = alpha**2 * 0.3 + sigma**2, {}
    for name, denoiser in (("posterior", oracle), ("forward", oracle), ("optimal", with_variance), ("learned", oracle)):
        noise = Noise(image_seeds(1, n))
        x = noise.like(torch.empty(n, 2, dtype=F))
        found[name] = float(deque(trajectory(denoiser, DDPM(name), x, grid, noise), maxlen=1)[0].x.var())
    assert found["learned"] == pytest.approx(exact, rel=0.02) and found["optimal"] == pytest.approx(exact, rel=0.03)
    assert found["posterior"] < 0.8 * exact and found["forward"] > 1.2 * exact


def test_the_loss_of_the_variance_is_what_the_chain_pays_and_least_at_the_mean_squared_error() -> None:
    schedule, x0 = Cosine(), of_the_mixture(50)
    oracle, pair, steps = mixture(schedule), truth(x0), 8
    times = GRIDS["uniform"]()(schedule, steps + 1).tolist()
    for t, s in pairwise(times):
        batch = torch.full((50,), t, dtype=F)
        guess = oracle(pair.mix(*schedule(batch)), batch)
        paid = denoising_kl(oracle, pair, t, s, None, "learned")
        torch.testing.assert_close(variance_loss(guess, schedule, pair, batch, steps), steps * paid / 2, rtol=1e-6, atol=1e-9)
    t = torch.rand(50, generator=torch.Generator().manual_seed(2)).to(F).clamp(min=0.05)
    x0_hat = nn.Parameter(x0 + 0.3)
    squared = (x0_hat.detach() - x0).square()
    variance = nn.Parameter(squared.clone())
    variance_loss(Pair(x0_hat, pair.eps, variance), schedule, pair, t, steps).sum().backward()
    assert x0_hat.grad is None and variance.grad is not None and float(variance.grad.abs().max()) < 1e-9
    for factor in (0.5, 2.0):
        other = variance_loss(Pair(x0_hat, pair.eps, factor * squared), schedule, pair, t, steps)
        assert (other > variance_loss(Pair(x0_hat, pair.eps, squared), schedule, pair, t, steps)).all()


class VarianceNet(nn.Module):
    """A network of two outputs for each number, that are zero and log 2 whatever it sees."""

    def forward(self, x: Tensor, level: Tensor, cond: Tensor | None = None) -> Tensor:
        return torch.stack([torch.zeros_like(x), torch.full_like(x, math.log(2))], 2).flatten(1, 2)


def test_a_network_learns_the_variance_relative_to_normal_data_and_wrappers_keep_it() -> None:
    net = NetDenoiser(VarianceNet(), Rectified(), "v", sigma_data=0.5, has_variance=True)
    x, t, cond = torch.randn(3, 2, 4, 4, generator=torch.Generator().manual_seed(0)), 0.4, torch.tensor([0, 1, 2])
    expected = 2 * 0.25 * 0.16 / (0.36 * 0.25 + 0.16)
    wrappers = [
        net, Clip(net), LowPrecision(net), ClassifierFree(net, 3.0, rescale=0.5), ClassifierFree(net, 1.0),
        AutoGuided(net, NetDenoiser(VarianceNet(), Rectified(), "v", has_variance=True), 1.5),
    ]  # fmt: skip
    for denoiser in wrappers:
        variance = denoiser(x, t, cond).variance
        assert variance is not None and variance.shape == x.shape
        torch.testing.assert_close(variance, torch.full_like(x, expected), rtol=1e-2, atol=0)
    known = torch.zeros(2, 4, 4, dtype=torch.bool)
    known[0] = True
    variance = Replace(net, torch.zeros(1, 2, 4, 4), known)(x, t, cond).variance
    assert variance is not None and not variance[:, 0].any() and (variance[:, 1] > 0).all()


def test_an_estimate_without_variance_is_refused() -> None:
    guess = Pair(torch.zeros(1, 2), torch.zeros(1, 2))
    with pytest.raises(UserError, match="--variance learned"):
        step_variance("learned", Cosine(), 0.5, 0.4, guess)
    with pytest.raises(UserError, match="optimal"):
        step_variance("optimal", Cosine(), 0.5, 0.4, guess)
    with pytest.raises(UserError, match="did you mean 'optimal'"):
        DDPM("optimum")  # type: ignore[arg-type]
