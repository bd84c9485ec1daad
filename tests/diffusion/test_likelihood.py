"""Likelihoods against closed forms: oracles, linear-Gaussian chains, uniform noise; and the order of bound and flow."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
import torch
from torch import Tensor

from reverie.autodiff import color
from reverie.base.errors import UserError
from reverie.base.noise import Noise, image_seeds
from reverie.base.scalar import Time, expand
from reverie.data import load_data
from reverie.data.codec import Pixels, Standard
from reverie.diffusion.denoiser import Denoiser
from reverie.diffusion.likelihood import (
    DEQUANTISERS,
    bound,
    by_joint_chain,
    continuous_bound,
    dequantise,
    discretised,
    log_prob,
    mean_and_error,
)
from reverie.diffusion.likelihood.bound import denoising_kl, prior_kl, reconstruction_nll
from reverie.diffusion.likelihood.normal import log_normal
from reverie.diffusion.oracle import DatasetDenoiser, GaussianDenoiser, MixtureDenoiser
from reverie.diffusion.pair import Pair, pair_of
from reverie.diffusion.samplers import GRIDS
from reverie.diffusion.schedule import Cosine, Linear, LogLinear, Rectified, Schedule
from reverie.families.diffusion.model import Diffusion
from reverie.runs.run import Run

F = torch.float64


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, dtype=F, generator=torch.Generator().manual_seed(seed))


def streams(n: int, seed: int = 0) -> Noise:
    return Noise(image_seeds(seed, n))


def standard(schedule: Schedule, size: int) -> GaussianDenoiser:
    return GaussianDenoiser(schedule, torch.zeros(size, dtype=F), torch.eye(size, dtype=F))


def mixture(schedule: Schedule) -> MixtureDenoiser:
    first = GaussianDenoiser(schedule, torch.tensor([1.0, 0.2], dtype=F), 0.1 * torch.eye(2, dtype=F))
    covariance = torch.tensor([[0.3, 0.1], [0.1, 0.2]], dtype=F)
    return MixtureDenoiser(torch.tensor([1.0, 2.0]).to(F), [first, GaussianDenoiser(schedule, -first.mean, covariance)])


def points_of_the_mixture(n: int) -> Tensor:
    oracle = mixture(Linear())
    parts = [c.mean + draw(n, 2, seed=k) * c.values.sqrt() @ c.vectors.T for k, c in enumerate(oracle.components)]
    which = torch.rand(n, 1, generator=torch.Generator().manual_seed(2)) < 1 / 3
    return torch.where(which, parts[0], parts[1])


@pytest.mark.parametrize("variance", [1e-7, 1e-4, 1e-2, 1.0])
@pytest.mark.parametrize("levels", [2, 16, 256])
def test_a_discretised_normal_sums_to_one_over_its_levels(variance: float, levels: int) -> None:
    x = torch.linspace(-1, 1, levels, dtype=F)[:, None]
    for mean in (-1.4, -1.0, -0.123, 0.0, 0.77, 1.0, 1.1):
        total = discretised(x, torch.full_like(x, mean), variance, levels).exp().sum()
        assert float(total) == pytest.approx(1, abs=1e-9)


def test_a_discretised_normal_keeps_its_digits_far_out() -> None:
    x, std = torch.tensor([[0.5]], dtype=F) - 1 / 255 * 0.5, 1e-3  # the mass lies at the edge that is closer to the mean
    found = float(discretised(x, torch.zeros_like(x), std**2))
    edge = (float(x) - 1 / 255) / std
    assert found == pytest.approx(-(edge**2) / 2 - math.log(edge * math.sqrt(2 * math.pi)), rel=1e-6)


def test_log_probability_of_oracles_under_every_schedule(schedule: Schedule) -> None:
    x, end = 0.7 * draw(6, 2), schedule.t_min
    alpha = float(schedule(end)[0])
    oracle = mixture(schedule)
    found = log_prob(oracle, x, streams(6), prior=lambda x: oracle.log_prob(x, 1.0))
    expected = oracle.log_prob(alpha * x, end) + 2 * math.log(alpha)  # the density of x / alpha where sampling stops
    torch.testing.assert_close(found.nats, expected, rtol=0, atol=1e-3)
    covariance = torch.tensor([[0.8, 0.3, 0.1], [0.3, 0.5, 0.0], [0.1, 0.0, 0.3]], dtype=F)
    gaussian = GaussianDenoiser(schedule, torch.tensor([0.3, -0.4, 0.1], dtype=F), covariance)
    x = draw(6, 3)
    found = log_prob(gaussian, x, streams(6), prior=lambda x: gaussian.log_prob(x, 1.0))
    torch.testing.assert_close(found.nats, gaussian.log_prob(alpha * x, end) + 3 * math.log(alpha), rtol=0, atol=1e-3)
    assert found.divergence == "exact" and not found.error.any()


def test_log_probability_of_data_themselves_from_the_noise_that_sampling_starts_from() -> None:
    x = draw(6, 2)
    normal = standard(Rectified(), 2)
    torch.testing.assert_close(log_prob(normal, x, streams(6)).nats, normal.log_prob(x, 0.0), rtol=0, atol=1e-3)
    oracle = mixture(Rectified())
    x = 0.7 * x
    torch.testing.assert_close(log_prob(oracle, x, streams(6)).nats, oracle.log_prob(x, 0.0), rtol=0, atol=1e-3)


@pytest.mark.parametrize("kind", ["rademacher", "gaussian"])
def test_estimated_divergences_agree_with_the_exact_one_within_their_errors(kind: str) -> None:
    oracle, x = mixture(Linear()), 0.7 * draw(4, 2)
    exact = log_prob(oracle, x, streams(4), tolerance=1e-3)
    found = log_prob(oracle, x, streams(4), divergence_by=kind, probes=24, tolerance=1e-2)
    assert (found.error > 0).all() and (found.error < 1).all()
    assert ((found.nats - exact.nats).abs() < 4 * found.error + 2e-2).all()
    one = log_prob(oracle, x, streams(4), divergence_by=kind, tolerance=1e-1)
    assert one.error.isnan().all() and one.divergence == f"{kind}, 1 probe"
    plan = color(torch.ones(2, 2).numpy(), "diagonal")
    coloured = log_prob(oracle, x, streams(4), plan=plan, tolerance=1e-3)
    torch.testing.assert_close(coloured.nats, exact.nats, rtol=1e-9, atol=1e-9)


def test_signs_know_the_trace_of_a_diagonal_jacobian_exactly() -> None:
    oracle, x = standard(Cosine(), 20), draw(2, 20)
    found = log_prob(oracle, x, streams(2), probes=3, tolerance=1e-4)
    assert found.divergence == "rademacher, 3 probes"  # what is chosen above 16 dimensions
    assert found.error.max() < 1e-9
    torch.testing.assert_close(found.nats, oracle.log_prob(x, 0.0), rtol=0, atol=2e-2)


def test_log_probability_does_not_depend_on_the_batch_and_converges_with_the_tolerance() -> None:
    oracle, x = mixture(Linear()), 0.7 * draw(5, 2)
    truth = log_prob(oracle, x, streams(5), tolerance=1e-6).nats
    errors = []
    for tolerance in (1e-2, 1e-4):
        found = log_prob(oracle, x, streams(5), tolerance=tolerance)
        alone = log_prob(oracle, x[:2], streams(2), tolerance=tolerance)
        torch.testing.assert_close(found.nats[:2], alone.nats, rtol=1e-9, atol=1e-9)
        errors.append(float((found.nats - truth).abs().max()))
    assert errors[1] < 2e-3 and errors[1] < errors[0] / 5


def test_the_joint_chain_of_a_standard_normal_is_exact_on_every_path(schedule: Schedule) -> None:
    oracle, x = standard(schedule, 3), draw(5, 3)
    grid = GRIDS["uniform"]()(schedule, 12)
    found = by_joint_chain(oracle, x, grid, streams(5), variance="forward")
    torch.testing.assert_close(-found, log_normal(x, 0.0, 1.0), rtol=1e-7, atol=1e-6)


def test_the_posterior_form_of_a_standard_normal_is_exact_in_expectation(schedule: Schedule) -> None:
    # every term is a quadratic function of eps, whose mean over +-1 is that over N(0, 1)
    oracle, x = standard(schedule, 1), draw(5, 1)
    times = GRIDS["uniform"]()(schedule, 12).tolist()

    def expected(cost, *rest) -> Tensor:
        return sum(cost(oracle, Pair(x, torch.full_like(x, sign)), *rest) for sign in (-1.0, 1.0)) / 2

    total = prior_kl(schedule, x, 1.0) + expected(reconstruction_nll, times[-1], None, None)
    for t, s in pairwise(times):
        total = total + expected(denoising_kl, t, s, None, "forward")
    torch.testing.assert_close(-total, log_normal(x, 0.0, 1.0), rtol=1e-7, atol=1e-6)


@pytest.mark.parametrize("variance", ["posterior", "forward"])
@pytest.mark.parametrize("levels", [None, 256])
def test_both_derivations_give_one_number(variance: str, levels: int | None) -> None:
    oracle, n = mixture(Cosine(steps=10)), 4000
    x = points_of_the_mixture(n).clamp(-1, 1)
    x = x if levels is None else ((x + 1) * 127.5).round() / 127.5 - 1
    grid = GRIDS["uniform"]()(oracle.schedule, 10)  # the chain's own times
    apart = bound(oracle, x, grid, streams(n), variance=variance, levels=levels).nats
    joint = by_joint_chain(oracle, x, grid, streams(n, 1), variance=variance, levels=levels)
    (first, first_error), (second, second_error) = mean_and_error(apart), mean_and_error(joint)
    assert first_error is not None and second_error is not None
    assert first_error < 0.1 and second_error < 0.2
    assert abs(first - second) < 4 * math.hypot(first_error, second_error)


def test_the_continuous_bound_begins_where_there_is_some_signal() -> None:
    schedule, x = Rectified(), draw(4000, 2)
    found = continuous_bound(standard(schedule, 2), x, streams(4000), draws=4)
    assert found.log_snr.min() >= -13.8001
    start = schedule.invert(-13.8)
    assert float(start) < 1 and torch.allclose(found.prior, prior_kl(schedule, x, float(start)), rtol=1e-12, atol=0)
    assert found.prior.min() > 0


def test_the_continuous_bound_is_tight_for_an_optimal_denoiser_of_a_normal(schedule: Schedule) -> None:
    oracle, x = standard(schedule, 2), draw(2000, 2)
    found = continuous_bound(oracle, x, streams(2000), draws=64)
    gap, error = mean_and_error(found.nats + log_normal(x, 0.0, 1.0))
    assert error is not None and error < 0.05 and abs(gap) < 4 * error + 1e-3
    assert found.denoising.shape == found.log_snr.shape == (2000, 64) and found.denoising.min() >= 0


@pytest.mark.parametrize("variance", ["posterior", "forward"])
def test_the_bound_of_many_steps_tends_to_the_continuous_one(variance: str) -> None:
    oracle, n = mixture(Cosine()), 1000
    x = points_of_the_mixture(n)
    limit, error = mean_and_error(continuous_bound(oracle, x, streams(n), draws=64).nats)
    gaps = []
    for steps in (8, 64, 512):
        grid = GRIDS["log-snr"]()(oracle.schedule, steps)
        gaps.append(mean_and_error(bound(oracle, x, grid, streams(n, 1), variance=variance).nats)[0] - limit)
    assert error is not None and gaps[0] > gaps[1] > gaps[2] - 3 * error
    assert abs(gaps[2]) < gaps[1] / 4 + 3 * error and abs(gaps[2]) < 0.3
    truth = -mean_and_error(oracle.log_prob(x, 0.0))[0]
    assert abs(limit - truth) < 4 * error + 0.02


class Uniform(Denoiser):
    """The optimum for numbers that are uniform in [-wide, wide], each by itself: the mean of a truncated normal."""

    def __init__(self, schedule: Schedule, wide: float) -> None:
        super().__init__()
        self.schedule, self.wide = schedule, wide

    def forward(self, x: Tensor, t: Time, cond: Tensor | None = None) -> Pair:
        alpha, sigma = (expand(c, x) for c in self.schedule(t))
        middle, std = x / alpha, sigma / alpha
        a, b = (-self.wide - middle) / std, (self.wide - middle) / std
        low, high = ((-(c**2) / 2).exp() / math.sqrt(2 * math.pi) for c in (a, b))
        mass = (torch.erf(b / math.sqrt(2)) - torch.erf(a / math.sqrt(2))) / 2
        return pair_of(x, middle + std * (low - high) / mass, *self.schedule(t), "x0")


def test_uniform_noise_costs_eight_bits_by_the_flow() -> None:
    n, size = 200, 4
    codes = torch.randint(256, (n, size), generator=torch.Generator().manual_seed(0))
    model = Diffusion(Uniform(LogLinear(sigma_min=5e-4), 256 / 255), Pixels(), (size,))  # type: ignore[arg-type]
    bits, error = mean_and_error(model.log_prob(codes.to(F) / 255, None, image_seeds(0, n), tolerance=1e-4).bits)
    assert error is not None and abs(bits - 8) < 3 * error + 0.01 and abs(bits - 8) < 0.03


def test_uniform_noise_costs_eight_bits_by_the_bound() -> None:
    # the optimal denoiser of one pixel that takes 256 values equally often
    levels = torch.linspace(-1, 1, 256, dtype=F)[:, None]
    n = 4096
    found = continuous_bound(DatasetDenoiser(Rectified(), levels), levels.repeat(n // 256, 1), streams(n), draws=64, levels=256)
    bits, error = mean_and_error(found.bits)
    assert error is not None and error < 0.03 and abs(bits - 8) < 4 * error
    assert found.parts()["reconstruction"].mean() < 1e-2  # at sigma = 1e-3 the level is plain to see


def test_dequantised_levels_fill_their_boxes_evenly() -> None:
    x = torch.zeros(2000, 3, dtype=F)
    u = (dequantise(x, streams(2000)) * 255 + 1) / 2
    assert u.min() > 0 and u.max() < 1
    assert float(u.mean()) == pytest.approx(0.5, abs=0.02) and float(u.var()) == pytest.approx(1 / 12, rel=0.05)


def test_normal_dequantisation_is_exact_for_known_levels_and_uniform_for_even_boxes() -> None:
    # one pixel that takes a few of 16 levels, each as often as it is listed, and its optimal denoiser
    levels, n = 16, 80
    places = torch.tensor([0, 0, 0, 0, 1, 1, 5, 15])
    values = (2 * places / (levels - 1) - 1).to(F)[:, None]
    exact = {k: math.log(int((places == k).sum()) / len(places)) for k in places.tolist()}
    chosen = places[torch.arange(n) % len(places)]
    truth = torch.tensor([exact[int(k)] for k in chosen], dtype=F)
    denoiser, x = DatasetDenoiser(LogLinear(sigma_min=5e-3), values), (2 * chosen / (levels - 1) - 1).to(F)[:, None]
    found = {}
    for name, dequantiser in DEQUANTISERS.items():
        made = dequantiser(denoiser.schedule, x, streams(n), levels)
        assert (made.x - x).abs().max() <= 1 / (levels - 1)
        found[name] = log_prob(denoiser, made.x, streams(n), tolerance=1e-3, end=made.end).nats - made.log_q
    missed, error = mean_and_error(truth - found["normal"])
    assert error is not None and -3 * error < missed - 0.0027 < 0.01  # nats, of log(1 / 0.9973)
    assert found["uniform"].mean() < found["normal"].mean() - 1 < truth.mean()
    # the mass of q is 1
    made = DEQUANTISERS["normal"](LogLinear(sigma_min=5e-3), torch.zeros(20000, 1, dtype=F), streams(20000), levels)
    inside, error = mean_and_error(torch.exp(-made.log_q))
    assert error is not None and abs(inside - 2 / (levels - 1)) < 4 * error


def test_likelihoods_of_points_are_in_user_units() -> None:
    # data N(mean, std²) in user units are N(0, 1) in model units
    mean, std, n = [3.0, -1.0], [2.0, 0.1], 500
    model = Diffusion(standard(Rectified(), 2), Standard(mean, std), (2,))  # type: ignore[arg-type]
    x = torch.tensor(mean) + torch.tensor(std) * draw(n, 2)
    expected = torch.distributions.Normal(torch.tensor(mean).to(F), torch.tensor(std).to(F)).log_prob(x).sum(1)
    found = model.log_prob(x[:5], None, image_seeds(0, 5), tolerance=1e-5)
    torch.testing.assert_close(found.nats, expected[:5], rtol=0, atol=1e-3)
    for grid, variance in ((None, "posterior"), (GRIDS["uniform"]()(Rectified(), 10), "forward")):
        gap, error = mean_and_error(model.bound(x, None, image_seeds(0, n), grid, variance).nats + expected)
        assert error is not None and abs(gap) < 4 * error + 1e-3


def test_the_bound_of_a_trained_model_lies_below_its_log_probability(spiral_run: Run) -> None:
    n = 200
    x, _ = load_data("spiral", n, 12345).batch(torch.arange(n))
    model, seeds = spiral_run.model, image_seeds(0, n)
    exact = model.log_prob(x, None, seeds, tolerance=1e-4)
    integral = model.bound(x, None, seeds, draws=64)
    steps = model.bound(x, None, seeds, spiral_run.sampling({"steps": 100})[1], "forward")
    for found in (integral, steps):
        gap, error = mean_and_error(found.nats + exact.nats)
        assert error is not None and gap > -3 * error
    assert mean_and_error(exact.nats)[0] > -1.5  # and both mean something: the best normal gives about -2
    assert mean_and_error(integral.nats)[0] < 1.5


def test_invalid_options_raise_user_errors() -> None:
    oracle, x = standard(Linear(), 2), torch.zeros(3, 2)
    grid = GRIDS["uniform"]()(oracle.schedule, 4)
    bad = x.clone()
    bad[1, 0] = math.nan
    for call in (lambda x: bound(oracle, x, grid, streams(3)), lambda x: log_prob(oracle, x, streams(3))):
        with pytest.raises(UserError, match="NaN or infinity"):
            call(bad)
        with pytest.raises(UserError, match="at least one datum"):
            call(x[:0])
    with pytest.raises(UserError, match="not 256 evenly spaced levels"):
        bound(oracle, x + 0.0123, grid, streams(3), levels=256)
    with pytest.raises(UserError, match="at least 2"):
        bound(oracle, x, grid.flip(0), streams(3))
    with pytest.raises(UserError, match="unknown variance 'forwards'; did you mean 'forward'"):
        bound(oracle, x, grid, streams(3), variance="forwards")
    with pytest.raises(UserError, match="unknown divergence"):
        log_prob(oracle, x, streams(3), divergence_by="guess")
    with pytest.raises(UserError, match="tolerance"):
        log_prob(oracle, x, streams(3), tolerance=0)
    with pytest.raises(UserError, match="at least 1 draw"):
        continuous_bound(oracle, x, streams(3), draws=0)
    assert mean_and_error(torch.ones(1)) == (1.0, None)
