"""Learned schedules: they fall whatever was learned, their gradients are right, and the bound ignores their course."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from reverie.base.errors import UserError
from reverie.base.noise import Noise, image_seeds
from reverie.data.codec import Standard
from reverie.diffusion.learned import Learned
from reverie.diffusion.likelihood import continuous_bound, mean_and_error
from reverie.diffusion.loss import draw_times, weight_of
from reverie.diffusion.oracle import GaussianDenoiser
from reverie.diffusion.pair import Pair
from reverie.families.diffusion.likelihood_training import end_costs
from reverie.families.diffusion.model import Diffusion

F = torch.float64
TIMES = torch.linspace(0, 1, 101, dtype=F)


def bent(seed: int, **options: float) -> Learned:
    schedule, random = Learned(bends=12, **options), torch.Generator().manual_seed(seed)  # type: ignore[arg-type]
    with torch.no_grad():
        for p in (schedule.raw_weights, schedule.raw_slopes, schedule.centres):
            p += 2 * torch.randn(p.shape, generator=random)
    return schedule


@pytest.mark.parametrize("seed", range(5))
def test_the_log_snr_falls_between_the_ends_and_its_rate_is_its_derivative(seed: int) -> None:
    schedule = bent(seed, first=9.0, last=-5.0)
    log_snr, rate = schedule.log_snr_and_rate(TIMES)
    assert (log_snr.diff() < 0).all() and float(log_snr[0]) == pytest.approx(9) and float(log_snr[-1]) == pytest.approx(-5)
    h = 1e-6
    found = (schedule.log_snr_and_rate(TIMES + h)[0] - schedule.log_snr_and_rate(TIMES - h)[0]) / (2 * h)
    torch.testing.assert_close(rate, found, rtol=1e-5, atol=1e-6)
    for mine, by_differences in zip(
        schedule.rates(TIMES), zip(schedule(TIMES + h), schedule(TIMES - h), strict=True), strict=True
    ):
        after, before = map(torch.as_tensor, by_differences)
        torch.testing.assert_close(torch.as_tensor(mine), (after - before) / (2 * h), rtol=1e-5, atol=1e-6)


def test_the_course_gets_the_gradient_of_the_squared_loss_and_the_ends_that_of_the_loss() -> None:
    schedule, t = bent(0), torch.rand(7, dtype=F, generator=torch.Generator().manual_seed(1))

    def lost() -> Tensor:
        alpha, sigma = (torch.as_tensor(c) for c in schedule(t))
        return alpha**2 + 3 * sigma + torch.as_tensor(schedule.rates(t)[1])

    def gradients(total: Tensor) -> dict[str, Tensor]:
        schedule.zero_grad()
        total.backward()
        return {name: p.grad.clone() for name, p in schedule.named_parameters() if p.grad is not None}

    schedule.minimize_variance(True)
    found = lost()
    schedule.record_loss(found)
    mixed = gradients(found.sum())
    schedule.minimize_variance(False)
    plain, squared = gradients(lost().sum()), gradients(lost().square().sum())
    torch.testing.assert_close(mixed["moves"], plain["moves"])
    for name in ("raw_weights", "raw_slopes", "centres"):
        torch.testing.assert_close(mixed[name], squared[name])


@pytest.mark.parametrize("levels", [None, 17])
def test_the_gradients_of_the_ends_agree_with_differences(levels: int | None) -> None:
    schedule, random = Learned(first=6.0, last=-4.0).double(), torch.Generator().manual_seed(0)
    x0 = torch.randint(0, 17, (5, 1, 4, 4), generator=random).to(F) / 8 - 1
    truth = Pair(x0, torch.randn(x0.shape, generator=random, dtype=F))
    end_costs(schedule, truth, levels).sum().backward()
    moves, sides = schedule.moves, []
    for k in (0, 1):
        for h in (1e-5, -1e-5):
            with torch.no_grad():
                moves[k] += h
                sides.append(float(end_costs(schedule, truth, levels).sum()))
                moves[k] -= h
    assert moves.grad is not None
    by_differences = [(sides[0] - sides[1]) / 2e-5, (sides[2] - sides[3]) / 2e-5]
    assert moves.grad.tolist() == pytest.approx(by_differences, rel=1e-5)


def test_the_ends_stay_near_where_they_began() -> None:
    schedule = Learned(first=8.0, last=-7.0)
    with torch.no_grad():
        schedule.moves.copy_(torch.tensor([1e4, -1e4]))
    assert [float(end) for end in schedule.ends()] == pytest.approx([14.0, -13.0])
    assert float(schedule.log_snr(0.0)) == pytest.approx(14.0) and float(schedule.log_snr(1.0)) == pytest.approx(-13.0)


def test_the_bound_of_some_steps_trains_the_whole_schedule() -> None:
    """Ends and course get the gradient of prior, reconstruction and the T-step denoising cost, as differences say."""
    schedule = bent(1, first=6.0, last=-5.0).double()
    oracle = GaussianDenoiser(schedule, torch.zeros(2, dtype=F), torch.diag(torch.tensor([0.2, 0.5], dtype=F)))
    oracle.target, oracle.sigma_data, oracle.has_variance = "v", 1.0, False  # as a network has them
    model = Diffusion(oracle, Standard([0.0, 0.0], [1.0, 1.0]), (2,), "vlb:steps=4").train()  # type: ignore[arg-type]
    random = torch.Generator().manual_seed(4)
    truth = Pair(*(torch.randn(40, 2, generator=random, dtype=F) for _ in range(2)))
    t = draw_times("stratified", schedule, 40, random, 4)

    def lost() -> torch.Tensor:
        return model.loss_at(truth, t, None).sum()

    lost().backward()
    for p in schedule.parameters():
        flat, grad = p.data.view(-1), p.grad
        assert grad is not None
        for k in range(0, len(flat), 13):
            sides = []
            for h in (1e-5, -1e-5):
                flat[k] += h
                sides.append(float(lost().detach()))
                flat[k] -= h
            assert float(grad.view(-1)[k]) == pytest.approx((sides[0] - sides[1]) / 2e-5, rel=1e-5, abs=1e-7)


def test_the_bound_of_few_steps_learns_a_course_that_costs_less() -> None:
    """Of N(0, c) data, whose optimal error is c sigma² / (alpha² c + sigma²), so that the cost of a schedule is a plain sum."""
    schedule, spreads = Learned(first=6.0, last=-5.0, bends=16), torch.tensor([0.01, 1.0], dtype=F)
    t = torch.arange(1, 9, dtype=F) / 8

    def cost() -> Tensor:
        alpha, sigma = (torch.as_tensor(c)[:, None] for c in schedule(t))
        error = (spreads * sigma**2 / (alpha**2 * spreads + sigma**2)).mean(1)
        return (weight_of("vlb:steps=8", schedule, t, "x0") * error).mean()

    optimizer = torch.optim.Adam([schedule.raw_weights, schedule.raw_slopes, schedule.centres], lr=0.1)
    before = float(cost().detach())
    for _ in range(150):
        optimizer.zero_grad()
        cost().backward()
        optimizer.step()
    limit = (torch.log1p(spreads * math.exp(6)) - torch.log1p(spreads * math.exp(-5))).mean() / 2  # of endlessly many steps
    assert float(limit) < float(cost().detach()) < before - 0.1 * (before - float(limit))


def test_the_bound_in_continuous_time_does_not_depend_on_the_course() -> None:
    x0 = torch.randn(4000, 2, dtype=F, generator=torch.Generator().manual_seed(3))
    truth, found = math.log(2 * math.pi * math.e), []
    for schedule in (Learned(first=8.0, last=-7.0, bends=0), bent(1, first=8.0, last=-7.0), bent(2, first=8.0, last=-7.0)):
        oracle = GaussianDenoiser(schedule, torch.zeros(2, dtype=F), torch.eye(2, dtype=F))
        nats = continuous_bound(oracle, x0, Noise(image_seeds(0, len(x0))), draws=8).nats
        found.append(mean_and_error(nats))
        assert abs(found[-1][0] - truth) < 4 * (found[-1][1] or 0)
    for value, error in found[1:]:
        assert abs(value - found[0][0]) < 4 * math.hypot(error or 0, found[0][1] or 0)


def test_ends_in_the_wrong_order_are_refused() -> None:
    with pytest.raises(UserError, match="first log-SNR above the last"):
        Learned(first=-3.0, last=2.0)
