"""What holds for every family of closed form."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from reverie.base.errors import UserError
from reverie.base.noise import image_seeds
from reverie.families.closed_form import ClosedForm
from reverie.families.gaussian import GaussianModel
from reverie.families.mixture import MixtureModel
from reverie.families.pca import PCAModel

Make = Callable[..., ClosedForm]
MODELS: dict[str, Make] = {
    "gaussian": GaussianModel,
    "gaussian diagonal": lambda *a, **k: GaussianModel(*a, covariance="diagonal", **k),
    "gaussian low-rank": lambda *a, **k: GaussianModel(*a, covariance="low-rank", rank=2, **k),
    "mixture": MixtureModel,
    "mixture of 2": lambda *a, **k: MixtureModel(*a, components=2, **k),
    "mixture low-rank": lambda *a, **k: MixtureModel(*a, components=3, covariance="low-rank", rank=1, **k),
    "pca": PCAModel,
    "pca of 2": lambda *a, **k: PCAModel(*a, latent=2, **k),
}


@pytest.fixture(params=MODELS)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def make(name: str) -> Make:
    return MODELS[name]


@cache
def of_points(name: str) -> tuple[ClosedForm, list[float]]:
    """A model of points with labels, and what it cost after each round."""
    model = MODELS[name]((3,), 2)
    return model, list(model.fit(*points(), seed=1))


@cache
def of_levels(name: str) -> tuple[ClosedForm, list[float]]:
    """A model of images with labels, and what it cost after each round."""
    model = MODELS[name]((1, 4, 4), 2, levels=256)
    return model, list(model.fit(*levels(), seed=0))


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def points(count: int = 300, size: int = 3, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Two labels, of one and two clumps."""
    y = torch.arange(count) % 3
    x = normal(count, size, seed=seed) @ (normal(size, size, seed=9) / 2) + 4 * y[:, None] * torch.ones(size)
    return x, y.clamp_max(1)


def levels(count: int = 120, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Grey images of 4 x 4 on 256 levels, with a corner that never changes and two labels."""
    y = torch.arange(count) % 2
    level = 0.5 + 0.1 * y[:, None, None, None] + 0.2 * normal(count, 1, 1, 1, seed=seed + 1)
    x = level + 0.1 * normal(count, 1, 4, 4, seed=seed)
    x[..., 0, 0] = 0.0
    return (x.clamp(0, 1) * 255).round().float() / 255, y


def test_the_cost_that_is_yielded_is_that_of_the_fitted_density_and_never_rises(name: str) -> None:
    (x, y), (model, costs) = points(), of_points(name)
    assert costs[-1] == pytest.approx(-float(model.log_density(x, y).mean()) / 3, abs=1e-9)
    assert all(b <= a + 1e-9 for a, b in pairwise(costs))


def test_the_density_sums_to_one(make: Make) -> None:
    y = torch.arange(60) % 2
    model = make((2,), 2)
    list(model.fit(normal(60, 2) + 4 * y[:, None], y, seed=0))
    side = torch.linspace(-12, 16, 281, dtype=torch.float64)
    grid = torch.cartesian_prod(side, side)
    for cond in (None, torch.ones(len(grid), dtype=torch.int64)):
        assert float(model.log_density(grid, cond).exp().sum()) * 0.1**2 == pytest.approx(1, abs=1e-3)


def test_what_is_drawn_has_the_moments_of_the_density_and_each_label_its_own(name: str) -> None:
    (x, _), (model, _) = points(), of_points(name)
    n = 20_000
    for label in (0, 1):
        drawn = model.sample(image_seeds(3, n), torch.full((n,), label)).double()
        normals, log_weights = model.normals(label)
        w = log_weights.exp()[:, None]
        mean = (w * normals.mean).sum(0)
        variance = (w * (normals.variance() + normals.mean.square())).sum(0) - mean.square()
        assert ((drawn.mean(0) - mean).abs() < 5 * (variance / n).sqrt()).all()
        torch.testing.assert_close(drawn.var(0), variance, rtol=0.05, atol=0)
        # The mean log-density of what is drawn is the negative entropy; that of more draws is the same within its error.
        other = model.sample(image_seeds(4, n), torch.full((n,), label))
        first, second = (model.log_density(d, torch.full((n,), label)) for d in (drawn, other))
        assert abs(float(first.mean() - second.mean())) < 5 * float(first.std()) * math.sqrt(2 / n)
    mixed = model.sample(image_seeds(5, n), None).double()
    torch.testing.assert_close(mixed.mean(0), x.mean(0), rtol=0, atol=0.1)


def test_a_datum_depends_on_its_own_seed_alone(name: str) -> None:
    model, _ = of_levels(name)
    seeds, cond = image_seeds(7, 9), torch.tensor([0, 1, -1, 0, 1, -1, -1, 1, 0])
    together = model.sample(seeds, cond)
    assert together.shape == (9, 1, 4, 4) and together.dtype == torch.float32
    alone = torch.cat([model.sample(seeds[k : k + 1], cond[k : k + 1]) for k in range(9)])
    torch.testing.assert_close(together, alone, rtol=0, atol=1e-6)
    assert len(together.flatten(1).unique(dim=0)) == 9


def test_without_a_label_the_labels_are_mixed_by_their_frequency(name: str) -> None:
    (x, y), (model, _) = points(), of_points(name)
    each = torch.stack([model.log_density(x, torch.full((len(x),), k)) for k in (0, 1)], 1)
    mixed = (each + torch.tensor([1 / 3, 2 / 3]).double().log()).logsumexp(1)
    torch.testing.assert_close(model.log_density(x, None), mixed)
    torch.testing.assert_close(model.log_density(x, torch.full((len(x),), -1)), mixed)
    half = torch.where(torch.arange(len(x)) % 2 == 0, y, -1)
    torch.testing.assert_close(model.log_density(x, half), torch.where(half < 0, mixed, each.gather(1, y[:, None])[:, 0]))


def test_the_state_goes_through_a_file_into_a_new_model(name: str, tmp_path: Path) -> None:
    (x, y), (model, _), other = levels(), of_levels(name), MODELS[name]((1, 4, 4), 2, levels=256)
    assert not list(model.parameters())
    save_file(model.state_dict(), tmp_path / "w.safetensors")
    other.load_state_dict(load_file(tmp_path / "w.safetensors"), strict=True)
    assert torch.equal(other.log_density(x, y), model.log_density(x, y))
    assert torch.equal(other.sample(image_seeds(0, 5), None), model.sample(image_seeds(0, 5), None))


def test_the_same_seed_fits_the_same_model_whatever_the_global_generator(make: Make) -> None:
    x, _ = points(60)
    models = [make((3,)), make((3,))]
    for model in models:
        torch.rand(1)
        list(model.fit(x, None, seed=5))
    first, second = (model.state_dict() for model in models)
    assert all(torch.equal(first[key], second[key]) for key in first)


def test_levels_cost_what_they_cost_with_noise_added_and_a_constant_pixel_is_no_treasure(name: str) -> None:
    (x, y), (model, costs) = levels(), of_levels(name)
    cost = costs[-1]
    drawn = torch.stack([-model.log_prob(x, y, image_seeds(s, len(x))) for s in range(40)]) / 16
    error = float(drawn.mean(1).std()) / math.sqrt(40)
    # Averaging each component by itself bounds that of a mixture from above.
    assert -4 * error < cost - float(drawn.mean()) < 4 * error + 1e-3
    assert cost > 0  # levels have probabilities of at most 1
    with pytest.raises(UserError, match="levels"):
        model.log_prob(x + 0.002, y, image_seeds(0, len(x)))


DEGENERATE: dict[str, Tensor] = {
    "a constant coordinate": torch.cat([normal(50, 2), torch.full((50, 1), 7.0)], 1),
    "a coordinate that repeats another": normal(50, 2)[:, [0, 1, 0]],
    "fewer data than dimensions": normal(2, 3),
    "two data": normal(2, 3),
    "duplicates": normal(4, 3).repeat(25, 1),
    "far from the origin": normal(50, 3) + 1e6,
    "scales that differ": normal(50, 3) * torch.tensor([1e-6, 1.0, 1e6]),
}


@pytest.mark.parametrize("case", DEGENERATE)
def test_degenerate_points_have_a_proper_density(make: Make, case: str) -> None:
    x = DEGENERATE[case].double()
    model = make((3,))
    *_, cost = model.fit(x, None, seed=0)
    assert math.isfinite(cost)
    assert model.log_density(torch.cat([x, x + 1.0]), None).isfinite().all()
    drawn = model.sample(image_seeds(0, 200), None).double()
    assert drawn.isfinite().all()
    assert (drawn.mean(0) - x.mean(0)).abs().max() < 1.5 * max(1.0, float(x.std(0).max()))


def test_labels_of_one_datum_or_none_have_a_proper_density(make: Make) -> None:
    x, _ = points(41)
    y = torch.zeros(41, dtype=torch.int64)
    y[-1] = 2  # label 1 has no data, label 2 has one
    model = make((3,), 3)
    *_, cost = model.fit(x, y, seed=0)
    assert math.isfinite(cost)
    for label in range(3):
        assert model.log_density(x, torch.full((41,), label)).isfinite().all()
    width = model.sample(image_seeds(0, 500), torch.full((500,), 2)).std(0)
    assert (width > 0.3 * x.std(0)).all()  # a single datum says nothing of the spread, so it is that of the others
    assert (model.sample(image_seeds(0, 500), torch.full((500,), 2)).double().mean(0) - x[-1]).norm() < 2
    assert model.log_density(x, None).isfinite().all()


def test_one_image_has_a_density_and_one_point_has_not(make: Make) -> None:
    x, y = levels(1)
    model = make((1, 4, 4), 2, levels=256)
    *_, cost = model.fit(x, y, seed=0)
    assert math.isfinite(cost)
    for data in (torch.ones(1, 3), torch.ones(5, 3)):
        with pytest.raises(UserError, match="equal"):
            list(make((3,)).fit(data, None, seed=0))


def test_data_that_cannot_be_fitted_raise_user_errors(make: Make) -> None:
    x, y = points()
    for data, labels, of, words in (
        (x[:0], None, 0, "no train"), (x, None, 2, "with labels"), (x, y, 0, "without labels"), (x[:, :2], None, 0, "shape"),
        (x / 0, None, 0, "NaN"), (x, y + 1, 2, "label from 0 to 1"), (x, -y, 2, "no label"),
    ):  # fmt: skip
        with pytest.raises(UserError, match=words):
            list(make((3,), of).fit(data, labels, seed=0))
    model = make((3,), 2)
    with pytest.raises(UserError, match="label from 0 to 1"):
        model.sample(image_seeds(0, 2), torch.tensor([0, 2]))
    with pytest.raises(UserError, match="shape"):
        model.log_density(x[:, :1], None)
