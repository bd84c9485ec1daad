"""Divergences against scipy, torch, quadrature and each other."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.integrate import quad
from scipy.spatial.distance import jensenshannon
from scipy.stats import entropy, norm
from torch import Tensor
from torch.distributions import MultivariateNormal, kl_divergence

from reverie.base.errors import ReverieWarning, UserError
from reverie.divergence import DIVERGENCES, discrete, gaussian, samples
from reverie.transport import gaussian_wasserstein, wasserstein_1d
from tests.points import same, weights

SEEDS = st.integers(0, 2**31 - 1)


def normal(d: int, seed: int) -> tuple[Tensor, Tensor]:
    random = torch.Generator().manual_seed(seed)
    root = torch.randn(d, d, dtype=torch.float64, generator=random)
    return torch.randn(d, dtype=torch.float64, generator=random), root @ root.T + 0.3 * torch.eye(d)


def draw(law: tuple[Tensor, Tensor], n: int, seed: int) -> Tensor:
    z = torch.randn(n, len(law[0]), dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    return law[0] + z @ torch.linalg.cholesky(law[1]).T


def renyi_by_hand(p: Tensor, q: Tensor, order: float) -> float:
    return float((p**order * q ** (1 - order)).sum().log() / (order - 1))


@given(n=st.integers(1, 10), seed=SEEDS, order=st.sampled_from([0.3, 0.5, 2.0, 5.0]))
def test_discrete_forms(n: int, seed: int, order: float) -> None:
    p, q = weights(n, seed), weights(n, seed + 1)
    expected = {
        "kl": entropy(p, q),
        "reverse-kl": entropy(q, p),
        "jensen-shannon": jensenshannon(p, q) ** 2,
        "total-variation": float((p - q).clamp(min=0).sum()),
        "renyi": renyi_by_hand(p, q, order),
    }
    for kind, value in expected.items():
        found = float(discrete(p, q, kind, order=order))
        assert found == pytest.approx(float(value), abs=1e-9)
        assert found >= -1e-12
        assert float(discrete(p, p, kind, order=order)) == pytest.approx(0, abs=1e-12)
    assert float(discrete(p, q, "renyi", order=1.0)) == pytest.approx(expected["kl"], abs=1e-12)
    assert float(discrete(p, q, "renyi", order=1 + 1e-6)) == pytest.approx(expected["kl"], abs=1e-4)
    assert float(discrete(p, p, "fisher")) == 0
    assert float(discrete(p, q, "total-variation")) ** 2 <= float(discrete(p, q)) / 2 + 1e-12  # Pinsker


def test_unequal_supports_are_infinite_and_the_note_names_transport() -> None:
    p, q = torch.tensor([0.5, 0.5, 0.0]), torch.tensor([0.0, 0.5, 0.5])
    for kind in ("kl", "reverse-kl", "fisher"):
        with pytest.warns(ReverieWarning, match="transport distances .* stay finite"):
            assert float(discrete(p, q, kind)) == math.inf
    with pytest.warns(ReverieWarning, match="infinite"):
        assert float(discrete(p, q, "renyi", order=2.0)) == math.inf
    assert float(discrete(p, q, "renyi", order=0.5)) == pytest.approx(2 * math.log(2), abs=1e-6)
    assert float(discrete(p, q, "total-variation")) == pytest.approx(0.5)
    apart = torch.tensor([1.0, 0.0]), torch.tensor([0.0, 1.0])
    assert float(discrete(*apart, "jensen-shannon")) == pytest.approx(math.log(2))
    place = torch.tensor([0.0, 1.0, 2.0])
    assert float(wasserstein_1d(place, place, p, q)) == pytest.approx(1.0)  # what the note says


def test_discrete_takes_batches_and_gradients() -> None:
    p, q = torch.stack([weights(4, k) for k in range(3)]), weights(4, 9)
    assert discrete(p, q).shape == (3,)
    for kind in DIVERGENCES:
        call: Callable[[Tensor], Tensor] = lambda p, kind=kind: discrete(p, q, kind)  # noqa: E731
        assert torch.autograd.gradcheck(call, (p.clone().requires_grad_(),))


@pytest.mark.parametrize("kind", DIVERGENCES)
def test_states_that_neither_visits_leave_value_and_gradient_alone(kind: str) -> None:
    p, q = (torch.tensor(w, dtype=torch.float64).requires_grad_() for w in ([0.2, 0.5, 0.3, 0.0], [0.4, 0.4, 0.2, 0.0]))
    value = discrete(p, q, kind)
    same(value.detach(), discrete(p[:3], q[:3], kind).detach(), 1e-12)
    assert all(slope.isfinite().all() for slope in torch.autograd.grad(value, (p, q)))


def test_a_ratio_beyond_the_range_of_numbers_is_not_infinite() -> None:
    p, q = torch.tensor([0.5, 0.5], dtype=torch.float64), torch.tensor([1e-310, 1.0], dtype=torch.float64)
    assert float(discrete(p, q)) == pytest.approx(math.log(0.5) + 0.5 * 310 * math.log(10), rel=1e-6)
    assert float(discrete(p, q, "fisher")) == pytest.approx(0.5 * (310 * math.log(10)) ** 2, rel=1e-6)


@pytest.mark.parametrize("d", [1, 2, 5])
def test_gaussian_kl_agrees_with_torch(d: int) -> None:
    p, q = normal(d, 0), normal(d, 1)
    there, back = (float(kl_divergence(MultivariateNormal(*u), MultivariateNormal(*v))) for u, v in ((p, q), (q, p)))
    assert float(gaussian(*p, *q)) == pytest.approx(there, rel=1e-10)
    assert float(gaussian(*p, *q, "reverse-kl")) == pytest.approx(back, rel=1e-10)
    assert float(gaussian(*p, *q, "renyi", order=1 - 1e-6)) == pytest.approx(there, rel=1e-4)


@pytest.mark.parametrize(("gap", "deviation"), [(0.0, 1.0), (0.7, 1.0), (0.0, 2.0), (1.3, 0.4), (9.0, 1.5)])
def test_gaussian_forms_on_a_line_are_their_integrals(gap: float, deviation: float) -> None:
    p, q = norm(0.3, 1.2), norm(0.3 + gap, deviation)
    laws = ([0.3], [[1.44]], [0.3 + gap], [[deviation**2]])

    def integral(f: Callable[[float, float], float]) -> float:
        return quad(lambda x: f(float(p.pdf(x)), float(q.pdf(x))), -15, 25, points=[0.3, 0.3 + gap], limit=500)[0]

    def term(a: float, m: float) -> float:
        return a * math.log(a / m) if a > 0 else 0.0

    def score_gap(x: float) -> float:
        return -(x - 0.3) / 1.44 + (x - 0.3 - gap) / deviation**2

    expected = {
        "total-variation": integral(lambda a, b: abs(a - b) / 2),
        "jensen-shannon": integral(lambda a, b: (term(a, (a + b) / 2) + term(b, (a + b) / 2)) / 2),
        "renyi": math.log(integral(lambda a, b: math.sqrt(a * b))) / -0.5,
        "fisher": quad(lambda x: float(p.pdf(x)) * score_gap(x) ** 2, -15, 15, limit=500)[0],
    }
    for kind, value in expected.items():
        assert float(gaussian(*laws, kind)) == pytest.approx(value, abs=1e-7), kind


def test_equal_covariances_reduce_to_the_line() -> None:
    _, covariance = normal(3, 0)
    gap = torch.tensor([1.0, -0.5, 0.2], dtype=torch.float64)
    along = float((gap @ torch.linalg.solve(covariance, gap)).sqrt())
    for kind in ("total-variation", "jensen-shannon"):
        found = float(gaussian(torch.zeros(3), covariance, gap, covariance, kind))
        assert found == pytest.approx(float(gaussian([0.0], [[1.0]], [along], [[1.0]], kind)), abs=1e-9)
    assert float(gaussian([0.0], [[1.0]], [along], [[1.0]], "total-variation")) == pytest.approx(2 * norm.cdf(along / 2) - 1)
    with pytest.raises(UserError, match="samples"):
        gaussian(torch.zeros(2), torch.eye(2), torch.zeros(2), 2 * torch.eye(2), "jensen-shannon")
    with pytest.raises(UserError, match="samples"):  # small, but not equal
        gaussian(torch.zeros(2), 1e-9 * torch.eye(2), torch.zeros(2), 2e-9 * torch.eye(2), "total-variation")


def test_a_flat_gaussian_shares_no_support_with_a_full_one() -> None:
    flat, full = (np.zeros(2), np.diag([1.0, 0.0])), (np.zeros(2), np.eye(2))
    with pytest.warns(ReverieWarning, match="infinite"):
        assert float(gaussian(*flat, *full)) == math.inf
    assert float(gaussian(*flat, *full, "total-variation")) == 1
    assert float(gaussian_wasserstein(*flat, *full)) == pytest.approx(1.0)
    with pytest.warns(ReverieWarning, match="light tails"):
        assert float(gaussian([0.0], [[4.0]], [0.0], [[1.0]], "renyi", order=2.0)) == math.inf  # the tails are too heavy
    with pytest.raises(UserError, match="both"):
        gaussian(*flat, *flat)


def test_discrete_fisher_tends_to_that_of_the_densities() -> None:
    truth = float(gaussian([0.0], [[1.0]], [0.5], [[2.0]], "fisher"))
    for count, tolerance in ((400, 2e-3), (1600, 2e-4)):
        x = torch.linspace(-9, 9, count, dtype=torch.float64)
        h = float(x[1] - x[0])
        p, q = (-(x**2) / 2).exp(), (-((x - 0.5) ** 2) / 4).exp()
        assert float(discrete(p, q, "fisher")) / h**2 == pytest.approx(truth, rel=tolerance)


LAWS = (torch.zeros(2), torch.eye(2)), (torch.tensor([0.8, 0.0]), 1.5 * torch.eye(2))
LAWS = tuple((m.double(), c.double()) for m, c in LAWS)


@pytest.mark.parametrize(("kind", "tolerance"), [("kl", 0.05), ("reverse-kl", 0.08), ("renyi", 0.05), ("fisher", 0.2)])
def test_estimates_from_samples_are_near_the_closed_form(kind: str, tolerance: float) -> None:
    truth = float(gaussian(*LAWS[0], *LAWS[1], kind))
    x, y = draw(LAWS[0], 6000, 0), draw(LAWS[1], 5000, 1)
    assert samples(x, y, kind, k=200 if kind == "fisher" else None) == pytest.approx(truth, abs=tolerance)


@pytest.mark.parametrize("kind", ["jensen-shannon", "total-variation"])
def test_bounded_estimates_are_near_the_integral(kind: str) -> None:
    x, y = draw(LAWS[0], 6000, 0), draw((LAWS[1][0], LAWS[0][1]), 4000, 1)
    truth = float(gaussian(*LAWS[0], LAWS[1][0], LAWS[0][1], kind))
    assert samples(x, y, kind) == pytest.approx(truth, abs=0.03)


@pytest.mark.filterwarnings("ignore:.*it is biased")  # 3.2 where 4 would be right
@pytest.mark.parametrize("kind", DIVERGENCES)
def test_estimates_are_near_zero_for_one_distribution_and_grow_with_distance(kind: str) -> None:
    x = draw(LAWS[0], 2000, 0)
    near, far = (samples(x, draw(LAWS[0], 1500, 1) + shift, kind) for shift in (0.0, 2.0))
    assert abs(near) < 0.15 and far > near + 0.3
    assert far <= {"jensen-shannon": math.log(2), "total-variation": 1.0}.get(kind, math.inf)


@pytest.mark.parametrize(("n", "m", "k"), [(100, 100, None), (100, 100, 9), (60, 90, 6), (37, 37, 4)])
def test_total_variation_of_one_distribution_is_zero_on_average(n: int, m: int, k: int | None) -> None:
    found = [samples(draw(LAWS[0], n, 2 * t), draw(LAWS[0], m, 2 * t + 1), "total-variation", k=k) for t in range(60)]
    assert abs(np.mean(found)) < 3 * np.std(found, ddof=1) / math.sqrt(len(found))


@pytest.mark.parametrize("kind", ["jensen-shannon", "total-variation"])
def test_estimates_by_votes_are_bounds_from_below(kind: str) -> None:
    truth = float(gaussian(*LAWS[0], LAWS[1][0], LAWS[0][1], kind))
    pairs = [(draw(LAWS[0], 400, 2 * t), draw((LAWS[1][0], LAWS[0][1]), 400, 2 * t + 1)) for t in range(12)]
    found = [samples(x, y, kind) for x, y in pairs]
    assert 0.6 * truth < np.mean(found) < truth + 2 * np.std(found, ddof=1) / math.sqrt(len(found))


@pytest.mark.parametrize(("kind", "low"), [("reverse-kl", 0.8), ("fisher", 0.8)])
def test_an_estimate_that_is_too_low_is_warned_of(kind: str, low: float) -> None:
    """The bias grows with the dimension; on a line there is little of it, and no warning."""
    place = torch.tensor([1.0, 0.0, 0.0], dtype=torch.float64)
    for d in (1, 3):
        p, q = (torch.zeros(d).double(), torch.eye(d).double()), (place[:d], 1.5 * torch.eye(d).double())
        truth, x, y = float(gaussian(*p, *q, kind)), draw(p, 2000, 0), draw(q, 2000, 1)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            found = samples(x, y, kind)
        assert bool(caught) == (d == 3) and (found < low * truth or d == 1)
    assert "biased" in str(caught[0].message)


EQUAL = torch.zeros(30, 2)
MISTAKES: dict[str, tuple[Callable[[], Any], str]] = {
    "unknown": (lambda: discrete([0.5, 0.5], [0.5, 0.5], "ks"), "unknown divergence"),
    "states": (lambda: discrete([0.5, 0.5], [1.0]), "p and q"),
    "batches": (lambda: discrete(np.ones((2, 4)), np.ones((3, 4))), "p and q"),
    "one neighbour": (lambda: samples(torch.rand(30, 1), torch.rand(30, 1), "fisher", k=1), "at least 2 neighbours"),
    "negative": (lambda: discrete([-0.5, 1.5], [0.5, 0.5]), "negative"),
    "empty": (lambda: discrete([0.0, 0.0], [0.5, 0.5]), "all weights p"),
    "order": (lambda: discrete([0.5, 0.5], [0.5, 0.5], "renyi", order=-1.0), "order"),
    "dimension": (lambda: gaussian([0.0], [[1.0]], [0.0, 0.0], np.eye(2)), "dimension"),
    "no covariance": (lambda: gaussian([0.0], [[-1.0]], [0.0], [[1.0]]), "negative eigenvalue"),
    "nan": (lambda: samples(torch.full((30, 1), math.nan), EQUAL[:, :1]), "NaN"),
    "sizes": (lambda: samples(EQUAL, EQUAL[:, :1]), "dimension"),
    "one sample": (lambda: samples(EQUAL[:1], EQUAL), "k = "),
    "repeated": (lambda: samples(EQUAL, EQUAL), "equal"),
    "too few neighbours": (lambda: samples(torch.rand(30, 1), torch.rand(30, 1), "renyi", order=9.0), "more than 8"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_one_clear_sentence(name: str) -> None:
    call, says = MISTAKES[name]
    with pytest.raises(UserError, match=says) as caught:
        call()
    assert "\n" not in str(caught.value)
