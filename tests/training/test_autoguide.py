"""Autoguidance: the weak model is stored, and the scale gives samples the detail of the data."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import reverie
from reverie.base.errors import UserError
from reverie.data.appearance import detail
from reverie.runs import folder
from reverie.runs.run import Run, load
from reverie.training import autoguide
from reverie.training.autoguide import MIN_GUIDED, MIN_STEPS, SHARP, TRIED, UNFINISHED, choose_autoguidance, has_color_shift
from reverie.training.summary import verdict
from tests.conftest import TINY


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    out = tmp_path_factory.mktemp("runs") / "digits8"
    return reverie.train("digits8", out, steps=MIN_STEPS, network=TINY, batch=32, augment="none")


def test_the_early_state_is_another_one(run: Run) -> None:
    early, late = (load_file(run.path / name) for name in (folder.EARLY_FILE, folder.WEIGHTS_FILE))
    assert early.keys() == late.keys() and any(not torch.equal(early[name], late[name]) for name in early)


def test_the_scale_is_written_down_and_used(run: Run) -> None:
    assert 1 < run.autoguidance <= TRIED[-1] and load(run.path).autoguidance == run.autoguidance
    usual, plain, same = (
        run.sample(8, seed=1, **given).x for given in ({}, {"autoguidance": 1.0}, {"autoguidance": run.autoguidance})
    )
    assert np.array_equal(usual, same) and not np.allclose(usual, plain)


def test_the_scale_gives_the_detail_of_the_data(run: Run) -> None:
    data = reverie.data.load_data("digits8").batch(torch.arange(512))[0]

    def share(scale: float) -> float:
        x = torch.from_numpy(run.sample(128, seed=5, autoguidance=scale).x)
        return float(detail(x).mean() / detail(data[:, 0]).mean())

    plain, guided = share(1.0), share(run.autoguidance)
    assert plain < SHARP and abs(guided - 1) < 0.6 * abs(plain - 1)


def test_steering_is_not_led_away_unless_requested(run: Run) -> None:
    image = run.sample(1, seed=2).x[0]
    usual, plain, led = (
        reverie.edit(run, image, 0.5, **given).x for given in ({}, {"autoguidance": 1.0}, {"autoguidance": 2.0})
    )
    assert np.array_equal(usual, plain) and not np.allclose(usual, led)


def test_a_run_without_an_early_state_says_so(run: Run, tmp_path: Path) -> None:
    shutil.copytree(run.path, tmp_path / "old")
    (tmp_path / "old" / folder.EARLY_FILE).unlink()
    old = load(tmp_path / "old")
    with pytest.raises(UserError, match=r"has no early.safetensors, which autoguidance needs; sample with --autoguidance 1"):
        old.sample(1, autoguidance=2.0)
    assert choose_autoguidance(old, reverie.data.load_data("digits8"), 1000) == 1
    plain = replace(
        old, config=old.config.model_copy(update={"family": old.config.family.model_copy(update={"autoguidance": 1.0})})
    )
    assert plain.sample(1).x.shape == (1, 8, 8)


def test_a_hostile_early_state_is_refused(run: Run, tmp_path: Path) -> None:
    shutil.copytree(run.path, tmp_path / "bad")
    (tmp_path / "bad" / folder.EARLY_FILE).write_bytes(b"not weights")
    with pytest.raises(UserError, match="truncated or damaged"):
        load(tmp_path / "bad").sample(1, autoguidance=2.0)


def test_samples_that_glare_are_not_guided() -> None:
    data = torch.rand(64, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    assert not has_color_shift(data.flip(0), data, data) and not has_color_shift(0.9 * data + 0.05, data, data)
    for glaring in (data.round(), data - 0.2, (3 * (data - 0.5) + 0.5).clamp(0, 1)):
        assert has_color_shift(glaring, data, data)
    bright = 0.8 * data + 0.2  # by chance, as few of them are
    assert not has_color_shift(bright, bright, data) and has_color_shift(bright - 0.15, bright, data)


@pytest.mark.parametrize(("fallen", "wanted"), [(2 * UNFINISHED, MIN_GUIDED), (UNFINISHED / 2, 1.0)])
def test_samples_of_the_right_detail_are_led_while_the_loss_falls(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fallen: float, wanted: float
) -> None:
    shutil.copytree(run.path, tmp_path / "run")
    last = {**folder.read_metrics(run.path)[-1], "held_out": 1 - fallen}
    rows = [{**last, "i": last["i"] // 2, "fraction": 0.5, "held_out": 1.0}, last]
    (tmp_path / "run" / folder.METRICS).write_text("".join(f"{json.dumps(row)}\n" for row in rows), "utf-8")
    data = reverie.data.load_data("digits8")
    monkeypatch.setattr(autoguide, "has_color_shift", lambda samples, plain, data: False)
    monkeypatch.setattr(autoguide, "_scale_by_detail", lambda *given: 1.1)  # as if they lacked but little detail
    assert choose_autoguidance(load(tmp_path / "run"), data, MIN_STEPS) == max(wanted, 1.1)
    monkeypatch.setattr(autoguide, "SHARP", 0.0)  # as if samples had the detail of the data
    assert choose_autoguidance(load(tmp_path / "run"), data, MIN_STEPS) == wanted
    monkeypatch.setattr(autoguide, "ROUGH", 0.0)  # as if they had too much of it
    assert choose_autoguidance(load(tmp_path / "run"), data, MIN_STEPS) == 1


def test_models_that_are_reported_nothing_are_led_farther(tmp_path: Path) -> None:
    blind = reverie.train("digits8", tmp_path / "blind", steps=2, network=TINY, batch=32, clusters=0, labels="none")
    assert autoguide.minimum_guidance(blind) == autoguide.MIN_UNCONDITIONAL > MIN_GUIDED


def test_no_more_scales_are_tried_when_it_is_late() -> None:
    data, tried = torch.rand(8, 1, 4, 4, generator=torch.Generator().manual_seed(0)), list[float]()

    def draw(scale: float) -> tuple[torch.Tensor, float]:
        tried.append(scale)
        return data, 0.2 * scale

    assert autoguide._scale_by_detail(draw, data, 0.2, data, lambda: len(tried) == 2) == TRIED[1]
    assert tried == list(TRIED[:2])


def test_the_verdict_names_the_scale(run: Run) -> None:
    assert f"with autoguidance {run.autoguidance:g}" in verdict(run).lines[1]
