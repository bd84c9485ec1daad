"""Fine-tuning: weights of a run are transferred, labels by name; what does not fit is reported or refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import reverie
from reverie import api
from reverie.base.errors import UserError
from reverie.runs import folder
from reverie.runs.run import Run
from tests.training.test_resume import assert_equal, weights

TINY = "unet:widths=[8,12],groups=4,embedding_dim=16,stem=1"


def draw(folder: Path, names: tuple[str, ...], side: int = 8, mode: str = "L", count: int = 8) -> Path:
    """Write images of classes, or of none, each class with a brightness of its own."""
    random = np.random.default_rng(0)
    for c, name in enumerate(names or ("",)):
        (folder / name).mkdir(parents=True, exist_ok=True)
        for k in range(count):
            shape = (side, side, len(mode)) if mode != "L" else (side, side)
            pixels = random.normal(60 + 70 * c, 20, shape).clip(0, 255).astype(np.uint8)
            Image.fromarray(pixels).save(folder / name / f"{k}.png")
    return folder


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run with labels and augmentation, whose every weight has moved."""
    place = tmp_path_factory.mktemp("first")
    data = draw(place / "animals", ("cat", "dog", "owl"))
    return reverie.train(str(data), place / "run", steps=6, batch=8, network=TINY, augment="shift,zoom", target="v")


def begun(first: Run, data: Path, out: Path, **options: object) -> api.Training:
    return api.prepare(str(data), out, steps=2, batch=8, start_from=first.path, **{"augment": "none", **options})


def estimates(run_or_model: torch.nn.Module, cond: torch.Tensor | None, side: int = 8) -> torch.Tensor:
    x = torch.randn(4, 1, side, side, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        return run_or_model.denoiser(x, 0.5, cond).x0  # type: ignore[operator,union-attr,no-any-return]


def test_the_same_data_start_where_the_run_ended(first: Run, tmp_path: Path) -> None:
    training = begun(first, Path(first.config.data.source), tmp_path / "run")
    for cond in (None, torch.tensor([0, 1, 2, -1])):
        assert torch.equal(estimates(training.learner.model, cond), estimates(first.model, cond))
    config = training.run.config
    assert (config.family.target, config.family.schedule, config.family.sigma_data) == (
        first.config.family.target,
        first.config.family.schedule,
        first.config.family.sigma_data,
    )
    assert config.start is not None and config.start.run == str(first.path.resolve()) and training.learner.i == 0
    message = "\n".join(training.introduction())
    assert f"initial weights: {first.path} after 6 steps on animals" in message and "labels known: cat, dog, owl" in message


def test_labels_are_carried_by_name(first: Run, tmp_path: Path) -> None:
    training = begun(first, draw(tmp_path / "others", ("ape", "owl")), tmp_path / "run")
    model = training.learner.model
    assert torch.equal(estimates(model, torch.tensor([1] * 4)), estimates(first.model, torch.tensor([2] * 4)))  # owl is owl
    assert torch.equal(estimates(model, torch.tensor([0] * 4)), estimates(first.model, None))  # an ape is nothing known yet
    assert torch.equal(estimates(model, None), estimates(first.model, None))
    assert any("owl; new: ape; " in line and line.endswith(": cat, dog") for line in training.introduction())


@pytest.mark.parametrize(("name", "label", "message"), [("dog", 1, "label 'dog'"), ("fish", -1, "labels are dropped")])
def test_data_without_labels_start_as_the_label_of_their_name(
    first: Run, tmp_path: Path, name: str, label: int, message: str
) -> None:
    training = begun(first, draw(tmp_path / name, ()), tmp_path / "run")
    expected = estimates(first.model, torch.tensor([label] * 4))
    torch.testing.assert_close(estimates(training.learner.model, None), expected, rtol=1e-4, atol=1e-6)
    assert message in "\n".join(training.introduction())


def test_labels_where_there_were_none_start_as_no_label(first: Run, tmp_path: Path) -> None:
    plain = begun(first, draw(tmp_path / "fish", ()), tmp_path / "plain")
    *_, _ = plain
    training = api.prepare(first.config.data.source, tmp_path / "run", steps=2, start_from=tmp_path / "plain", augment="none")
    expected = estimates(plain.run.model, None)
    assert torch.equal(estimates(training.learner.model, torch.tensor([0, 1, 2, -1])), expected)


def test_conditioning_weights_are_copied_by_name(first: Run, tmp_path: Path) -> None:
    training = begun(first, Path(first.config.data.source), tmp_path / "run", augment="rotate,zoom")
    old, new = (r.model.denoiser.net.told.weight for r in (first, training.run))  # type: ignore[union-attr]
    assert old.any() and torch.equal(new[:, 1], old[:, 2]) and not new[:, 0].any()  # zoom is known, rotation is not
    assert torch.equal(estimates(training.learner.model, None), estimates(first.model, None))


def test_images_are_read_at_the_size_of_the_run_and_other_sizes_can_be_requested(first: Run, tmp_path: Path) -> None:
    large = draw(tmp_path / "large", ("cat",), side=16)
    small = begun(first, large, tmp_path / "a")
    assert small.run.config.data.shape == (1, 8, 8)
    assert any("8x8" in line and str(first.path) in line for line in small.introduction())
    training = begun(first, large, tmp_path / "b", size="16")
    assert training.run.config.data.shape == (1, 16, 16)
    ours, theirs = (estimates(model, None, 16) for model in (training.learner.model, first.model))
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-6)  # a U-Net has no size of its own


def test_what_cannot_fit_is_refused_and_nothing_is_written(command, first: Run, tmp_path: Path) -> None:
    out = tmp_path / "run"

    def refused(*words: object) -> str:
        code, _, err = command("train", *words, "--out", out, "--steps", 1)
        assert code == 2 and not out.exists()
        return str(err)

    colour = draw(tmp_path / "colour", (), 24, "RGB")
    message = refused(colour, "--from", first.path)
    assert "a run of images of 8x8x1" in message and "images of 8x8x3" in message and "--size 8 --channels 1" in message
    assert "target 'v'" in refused("digits8", "--from", first.path, "--target", "eps")
    assert "points of 2 coordinates" in refused("spiral", "--from", first.path)
    assert "--network" in refused("digits8", "--from", first.path, "--network", "transformer")
    assert "there is no run" in refused("digits8", "--from", tmp_path / "nowhere")
    code, _, err = command("train", "--resume", first.path, "--from", first.path)
    assert code == 2 and "give only one of them" in err
    assert command("train", colour, "--from", first.path, "--channels", 1, "--out", out, "--steps", 1, "--batch", 4)[0] == 0


def test_tensors_that_do_not_fit_are_named(first: Run, tmp_path: Path) -> None:
    wide = TINY.replace("stem=1", "stem=2")
    training = begun(first, Path(first.config.data.source), tmp_path / "run", network=wide)
    assert ": enter.weight, leave.weight, leave.bias" in "\n".join(
        line.replace(str(len(training.run.model.state_dict())), "57") for line in training.introduction()
    )


def test_a_run_that_started_from_another_is_resumed_exactly_and_without_it(first: Run, tmp_path: Path) -> None:
    options = {"steps": 5, "batch": 8, "start_from": first.path, "augment": "shift", "learning_rate": 1e-3}
    reverie.train(first.config.data.source, tmp_path / "whole", **options)
    steps = iter(api.prepare(first.config.data.source, tmp_path / "parts", **options))
    for step in steps:
        if step.i == 2:
            break
    steps.close()  # type: ignore[attr-defined]
    config = folder.read_config(tmp_path / "parts")
    text = (tmp_path / "parts" / "config.toml").read_text()
    assert config.start is not None and config.start.run in text
    (tmp_path / "parts" / "config.toml").write_text(text.replace(config.start.run, "/gone"))
    reverie.train(resume=tmp_path / "parts")
    assert_equal(tmp_path / "parts", tmp_path / "whole")


def test_points_start_from_points(tmp_path: Path) -> None:
    before = reverie.train("moons", tmp_path / "moons", steps=20, points=200)
    training = api.prepare("spiral", tmp_path / "run", steps=2, points=200, start_from=before.path)
    assert training.run.config.family.codec == before.config.family.codec
    now = training.run.model.state_dict()
    assert all(torch.equal(now[name], tensor) for name, tensor in weights(before.path).items())


def test_a_run_without_weights_is_no_start(first: Run, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "config.toml").write_text((first.path / "config.toml").read_text())
    with pytest.raises(UserError, match="has no weights"):
        api.prepare("digits8", tmp_path / "run", steps=1, start_from=tmp_path / "empty")
