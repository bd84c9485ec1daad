from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from reverie.base.errors import UserError
from reverie.base.scalar import combine, exp, expand, expm1, log, sqrt
from reverie.diffusion.pair import TARGETS, Pair, pair_of, row
from reverie.diffusion.schedule import Schedule

SHAPES = st.lists(st.integers(1, 4), min_size=0, max_size=3)


def truth(shape: tuple[int, ...], seed: int = 0) -> Pair:
    random = torch.Generator().manual_seed(seed)
    return Pair(*(torch.randn(shape, generator=random, dtype=torch.float64) for _ in range(2)))


@pytest.mark.parametrize("target", TARGETS)
def test_targets_round_trip(target: str, schedule: Schedule) -> None:
    pair = truth((50, 3))
    t = torch.linspace(0.05, 0.95, 50, dtype=torch.float64)
    alpha, sigma = schedule(t)
    y = pair.mix(*row(target, alpha, sigma, 0.7))
    back = pair_of(pair.mix(alpha, sigma), y, alpha, sigma, target, 0.7)
    size = 1 + (sigma / alpha).max()  # decoding divides by alpha, so a rounding error of x grows by this
    torch.testing.assert_close(back.x0, pair.x0, rtol=0, atol=float(1e-14 * size + 1e-10))
    torch.testing.assert_close(back.eps, pair.eps, rtol=0, atol=1e-10)


@pytest.mark.parametrize("target", TARGETS)
@given(middle=SHAPES, batch=st.integers(1, 5), scalar=st.booleans(), double=st.booleans())
def test_any_shape_and_dtype(target: str, middle: list[int], batch: int, scalar: bool, double: bool) -> None:
    dtype = torch.float64 if double else torch.float32
    shape = (batch, *middle)
    pair = Pair(torch.ones(shape, dtype=dtype), torch.full(shape, -2.0, dtype=dtype))
    alpha = torch.full(() if scalar else (batch,), 0.6, dtype=torch.float64)
    sigma = torch.full_like(alpha, 0.8)
    x = pair.mix(alpha, sigma)
    back = pair_of(x, pair.mix(*row(target, alpha, sigma)), alpha, sigma, target)
    assert back.x0.shape == back.eps.shape == x.shape == shape
    assert back.x0.dtype == x.dtype == dtype
    torch.testing.assert_close(back.x0, pair.x0, rtol=1e-5, atol=1e-5)


def test_score_noise_and_data_from_one_another() -> None:
    pair, alpha, sigma = truth((8, 2)), torch.tensor(0.6).double(), torch.tensor(0.8).double()
    x = pair.mix(alpha, sigma)
    score = pair.mix(*row("score", alpha, sigma))
    torch.testing.assert_close(score, -pair.eps / 0.8)
    torch.testing.assert_close(pair_of(x, score, alpha, sigma, "score").x0, (x + 0.64 * score) / 0.6)  # Tweedie
    torch.testing.assert_close(pair_of(x, pair.x0, alpha, sigma, "x0").mix(*row("score", alpha, sigma)), score)


def test_edm_target_has_unit_variance_for_its_data() -> None:
    pair = truth((200_000,))
    pair = Pair(0.5 * pair.x0, pair.eps)
    for a in (0.1, 0.5, 0.95):
        alpha = torch.tensor(a, dtype=torch.float64)
        y = pair.mix(*row("edm", alpha, (1 - alpha**2).sqrt(), 0.5))
        assert float(y.std()) == pytest.approx(1, abs=0.01)


def test_expand_adds_trailing_axes_only() -> None:
    x = torch.zeros(3, 2, 5)
    batch = expand(torch.ones(3, dtype=torch.float64), x)
    assert isinstance(batch, torch.Tensor) and batch.shape == (3, 1, 1) and batch.dtype == torch.float32
    assert expand(0.5, x) == 0.5


@given(a=st.floats(1e-12, 50), b=st.floats(-5, 5))
def test_a_float_and_a_batch_follow_the_same_formulas(a: float, b: float) -> None:
    batch = torch.tensor([a], dtype=torch.float64)
    for f in (log, exp, expm1, sqrt):
        assert f(a) == pytest.approx(float(f(batch)), rel=1e-14)
    x, y = torch.ones(1, 3, dtype=torch.float64), torch.full((1, 3), 2.0, dtype=torch.float64)
    other = torch.tensor([b], dtype=torch.float64)
    for p, q in ((a, b), (batch, b), (a, other), (batch, other)):
        torch.testing.assert_close(combine(p, x, q, y), torch.full((1, 3), a + 2 * b, dtype=torch.float64))


def test_the_edges_of_log_and_sqrt() -> None:
    assert log(0.0) == -torch.inf == float(log(torch.zeros(1)))
    assert sqrt(-1e-17) == 0.0 == float(sqrt(torch.tensor([-1e-17])))


def test_an_unknown_target_names_the_close_one() -> None:
    with pytest.raises(UserError, match="did you mean 'score'"):
        row("scroe", torch.ones(()), torch.ones(()))
