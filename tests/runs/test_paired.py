"""Samples of a model conditioned on an image and a number of each datum."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import reverie
from reverie.data import load_data
from reverie.runs.run import Run
from tests.conftest import TINY

COUNT = 300


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Digits of 8 x 8, dimmed by a number, each beside its negative at full light."""
    place = tmp_path_factory.mktemp("pairs")
    x = load_data("digits8").x[:COUNT, 0].numpy()
    light = np.random.default_rng(0).uniform(0.3, 1.0, COUNT)
    rows = []
    for k in range(COUNT):
        Image.fromarray((x[k] * light[k]).astype(np.uint8)).save(place / f"{k}.png")
        Image.fromarray(255 - x[k]).save(place / f"negative-{k}.png")
        rows.append({"file_name": f"{k}.png", "Light": float(light[k]), "negative": f"negative-{k}.png"})
    (place / "metadata.jsonl").write_text("\n".join(map(json.dumps, rows)))
    return place


@pytest.fixture(scope="module")
def run(pairs: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    options = {"steps": 150, "batch": 32, "network": TINY, "labels": "none", "augment": "none", "progress": False}
    options |= {"condition_image": "negative", "condition_columns": "light"}
    return reverie.train(str(pairs), tmp_path_factory.mktemp("run") / "run", **options)


def test_what_is_drawn_is_the_picture_of_the_condition(run: Run, pairs: Path) -> None:
    wanted = [np.asarray(Image.open(pairs / f"{k}.png")) / 255 for k in range(4)]
    drawn = [
        run.sample(4, condition_image=pairs / f"negative-{k}.png", condition="light=0.8", steps=10).x.mean(0) for k in range(4)
    ]
    alike = np.array([[np.corrcoef(a.ravel(), b.ravel())[0, 1] for b in wanted] for a in drawn])
    assert (alike.argmax(1) == np.arange(4)).all(), alike
    assert alike.diagonal().min() > 0.8, alike


def test_what_is_drawn_goes_by_the_number(run: Run, pairs: Path) -> None:
    levels = [
        run.sample(8, condition_image=pairs / "negative-0.png", condition={"light": light}, steps=10).x.mean()
        for light in (0.35, 0.65, 0.95)
    ]
    assert levels[0] < levels[1] < levels[2]
    assert levels[2] / levels[0] > 1.6


def test_the_run_and_its_data_are_read_again(
    run: Run, pairs: Path, command: Callable[..., tuple[int, str, str]], tmp_path: Path
) -> None:
    again = reverie.load(run.path)
    assert again.config.data.condition == run.config.data.condition
    np.testing.assert_array_equal(again.sample(2, steps=3).x, run.sample(2, steps=3).x)
    words = (
        "sample",
        run.path,
        "-n",
        2,
        "--condition-image",
        pairs / "negative-1.png",
        "--condition",
        "light=0.5",
        "--steps",
        3,
    )
    code, _, err = command(*words, "--out", tmp_path / "x.png", "-q")
    assert (code, err) == (0, "")
    code, _, err = command(*words[:-3], "condition=1", "--steps", 3, "--condition", "age=1", "--out", tmp_path / "y.png", "-q")
    assert code == 2
    assert "light" in err
    assert err.count("\n") == 1
