from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from sklearn.decomposition import PCA

from reverie.base.errors import UserError
from reverie.families.pca import PCAModel
from tests.families.test_closed import normal


def flat_noise(count: int, size: int = 10, rank: int = 3) -> torch.Tensor:
    """Data of a probabilistic PCA: three directions of variance 9, 4 and 2 besides noise of variance 0.25."""
    basis, _ = torch.linalg.qr(normal(size, rank, seed=4))
    widths = torch.tensor([3.0, 2.0, math.sqrt(2)])
    return normal(count, rank, seed=5) * widths @ basis.T + 0.5 * normal(count, size, seed=6) - 2.0


@pytest.mark.parametrize("latent", [1, 3, 7])
def test_the_likelihood_is_that_of_scikit_learn(latent: int) -> None:
    x = flat_noise(300)
    model = PCAModel((10,), latent=latent)
    *_, cost = model.fit(x, None, seed=0)
    peer = PCA(latent).fit(x.numpy())
    peer.explained_variance_ *= 299 / 300  # it divides by N - 1, which is not the likeliest
    peer.noise_variance_ *= 299 / 300
    assert -10 * cost == pytest.approx(peer.score(x.numpy()), abs=1e-9)
    new = flat_noise(20) + 0.1
    np.testing.assert_allclose(model.log_density(new, None).numpy(), peer.score_samples(new.numpy()), rtol=1e-9)


def test_no_other_directions_or_noise_are_likelier() -> None:
    x = flat_noise(200)
    model = PCAModel((10,), latent=2)
    *_, best = model.fit(x, None, seed=0)
    state = {name: value.clone() for name, value in model.state_dict().items()}
    for k in range(5):
        model.load_state_dict(state)
        model.loadings += 0.02 * normal(*model.loadings.shape, seed=k)
        model.noise *= 1 + 0.02 * (k - 2)
        assert model.cost(x, None) > best


def test_bic_finds_the_number_of_directions() -> None:
    x = flat_noise(400)
    model = PCAModel((10,))
    *_, cost = model.fit(x, None, seed=0)
    assert int((model.loadings[0, 0].abs().sum(0) > 0).sum()) == 3
    fixed = PCAModel((10,), latent=3)
    assert list(fixed.fit(x, None, seed=0)) == pytest.approx([cost], abs=1e-12)


def test_encoding_is_the_posterior_mean_and_nearly_the_projection_of_little_noise() -> None:
    x = flat_noise(300)
    model = PCAModel((10,), latent=3)
    list(model.fit(x, None, seed=0))
    w, noise, centred = model.loadings[0, 0], float(model.noise[0, 0, 0]), x - x.mean(0)
    expected = torch.linalg.solve(w.T @ w + noise * torch.eye(3), w.T @ centred.T).T  # Tipping and Bishop, eq. 6
    z = model.encode(x)
    torch.testing.assert_close(z, expected.float())
    torch.testing.assert_close(model.decode(z), (x.mean(0) + expected @ w.T).float())
    components = torch.from_numpy(PCA(3).fit(x.numpy()).components_)
    little = x.mean(0) + centred @ components.T @ components + 1e-3 * normal(300, 10, seed=8)
    list(model.fit(little, None, seed=0))
    torch.testing.assert_close(model.decode(model.encode(little)).double(), little, rtol=0, atol=6e-3)


def test_a_label_moves_the_mean_and_leaves_the_directions() -> None:
    x, y = flat_noise(300), torch.arange(300) % 2
    moved = x + 5 * y[:, None]
    model, plain = PCAModel((10,), 2, latent=3), PCAModel((10,), latent=3)
    list(model.fit(moved, y, seed=0))
    list(plain.fit(torch.cat([x[y == k] - x[y == k].mean(0) for k in (0, 1)]), None, seed=0))
    assert model.loadings.shape[0] == 1
    torch.testing.assert_close(model.loadings[0, 0] @ model.loadings[0, 0].T, plain.loadings[0, 0] @ plain.loadings[0, 0].T)
    torch.testing.assert_close(model.encode(moved), model.encode(moved, y), rtol=0, atol=1e-2)  # labels are far apart
    for cond, mean in ((torch.tensor([1]), moved[y == 1].mean(0)), (None, moved.mean(0))):
        torch.testing.assert_close(model.decode(torch.zeros(1, 3), cond)[0], mean.float())


def test_labels_of_one_datum_each_leave_no_noise_to_estimate() -> None:
    with pytest.raises(UserError, match="without labels"):
        list(PCAModel((3,), 4).fit(normal(4, 3), torch.arange(4), seed=0))


def test_many_dimensions_give_the_same_directions(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.cat([flat_noise(60), 0.1 * normal(60, 90)], 1)
    costs = []
    for exact in (1024, 1):
        monkeypatch.setattr("reverie.families.scatter.EXACT_UP_TO", exact)
        costs += list(PCAModel((100,), latent=5).fit(x, None, seed=0))
    assert costs[0] == pytest.approx(costs[1], abs=1e-10)
