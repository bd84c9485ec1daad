"""Matrix scaling and projections."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from reverie.base.errors import ReverieWarning, UserError
from reverie.transport import (
    Moments,
    Sums,
    between,
    doubly_stochastic,
    kl_project,
    scale_matrix,
    sinkhorn,
)
from tests.points import cloud, generator, same, weights

SIZES = st.integers(1, 12)
SEEDS = st.integers(0, 2**31 - 1)


@given(n=st.integers(1, 8), seed=SEEDS)
def test_every_positive_matrix_becomes_doubly_stochastic(n: int, seed: int) -> None:
    matrix = torch.rand(n, n, dtype=torch.float64, generator=generator(seed)) + 0.01
    found = doubly_stochastic(matrix)
    assert found.converged
    same(found.matrix.sum(0), torch.ones(n, dtype=torch.float64), 1e-8)
    same(found.matrix.sum(1), torch.ones(n, dtype=torch.float64), 1e-8)
    same(found.u[:, None] * matrix * found.v, found.matrix, 1e-12)
    plain = matrix
    for _ in range(400):
        plain = plain / plain.sum(1, keepdim=True)
        plain = plain / plain.sum(0)
    same(found.matrix, plain, 1e-7)


def test_matrix_scaling_to_given_sums_keeps_zeros_and_says_when_there_is_none() -> None:
    matrix = torch.tensor([[1.0, 0.0, 2.0], [3.0, 1.0, 0.0]])
    found = scale_matrix(matrix, torch.tensor([3.0, 7.0]), torch.tensor([5.0, 4.0, 1.0]))
    same(found.matrix.sum(1), torch.tensor([3.0, 7.0]), 1e-5)
    same(found.matrix.sum(0), torch.tensor([5.0, 4.0, 1.0]), 1e-5)
    assert found.matrix[0, 1] == 0
    with pytest.warns(ReverieWarning, match="did not converge"):
        assert not doubly_stochastic(torch.tensor([[1.0, 1.0], [0.0, 1.0]]), max_iterations=50).converged
    with pytest.raises(UserError, match="one total"):
        scale_matrix(matrix, torch.ones(2), torch.ones(3))
    with pytest.raises(UserError, match="0 or more"):
        doubly_stochastic(-torch.ones(2, 2))


def test_scaling_speaks_of_matrices_and_has_no_gradient() -> None:
    matrix = torch.rand(3, 3, generator=generator(0)).requires_grad_()
    assert not doubly_stochastic(matrix).matrix.requires_grad
    with pytest.warns(ReverieWarning, match="zeros") as caught:
        doubly_stochastic(torch.tensor([[1.0, 1.0], [0.0, 1.0]]), max_iterations=9)
    assert "epsilon" not in str(caught[0].message)
    for bad, says in (
        (torch.tensor([[1.0, torch.inf], [1.0, 1.0]]), "finite"),
        (torch.tensor([[1.0, 1.0], [0.0, 0.0]]), "zero"),
    ):
        with pytest.raises(UserError, match=says):
            doubly_stochastic(bad)
    for rows in ([1.0, -1.0], [1.0, torch.nan], [1.0]):
        with pytest.raises(UserError, match="sums of the rows"):
            scale_matrix(torch.ones(2, 2), rows, [1.0, 1.0])
    with pytest.raises(UserError, match="one total"):
        scale_matrix(torch.ones(2, 2), [1e-9, 1e-9], [3e-9, 3e-9])


def test_whole_numbers_give_real_ones() -> None:
    same(kl_project(torch.ones(2, 2, dtype=torch.int64), [Sums((1,), [1, 0.5])]).p, torch.tensor([[0.5, 0.5], [0.25, 0.25]]))
    same(doubly_stochastic([[1, 1], [1, 1]]).matrix, torch.full((2, 2), 0.5), 1e-8)


def test_sums_that_no_array_has_are_refused() -> None:
    for bad in ([-1.0, 1.0], torch.tensor([1.0, torch.nan]), [1.0, torch.inf]):
        with pytest.raises(UserError, match="0 or more"):
            Sums((0,), bad)
    with pytest.raises(UserError, match="NaN"):
        Moments(torch.ones(1, 2), [torch.nan])
    with pytest.raises(UserError, match="finite"):
        kl_project(torch.tensor([1.0, torch.inf]), [Sums((0,), 1.0)])


def test_sinkhorn_is_the_case_of_two_projections() -> None:
    x, y, a, b = cloud(6, 2, 0), cloud(5, 2, 1), weights(6, 2), weights(5, 3)
    found = sinkhorn(between(x, y, a, b), 0.3, tolerance=1e-12)
    start = a[:, None] * b * (-found.problem.matrix() / found.epsilon).exp()
    projected = kl_project(start, [Sums((1,), a), Sums((0,), b)], tolerance=1e-12)
    assert projected.converged
    same(projected.p, found.plan(), 1e-9)
    as_moments = Moments(torch.eye(6, dtype=torch.float64)[:, :, None].expand(6, 6, 5), a)
    same(as_moments.project(start), Sums((1,), a).project(start), 1e-10)


def test_projection_on_three_families_is_optimal() -> None:
    """At the optimum log(p/q) lies in the span of the constraints, and the constraints hold."""
    q = torch.rand(3, 4, 2, dtype=torch.float64, generator=generator(0)) + 0.1
    target = torch.rand(3, 4, 2, dtype=torch.float64, generator=generator(1)) + 0.1
    direction = torch.randn(1, 3, 4, 2, dtype=torch.float64, generator=generator(2))
    sets = [
        Sums((1, 2), target.sum((1, 2))),
        Sums((0,), target.sum(0)),
        Moments(direction, (direction * target).sum((1, 2, 3))),
    ]
    found = kl_project(q, sets)
    assert found.converged and found.error <= 1e-9
    logs = (found.p / q).log().flatten()
    rows = [torch.zeros(3, 4, 2).index_fill(0, torch.tensor(k), 1.0).flatten() for k in range(3)]
    rows += [torch.zeros(3, 8).index_fill(1, torch.tensor(k), 1.0).flatten() for k in range(8)]
    span = torch.stack([*rows, direction.flatten()], 1).double()
    fitted = span @ torch.linalg.lstsq(span, logs[:, None], driver="gelsd").solution
    same(fitted[:, 0], logs, 1e-6)


def test_inconsistent_constraints_raise_a_warning() -> None:
    sets = [Sums((0,), torch.ones(2)), Sums((0, 1), torch.tensor(5.0))]
    with pytest.warns(ReverieWarning, match="constraints"):
        assert not kl_project(torch.ones(2, 2), sets, max_iterations=20).converged
