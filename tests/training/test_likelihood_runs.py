"""Runs trained for the likelihood: their metrics, verdicts, checks and files."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import reverie
from reverie import api
from reverie.base.errors import UserError
from reverie.base.noise import image_seeds
from reverie.data import Dataset, load_data
from reverie.diffusion.learned import Learned
from reverie.diffusion.likelihood import mean_and_error
from reverie.draw.curves import loss_curve
from reverie.runs.run import Run
from reverie.runs.screen import NOTE, progress_note
from reverie.runs.step import Step
from reverie.training.autoguide import choose_autoguidance
from reverie.training.checks import CHECKS, has_stopped_improving
from reverie.training.diagnosis import Diagnosis, NetworkInfo, gain, held_out_decrease
from reverie.training.summary import FAULTLESS, verdict
from tests.conftest import TINY
from tests.training.test_checks import report, sound


@pytest.fixture(scope="module")
def digits(trained: Callable[..., Run]) -> Run:
    return trained("digits8-likelihood", "digits8", steps=40, network=TINY, purpose="likelihood")


@pytest.fixture(scope="module")
def moons(trained: Callable[..., Run]) -> Run:
    return trained("moons-likelihood", "moons", steps=200, points=1000, purpose="likelihood")


@pytest.fixture(params=["digits", "moons"])
def likely(request: pytest.FixtureRequest) -> tuple[Run, Dataset]:
    run: Run = request.getfixturevalue(request.param)
    points = {"points": 1000} if request.param == "moons" else {}
    return run, load_data(run.config.data.name, **points).split(0)[1]


def test_the_held_out_figure_is_the_whole_bound(likely: tuple[Run, Dataset]) -> None:
    run, held = likely
    found = [run.diffusion.held_out_metrics(held, seed) for seed in range(6)]
    images = run.kind == "images"
    assert {f["unit"] for f in found} == {"bits/dim" if images else "nats"}
    x, labels = held.batch(torch.arange(len(held)))
    bound = run.diffusion.bound(x, labels, image_seeds(0, len(x)), draws=24)
    wanted, error = mean_and_error(bound.bits if images else bound.nats)
    figures = torch.tensor([f["held_out"] for f in found])
    assert float(figures.mean()) == pytest.approx(wanted, abs=4 * math.hypot(float(figures.std()) / 6**0.5, error or 0))
    denoising = float(bound.denoising.sum(1).mean()) / (bound.size * math.log(2) if images else 1.0)
    if not images:  # what the loss alone is, without the ends, is far from it
        assert abs(wanted - denoising) > 10 * (error or 0)


def test_the_verdict_names_unit_and_purpose(digits: Run, moons: Run, command) -> None:
    for run, unit, kind in ((digits, "bits/dim", "images"), (moons, "nats", "points")):
        last = [row for row in run.metrics() if "held_out" in row][-1]
        assert last["unit"] == unit and "linear_levels" not in last
        lines = verdict(run).lines
        assert f"{kind} for the likelihood, " in lines[1] and f"bound {last['held_out']:.3f} {unit}" in lines[1]
        assert lines[0] == FAULTLESS and "preview" not in lines[2]
        seen = reverie.inspect(run.path)
        assert "for the likelihood" in seen["purpose"] and "bound" in seen["purpose"]
        assert (seen["unit"], seen["held_out_loss"], seen["training_loss"]) == (unit, last["held_out"], last["train_loss"])
    assert "17 values" in reverie.inspect(digits.path)["purpose"]
    code, out, _ = command("runs", digits.path)
    assert code == 0 and f"{digits.metrics()[-1]['held_out']:.4g} bits/dim" in out


def test_a_run_for_samples_has_no_unit(digits_run: Run) -> None:
    rows = [row for row in digits_run.metrics() if "held_out" in row]
    assert "unit" not in rows[-1] and "images for samples, " in verdict(digits_run).lines[1]
    found = reverie.inspect(digits_run.path)
    assert found["purpose"] == "trained for samples" and "unit" not in found
    assert not (digits_run.path / "schedule.png").exists() and loss_curve(rows).axes[0].get_yscale() == "log"


def test_the_progress_line_has_the_unit_and_fits() -> None:
    step = Step(123_456, 0.5, 36_000.0, 0.012, 1.234, 1e-3, held_out=-12.3, train_loss=-12.5, unit="bits/dim")
    assert "bound -12.3 bits/dim, " in progress_note(step, step) and len(progress_note(step, step)) <= NOTE


def test_the_curves_of_a_likelihood_have_its_unit_and_may_fall_below_zero(digits: Run) -> None:
    rows = [report(k, 0.5 - 0.2 * k, train_loss=0.4 - 0.2 * k, unit="nats", held_out_levels=[1.0] * 4) for k in range(5)]
    left, right = loss_curve(rows).axes
    assert left.get_title() == "bound, nats" and left.get_yscale() == "linear" and right.get_yscale() == "log"
    assert [list(line.get_ydata()) for line in left.lines] == [[row[key] for row in rows] for key in ("train_loss", "held_out")]
    assert not (digits.path / "early.safetensors").exists()
    with Image.open(digits.path / "loss.png") as curves, Image.open(digits.path / "schedule.png") as schedule:
        assert min(curves.size) > 300 and min(schedule.size) > 300


def bounded(*costs: float, **more: list[float]) -> list[dict]:
    """Return reports of a run for the likelihood; more: what they hold besides, a value for each."""
    return [
        report(k, cost, unit="nats", train_loss=cost, **{key: values[k] for key, values in more.items()})
        for k, cost in enumerate(costs)
    ]


def test_improvements_of_negative_metrics_are_in_their_unit() -> None:
    assert gain(-1.0, -1.2, "nats") == pytest.approx(0.2) and gain(2.0, 1.5, None) == pytest.approx(0.25)
    falling, flat = bounded(*(-0.1 * k for k in range(9))), bounded(*[0.0] + [-1.0] * 10)
    since, by = held_out_decrease(falling) or (0, 0.0)
    assert since == 400 and by == pytest.approx(0.4)
    assert has_stopped_improving(flat) and not has_stopped_improving(bounded(*(-0.1 * k for k in range(12))))


def test_the_checks_take_negative_likelihoods() -> None:
    p = sound()
    falling, risen = bounded(*(-0.1 * k for k in range(9))), [0.0, -0.5, -1.0, -0.9, -0.8, -0.7, -0.6, -0.5, -0.4]
    assert all(check(replace(p, rows=falling)) is None for check in CHECKS.values())
    assert CHECKS["not_learning"](replace(p, rows=bounded(*[-1.0] * 9), movement={"a": 1e-6})) is not None
    seen = [{**row, "train_loss": -0.1 * k} for k, row in enumerate(bounded(*risen))]
    found = CHECKS["overfitting"](replace(p, rows=seen))
    assert found is not None and "bound rose from -1 to -0.4" in found.what
    moved = bounded(*(-0.1 * k for k in range(9)), held_out_levels=[[1.0 + 0.1 * k] * 4 for k in range(9)])
    assert CHECKS["overfitting"](replace(p, rows=moved)) is None  # a range of t is another noise level when the schedule moved


def test_previews_are_not_checked_for_the_likelihood() -> None:
    flat = [report(k, 0.5 + 0.5 * (k == 0)) for k in range(9)]
    p = sound()
    assert p.preview is not None
    noisy = replace(p, rows=flat, preview=replace(p.preview, grain=0.6))
    assert CHECKS["noisy_previews"](noisy) is not None
    assert (
        CHECKS["noisy_previews"](replace(noisy, rows=[{**row, "unit": "bits/dim", "train_loss": 0.5} for row in flat])) is None
    )


def test_a_learned_end_may_move_a_little_and_not_far() -> None:
    def ending_at(last: float) -> Diagnosis:
        return replace(sound(), network=NetworkInfo(schedule=Learned(last=last)))

    assert CHECKS["signal_left"](ending_at(-6.5)) is None
    found = CHECKS["signal_left"](ending_at(-2.0))
    assert found is not None and "last of at most -7.5" in found.advice and found.change == {"schedule": None}


def test_a_learned_schedule_has_no_autoguidance(digits: Run) -> None:
    with pytest.raises(UserError, match="leave --autoguidance out"):
        digits.sample(2, autoguidance=2.0)
    assert choose_autoguidance(digits, load_data("digits8"), 1000) == 1.0 and digits.autoguidance == 1.0


@pytest.mark.parametrize(
    ("data", "options", "message"),
    [
        ("digits8", {"target": "eps"}, "the target 'eps' divides by alpha.*train 'v'"),
        ("moons", {"target": "score"}, "the target 'score' divides by alpha.*learned schedule"),
        ("moons", {"target": "levels"}, "target 'levels'"),
        ("digits8", {"weight": "snr"}, "--weight vlb, got snr"),
        ("digits8", {"loss": "mae"}, "got mae"),
        ("digits8", {"times": "logit-normal"}, "got logit-normal"),
        ("digits8", {"purpose": "beauty"}, "unknown purpose 'beauty'; choose from: samples, likelihood"),
        ("digits8", {"family": "gaussian"}, "the family gaussian has no option 'purpose'.*diffusion"),
    ],
)
def test_what_does_not_go_with_the_likelihood_is_refused(data: str, options: dict, message: str, tmp_path: Path) -> None:
    with pytest.raises(UserError) as refused:
        api.begin(data, tmp_path / "run", steps=1, **{"purpose": "likelihood", **options})
    assert re.search(message, str(refused.value)) and "\n" not in str(refused.value) and not (tmp_path / "run").exists()


def test_images_of_more_bits_are_converted_to_8_with_a_note(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    (tmp_path / "deep").mkdir()
    for k in range(12):
        Image.fromarray(random.integers(0, 65536, (8, 8), dtype=np.uint16)).save(tmp_path / "deep" / f"{k}.png")
    np.save(tmp_path / "real.npy", random.random((12, 8, 8)).astype(np.float32))
    for name, parts in (("deep", ("12 16-bit", "8 bits")), ("real.npy", ("from 0 to 1", "8 bits"))):
        learning = api.begin(tmp_path / name, tmp_path / f"run-{name}", steps=1, network=TINY, purpose="likelihood")
        words = list(learning.introduction())
        assert any(all(part in line for part in parts) for line in words) and any(
            "bits/dim" in w and "256 values" in w for w in words
        )
        assert learning.run.diffusion.codec.levels == 256
        learning.close()


def test_the_memory_of_levels_is_estimated(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A step on colour images of 32 x 32 in batches of 32 takes 0.42 GB, of which 0.1 GB are the logits (measured)."""
    images = np.random.default_rng(0).integers(0, 256, (64, 32, 32, 3), dtype=np.uint8)
    monkeypatch.setattr("reverie.training.training_request.available", lambda device: 6 * 10**8)
    found = {}
    for purpose in ("samples", "likelihood"):
        learning = api.begin(images, tmp_path / purpose, steps=1, purpose=purpose)
        found[purpose] = (learning.run.config.training.batch, any("2 batches of 16" in r for r in learning.reasons))
        learning.close()
    assert found == {"samples": (32, False), "likelihood": (16, True)}
