"""Augmentation: each change is a function of a vector, zero is the identity, and conditioned changes do not leak."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from torch import Tensor

import reverie
from reverie import api
from reverie.base.errors import UserError
from reverie.base.spec import build
from reverie.data import Dataset, load_data
from reverie.data.augment import AUGMENTATIONS, Augment, build_augment, conditioned_entries, parse_augmentations
from reverie.data.augment_plan import ENOUGH_IMAGES, MIN_EPOCHS, choose_augment
from reverie.data.mirror import MIN_IMAGES, check_mirroring
from reverie.diffusion.denoiser import NetDenoiser, WithConditioning
from reverie.diffusion.schedule import Rectified
from reverie.nets import NETWORKS
from reverie.runs.config import build_model
from reverie.runs.folder import read_config
from tests.training.test_resume import assert_equal

SHAPES = [(1, 8, 8), (3, 16, 12), (4, 9, 20)]
TINY = "unet:widths=[8,12],groups=4,embedding_dim=16,stem=1"


def augment_of(spec: str, shape: tuple[int, ...]) -> Augment:
    made = build_augment(parse_augmentations(spec), shape)
    assert made is not None
    return made


def smooth(n: int, shape: tuple[int, ...]) -> Tensor:
    """Return waves of a few pixels' length, which interpolation hardly changes."""
    channels, height, width = shape
    random = torch.Generator().manual_seed(0)
    y, x = torch.meshgrid(torch.arange(height) / height, torch.arange(width) / width, indexing="ij")
    a, b, c = torch.rand(3, n, channels, 1, 1, generator=random) * 3
    return 0.5 + 0.4 * torch.sin(a * x + b * y + 2 * c)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", AUGMENTATIONS)
def test_zero_vectors_change_nothing(name: str, shape: tuple[int, ...]) -> None:
    augment, x = augment_of(name, shape), torch.rand(40, *shape, generator=torch.Generator().manual_seed(0))
    vector = augment.draw(40, 1)
    changed, entries = augment(x, 1)
    still = ~vector.any(1)
    assert entries is not None and torch.equal(entries, vector) and 3 <= still.sum() < 40
    assert torch.equal(changed[still], x[still])
    assert not any(torch.equal(a, b) for a, b in zip(changed[~still], x[~still], strict=True))
    assert torch.equal(augment.apply(x, torch.zeros_like(vector)), x)


@given(seed=st.integers(0, 2**31 - 1), names=st.sets(st.sampled_from(list(AUGMENTATIONS)), min_size=1))
def test_images_depend_on_vector_and_vectors_on_seed(seed: int, names: set[str]) -> None:
    spec, shape = ",".join(names), (3, 8, 12)
    augment = augment_of(spec, shape)
    x = torch.rand(12, 3, 8, 12, generator=torch.Generator().manual_seed(seed))
    vector = augment.draw(12, seed)
    assert torch.equal(vector, augment.draw(12, seed)) and vector.shape == (
        12,
        len(conditioned_entries(parse_augmentations(",".join(names)), (3, 8, 12))),
    )
    order = torch.randperm(12, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(augment.apply(x[order], vector[order]), augment.apply(x, vector)[order], rtol=0, atol=1e-6)


def test_probabilities_and_limits() -> None:
    for name, option, limit in (("shift", "share=0.25", 2.0), ("rotate", "degrees=30", 3.0), ("zoom", "factor=1.44", 2.0)):
        vector = augment_of(f"{name}:{option},probability=0.3", (3, 64, 64)).draw(20_000, 0)
        used = vector.any(1).double().mean()
        assert abs(float(used) - 0.3) < 0.015 and 0.95 * limit < float(vector.abs().max()) <= limit + 1e-5
    usual = augment_of("flip:conditioned=no,shift,rotate,zoom,colour", (3, 32, 32))
    entries = usual.draw(20_000, 0)[:, usual.conditioned]
    assert (
        abs(float((~entries.any(1)).double().mean()) - 0.88**4) < 0.02
    )  # zero vectors, which sampling uses, are common in training


def test_flips_are_involutions_and_mirror() -> None:
    augment, x = augment_of("flip", (3, 5, 8)), torch.rand(6, 3, 5, 8)
    once = augment.apply(x, torch.ones(6, 1))
    assert torch.equal(once, x.flip(-1)) and torch.equal(augment.apply(once, torch.ones(6, 1)), x)


@pytest.mark.parametrize("shape", [(3, 32, 32), (1, 16, 40)])
def test_shifts_are_whole_pixels(shape: tuple[int, ...]) -> None:
    _, height, width = shape
    augment, x = augment_of("shift:probability=1", shape), torch.rand(30, *shape)
    vector = augment.draw(30, 3)
    right, down = (vector * torch.tensor([width, height]) / 8).T
    torch.testing.assert_close(right, right.round(), atol=1e-5, rtol=0)
    assert right.abs().max() == width // 8 and down.abs().max() == height // 8
    for image, moved, dx, dy in zip(x, augment.apply(x, vector), right.round().int(), down.round().int(), strict=True):
        back = moved.roll((-int(dy), -int(dx)), (1, 2))
        inside = (..., slice(height // 8, -(height // 8)), slice(width // 8, -(width // 8)))
        torch.testing.assert_close(back[inside], image[inside], atol=1e-5, rtol=0)


@pytest.mark.parametrize("shape", [(3, 32, 32), (1, 24, 40)])
@pytest.mark.parametrize("name", ["rotate", "zoom"])
def test_rotation_and_zoom_are_inverted_by_their_opposites(name: str, shape: tuple[int, ...]) -> None:
    augment, x = augment_of(name, shape), smooth(8, shape)
    vector = torch.linspace(-1, 1, 8)[:, None]
    there = augment.apply(x, vector)
    back = augment.apply(there, -vector)[..., 6:-6, 10:-10]
    error, change = (back - x[..., 6:-6, 10:-10]).abs().max(), (there - x)[..., 6:-6, 10:-10].abs().max()
    assert error < 2e-3 < 10e-3 < change


def test_quarter_turn_and_double_zoom() -> None:
    x = torch.rand(1, 3, 16, 16)
    turned = augment_of("rotate:degrees=90", (3, 16, 16)).apply(x, torch.tensor([[9.0]]))
    torch.testing.assert_close(turned, x.rot90(-1, (2, 3)), atol=1e-4, rtol=0)  # clockwise
    x = smooth(3, (3, 16, 16))
    double = augment_of("zoom:factor=2", (3, 16, 16)).apply(x, torch.full((3, 1), math.log(2) / math.log(1.2)))
    torch.testing.assert_close(torch.nn.functional.avg_pool2d(double, 2), x[..., 4:12, 4:12], atol=0.01, rtol=0)


def test_edges_are_reflected() -> None:
    """The edge is reflected: a constant image stays constant, and values stay in their range."""
    augment = augment_of("shift,rotate:degrees=45,zoom:factor=2", (3, 24, 16))
    vector = torch.tensor([[1.0, -1.0, 4.5, -3.5], [-1.0, 1.0, -3.0, -2.0]])
    torch.testing.assert_close(augment.apply(torch.full((2, 3, 24, 16), 0.7), vector), torch.full((2, 3, 24, 16), 0.7))
    changed = augment.apply(0.2 + 0.5 * torch.rand(2, 3, 24, 16), vector)
    assert changed.min() >= 0.2 and changed.max() <= 0.7


def test_colour_changes() -> None:
    x = torch.rand(1, 4, 6, 6)
    augment = augment_of("colour", (4, 6, 6))
    names = conditioned_entries(parse_augmentations("colour"), (4, 6, 6))
    one = {name: augment.apply(x, torch.eye(4)[k : k + 1]) for k, name in enumerate(names)}
    assert all(torch.equal(changed[:, 3], x[:, 3]) for changed in one.values())  # alpha is unchanged
    rgb, grey = x[:, :3], x[:, :3].mean(1, keepdim=True)
    torch.testing.assert_close(one["brightness"][:, :3], rgb + 0.1)
    torch.testing.assert_close(one["contrast"][:, :3], 0.5 + (rgb - 0.5) * math.exp(0.2))
    torch.testing.assert_close(one["saturation"][:, :3], grey + (rgb - grey) * math.exp(0.4))
    hue = one["hue"][:, :3]
    torch.testing.assert_close(hue.mean(1, keepdim=True), grey)
    torch.testing.assert_close((hue - grey).norm(dim=1), (rgb - grey).norm(dim=1))
    angle = torch.cosine_similarity(hue - grey, rgb - grey, dim=1)
    torch.testing.assert_close(angle, torch.full_like(angle, math.cos(0.3)))
    black_and_white = augment_of("colour", (1, 6, 6))
    assert len(conditioned_entries(parse_augmentations("colour"), (1, 6, 6))) == 2
    torch.testing.assert_close(black_and_white.apply(x[:, :1], torch.tensor([[1.0, 0.0]])), x[:, :1] + 0.1)


def test_specs_are_parsed_and_mistakes_refused() -> None:
    specs = parse_augmentations("zoom, shift:share=0.2,probability=0.3,flip:conditioned=no")
    assert [spec["name"] for spec in specs] == ["flip", "shift", "zoom"]
    assert specs[0]["conditioned"] is False and specs[1] == {"name": "shift", "share": 0.2, "probability": 0.3}
    for wrong, match in (
        ("flop", "did you mean 'flip'"),
        ("flip,flip", "given twice"),
        ("shift:far=1", "unknown option"),
        ("rotate:degrees=400", "degrees"),
        ("colour:probability=0", "probability"),
    ):
        with pytest.raises(UserError, match=match):
            parse_augmentations(wrong)


@pytest.mark.parametrize("name", ["unet", "transformer"])
def test_conditioned_networks_have_a_linear_map_without_bias(name: str) -> None:
    torch.manual_seed(0)
    net = build(NETWORKS, {"name": name, "channels": 1, "height": 8, "width": 8, "cond_dim": 3}, "network")
    for parameter in net.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    denoise = NetDenoiser(net, Rectified())
    x, t, entries = torch.randn(4, 1, 8, 8), torch.full((4,), 0.5, dtype=torch.float64), torch.randn(4, 3)
    plain = denoise(x, t)
    torch.testing.assert_close(WithConditioning(denoise, torch.zeros(4, 3))(x, t).x0, plain.x0)
    assert not torch.allclose(WithConditioning(denoise, entries)(x, t).x0, plain.x0, atol=1e-3)
    layers = [layer for layer in net.modules() if isinstance(layer, torch.nn.Linear) and layer.in_features == 3]
    assert len(layers) == 1 and layers[0].bias is None


def shapes(n: int, symmetric: bool, seed: int = 0) -> Dataset:
    """Return noisy discs symmetrically to the left and right of the middle, or with a hook to the right."""
    random = np.random.default_rng(seed)
    y, x = np.mgrid[:16, :16]
    images = random.integers(0, 40, (n, 1, 16, 16))
    for image in images:
        cx, cy, r = random.uniform(5, 10), random.uniform(5, 10), random.uniform(2, 4)
        image[0][(x - cx) ** 2 + (y - cy) ** 2 < r**2] += 150
        if not symmetric:
            image[0, round(cy) : round(cy) + 2, round(cx) : round(cx) + 7] = 220
    return Dataset("shapes", torch.from_numpy(images.astype(np.uint8)))


def test_mirroring_is_unsafe_for_digits_and_hooks_only() -> None:
    digits = load_data("digits")
    some = digits.take(torch.randperm(len(digits), generator=torch.Generator().manual_seed(0))[:200])
    assert not check_mirroring(Dataset("digits", some.x)).is_safe
    assert check_mirroring(shapes(300, True)).is_safe and not check_mirroring(shapes(300, False)).is_safe
    assert not check_mirroring(shapes(MIN_IMAGES - 1, True)).is_safe  # too few to test


def test_mirroring_is_unsafe_if_it_exchanges_labels() -> None:
    """Equally many hooks to the left and right: the mirrored images are the same set, but with wrong labels."""
    right = shapes(150, False).x
    assert isinstance(right, Tensor)
    both, side = torch.cat([right, right.flip(-1)]), torch.arange(300) // 150
    assert check_mirroring(Dataset("hooks", both)).share < 0.6
    assert not check_mirroring(Dataset("hooks", both, side, ("right", "left"))).is_safe


def test_auto_depends_on_count_epochs_and_kind() -> None:
    grey, many = shapes(100, True), shapes(ENOUGH_IMAGES + 1, True)
    specs, why = choose_augment("auto", grey, None)
    assert [s["name"] for s in specs] == ["flip", "shift", "rotate", "zoom"] and not specs[0]["conditioned"]
    assert why.startswith("augment: flip, shift, rotate, zoom (all but flip conditioned); 100 images")
    specs, why = choose_augment("auto", many, None)
    assert specs == () and why.startswith(f"augment: none; {ENOUGH_IMAGES + 1:,} images")
    specs, why = choose_augment("auto", grey, MIN_EPOCHS - 1)
    assert not specs and f"seen only about {MIN_EPOCHS - 1} times" in why
    hooks, why = choose_augment("auto", shapes(300, False), None)
    assert "flip" not in [s["name"] for s in hooks] and "no flip, because" in why
    assert choose_augment("none", grey, None) == ((), "") == choose_augment("auto", load_data("spiral"), None)
    colour = Dataset("colour", grey.x.repeat(1, 3, 1, 1))
    assert [s["name"] for s in choose_augment("auto", colour, None)[0]][-1] == "colour"


@pytest.mark.parametrize(("mode", "size"), [("L", (16, 16)), ("RGB", (16, 16)), ("RGBA", (16, 16)), ("RGB", (24, 16))])
def test_every_kind_of_image_can_be_augmented(command, tmp_path: Path, mode: str, size: tuple[int, int]) -> None:
    random = np.random.default_rng(0)
    (tmp_path / "images").mkdir()
    for k in range(12):
        pixels = random.integers(0, 255, (*size, len(mode)) if mode != "L" else size, np.uint8)
        Image.fromarray(pixels).save(tmp_path / "images" / f"{k}.png")
    words = ("train", tmp_path / "images", "--out", tmp_path / "run", "--steps", 3, "--batch", 8, "--network", TINY)
    code, _, err = command(*words, "--augment", "flip,shift,zoom,rotate,colour")
    assert code == 0 and "augment: flip, shift, rotate, zoom, colour (conditioned)" in err
    config = read_config(tmp_path / "run")
    cond_dim = config.family.network["cond_dim"]
    assert cond_dim == (7 if mode == "L" else 9) and len(config.family.augment) == 5
    assert reverie.load(tmp_path / "run").sample(2, steps=2).x.shape[:3] == (2, *size)


def test_unconditioned_flips_and_none(tmp_path: Path) -> None:
    run = api.prepare(
        "digits8", tmp_path / "unconditioned", steps=1, network=TINY, augment="flip:conditioned=no", clusters=0
    ).run
    assert run.config.family.network["cond_dim"] == 0 and run.model.augment is not None
    x = torch.rand(64, 1, 8, 8)
    changed, entries = run.model.augment(x, 0)
    mirrored = [torch.equal(a, b.flip(-1)) for a, b in zip(changed, x, strict=True)]
    assert entries is None and 16 < sum(mirrored) < 48
    run = api.prepare("digits8", tmp_path / "none", steps=10**4, network=TINY, augment="none", clusters=0).run
    assert run.config.family.augment == () and run.model.augment is None and run.config.family.network["cond_dim"] == 0


def test_invalid_augment_options_are_refused(command, tmp_path: Path) -> None:
    out = tmp_path / "run"
    code, _, err = command("train", "spiral", "--steps", 1, "--out", out, "--augment", "flip")
    assert code == 2 and "points cannot be augmented" in err and not out.exists()
    code, _, err = command("train", "digits8", "--steps", 1, "--out", out, "--augment", "flop")
    assert code == 2 and "did you mean 'flip'" in err and not out.exists()
    code, _, err = command("train", "digits8", "--steps", 1, "--out", out, "--network", "unet:cond_dim=3")
    assert code == 2 and "cond_dim" in err and not out.exists()
    assert (
        command("train", "digits8", "--steps", 1, "--out", out, "--network", TINY, "--augment", "shift", "--clusters", 3)[0]
        == 0
    )
    assert command("train", "--resume", out, "--extend", "--steps", 1, "--augment", "shift")[0] == 0
    code, _, err = command("train", "--resume", out, "--extend", "--steps", 1, "--augment", "zoom")
    assert code == 2 and "augment was name=shift" in err
    text = (out / "config.toml").read_text()
    (out / "config.toml").write_text(text.replace('name = "shift"', 'name = "zoom"').replace("share = 0.125", "factor = 1.2"))
    with pytest.raises(UserError, match=r"have 4 values.*cond_dim=5"):
        build_model(read_config(out))


def test_resuming_with_augmentation_is_exact(tmp_path: Path) -> None:
    options = {"steps": 7, "batch": 16, "accumulate": 2, "network": TINY, "augment": "flip,shift,rotate,zoom,colour"}
    reverie.train("digits8", tmp_path / "whole", **options)
    steps = iter(api.prepare("digits8", tmp_path / "parts", **options))
    for step in steps:
        if step.i == 3:
            break
    steps.close()  # type: ignore[attr-defined]
    reverie.train(resume=tmp_path / "parts")
    assert_equal(tmp_path / "parts", tmp_path / "whole")


def column(folder: Path) -> Path:
    """Write images with one bright column at a fixed place, of varying height and brightness."""
    random = np.random.default_rng(0)
    pixels = np.zeros((200, 8, 8), np.uint8)
    for image in pixels:
        top = random.integers(0, 5)
        image[top : top + 3, 4] = random.integers(150, 255)
    np.save(folder / "column.npy", pixels)
    return folder / "column.npy"


@pytest.mark.slow
def test_conditioned_changes_do_not_leak(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Columns shifted in training: a conditioned network generates them at their place, an unconditioned one does not."""

    def off_place(name: str) -> float:
        options = {"steps": 600, "batch": 64, "network": "unet:widths=[16,24],groups=4,embedding_dim=32,stem=1"}
        run = reverie.train(str(column(tmp_path)), tmp_path / name, augment="shift:share=0.375,probability=0.5", **options)
        drawn = run.sample(200).x.sum(1)
        return float((drawn.argmax(1) != 4).mean())

    assert off_place("conditioned") < 0.05
    monkeypatch.setattr("reverie.data.augment.Shift.conditioned", False)
    assert off_place("unconditioned") > 0.25
