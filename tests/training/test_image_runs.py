"""Images end to end: folders in, grids, films and folders out."""

from __future__ import annotations

import json
import math
from collections import Counter
from itertools import islice
from pathlib import Path
from typing import Any

import imageio.v3 as iio
import numpy as np
import pytest
import torch
from PIL import Image

import reverie
from reverie import api
from reverie.base.parse import read_json
from reverie.data import load_data
from reverie.diffusion.plan import network_for, plan
from reverie.families.diffusion.noise_levels import T_RANGES
from reverie.runs.run import Run
from reverie.runs.step import Step, StepRow, read_row
from reverie.training.loader import batches
from reverie.training.prepare import prepare
from reverie.training.previews import LABEL_COLUMNS, STEPS, Previews
from tests.conftest import TINY


def draw_folder(folder: Path, mode: str, size: tuple[int, int], count: int = 24) -> Path:
    """Write images of two classes, bright and dark, into folders of their names."""
    random = np.random.default_rng(0)
    for k in range(count):
        base = 200 if k % 2 else 50
        shape = (size[0], size[1], 3) if mode == "RGB" else size
        pixels = np.clip(random.normal(base, 20, shape), 0, 255).astype(np.uint8)
        path = folder / ("bright" if k % 2 else "dark") / f"{k}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(path)
    return folder


def test_a_folder_of_rectangles_gives_rectangles(tmp_path: Path) -> None:
    run = reverie.train(
        str(draw_folder(tmp_path / "photos", "RGB", (24, 16))), tmp_path / "run", steps=3, network=TINY, batch=4
    )
    assert run.config.data.shape == (3, 24, 16) and run.config.data.labels == ("bright", "dark")
    assert run.sample(2, steps=2).x.shape == (2, 24, 16, 3)


def test_grey_gives_grey_and_colour_gives_colour(tmp_path: Path) -> None:
    for mode, shape in (("L", (3, 16, 16)), ("RGB", (3, 16, 16, 3))):
        folder = draw_folder(tmp_path / mode, mode, (16, 16))
        run = reverie.train(str(folder), tmp_path / f"run-{mode}", steps=2, network=TINY, batch=4)
        samples = run.sample(3, steps=2).x
        assert samples.shape == shape and samples.dtype == np.float32 and samples.min() >= 0 and samples.max() <= 1


def test_two_trainings_with_one_seed_are_equal(tmp_path: Path) -> None:
    runs = [reverie.train("digits8", tmp_path / str(k), steps=4, network=TINY) for k in range(2)]
    first, second = (torch.cat([p.flatten() for p in run.model.parameters()]) for run in runs)
    assert torch.equal(first, second)


def test_save_load_sample_is_equal_and_batches_do_not_matter(digits_run: Run) -> None:
    again = reverie.load(digits_run.path)
    many, few = digits_run.sample(9, steps=5), again.sample(4, steps=5)
    assert (again.sample(9, steps=5).x == many.x).all()
    np.testing.assert_allclose(many.x[:4], few.x, atol=1e-4)


def test_learning_lowers_the_loss_at_every_noise_level(digits_run: Run) -> None:
    held = [row for row in digits_run.metrics() if "held_out" in row]
    assert held[-1]["held_out"] < 0.7 * held[0]["held_out"]
    assert len(held[-1]["noise_error_levels"]) == 4 and held[-1]["noise_error_levels"][3] < 0.5


def test_every_kind_of_output(command, digits_run: Run, tmp_path: Path) -> None:
    for out in ("grid.png", "film.gif", "film.mp4", "samples.npy", "images/"):
        words = (
            "sample",
            digits_run.path,
            "-n",
            12,
            "--label",
            "all",
            "--steps",
            3,
            "--guidance",
            2,
            "--out",
            f"{tmp_path}/{out}",
        )
        assert command(*words)[0] == 0
    assert np.load(tmp_path / "samples.npy").shape == (12, 8, 8)
    assert (tmp_path / "samples.labels.csv").read_text().split()[1:3] == ["0,0", "1,1"]
    images = sorted((tmp_path / "images").glob("*.png"))
    assert len(images) == 12 and Image.open(images[0]).size == (8, 8) and (tmp_path / "images" / "labels.csv").exists()
    grid, film = Image.open(tmp_path / "grid.png"), iio.imread(tmp_path / "film.mp4", plugin="FFMPEG")
    assert min(grid.size) >= 100 and film.shape[2] > 1.5 * film.shape[1]


def test_the_sheet_of_labels_shows_each_from_the_same_noise(digits_run: Run) -> None:
    previews = Previews(digits_run, digits_run, *load_data("digits8").split(0))
    drawn = previews._label_samples(3)
    for k, name in enumerate(digits_run.config.data.labels[:3]):
        alone = digits_run.sample(LABEL_COLUMNS, label=name, steps=STEPS, autoguidance=1.0).x
        np.testing.assert_allclose(drawn[k * LABEL_COLUMNS :][:LABEL_COLUMNS], alone, atol=1e-4)


@pytest.mark.parametrize(("minutes", "side"), [(None, 32), (1, 32), (20, 64)])
def test_inspect_shows_colour_images_at_the_size_that_a_training_uses(
    minutes: float | None, side: int, command, tmp_path: Path
) -> None:
    (tmp_path / "photos").mkdir()
    for k in range(16):
        pixels = np.random.default_rng(k).integers(0, 255, (80, 80, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(tmp_path / "photos" / f"{k}.png")
    budget = ("--minutes", minutes) if minutes else ()
    code, out, err = command("inspect", tmp_path / "photos", "--json", "--device", "cpu", *budget)
    assert code == 0, err
    found = json.loads(out)
    training = prepare(
        str(tmp_path / "photos"), tmp_path / "run", minutes=minutes, device="cpu", network=TINY, clusters=0, latent_space=False
    )
    reasons = [*found["notes"], *training.reasons]
    assert found["shape"] == list(training.run.config.data.shape) == [3, side, side]
    assert sum("--size 64 --minutes 15" in reason for reason in reasons) == (2 if side == 32 else 0)


@pytest.mark.parametrize("family", ["diffusion", "vae"])
@pytest.mark.parametrize("shade", [(7,), (0, 255)])
def test_every_report_on_constant_images_can_be_read_back(family: str, shade: tuple[int, ...], tmp_path: Path) -> None:
    x = np.stack([np.full((8, 8), shade[k % len(shade)], np.uint8) for k in range(24)])
    options: dict[str, Any] = {"network": TINY, "clusters": 0} if family == "diffusion" else {}
    run = reverie.train(x, tmp_path / "run", family=family, steps=4, batch=4, device="cpu", **options)
    rows = [read_json(line) for line in (run.path / "metrics.jsonl").read_text().splitlines()]
    read = [read_row(row) for row in rows]
    assert any(isinstance(row, StepRow) and row.fraction == 1 and "nearest_neighbor" in row.appearance for row in read), rows


INFINITE = (math.inf,) * T_RANGES


@pytest.mark.parametrize(
    "wrong",
    [{"appearance": {"nearest_neighbor": math.inf}}, {"held_out": math.nan}, {"loss": math.nan}, {"held_out_levels": INFINITE}],
)
def test_a_report_leaves_out_what_is_no_number(wrong: dict[str, Any]) -> None:
    whole = {
        "loss": 1.0,
        "held_out": 1.0,
        "train_loss": 1.0,
        "held_out_levels": (1.0,) * T_RANGES,
        "train_levels": (1.0,) * T_RANGES,
    }
    step = Step(1, 0.5, 1.0, 2.0, **{"learning_rate": 0.1, "appearance": {"nearest_neighbor": 1.0}, **whole, **wrong})
    rows = list(step.as_rows())
    assert len(rows) == ("loss" not in wrong)
    for row in rows:
        assert isinstance(read_row(read_json(json.dumps(row))), StepRow) and set(wrong).isdisjoint(row)


def test_inspect_reports_size_cost_and_error(command, digits_run: Run, tmp_path: Path) -> None:
    found = json.loads(command("inspect", digits_run.path, "--json")[1])
    assert found["operations"] == digits_run.model.operations() > 10_000 and len(found["held_out_noise_error_by_noise"]) == 4
    code, out, _ = command("inspect", "digits8", "--out", tmp_path / "sheet.png")
    assert code == 0 and "1, 8, 8" in out and Image.open(tmp_path / "sheet.png").width > 200


def test_an_illegal_size_names_a_legal_one(command, tmp_path: Path) -> None:
    folder = draw_folder(tmp_path / "odd", "L", (31, 31))
    code, _, err = command("train", folder, "--out", tmp_path / "run", "--steps", 1, "--size", 31)
    assert code == 2 and "nearest valid size is 32x32" in err and not (tmp_path / "run").exists()
    assert (
        command("train", folder, "--out", tmp_path / "run", "--steps", 1, "--size", 32, "--network", TINY, "--batch", 4, "-q")[
            0
        ]
        == 0
    )


@pytest.mark.parametrize(
    ("count", "epochs", "options"),
    [(1024, 3, {}), (190, 5, {}), (1024, 3, {"batch": 64, "accumulate": 2})],
    ids=["planned batch", "fewer than a batch", "accumulated"],
)
def test_an_epoch_shows_every_datum_once(tmp_path: Path, count: int, epochs: int, options: dict[str, Any]) -> None:
    every = np.arange(round(count / 0.95))  # as many as leave this count to train; a point's first coordinate is its number
    np.save(tmp_path / "points.npy", np.stack([every, every % 7], -1).astype(np.float32))
    training = api.prepare(str(tmp_path / "points.npy"), tmp_path / "run", epochs=epochs, **options)
    settings = training.run.config.training
    assert settings.steps is not None
    drawn = islice(batches(training.train, settings.batch, settings.seed), settings.steps * settings.accumulate)
    seen = Counter(int(number) for x, _ in drawn for number in x[:, 0])
    assert len(seen) == len(training.train) == count and set(seen.values()) == {epochs}


def test_the_plan_follows_the_budget() -> None:
    data = load_data("digits8")
    sizes = [network_for(data.shape, 10, plan(data, minutes, None).network)["widths"] for minutes in (5, 60, 600)]
    assert sizes == sorted(sizes) and len(set(sizes)) == 3


def test_a_notebook_shows_the_images(digits_run: Run) -> None:
    assert digits_run.sample(4, steps=2)._repr_png_().startswith(b"\x89PNG")
