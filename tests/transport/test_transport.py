"""Transport on the line, exact, and between Gaussians, against POT and scipy; its mistakes."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import ot
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import wasserstein_distance

from reverie.base.errors import UserError
from reverie.transport import (
    COSTS,
    between,
    exact,
    gaussian_wasserstein,
    problem_from_costs,
    sinkhorn,
    sinkhorn_divergence,
    sliced_wasserstein,
    wasserstein_1d,
)
from tests.points import cloud, generator, same, weights

SIZES = st.integers(1, 12)
SEEDS = st.integers(0, 2**31 - 1)


@given(n=SIZES, m=SIZES, seed=SEEDS, p=st.sampled_from([1.0, 1.5, 2.0, 3.0]))
def test_the_line_agrees_with_pot(n: int, m: int, seed: int, p: float) -> None:
    x, y, a, b = cloud(n, 1, seed)[:, 0], cloud(m, 1, seed + 1)[:, 0], weights(n, seed + 2), weights(m, seed + 3)
    peer = ot.wasserstein_1d(x.numpy(), y.numpy(), a.numpy(), b.numpy(), p=p)  # its p-th power
    same(wasserstein_1d(x, y, a, b, p) ** p, peer, 1e-9)
    if p == 1:
        same(wasserstein_1d(x, y, a, b), wasserstein_distance(x.numpy(), y.numpy(), a.numpy(), b.numpy()), 1e-9)


def test_the_line_at_infinity_is_the_farthest_move() -> None:
    x, y = torch.tensor([0.0, 1.0, 5.0]), torch.tensor([1.5, 0.2, 5.1])
    same(wasserstein_1d(x, y, p=math.inf), torch.tensor(0.5), 1e-6)
    same(wasserstein_1d(x, y, p=60.0), torch.tensor(0.5), 0.02)


@pytest.mark.parametrize("p", [1.0, 4.0, 60.0, math.inf])
def test_rounding_of_cumulative_weights_moves_nothing(p: float) -> None:
    z = cloud(3000, 1, 0)[:, 0]
    assert float(wasserstein_1d(z, torch.cat([z, z, z]), p=p)) == 0
    assert float(wasserstein_1d([0.0, 100.0], [0.0, 0.0, 100.0], [0.3, 0.7], [0.1, 0.2, 0.7], p)) == 0


def test_high_powers_neither_overflow_nor_vanish() -> None:
    same(wasserstein_1d([0.0, 0.0], [1e6, 1e6], p=60), 1e6, 1e-12)
    same(wasserstein_1d([0.0], [1e-3], p=200), 1e-3, 1e-12)
    far = torch.tensor([[0.0, 0.0], [1e-3, 1e6]])
    same(sliced_wasserstein(far, far[1:], [0.0, 1.0], p=300), 0.0, 0)
    a = torch.tensor([1.0, 0.0]).requires_grad_()
    value = wasserstein_1d([0.0, 1e6], [1e-3, 1e-3], a, p=60)
    same(value.detach(), 1e-3, 1e-6)
    assert not torch.autograd.grad(value, a)[0].isnan().any()


def test_the_line_takes_batches_and_keeps_the_dtype() -> None:
    x, y = torch.randn(3, 2, 7, generator=generator(0)), torch.randn(3, 2, 5, generator=generator(1))
    found = wasserstein_1d(x, y, p=2)
    assert found.shape == (3, 2) and found.dtype == torch.float32
    same(found[1, 1], wasserstein_1d(x[1, 1], y[1, 1], p=2), 1e-6)


def test_sliced_agrees_with_pot_on_its_own_directions_and_with_the_line_in_one_dimension() -> None:
    x, y = cloud(40, 3, 0), cloud(30, 3, 1, 2.0)
    mine = sliced_wasserstein(x, y, p=2, directions=4000, seed=3)
    peer = ot.sliced_wasserstein_distance(x.numpy(), y.numpy(), n_projections=4000, p=2, seed=0)
    assert abs(float(mine) / float(peer) - 1) < 0.03  # two draws of directions
    same(sliced_wasserstein(x[:, :1], y[:, :1], p=2), wasserstein_1d(x[:, 0], y[:, 0], p=2), 1e-12)
    same(sliced_wasserstein(x, y, seed=5), sliced_wasserstein(x, y, seed=5), 0)


@given(n=SIZES, m=SIZES, seed=SEEDS, cost=st.sampled_from(sorted(COSTS)))
def test_exact_plan_has_its_marginals_and_potentials_prove_it_optimal(n: int, m: int, seed: int, cost: str) -> None:
    a, b = weights(n, seed), weights(m, seed + 1)
    problem = between(cloud(n, 2, seed + 2), cloud(m, 2, seed + 3), a, b, cost)
    found = exact(problem)
    same(found.plan.sum(1), a, 1e-12)
    same(found.plan.sum(0), b, 1e-12)
    slack = problem.matrix() - found.f[:, None] - found.g
    assert slack.min() > -1e-9  # dual feasible, and of the same value: so both are optimal
    same((a * found.f).sum() + (b * found.g).sum(), found.cost, 1e-9)


def test_exact_agrees_with_the_line_and_takes_batches() -> None:
    x, y = torch.randn(4, 9, 1, generator=generator(0)), torch.randn(4, 6, 1, generator=generator(1))
    found = exact(between(x, y, cost="euclidean"))
    same(found.cost, wasserstein_1d(x[..., 0], y[..., 0]), 1e-5)
    assert found.plan.shape == (4, 9, 6) and found.cost.dtype == torch.float32


def test_forbidden_moves_are_not_made() -> None:
    costs = torch.tensor([[0.0, math.inf, 5.0], [1.0, 0.0, 1.0], [math.inf, 2.0, 0.0]], dtype=torch.float64)
    costs[0, 0] = math.inf
    assert exact(problem_from_costs(costs)).plan[0].tolist() == [0.0, 0.0, pytest.approx(1 / 3)]
    found = sinkhorn(problem_from_costs(costs), 0.05, scale=1.0)
    assert found.converged and found.plan()[0, 0] == 0 and found.cost().isfinite()
    with pytest.raises(UserError, match="forbidden"):
        problem_from_costs(torch.full((2, 2), math.inf))
    with pytest.raises(UserError, match="forbidden"):
        exact(problem_from_costs(torch.tensor([[0.0, math.inf], [0.0, math.inf], [0.0, 1.0]])))


def test_gaussian_distance_is_that_of_pot_and_of_a_diagonal_by_hand() -> None:
    root_x, root_y = cloud(4, 4, 0), cloud(4, 4, 1)
    mx, my, cx, cy = cloud(1, 4, 2)[0], cloud(1, 4, 3)[0], root_x @ root_x.T, root_y @ root_y.T
    peer = ot.gaussian.bures_wasserstein_distance(mx.numpy(), my.numpy(), cx.numpy(), cy.numpy())
    same(gaussian_wasserstein(mx, cx, my, cy), float(peer), 1e-8)
    dx, dy = torch.tensor([4.0, 9.0, 0.0]).double(), torch.tensor([1.0, 0.0, 0.0]).double()  # singular
    by_hand = math.sqrt(3 + (2 - 1) ** 2 + 3**2)
    same(gaussian_wasserstein(torch.ones(3), dx.diag(), torch.zeros(3), dy.diag()), by_hand, 1e-9)
    x = cx.clone().requires_grad_()
    assert torch.autograd.gradcheck(lambda c: gaussian_wasserstein(mx, (c + c.T) / 2, my, cy), x)


def test_gaussian_distance_keeps_the_dtype_and_its_gradient_is_never_nan() -> None:
    mean, root = torch.zeros(3), torch.randn(3, 3, generator=generator(0))
    assert gaussian_wasserstein(mean, root @ root.T, mean, torch.eye(3)).dtype == torch.float32
    for covariance in (torch.eye(3), torch.diag(torch.tensor([4.0, 1.0, 9.0]))):  # exact roots: the distance is 0
        c = covariance.requires_grad_()
        (slope,) = torch.autograd.grad(gaussian_wasserstein(mean, c, mean, covariance.detach()), c)
        assert slope.isfinite().all()
    flat = torch.zeros(3, 3).requires_grad_()
    value = gaussian_wasserstein(mean, flat, mean, torch.eye(3))
    same(value.detach(), math.sqrt(3), 1e-6)
    with pytest.raises(UserError, match="singular covariance"):
        value.backward()


@pytest.mark.parametrize("shift", [1e4, 1e8])
def test_costs_do_not_depend_on_the_origin(shift: float) -> None:
    x, y = cloud(20, 2, 0), cloud(30, 2, 1)
    same(exact(between(x + shift, y + shift)).cost, exact(between(x, y)).cost, 1e-15 * shift)


def test_costs_of_a_function_are_checked_like_those_of_a_matrix() -> None:
    x, y, there = cloud(4, 2, 0), cloud(5, 2, 1), torch.tensor([True, False, True, True])

    def walled(u: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return torch.where(u[..., :1] == x[1, 0], torch.inf, COSTS["squared"](u, v))

    for solved in (lambda p: exact(p).cost, lambda p: sinkhorn(p, 0.1).value):
        same(solved(between(x, y, there, cost=walled)), solved(problem_from_costs(walled(x, y), there)), 1e-12)
    with pytest.raises(UserError, match="forbidden"):
        between(x, y, cost=walled)


NAN = torch.tensor([[0.0], [math.nan]])
ONE = torch.ones(2, 1)
MISTAKES: dict[str, tuple[Callable[[], Any], str]] = {
    "nan": (lambda: between(NAN, ONE), "NaN"),
    "no points": (lambda: between(torch.ones(0, 2), torch.ones(3, 2)), "at least one point"),
    "dimension": (lambda: between(ONE, torch.ones(2, 2)), "1 coordinates and y has 2"),
    "batches": (lambda: between(torch.ones(3, 2, 1), torch.ones(2, 2, 1)), "batch"),
    "whole numbers": (lambda: between(ONE.long(), ONE), "real numbers"),
    "negative weights": (lambda: between(ONE, ONE, torch.tensor([-1.0, 2.0])), "negative"),
    "nan weights": (lambda: between(ONE, ONE, torch.tensor([math.nan, 2.0])), "negative numbers or NaN"),
    "empty weights": (lambda: between(ONE, ONE, torch.zeros(2)), "all weights a"),
    "number of weights": (lambda: between(ONE, ONE, b=torch.ones(3)), "weights b"),
    "unknown cost": (lambda: between(ONE, ONE, cost="square"), "did you mean 'squared'"),
    "nan cost": (lambda: problem_from_costs(torch.tensor([[math.nan]])), "NaN"),
    "nan from a cost function": (lambda: between(ONE, ONE, cost=lambda u, v: (u @ v.mT) * math.nan), "NaN"),
    "all forbidden": (lambda: between(ONE, ONE, cost=lambda u, v: (u @ v.mT) * math.inf), "forbidden"),
    "infinite scale": (lambda: sinkhorn(between(ONE, ONE), scale=math.inf), "scale"),
    "scales": (lambda: sinkhorn(between(ONE, ONE), scale=torch.ones(3)), "scale"),
    "iterations": (lambda: sinkhorn(between(ONE, ONE), max_iterations=1e3), "whole number"),
    "tolerance": (lambda: sinkhorn(between(ONE, ONE), tolerance=0.0), "tolerance"),
    "shape of the start": (lambda: sinkhorn(between(ONE, ONE), start=torch.zeros(3)), "initial potential"),
    "nan to start from": (lambda: sinkhorn(between(ONE, ONE), start=NAN[:, 0]), "initial potential"),
    "negative epsilon": (lambda: sinkhorn(between(ONE, ONE), -0.1), "epsilon must be above 0"),
    "epsilon zero": (lambda: sinkhorn_divergence(ONE, ONE, epsilon=0.0), "epsilon must be above 0"),
    "scale": (lambda: sinkhorn(between(ONE, ONE), scale=-1.0), "scale"),
    "negative mean cost": (lambda: sinkhorn(problem_from_costs(-torch.ones(2, 2))), "negative"),
    "line": (lambda: wasserstein_1d(NAN[:, 0], ONE[:, 0]), "NaN"),
    "order": (lambda: wasserstein_1d(ONE[:, 0], ONE[:, 0], p=0.5), "p must be"),
    "directions": (lambda: sliced_wasserstein(ONE, ONE, directions=0), "directions"),
    "asymmetric": (lambda: gaussian_wasserstein(np.zeros(2), [[1.0, 0.5], [0, 1]], np.zeros(2), np.eye(2)), "symmetric"),
    "indefinite": (lambda: gaussian_wasserstein(np.zeros(2), -np.eye(2), np.zeros(2), np.eye(2)), "negative eigenvalue"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_one_clear_sentence(name: str) -> None:
    call, says = MISTAKES[name]
    with pytest.raises(UserError, match=says) as caught:
        call()
    assert "\n" not in str(caught.value)


def test_one_sample_each_is_a_plan_of_one_move() -> None:
    found = sinkhorn(between(torch.zeros(1, 2), torch.ones(1, 2)))
    assert found.plan().tolist() == [[1.0]] and float(found.value) == pytest.approx(2.0)
    same(sinkhorn(between(torch.zeros(3, 2), torch.zeros(3, 2))).value, torch.tensor(0.0), 1e-7)  # nothing costs anything
