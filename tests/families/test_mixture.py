from __future__ import annotations

import itertools
from itertools import pairwise

import numpy as np
import pytest
import torch
from sklearn.cluster import kmeans_plusplus
from sklearn.mixture import GaussianMixture
from torch import Tensor

from reverie.base.deadline import Deadline
from reverie.families.em import em, expectation, initial_components, k_means_plus_plus, maximisation
from reverie.families.gaussian import GaussianModel
from reverie.families.mixture import MixtureModel
from reverie.families.normals import start
from tests.families.test_closed import normal

ONE = torch.ones(2).double()


def clumps(count: int, components: int = 3, size: int = 2, apart: float = 8.0, seed: int = 0) -> Tensor:
    """Round clumps of width 1 around a ring."""
    angle = torch.arange(components) / components * 2 * torch.pi
    centres = torch.zeros(components, size).double()
    centres[:, 0], centres[:, 1] = apart * angle.cos(), apart * angle.sin()
    return centres[torch.arange(count) % components] + normal(count, size, seed=seed)


@pytest.mark.parametrize("form", ["full", "diagonal"])
def test_the_mixture_is_that_of_scikit_learn_from_the_same_start(form: str) -> None:
    x = clumps(300, apart=2.5)  # clumps that overlap
    places = x[:3]
    kind, precisions = ("full", np.stack([np.eye(2)] * 3)) if form == "full" else ("diag", np.ones((3, 2)))
    peer = GaussianMixture(
        3, covariance_type=kind, tol=0, reg_covar=0, max_iter=30, means_init=places.numpy(),
        weights_init=np.full(3, 1 / 3), precisions_init=precisions,
    )  # fmt: skip
    with pytest.warns(match="converge"):
        peer.fit(x.numpy())
    normals = start(places, torch.ones_like(places), 2 if form == "full" else 0, seed=0)
    *_, last = em(x, normals, torch.full((3,), 1 / 3).double(), 1e-9 * ONE, 0.0, tolerance=0.0, iterations=30)
    assert last.nats == pytest.approx(peer.score(x.numpy()), abs=1e-6)
    np.testing.assert_allclose(last.normals.mean.numpy(), peer.means_, atol=1e-6)
    np.testing.assert_allclose(last.weights.numpy(), peer.weights_, atol=1e-6)
    assert last.bic == pytest.approx(peer.bic(x.numpy()), abs=1e-3)


@pytest.mark.parametrize("form", ["full", "diagonal", "low-rank"])
@pytest.mark.parametrize("floor", [1e-6, 0.5])
@pytest.mark.parametrize("noise_variance", [0.0, 0.3])
def test_no_iteration_lowers_the_likelihood(form: str, floor: float, noise_variance: float) -> None:
    x = clumps(200, components=4, size=4, apart=2.0)
    rank = {"full": 4, "diagonal": 0, "low-rank": 2}[form]
    least = torch.full((4,), floor).double()
    normals = initial_components(x, 4, rank, x.var(0), least, seed=1)
    nats = [
        m.nats for m in em(x, normals, torch.full((4,), 0.25).double(), least, noise_variance, tolerance=0.0, iterations=40)
    ]
    assert len(nats) > 5
    assert min(b - a for a, b in pairwise(nats)) > -1e-12
    assert nats[-1] > nats[0] + 0.01


def test_blocks_do_not_change_the_sums(monkeypatch: pytest.MonkeyPatch) -> None:
    x = clumps(50)
    normals, weights = initial_components(x, 3, 1, x.var(0), 1e-6 * ONE, seed=0), torch.tensor([0.2, 0.3, 0.5]).double()
    whole = expectation(x, normals, weights, 0.1)
    monkeypatch.setattr("reverie.base.distances.row_blocks.__defaults__", (14,))
    parts = expectation(x, normals, weights, 0.1)
    for name in ("count", "first", "square", "second", "outlier"):
        torch.testing.assert_close(getattr(parts, name), getattr(whole, name))
    assert parts.log_density == pytest.approx(whole.log_density)


def test_starts_are_drawn_as_k_means_plus_plus_draws_them() -> None:
    x = torch.tensor([0.0, 1.0, 3.0, 7.0]).double()[:, None]
    mine, peer = np.zeros((4, 4)), np.zeros((4, 4))
    random = torch.Generator().manual_seed(0)
    for _ in range(2000):
        a, b = ((x - place).abs().argmin().item() for place in k_means_plus_plus(x, 2, random)[0])
        mine[a, b] += 1 / 2000
    for k in range(500):
        _, (a, b) = kmeans_plusplus(x.numpy(), 2, random_state=k, n_local_trials=1)
        peer[a, b] += 1 / 500
    squares = (x - x.T).square().numpy()
    exact = squares / squares.sum(1, keepdims=True) / 4
    assert np.abs(mine - exact).max() < 0.025
    assert np.abs(peer - exact).max() < 0.06


def test_equal_data_give_no_more_starts_than_differ() -> None:
    places, squares = k_means_plus_plus(normal(3, 2).repeat(20, 1), 5, torch.Generator().manual_seed(0))
    assert places.shape == (3, 2) and squares == 0


def test_starts_do_not_depend_on_the_blocks_in_which_distances_are_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    x = normal(40, 5)
    found = []
    for size in (7, 64, 2**16):
        monkeypatch.setattr("reverie.families.em.START_TILE", size)
        found.append(k_means_plus_plus(x, 9, torch.Generator().manual_seed(0)))
    assert all(torch.equal(places, found[0][0]) and squares == found[0][1] for places, squares in found)
    distances = (x[:, None] - found[0][0]).square().sum(2).min(1).values
    assert found[0][1] == pytest.approx(float(distances.mean()))


def test_starts_that_a_deadline_leaves_are_sampled_uniformly() -> None:
    x, seconds = normal(40, 2).repeat(3, 1), itertools.count()
    deadline = Deadline(5.0, clock=lambda: float(next(seconds)))
    places, _ = k_means_plus_plus(x, 30, torch.Generator().manual_seed(0), deadline)
    assert places.shape == (30, 2) and next(seconds) <= 8
    assert bool((places[:, None] == x).all(2).any(1).all())
    assert len(places[:5].unique(dim=0)) == 5 and not bool((places[5:, None] == places[:5]).all(2).any())


@pytest.mark.parametrize("components", [1, 2, 5])
def test_bic_finds_the_number_of_clumps(components: int) -> None:
    model = MixtureModel((2,))
    list(model.fit(clumps(400, components), None, seed=0))
    assert int((model.weights[0] > 0).sum()) == components


def test_one_component_is_the_gaussian() -> None:
    x, y = clumps(200, 2), torch.arange(200) % 2
    mixture, gaussian = MixtureModel((2,), 2, components=1), GaussianModel((2,), 2)
    assert list(mixture.fit(x, y, seed=0)) == pytest.approx(list(gaussian.fit(x, y, seed=0)), abs=1e-9)


def test_each_label_has_a_mixture_of_its_own() -> None:
    x = clumps(400, 4)
    y = (torch.arange(400) % 4 == 3).long()  # three clumps of label 0 and one of label 1
    model = MixtureModel((2,), 2)
    list(model.fit(x, y, seed=0))
    assert (model.weights > 0).sum(1).tolist() == [3, 1]
    alone = MixtureModel((2,))
    list(alone.fit(x[y == 0], None, seed=0))
    zeros = torch.zeros(400, dtype=torch.int64)
    torch.testing.assert_close(model.log_density(x, zeros), alone.log_density(x, None), rtol=0, atol=0.02)


def test_a_label_of_few_data_has_few_components() -> None:
    model = MixtureModel((2,), 2, components=4)
    assert [model.most(n) for n in (1, 5, 10, 400)] == [0, 1, 2, 4]
    x = clumps(104, 4)
    list(model.fit(x, (torch.arange(104) >= 100).long(), seed=0))
    assert (model.weights > 0).sum(1).tolist() == [4, 1]


def test_an_empty_component_begins_again_at_the_datum_of_least_density() -> None:
    x = torch.cat([normal(60, 2), normal(6, 2, seed=1) * 0.1 + 30])
    places = torch.tensor([[0.0, 0.0], [0.0, 900.0]]).double()
    normals = start(places, torch.ones_like(places), 0, seed=0)
    weights = torch.tensor([0.5, 0.5]).double()
    sums = expectation(x, normals, weights, 0.0)
    again, weights = maximisation(normals, sums, 1e-4 * ONE, 0.0)
    assert float(sums.count[1]) == 0
    torch.testing.assert_close(again.mean[1], x[x.square().sum(1).argmax()])
    assert weights.tolist() == pytest.approx([66 / 67, 1 / 67])
    *_, last = em(x, normals, torch.tensor([0.5, 0.5]).double(), 1e-4 * ONE, 0.0, 1e-8, 100)
    assert sorted(last.weights.tolist()) == pytest.approx([6 / 66, 60 / 66], abs=1e-6)


def test_no_component_is_narrower_than_the_floor() -> None:
    x = torch.cat([clumps(100, 1), torch.zeros(50, 2)])  # a third of the data are one point
    model = MixtureModel((2,), components=2, floor=1e-3)
    list(model.fit(x, None, seed=0))
    normals, _ = model.normals(0)
    assert float(normals.variance().min()) == pytest.approx(1e-3 * float(x.var(0, correction=0).min()), rel=0.5)
    values = torch.linalg.eigvalsh(normals.product(torch.eye(2).double()[None]))
    assert float(values.min()) > 0.9e-3 * float(x.var(0, correction=0).min())


def test_more_data_than_are_searched_are_all_fitted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("reverie.families.mixture.SEARCHED", 400)
    x = clumps(2000, 3)
    model = MixtureModel((2,), components=3)
    *_, cost = model.fit(x, None, seed=0)
    peer = GaussianMixture(3, n_init=2, tol=1e-6, random_state=0).fit(x.numpy())
    assert -2 * cost == pytest.approx(peer.score(x.numpy()), abs=1e-4)
