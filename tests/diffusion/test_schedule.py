from __future__ import annotations

import math
import warnings

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from reverie.base.errors import ReverieWarning, UserError
from reverie.diffusion.oracle import GaussianDenoiser
from reverie.diffusion.pair import Pair
from reverie.diffusion.process import posterior, transition
from reverie.diffusion.schedule import (
    Additive,
    Cosine,
    Linear,
    LogLinear,
    Rectified,
    ScaledLinear,
    Schedule,
    Sigmoid,
)
from reverie.diffusion.schedules import SCHEDULES

TIMES = torch.linspace(0.002, 0.998, 201, dtype=torch.float64)


@pytest.mark.parametrize("steps", [1000, 100, 40])
def test_linear_keeps_the_exact_chain_at_its_nodes(steps: int) -> None:
    betas = np.linspace(1e-4 * 1000 / steps, 0.02 * 1000 / steps, steps)
    alpha_bar = np.concatenate([[1.0], np.cumprod(1 - betas)])
    alpha, sigma = Linear(steps)(torch.arange(steps + 1, dtype=torch.float64) / steps)
    np.testing.assert_allclose(alpha.numpy() ** 2, alpha_bar, rtol=1e-12)
    np.testing.assert_allclose(sigma.numpy() ** 2, 1 - alpha_bar, rtol=1e-9, atol=1e-15)


def test_linear_without_scaling_takes_its_betas_as_they_stand() -> None:
    betas = np.linspace(1e-4, 0.02, 300)
    alpha, _ = Linear(300, scale=False)(torch.arange(301, dtype=torch.float64) / 300)
    np.testing.assert_allclose(alpha.numpy()[1:] ** 2, np.cumprod(1 - betas), rtol=1e-12)
    with pytest.warns(ReverieWarning, match="signal remains"):
        Linear(300, scale=False).warn_if_signal_remains()
    assert Linear(10, scale=False).steps == 10  # which scaled would be refused


@pytest.mark.parametrize("steps", [1000, 40])
def test_additive_is_the_chain_that_adds_noise(steps: int) -> None:
    betas, i = np.linspace(1e-4, 5.0, steps) * 1000 / steps, torch.arange(1, steps + 1, dtype=torch.float64)
    alpha, sigma = Additive(steps)(i / steps)
    assert (alpha == 1).all()
    np.testing.assert_allclose(sigma.numpy() ** 2, betas.cumsum(), rtol=1e-12)
    scale, std = transition(Additive(steps), (i - 1) / steps, i / steps)
    np.testing.assert_allclose(scale.numpy(), 1.0)
    np.testing.assert_allclose(std.numpy() ** 2, betas, rtol=1e-8)
    assert Additive(steps, scale=False)(1.0)[1] == pytest.approx(np.sqrt(np.linspace(1e-4, 5.0, steps).sum()))


def test_the_reverse_step_of_additive_noise_removes_less_than_was_added() -> None:
    """DDIM and the posterior's mean by their formulas; and of N(0, 1) they leave N(0, 1), which x - sqrt(beta) eps does not."""
    schedule, steps = Additive(), 1000
    x, x0 = torch.tensor([[1.3]], dtype=torch.float64), torch.tensor([[-0.2]], dtype=torch.float64)
    t, s = 0.6, 0.599
    sigma, before = schedule(t)[1], schedule(s)[1]
    pair = Pair(x0, (x - x0) / sigma)
    torch.testing.assert_close(pair.mix(*schedule(s)), x - (sigma - before) * pair.eps)
    beta = sigma**2 - before**2
    torch.testing.assert_close(posterior(schedule, x, x0, t, s)[0], x - beta / sigma * pair.eps)
    model = GaussianDenoiser(schedule, torch.zeros(1, dtype=torch.float64), torch.eye(1, dtype=torch.float64))
    ddim = written = torch.full((1, 1), (1 + schedule(1.0)[1] ** 2) ** 0.5, dtype=torch.float64)  # one standard deviation
    for k in range(steps, 1, -1):
        sigma, before = schedule(k / steps)[1], schedule((k - 1) / steps)[1]
        ddim = ddim - (sigma - before) * model(ddim, k / steps).eps
        written = written - (sigma**2 - before**2) ** 0.5 * model(written, k / steps).eps
    assert float(ddim) == pytest.approx(1.0, abs=0.05) and abs(float(written)) < 0.1


def test_known_ends() -> None:
    assert float(Linear()(1.0)[0]) ** 2 == pytest.approx(4.036e-5, rel=1e-3)  # alpha_bar_1000 of DDPM
    assert float(ScaledLinear()(1.0)[0]) ** 2 == pytest.approx(0.00466, rel=1e-2)  # of latent diffusion
    alpha, sigma = LogLinear(0.01, 50.0)(torch.tensor([0.0, 0.5, 1.0]))
    torch.testing.assert_close(sigma, torch.tensor([0.01, math.sqrt(0.5), 50.0], dtype=torch.float64))
    assert (alpha == 1).all()
    assert [float(c) for c in Rectified()(0.25)] == [0.75, 0.25]


def test_cosine_and_sigmoid_follow_their_formulas_before_the_cap() -> None:
    t = torch.tensor([0.1, 0.5, 0.9], dtype=torch.float64)
    f = lambda u: torch.cos((u + 0.008) / 1.008 * torch.pi / 2) ** 2  # noqa: E731
    torch.testing.assert_close(Cosine()(t)[0] ** 2, f(t) / f(torch.zeros(1, dtype=torch.float64)), rtol=1e-9, atol=0)
    g = lambda u: torch.sigmoid(-(-3 + 6 * u))  # noqa: E731
    end, begin = g(torch.tensor(1.0)).double(), g(torch.tensor(0.0)).double()
    torch.testing.assert_close(Sigmoid()(t)[0] ** 2, (g(t) - end) / (begin - end), rtol=1e-6, atol=0)


def test_tables_preserve_variance_and_stay_float64() -> None:
    for make in (Linear, Cosine, Sigmoid, ScaledLinear):
        alpha, sigma = make()(TIMES.float())
        assert alpha.dtype == sigma.dtype == torch.float64
        torch.testing.assert_close(alpha**2 + sigma**2, torch.ones_like(alpha), rtol=0, atol=1e-14)


def test_log_snr_falls_and_inverts(schedule: Schedule) -> None:
    log_snr = schedule.log_snr(TIMES)
    assert (log_snr.diff() < 0).all()
    torch.testing.assert_close(schedule.invert(log_snr), TIMES, rtol=0, atol=1e-9)
    ends = schedule.invert(torch.tensor([1e9, -1e9], dtype=torch.float64))
    torch.testing.assert_close(ends, torch.tensor([0.0, 1.0], dtype=torch.float64), rtol=0, atol=1e-15)


def test_a_time_is_inverted_the_same_alone_and_among_many(schedule: Schedule) -> None:
    times = torch.linspace(0.002, 0.998, 5001, dtype=torch.float64)
    log_snr = schedule.log_snr(times)
    many = schedule.invert(log_snr)
    torch.testing.assert_close(many, times, rtol=0, atol=1e-9)
    for part in (slice(0, 5001, 500), slice(0, 300)):
        torch.testing.assert_close(schedule.invert(log_snr[part]), many[part], rtol=0, atol=1e-15)
    assert schedule.invert(float(log_snr[7])) == pytest.approx(float(many[7]), abs=1e-15)
    assert len(schedule.invert(log_snr[:0])) == 0


def test_rates_are_the_slopes(schedule: Schedule) -> None:
    h = 1e-7
    for rate, above, below in zip(schedule.rates(TIMES), schedule(TIMES + h), schedule(TIMES - h), strict=True):
        torch.testing.assert_close(rate, (above - below) / (2 * h), rtol=2e-4, atol=1e-6)


@given(t=st.floats(0, 1))
@pytest.mark.parametrize("name", SCHEDULES)
def test_a_number_a_scalar_and_a_batch_agree(name: str, t: float) -> None:
    made = SCHEDULES[name](**({"steps": 50} if hasattr(SCHEDULES[name](), "steps") else {}))
    one = torch.tensor(t, dtype=torch.float64)
    for a, b, c in zip(made(t), made(one), made(one.expand(3)), strict=True):
        assert isinstance(a, float) and a == b and c.shape == (3,)
        assert a == pytest.approx(float(c[1]), rel=1e-13, abs=1e-300)
        assert math.isfinite(a) and a >= 0


@pytest.mark.parametrize(
    "make",
    [
        lambda: Linear(20),
        lambda: Linear(1000, beta_start=0.0),
        lambda: Linear(1000, beta_end=1.5),
        lambda: Linear(1),
        lambda: Linear(beta_end=float("nan")),
        lambda: ScaledLinear(10),
        lambda: ScaledLinear(beta_start=-1),
        lambda: Cosine(shift=-1),
        lambda: Sigmoid(start=3, end=-3),
        lambda: Additive(1),
        lambda: Additive(beta_start=0.0),
        lambda: Additive(beta_end=float("nan")),
        lambda: LogLinear(0.1, 0.01),
        lambda: LogLinear(0.0, 1.0),
    ],
)
def test_impossible_schedules_are_refused(make) -> None:
    with pytest.raises(UserError):
        make()


def test_a_schedule_that_keeps_signal_warns_with_the_figure() -> None:
    documents = Linear(40, beta_start=8e-6, beta_end=9e-5)
    assert float(documents(1.0)[0]) == pytest.approx(0.976, abs=5e-4)
    with pytest.warns(ReverieWarning, match=r"alpha = 0\.976"):
        documents.warn_if_signal_remains()
    with pytest.warns(ReverieWarning, match="signal remains"):
        ScaledLinear().warn_if_signal_remains()


@pytest.mark.parametrize("name", [name for name in SCHEDULES if name != "scaled-linear"])
def test_the_other_defaults_end_in_noise(name: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        SCHEDULES[name]().warn_if_signal_remains()
