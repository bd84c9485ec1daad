from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.covariance import EmpiricalCovariance
from sklearn.decomposition import FactorAnalysis
from torch import Tensor

from reverie.families.gaussian import GaussianModel
from reverie.families.normals import Normals
from tests.families.test_closed import levels, normal


def covariance(model: GaussianModel, label: int = 0) -> Tensor:
    normals, _ = model.normals(label)
    return normals.product(torch.eye(model.size).double()[None])[0]


def factors(count: int, size: int = 8, rank: int = 2, seed: int = 0) -> Tensor:
    """Data of a factor model: size numbers that share a few factors, each with a noise of its own."""
    loadings, width = normal(size, rank, seed=seed + 1), torch.linspace(0.3, 1, size)
    return normal(count, rank, seed=seed + 2) @ loadings.T + width * normal(count, size, seed=seed + 3) + 1.0


@pytest.mark.parametrize("rank", [0, 1, 3, 5])
def test_a_normal_of_any_form_is_the_normal_of_its_covariance(rank: int) -> None:
    loadings, noise = normal(2, 5, rank), normal(2, 5, seed=1).square() + 0.1
    if rank == 5:
        loadings, noise = loadings.tril(), torch.zeros_like(noise)
        loadings.diagonal(dim1=1, dim2=2).abs_()
    normals = Normals(normal(2, 5, seed=2), loadings, noise)
    dense = loadings @ loadings.mT + noise.diag_embed()
    x = normal(7, 5, seed=3)
    peers = [torch.distributions.MultivariateNormal(m, c) for m, c in zip(normals.mean, dense, strict=True)]
    torch.testing.assert_close(normals.log_density(x), torch.stack([p.log_prob(x) for p in peers], 1))
    torch.testing.assert_close(normals.product(torch.eye(5).double()[None]), dense)
    torch.testing.assert_close(normals.variance(), dense.diagonal(dim1=1, dim2=2))
    # Averaged over noise of variance v on each number, from 2 D points that have exactly these moments.
    v = 0.01
    around = torch.cat([torch.eye(5), -torch.eye(5)]).double() * (5 * v) ** 0.5
    averaged = normals.log_density((x[:, None] + around).reshape(-1, 5)).reshape(7, 10, 2).mean(1)
    torch.testing.assert_close(normals.log_density(x, v), averaged)


def test_the_full_covariance_is_the_empirical_one() -> None:
    x = normal(200, 4) @ normal(4, 4, seed=1) + 3
    model = GaussianModel((4,))
    *_, cost = model.fit(x, None, seed=0)
    peer = EmpiricalCovariance().fit(x.numpy())
    np.testing.assert_allclose(covariance(model).numpy(), peer.covariance_, rtol=1e-9)
    assert -4 * cost == pytest.approx(peer.score(x.numpy()), abs=1e-9)
    torch.testing.assert_close(model.mean[0, 0], x.mean(0))


def test_factor_analysis_is_that_of_scikit_learn() -> None:
    x = factors(500)
    model = GaussianModel((8,), covariance="low-rank", rank=2, tolerance=1e-12)
    *_, cost = model.fit(x, None, seed=0)
    peer = FactorAnalysis(2, tol=1e-10, max_iter=5000, svd_method="lapack").fit(x.numpy())
    assert -8 * cost == pytest.approx(peer.score(x.numpy()), abs=1e-6)
    np.testing.assert_allclose(covariance(model).numpy(), peer.get_covariance(), rtol=1e-2, atol=1e-3)


def test_what_auto_is() -> None:
    assert GaussianModel((1024,)).rank == 1024
    assert GaussianModel((1025,)).rank == 0
    assert GaussianModel((3, 8, 8)).rank == 32
    assert GaussianModel((1, 2, 2)).rank == 3


def test_a_label_is_shrunk_towards_all_data_by_as_many_data_as_a_covariance_has_numbers_for_each_dimension() -> None:
    x, y = normal(40, 3), torch.arange(40) % 4 // 3  # 30 data and 10
    x[y == 1] = 0.3 * x[y == 1] + 2
    model = GaussianModel((3,), 2)
    list(model.fit(x, y, seed=0))
    whole = torch.from_numpy(EmpiricalCovariance().fit(x.numpy()).covariance_)
    for label, count in ((0, 30), (1, 10)):
        own = torch.from_numpy(EmpiricalCovariance().fit(x[y == label].numpy()).covariance_)
        torch.testing.assert_close(covariance(model, label), (count * own + 2 * whole) / (count + 2))


def test_shrinking_pays_for_labels_of_few_data_and_fewer_data_than_dimensions() -> None:
    data = factors(600, size=20)
    held = data[500:]
    few, y = data[:60], torch.arange(60) % 3  # 20 data of each label, in 20 dimensions
    shrunk, pure = GaussianModel((20,), 3), GaussianModel((20,))
    list(shrunk.fit(few, y, seed=0))
    list(pure.fit(few[:21], None, seed=0))
    zeros = torch.zeros(100, dtype=torch.int64)
    assert float(shrunk.log_density(held, zeros).mean()) > float(pure.log_density(held, None).mean()) + 5
    fewer = GaussianModel((20,))
    list(fewer.fit(few[:15], None, seed=0))
    alone = GaussianModel((20,), covariance="diagonal")
    list(alone.fit(few[:15], None, seed=0))
    assert float(fewer.log_density(held, None).mean()) > float(alone.log_density(held, None).mean()) - 2


@pytest.mark.parametrize("form", ["diagonal", "full"])
def test_fitting_levels_is_fitting_what_uniform_noise_makes_of_them(form: str) -> None:
    x, _ = levels(60)
    x = x[..., 1:, 1:]  # without the corner that never changes
    model, real = (GaussianModel((1, 3, 3), covariance=form, levels=of) for of in (256, None))
    list(model.fit(x, None, seed=0))
    noisy = x.repeat(200, 1, 1, 1).double()
    noisy += (torch.rand(noisy.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64) - 0.5) / 255
    list(real.fit(noisy, None, seed=0))
    torch.testing.assert_close(covariance(model), covariance(real), rtol=1e-3, atol=1e-6)


def test_a_pixel_that_never_changed_may_change_once_in_as_many_images() -> None:
    x, y = levels(120)
    mean_variance = float(x.flatten(1).var(0, correction=0).mean())
    for labels, given, count in ((0, None, 120), (2, y, 60 + 3)):  # a label is lent rank + 1 data
        model = GaussianModel((1, 4, 4), labels, rank=2, levels=256)
        list(model.fit(x, given, seed=0))
        assert float(model.noise[0, 0, 0]) == pytest.approx(mean_variance / count, rel=1e-3)


def test_a_covariance_too_large_to_hold_gives_the_same_factors(monkeypatch: pytest.MonkeyPatch) -> None:
    x = factors(100)
    costs = []
    for held in (4096, 0):
        monkeypatch.setattr("reverie.families.scatter.HELD_UP_TO", held)
        monkeypatch.setattr("reverie.families.scatter.MAX_CACHED", 10 * held)
        monkeypatch.setattr("reverie.base.distances.row_blocks.__defaults__", (64,))
        costs += list(GaussianModel((8,), covariance="low-rank", rank=2).fit(x, None, seed=0))
    assert costs[0] == pytest.approx(costs[1], abs=1e-10)
