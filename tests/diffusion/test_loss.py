from __future__ import annotations

import math
from itertools import pairwise

import pytest
import torch

from reverie.base.errors import UserError
from reverie.diffusion.denoiser import Denoiser
from reverie.diffusion.likelihood.bound import denoising_kl
from reverie.diffusion.loss import LOSSES, TIMES, WEIGHTS, Absolute, Huber, Measure, Squared, draw_times, loss, weight_of
from reverie.diffusion.oracle import GaussianDenoiser
from reverie.diffusion.pair import TARGETS, Pair, pair_of
from reverie.diffusion.samplers import GRIDS
from reverie.diffusion.schedule import Cosine, Linear, Rectified, Schedule


def unit_gaussian(schedule: Schedule, d: int = 3) -> GaussianDenoiser:
    return GaussianDenoiser(schedule, torch.zeros(d, dtype=torch.float64), torch.eye(d, dtype=torch.float64))


def truth(n: int, d: int = 3) -> Pair:
    random = torch.Generator().manual_seed(0)
    return Pair(*(torch.randn(n, d, generator=random, dtype=torch.float64) for _ in range(2)))


@pytest.mark.parametrize("target", TARGETS)
def test_a_weight_means_the_same_for_every_target(target: str, schedule: Schedule) -> None:
    model, pair = unit_gaussian(schedule), truth(40)
    t = torch.linspace(0.05, 0.95, 40, dtype=torch.float64)
    simple = loss(model, pair, t, target="eps", weight="uniform")
    torch.testing.assert_close(loss(model, pair, t, target=target, weight="snr"), simple)
    alpha, sigma = schedule(t)
    x0_error = (model(pair.mix(alpha, sigma), t).x0 - pair.x0).square().mean(1)
    snr = (alpha / sigma) ** 2
    torch.testing.assert_close(loss(model, pair, t, target=target, weight="min-snr"), snr.clamp(max=5) * x0_error)
    assert loss(model, pair, t, target=target, weight="vlb").shape == (40,)


@pytest.mark.parametrize("measure", [Squared(), Absolute(), Huber(0.3)], ids=LOSSES)
def test_a_measure_is_taken_of_the_error_in_the_units_of_the_weight(measure: Measure) -> None:
    model, pair = unit_gaussian(Cosine()), truth(40)
    t = torch.linspace(0.05, 0.95, 40, dtype=torch.float64)
    x = pair.mix(*Cosine()(t))
    error = model(x, t).eps - pair.eps
    size = error.abs()
    bent = torch.where(size <= 0.3, size**2 / 2, 0.3 * (size - 0.15))
    wanted = {Squared: size**2, Absolute: size, Huber: bent}[type(measure)].mean(1)
    torch.testing.assert_close(loss(model, pair, t, measure=measure), wanted)
    for target in TARGETS:
        torch.testing.assert_close(loss(model, pair, t, target=target, weight="snr", measure=measure), wanted)


def test_what_is_best_under_a_measure() -> None:
    """Of lopsided data: the mean for squares, the median for absolute errors, between the two for Huber's."""
    x = torch.distributions.Exponential(torch.tensor(1.0, dtype=torch.float64)).icdf((torch.arange(4000) + 0.5).double() / 4000)
    guesses = torch.linspace(0.5, 1.2, 701, dtype=torch.float64)
    best = {name: float(guesses[measure()(x - guesses[:, None]).mean(1).argmin()]) for name, measure in LOSSES.items()}
    assert best["mse"] == pytest.approx(1.0, abs=2e-3) and best["mae"] == pytest.approx(math.log(2), abs=2e-3)
    assert best["mae"] < best["huber"] < best["mse"]
    for delta in (0.0, -1.0, math.nan):
        with pytest.raises(UserError, match="delta"):
            Huber(delta)


@pytest.mark.parametrize("weight", WEIGHTS)
def test_every_weight_is_minimised_by_the_optimum(weight: str) -> None:
    class Shifted(Denoiser):
        def __init__(self, inner: GaussianDenoiser, by: float) -> None:
            super().__init__()
            self.inner, self.schedule, self.by = inner, inner.schedule, by

        def forward(self, x, t, cond=None):
            return pair_of(x, self.inner(x, t).x0 * (1 + self.by), *self.schedule(t), "x0")

    optimum, pair = unit_gaussian(Cosine()), truth(20_000)
    t = draw_times("stratified", Cosine(), 20_000, torch.Generator().manual_seed(1))
    best = loss(optimum, pair, t, weight=weight).mean()
    for by in (-0.2, 0.2):
        assert loss(Shifted(optimum, by), pair, t, weight=weight).mean() > best


@pytest.mark.parametrize("schedule", [Linear(), Cosine()], ids=["linear", "cosine"])
def test_vlb_is_the_continuous_bound_in_nats(schedule: Schedule) -> None:
    """For N(0, 1) data the error of x0 is 1 / (1 + snr), so the integral is half of log((1 + snr_max) / (1 + snr_min))."""
    n = 200_000
    t = draw_times("stratified", schedule, n, torch.Generator().manual_seed(2))
    values = loss(unit_gaussian(schedule, 1), truth(n, 1), t, weight="vlb") * (1 - schedule.t_min)
    high, low = math.exp(schedule.log_snr(schedule.t_min)), math.exp(schedule.log_snr(1.0))
    exact = 0.5 * math.log((1 + high) / (1 + low))
    assert float(values.mean()) == pytest.approx(exact, abs=3 * float(values.std()) / math.sqrt(n))


@pytest.mark.parametrize("target", ["x0", "v", "flow"])
@pytest.mark.parametrize("schedule", [Rectified(), Cosine(), Linear()], ids=["rectified", "cosine", "linear"])
def test_the_loss_of_some_steps_is_the_denoising_part_of_their_bound(schedule: Schedule, target: str) -> None:
    steps, pair = 6, truth(10)
    t = draw_times("stratified", schedule, 60, torch.Generator().manual_seed(0), steps)
    assert sorted((t * 1e6).round().unique(return_counts=True)[1].tolist()) == [10] * steps
    grid = GRIDS["uniform"]()(schedule, steps + 1)
    model, many = unit_gaussian(schedule), Pair(pair.x0.repeat(steps, 1), pair.eps.repeat(steps, 1))
    lost = loss(model, many, grid[:-1].repeat_interleave(10), target=target, weight=f"vlb:steps={steps}")
    paid = [denoising_kl(model, pair, t, s, None, "posterior") for t, s in pairwise(grid.tolist())]
    torch.testing.assert_close(3 * lost.view(steps, 10).mean(0), torch.stack(paid).sum(0))


def test_the_bound_of_some_steps_falls_to_that_of_continuous_time() -> None:
    """For N(0, 1) data the error of x0 is 1 / (1 + snr), so that both are sums without chance."""
    schedule, costs = Cosine(), []
    for steps in (2, 8, 32, 128, 512):
        t = GRIDS["uniform"]()(schedule, steps + 1)[:-1]
        error = 1 / (1 + torch.as_tensor(schedule.log_snr(t)).exp())
        costs.append(float((weight_of(f"vlb:steps={steps}", schedule, t, "x0") * error).mean()))
    high, low = math.exp(schedule.log_snr(schedule.t_min)), math.exp(schedule.log_snr(1.0))
    exact = 0.5 * math.log((1 + high) / (1 + low))
    assert costs == sorted(costs, reverse=True) and costs[-1] > exact
    gaps = [cost - exact for cost in costs]
    assert gaps[-1] < 0.5 * gaps[-2]


def test_a_mixed_weight_lies_between_the_bound_and_one_that_leaves_fine_detail_out() -> None:
    schedule, t = Cosine(), torch.linspace(0.01, 0.99, 50, dtype=torch.float64)
    vlb, half, none = (weight_of(w, schedule, t, "v") for w in ("vlb", "mixed:share=0.5", "mixed:share=0"))
    torch.testing.assert_close(weight_of("mixed:share=1", schedule, t, "v"), vlb)
    torch.testing.assert_close(half, (vlb + none) / 2)
    ratio = half / vlb  # falls with the log-SNR, so it rises with t
    assert (ratio.diff() > 0).all() and 0.5 < float(ratio[0]) < 0.51 and float(ratio[-1]) > 0.99
    torch.testing.assert_close(weight_of("mixed", schedule, t, "v"), half)


@pytest.mark.parametrize("weight", ["mixed:share=1.5", "vlb:steps=-1", "vlb:step=3", "uniform:steps=3"])
def test_options_of_weights_are_checked(weight: str) -> None:
    with pytest.raises(UserError, match="weight"):
        weight_of(weight, Cosine(), torch.tensor([0.5]).double(), "v")


@pytest.mark.parametrize("name", TIMES)
def test_times_stay_in_range_and_are_seeded(name: str) -> None:
    t = draw_times(name, Linear(), 1000, torch.Generator().manual_seed(3))
    assert t.dtype == torch.float64 and t.shape == (1000,)
    assert float(t.min()) >= 0.001 and float(t.max()) <= 1
    assert torch.equal(t, draw_times(name, Linear(), 1000, torch.Generator().manual_seed(3)))
    assert float(t.mean()) == pytest.approx(0.5, abs=0.03)


def test_stratified_times_fill_every_stratum() -> None:
    t = TIMES["stratified"](64, torch.Generator().manual_seed(4))
    assert sorted((t * 64).long().tolist()) == list(range(64))


def test_logit_normal_times_crowd_in_the_middle() -> None:
    t = TIMES["logit-normal"](20_000, torch.Generator().manual_seed(5))
    assert float(((t > 0.25) & (t < 0.75)).double().mean()) == pytest.approx(0.728, abs=0.01)  # P(|z| < log 3)


@pytest.mark.parametrize(("weight", "times"), [("unifrm", "uniform"), ("uniform", "stratifed")])
def test_unknown_names_are_refused(weight: str, times: str) -> None:
    with pytest.raises(UserError, match="did you mean"):
        t = draw_times(times, Linear(), 4, torch.Generator())
        loss(unit_gaussian(Linear()), truth(4), t, weight=weight)
