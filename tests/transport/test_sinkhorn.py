"""Entropic transport against POT, geomloss, closed forms and finite differences."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import ot
import pytest
import torch
from geomloss import SamplesLoss
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from reverie.base.errors import ReverieWarning, UserError
from reverie.transport import (
    COSTS,
    Problem,
    between,
    exact,
    gaussian_wasserstein,
    problem_from_costs,
    sinkhorn,
    sinkhorn_divergence,
    sliced_wasserstein,
    softmin,
    wasserstein_1d,
)
from tests.points import cloud, generator, same, weights

SIZES = st.integers(1, 12)
SEEDS = st.integers(0, 2**31 - 1)


@settings(max_examples=6)
@given(n=SIZES, m=SIZES, seed=SEEDS, epsilon=st.sampled_from([1.0, 0.1]))
def test_sinkhorn_agrees_with_pot_and_its_marginals_hold(n: int, m: int, seed: int, epsilon: float) -> None:
    x, y, a, b = cloud(n, 3, seed), cloud(m, 3, seed + 1, 1.5), weights(n, seed + 2), weights(m, seed + 3)
    found = sinkhorn(between(x, y, a, b), epsilon, tolerance=1e-10)
    plan = found.plan()
    same(plan.sum(1), a, 1e-12)
    assert (plan.sum(0) - b).abs().sum() == pytest.approx(found.marginal_error, abs=1e-12)
    peer = ot.sinkhorn(a.numpy(), b.numpy(), found.problem.matrix().numpy(), float(found.epsilon), "sinkhorn_log", 5_000, 1e-10)
    same(plan, torch.from_numpy(peer), 1e-6)
    same(found.cost(), (plan * found.problem.matrix()).sum(), 1e-9)
    information = (plan * (plan / (a[:, None] * b)).log()).sum()
    same(found.value, found.cost() + found.epsilon * information, 1e-8)


@pytest.mark.parametrize(("cost", "p"), [("squared", 2), ("euclidean", 1)])
def test_value_and_divergence_agree_with_geomloss(cost: str, p: int) -> None:
    x, y, a, b = cloud(60, 2, 0), cloud(50, 2, 1, 0.7, 1.0), weights(60, 2), weights(50, 3)
    blur = 0.5
    scale = 2.0 if p == 2 else 1.0  # geomloss's cost is |x - y|²/2
    for debias in (False, True):
        # geomloss's own Euclidean cost counts the distance of a point to itself as 1e-4, so it is given the exact one.
        given_cost = {"cost": torch.cdist} if p == 1 else {}
        loss = SamplesLoss("sinkhorn", p=p, blur=blur, scaling=0.999, debias=debias, backend="tensorized", **given_cost)
        peer = loss(a, x, b, y)
        if debias:
            mine = sinkhorn_divergence(x, y, a, b, blur**p, cost=cost, scale=scale, tolerance=1e-10)
        else:
            mine = sinkhorn(between(x, y, a, b, cost), blur**p, scale=scale, tolerance=1e-10).value
        same(mine / scale, peer, 1e-6)


def test_tends_to_exact_transport_as_epsilon_falls_and_to_independence_as_it_grows() -> None:
    x, y = cloud(30, 2, 0), cloud(40, 2, 1, 0.5, 1.0)
    truth = float(exact(between(x, y)).cost)
    costs = [float(sinkhorn(between(x, y), e, max_iterations=20_000).cost()) for e in (1.0, 0.1, 0.01, 0.001)]
    assert costs == sorted(costs, reverse=True) and costs[-1] - truth < 1e-3 * truth
    same(sinkhorn(between(x, y), 1e4).plan(), torch.full((30, 40), 1 / 1200, dtype=torch.float64), 1e-6)


def test_two_starts_one_plan() -> None:
    problem = between(cloud(40, 2, 0), cloud(30, 2, 1))
    starts = [None, torch.zeros(30), 5 * torch.randn(30, generator=generator(2)), torch.linspace(-20, 20, 30)]
    plans = [sinkhorn(problem, 0.05, tolerance=1e-11, start=start).plan() for start in starts]
    for plan in plans[1:]:
        same(plan, plans[0], 1e-9)


@pytest.mark.parametrize("epsilon", [1e-3, 1e-6, 1e-12])
def test_tiny_epsilon_gives_no_nan_and_says_when_it_did_not_converge(epsilon: float) -> None:
    problem = between(cloud(50, 2, 0), cloud(60, 2, 1, 0.5, 1.0))
    with pytest.warns(ReverieWarning, match="did not converge"):
        found = sinkhorn(problem, epsilon, max_iterations=20, tolerance=1e-14)
    assert not found.converged and found.iterations == 20
    for part in (found.value, found.f, found.g, found.plan(), found.cost()):
        assert part.isfinite().all()
    assert found.marginal_error < math.inf
    same(found.plan().sum(1), problem.a, 1e-4)  # exponents of 1e12 have few digits left of their sum
    truth = exact(problem)
    assert float(found.value) <= float(sinkhorn(problem, 0.01).value) + 1e-6
    assert float(found.value) > 0.9 * float(truth.cost)


def test_an_early_stop_never_returns_a_failed_extrapolation() -> None:
    """More iterations never lower the dual value, a lower bound, and the reported error belongs to the returned plan."""
    problem, values = between(cloud(30, 2, 0), cloud(40, 2, 1)), []
    for most in (213, 214, 304):  # accelerated steps lead to -47 and -148,000
        with pytest.warns(ReverieWarning, match="did not converge"):
            found = sinkhorn(problem, 1e-5, max_iterations=most)
        values.append(float(found.value))
        assert (found.plan().sum(0) - problem.b).abs().sum() == pytest.approx(found.marginal_error, rel=1e-4)
    assert values == sorted(values) and 0.9 < values[0] / float(exact(problem).cost) < 1 + 1e-9


@pytest.mark.parametrize("most", [1, 2, 7])
def test_the_number_of_iterations_is_obeyed(most: int) -> None:
    with pytest.warns(ReverieWarning, match="did not converge"):
        assert sinkhorn(between(cloud(9, 2, 0), cloud(8, 2, 1)), 1e-3, max_iterations=most).iterations == most


def test_rounding_does_not_hold_the_iteration_up() -> None:
    x, y = cloud(40, 2, 0), cloud(50, 2, 1)
    lifted = sinkhorn(problem_from_costs(torch.cdist(x, y) ** 2 + 1e7), 0.05, scale=1.0)  # the dual value has few digits left
    assert lifted.converged and float(sinkhorn(between(x, y), 0.5, scale=0.1).epsilon) == 0.05  # not by way of float32
    same(lifted.plan(), sinkhorn(between(x, y), 0.05, scale=1.0).plan(), 1e-5)


def test_the_usual_tolerance_is_within_reach_without_float64() -> None:
    x, y = cloud(40, 2, 0).float(), cloud(50, 2, 1).float()
    a, b, costs = torch.full((40,), 1 / 40), torch.full((50,), 1 / 50), torch.cdist(x, y) ** 2
    for epsilon in (0.1, 0.01):
        found = sinkhorn(Problem(a, b, lambda rows: costs[rows], torch.float32), epsilon)
        assert found.converged and found.f.dtype == torch.float32


def test_a_divergence_of_float32_points_is_subtracted_in_float64() -> None:
    x = cloud(30, 2, 0, 100.0).float()
    y = x + 0.01
    found = sinkhorn_divergence(x, y, epsilon=0.1)
    assert found.dtype == torch.float32
    same(found, sinkhorn_divergence(x.double(), y.double(), epsilon=0.1), 1e-8)


def test_masked_and_zero_weight_points_are_ignored() -> None:
    x, y = cloud(12, 2, 0), cloud(9, 2, 1)
    mask = torch.arange(12) % 3 > 0
    masked, without = sinkhorn(between(x, y, mask), 0.05), sinkhorn(between(x[mask], y), 0.05)
    same(masked.value, without.value, 1e-8)
    same(masked.plan()[mask], without.plan(), 1e-6)
    assert (masked.plan()[~mask] == 0).all()
    same(exact(between(x, y, mask)).cost, exact(between(x[mask], y)).cost, 1e-12)
    same(sinkhorn_divergence(x, y, mask), sinkhorn_divergence(x[mask], y), 1e-7)


def test_a_batch_is_its_problems_and_unequal_sizes_are_padded_by_a_mask() -> None:
    x, y = cloud(24, 2, 0).reshape(3, 8, 2), cloud(18, 2, 1, 0.3, 1.0).reshape(3, 6, 2)
    mask = torch.arange(8) < torch.tensor([[8], [5], [3]])
    found = sinkhorn(between(x, y, mask), 0.05, tolerance=1e-10)
    assert found.value.shape == (3,) and found.plan().shape == (3, 8, 6)
    for k in range(3):
        one = sinkhorn(between(x[k, mask[k]], y[k]), 0.05, tolerance=1e-10)
        same(found.value[k], one.value, 1e-9)
        same(found.plan()[k, mask[k]], one.plan(), 1e-8)


def test_blocks_give_what_the_kept_kernel_gives(monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = cloud(70, 2, 0).requires_grad_(), cloud(50, 2, 1, 2.0)
    kept = sinkhorn(between(x, y), 0.05, tolerance=1e-9)
    (slope,) = torch.autograd.grad(kept.value, x)
    monkeypatch.setattr(softmin, "MAX_KERNEL_ENTRIES", 0)
    monkeypatch.setattr(
        "reverie.transport.problem.row_blocks", lambda n, m: [slice(k, min(n, k + 25)) for k in range(0, n, 25)]
    )
    blocks = sinkhorn(between(x, y), 0.05, tolerance=1e-9)
    same(blocks.value, kept.value, 1e-10)
    same(blocks.plan(), kept.plan(), 1e-8)
    same(torch.autograd.grad(blocks.value, x)[0], slope, 1e-8)
    same(blocks.cost(), kept.cost(), 1e-8)


def test_any_cost_function() -> None:
    x, y = cloud(10, 2, 0), cloud(12, 2, 1)

    def cosine(u: Tensor, v: Tensor) -> Tensor:
        return 1 - torch.nn.functional.cosine_similarity(u[..., :, None, :], v[..., None, :, :], dim=-1)

    same(sinkhorn(between(x, y, cost=cosine), 0.1).value, sinkhorn(problem_from_costs(cosine(x, y)), 0.1).value, 1e-10)
    same(exact(between(x, y, cost=cosine)).cost, exact(problem_from_costs(cosine(x, y))).cost, 1e-12)
    with pytest.raises(UserError, match="every pair"):
        between(x, y, cost=lambda u, v: u.sum())


@given(seed=SEEDS, n=st.integers(2, 10), epsilon=st.sampled_from([0.3, 0.05]))
def test_divergence_is_symmetric_positive_and_zero_for_equal_sets(seed: int, n: int, epsilon: float) -> None:
    x, y = cloud(n, 2, seed), cloud(n + 2, 2, seed + 1)
    there, back = sinkhorn_divergence(x, y, epsilon=epsilon), sinkhorn_divergence(y, x, epsilon=epsilon)
    same(there, back, 1e-5)
    assert there > -1e-6
    order = torch.randperm(n, generator=generator(seed))
    assert abs(float(sinkhorn_divergence(x, x[order], epsilon=epsilon))) < 1e-6


@given(seed=SEEDS, p=st.sampled_from([1.0, 2.0, 4.0]))
def test_distances_are_symmetric_and_keep_the_triangle_inequality(seed: int, p: float) -> None:
    sets = [cloud(6, 2, seed + k) for k in range(3)]
    chords = [cloud(3, 3, seed + 10 + k) for k in range(3)]
    normals = [(c[0], c @ c.T) for c in chords]
    measures: list[tuple[Callable[..., Any], list[Any]]] = [
        (lambda u, v: float(exact(between(u, v, cost="euclidean")).cost), sets),
        (lambda u, v: float(exact(between(u, v)).cost) ** 0.5, sets),
        (lambda u, v: float(wasserstein_1d(u[:, 0], v[:, 0], p=p)), sets),
        (lambda u, v: float(sliced_wasserstein(u, v, p=p, directions=16)), sets),
        (lambda u, v: float(gaussian_wasserstein(*u, *v)), normals),
    ]  # fmt: skip
    for measure, things in measures:
        one, two, three = things
        assert measure(one, two) == pytest.approx(measure(two, one), abs=1e-9)
        assert measure(one, three) <= measure(one, two) + measure(two, three) + 1e-9
        assert measure(one, one) < 1e-7


def entropic(x: Tensor, y: Tensor, a: Tensor, b: Tensor) -> Tensor:
    return sinkhorn(between(x, y, a, b), 0.3, scale=1.0, tolerance=1e-12).value


def divergence(x: Tensor, y: Tensor, a: Tensor, b: Tensor) -> Tensor:
    return sinkhorn_divergence(x, y, a, b, 0.3, scale=1.0, tolerance=1e-12)


def linear_programme(x: Tensor, y: Tensor, a: Tensor, b: Tensor) -> Tensor:
    return exact(between(x, y, a, b)).cost


@pytest.mark.parametrize("measure", [entropic, divergence, linear_programme])
def test_gradients_in_points_and_weights_are_finite_differences(measure: Callable[..., Tensor]) -> None:
    inputs = (cloud(5, 2, 0), cloud(4, 2, 1, 0.6, 0.5), weights(5, 2), weights(4, 3))
    assert torch.autograd.gradcheck(measure, [part.requires_grad_() for part in inputs], eps=1e-5, atol=1e-6)


@pytest.mark.parametrize("cost", ["euclidean", "manhattan"])
def test_gradients_under_other_costs(cost: str) -> None:
    x, y = cloud(4, 2, 0).requires_grad_(), cloud(5, 2, 1).requires_grad_()
    value: Callable[..., Tensor] = lambda x, y: sinkhorn(between(x, y, cost=cost), 0.3, scale=1.0, tolerance=1e-12).value  # noqa: E731
    assert torch.autograd.gradcheck(value, (x, y), eps=1e-6, atol=1e-6)


def test_gradient_in_the_cost_is_the_plan_and_reaches_what_a_cost_function_holds() -> None:
    costs = cloud(4, 5, 0).square().requires_grad_()
    found = sinkhorn(problem_from_costs(costs), 0.1, scale=1.0, tolerance=1e-12)
    same(torch.autograd.grad(found.value, costs)[0], found.plan(), 1e-9)
    solved = exact(problem_from_costs(costs))
    same(torch.autograd.grad(solved.cost, costs)[0], solved.plan, 1e-12)
    x, y, factor = cloud(6, 2, 1), cloud(6, 2, 2), torch.tensor(1.5, dtype=torch.float64, requires_grad=True)

    def value(factor: Tensor) -> Tensor:
        return sinkhorn(between(x, y, cost=lambda u, v: factor * COSTS["squared"](u, v)), 0.3, scale=1.0, tolerance=1e-12).value

    assert torch.autograd.gradcheck(value, (factor,), eps=1e-5, atol=1e-6)


def test_gradients_on_the_line_and_in_slices() -> None:
    x, y, a = cloud(5, 1, 0)[:, 0], cloud(4, 1, 1)[:, 0], weights(5, 2)
    inputs = [part.requires_grad_() for part in (x, y, a)]
    assert torch.autograd.gradcheck(lambda x, y, a: wasserstein_1d(x, y, a, p=2), inputs)
    far = torch.arange(10.0, 14.0, dtype=torch.float64)
    for n, m in ((2, 2), (4, 2), (3, 4)):  # ends of equal weights meet
        equal = [torch.full((k,), 1 / k, dtype=torch.float64).requires_grad_() for k in (n, m)]
        line: Callable[..., Tensor] = lambda a, b, n=n, m=m: wasserstein_1d(far[:n] - 10, far[:m], a, b)  # noqa: E731
        assert torch.autograd.gradcheck(line, equal)
    z, w = cloud(5, 3, 3).requires_grad_(), cloud(5, 3, 4)
    assert torch.autograd.gradcheck(lambda z: sliced_wasserstein(z, w, directions=7), (z,))
    zero = wasserstein_1d(x, x.detach(), p=2)
    assert torch.autograd.grad(zero, x)[0].isfinite().all()


def test_entropic_value_between_gaussians_has_its_closed_form() -> None:
    """In one dimension (Janati et al., arXiv:2006.02572), with D = sqrt(4 s² t² + (eps/2)²) for the squared cost.

    The plan has covariance (D - eps/2)/2, and the value is the cost plus eps times the mutual information.
    """
    grid = torch.linspace(-13, 14, 900, dtype=torch.float64)
    s, t, shift, eps = 1.0, 1.6, 0.7, 0.8
    a, b = (-(grid**2) / (2 * s**2)).exp(), (-((grid - shift) ** 2) / (2 * t**2)).exp()
    found = sinkhorn(between(grid[:, None], grid[:, None], a, b), eps, scale=1.0, tolerance=1e-10)
    together = (math.sqrt(4 * s**2 * t**2 + (eps / 2) ** 2) - eps / 2) / 2
    cost = shift**2 + s**2 + t**2 - 2 * together
    information = -0.5 * math.log(1 - (together / (s * t)) ** 2)
    same(found.cost(), cost, 1e-6)
    same(found.value, cost + eps * information, 1e-6)
