"""The time of a whole command: what is read, prepared and finished is inside the minutes, by a clock that the test moves."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from reverie import api
from reverie.base.budget import Budget
from reverie.base.errors import UserError
from reverie.data import classifiers, load_data
from reverie.families.diffusion.distillation import Distilled
from reverie.families.diffusion.model import Diffusion
from reverie.families.diffusion.settings import DiffusionSettings
from reverie.nets import lenet
from reverie.runs.run import Run, load
from reverie.runs.screen import Screen
from reverie.runs.step import Step
from reverie.training import distil, loop, trainer
from reverie.training.loop import StepClock
from reverie.training.previews import Previews
from reverie.training.step_rate import Forecast
from tests.conftest import TINY


class Time:
    """A clock that stands still until the test lets time pass."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now

    def slow(self, call: Callable[..., Any], seconds: float) -> Callable[..., Any]:
        """Return a call that takes so long."""

        def longer(*given: Any, **options: Any) -> Any:
            self.now += seconds
            return call(*given, **options)

        return longer


@dataclass
class RecordedBudget:
    """A budget with a fake clock, and its messages and stages."""

    budget: Budget
    time: Time
    lines: list[str]
    stages: list[tuple[str, int, int]]


@pytest.fixture
def recorded() -> RecordedBudget:
    now, lines, stages = Time(), list[str](), list[tuple[str, int, int]]()
    budget = Budget(now, now, lines.append)
    budget.on_stage = lambda name, done, of, left: stages.append((name, done, of))
    return RecordedBudget(budget, now, lines, stages)


def test_a_stage_has_what_is_not_kept_back_for_later_ones(recorded: RecordedBudget) -> None:
    budget, now = recorded.budget, recorded.time
    assert budget.free == math.inf and budget.has_time_for("film", 1e9)
    now.now += 5
    budget.limit(60)
    assert (budget.spent, budget.left) == (5, 55)
    budget.reserve("choice", 20)
    budget.reserve("choice", 10)
    budget.reserve("film", 5)
    assert budget.free == 40
    now.now += 42  # the steps took longer than they should have
    with budget.stage("choice") as stage:
        assert stage.left == pytest.approx(13 * 10 / 15)  # what is left is shared out by the estimates
        now.now += 100
        assert stage.left < 0
    assert (
        budget.free == -92 and not budget.has_time_for("film", 5) and "film" in recorded.lines[0] and "5 s" in recorded.lines[0]
    )
    assert recorded.stages == [("choice", 0, 2)] and budget.reserved == 0


def test_a_short_stage_is_not_left_out_because_another_one_was_long(recorded: RecordedBudget) -> None:
    budget, now = recorded.budget, recorded.time
    budget.limit(60)
    for stage, seconds in (("check", 1), ("preview", 1), ("choice", 7), ("film", 3)):
        budget.reserve(stage, seconds)
    now.now += 48
    with budget.stage("check"):
        now.now += 3
    assert (
        budget.free == -2
        and budget.has_time_for("preview", 1)
        and budget.has_time_for("film", 3)
        and not budget.has_time_for("other", 9)
    )
    with budget.stage("choice") as stage:
        assert 5 < stage.left < 7


def test_a_part_has_its_share_of_what_is_left(recorded: RecordedBudget) -> None:
    recorded.budget.limit(90)
    recorded.time.now += 30
    part = recorded.budget.sub_budget(1 / 3)
    recorded.time.now += 5
    assert part.left == 15 and part.clock is recorded.budget.clock


def test_by_processor_time_the_wall_does_not_count() -> None:
    wall, work = Time(), Time()
    budget = Budget(wall, work)
    wall.now += 1000
    work.now += 3
    budget.limit(10, "processor")
    assert budget.left == 7


def test_steps_get_what_other_stages_leave(recorded: RecordedBudget) -> None:
    budget, now = recorded.budget, recorded.time
    now.now += 20  # reading
    budget.limit(60)
    budget.reserve("end", 10)
    steps = StepClock(budget, 0.0)
    assert steps.limit == 30
    now.now += 15
    assert steps.fraction(steps.seconds) == 0.5
    budget.reserve("end", 20)  # previews turn out to be slow
    assert steps.fraction(steps.seconds) == 0.75
    budget.reserve("end", 5)
    assert steps.fraction(steps.seconds) == 0.75  # it never falls, by which learning rates go
    now.now += 20
    assert steps.fraction(steps.seconds) == 1


def test_some_steps_are_made_however_long_the_data_took(recorded: RecordedBudget) -> None:
    recorded.time.now += 300
    recorded.budget.limit(60)
    steps = StepClock(recorded.budget, 0.0)
    assert steps.limit == loop.MIN_STEP_SHARE * 60 and steps.fraction(0.0) == 0


SLOW = {"reading": 12.0, "clusters": 6.0, "preview": 1.5, "film": 2.0}


@pytest.fixture
def slow(recorded: RecordedBudget, monkeypatch: pytest.MonkeyPatch) -> RecordedBudget:
    """Stages that take long by the clock of the test; what they do is what they always do."""
    now = recorded.time
    monkeypatch.setattr("reverie.training.prepare.load_data", now.slow(load_data, SLOW["reading"]))
    monkeypatch.setattr(Diffusion, "initialize", now.slow(Diffusion.initialize, SLOW["clusters"]))
    monkeypatch.setattr(Previews, "take", now.slow(Previews.take, SLOW["preview"]))
    monkeypatch.setattr(Previews, "finish", now.slow(Previews.finish, SLOW["film"]))
    monkeypatch.setattr(loop, "make_step", now.slow(loop.make_step, 0.4))
    monkeypatch.setattr(loop, "REPORT_SECONDS", 0.0)
    return recorded


@pytest.mark.parametrize("clock", ["wall", "processor"])
def test_the_whole_command_takes_its_minutes(clock: str, slow: RecordedBudget, tmp_path: Path) -> None:
    begun = slow.time.now
    training = api.prepare("digits8", tmp_path / "run", minutes=1, clock=clock, network=TINY, budget=slow.budget)
    steps = list(training)
    took = slow.time.now - begun
    assert steps[-1].fraction == 1 and 45 < took <= 60 + trainer.CURVES
    assert 0.5 * 60 < steps[-1].seconds < 60 - SLOW["reading"] - SLOW["clusters"]
    middle = steps[len(steps) // 2]
    assert middle.finishing > SLOW["preview"] and middle.seconds_left > 60 * (1 - middle.fraction) / 2
    assert [name for name, _, _ in slow.stages][-2:] == ["film and sheet", "writing"] and not any(
        "skipped" in line for line in slow.lines
    )
    assert steps[-1].train_loss is not None
    assert load(tmp_path / "run").sample(1).x.shape == (1, 8, 8)


def test_what_the_time_is_over_for_is_left_out_with_a_line(
    slow: RecordedBudget, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("reverie.training.prepare.load_data", slow.time.slow(load_data, 55))
    monkeypatch.setattr(Diffusion, "held_out_metrics", slow.time.slow(Diffusion.held_out_metrics, 0.1))
    training = api.prepare("digits8", tmp_path / "run", minutes=1, network=TINY, budget=slow.budget)
    *_, last = training
    assert last.fraction == 1 and last.i > 10 and any("film" in line for line in slow.lines)
    assert not (tmp_path / "run" / "previews" / "film.gif").exists()
    assert last.held_out is not None and last.train_loss is None  # the last check is brief
    assert load(tmp_path / "run").sample(1).x.shape == (1, 8, 8)


def test_a_run_that_is_resumed_has_what_is_left_of_its_minutes(slow: RecordedBudget, tmp_path: Path) -> None:
    training = api.prepare("digits8", tmp_path / "run", minutes=1, network=TINY, budget=slow.budget)
    for step in training:
        if step.fraction > 0.5:
            break
    training.close()
    begun, now = slow.time.now, slow.time
    resumed = api.begin(resume=tmp_path / "run", budget=Budget(now, now))
    *_, last = resumed
    assert last.fraction == 1 and now.now - begun <= 60 - step.seconds + trainer.CURVES
    with pytest.raises(UserError, match="finished"):
        api.begin(resume=tmp_path / "run")


def test_both_stages_of_a_latent_training_share_the_minutes(
    recorded: RecordedBudget, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = recorded.time
    monkeypatch.setattr(loop, "make_step", now.slow(loop.make_step, 0.5))
    monkeypatch.setattr(Previews, "take", now.slow(Previews.take, 1.0))
    monkeypatch.setattr(Previews, "finish", now.slow(Previews.finish, 3.0))
    monkeypatch.setattr(loop, "REPORT_SECONDS", 0.0)
    x = np.random.default_rng(0).integers(0, 255, (40, 3, 16, 16), dtype=np.uint8)
    begun = now.now
    training = api.prepare(x, tmp_path / "run", minutes=1, latent_space=True, network=TINY, budget=recorded.budget)
    stages: dict[str, float] = {}
    for step in training:
        stages[step.stage] = now.now - begun
    assert 10 < stages["autoencoder"] <= 22 and 50 < now.now - begun <= 60 + trainer.CURVES


def test_finishing_has_a_bar_with_its_stages(capsys: pytest.CaptureFixture[str], recorded: RecordedBudget) -> None:
    step = Step(9, 1.0, 60.0, 2.0, 0.5, 0.1)

    def training() -> Any:
        yield step
        recorded.budget.reserve("choice", 20)
        recorded.budget.reserve("film", 5)
        with recorded.budget.stage("choice"):
            recorded.budget.notify("left out: something")
        with recorded.budget.stage("film"):
            pass

    assert Screen(False, False).follow_training(training(), recorded.budget) == step
    lines = capsys.readouterr().err
    assert "1/2: choice, 25 s left" in lines and "2/2: film, 5 s left" in lines and "left out: something" in lines


def test_the_expectation_is_corrected_once_where_the_machine_is_busy(recorded: RecordedBudget, tmp_path: Path) -> None:
    training = api.prepare("digits8", tmp_path / "run", minutes=1, network=TINY)
    recorded.budget.limit(60)
    busy = [Step(10 * k, k / 10, 6.0 * k, 1.6, 0.5, 0.1, waited=0.4) for k in range(1, 6)]
    expected = Forecast(training.run.config, recorded.budget)
    lines = [line for step in busy if (line := expected.correction(step))]
    assert len(lines) == 1 and "40%" in lines[0] and "about 97 steps" in lines[0] and "1.6 steps/s" in lines[0]
    quiet = Forecast(training.run.config, recorded.budget)
    assert not any(quiet.correction(Step(10 * k, k / 10, 6.0 * k, 1.6, 0.5, 0.1, waited=0.05)) for k in range(1, 9))
    family = training.run.config.family
    assert isinstance(family, DiffusionSettings)
    student = family.model_copy(update={"distilled": Distilled()})
    config = training.run.config.model_copy(update={"family": student})
    expected = Forecast(config, recorded.budget)
    (student_line,) = [line for step in busy if (line := expected.correction(step))]
    assert "free cores" in lines[0] and "about 97 steps" in student_line
    assert "free cores" not in student_line  # that table holds for trainings from scratch
    training.discard()


def test_the_processor_time_of_a_command_is_what_was_requested(
    command: Callable[..., tuple[int, str, str]], tmp_path: Path
) -> None:
    command("list", "data")  # what is imported is there
    torch.manual_seed(0)
    begun, requested = time.process_time(), 12.0
    code, *_ = command(
        "train", "digits8", "--out", tmp_path / "run", "--minutes", requested / 60, "--clock", "processor", "--network", TINY
    )
    assert code == 0 and time.process_time() - begun < 1.15 * requested + 4
    assert (tmp_path / "run" / "model.safetensors").is_file()


@pytest.fixture
def teacher(digits_run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return digits_run.path


def test_distillation_trains_its_classifiers_within_a_fifth_of_the_time(
    slow: RecordedBudget, teacher: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = slow.time
    monkeypatch.setattr(lenet, "_step", now.slow(lenet._step, 0.05))
    begun = now.now
    training = api.prepare_distillation(teacher, tmp_path / "fast", minutes=1, budget=slow.budget)
    assert 0 < now.now - begun <= 0.2 * 60 + 0.5 and any("12 s" in line for line in slow.lines)
    *_, last = training
    assert last.fraction == 1 and last.seconds > 30 and now.now - begun <= 60 + trainer.CURVES

    def never(*given: Any, **options: Any) -> None:
        raise AssertionError("a classifier was trained again")

    monkeypatch.setattr(classifiers, "train_classifier", never)
    again = Budget(now, now, slow.lines.append)
    api.prepare_distillation(teacher, tmp_path / "again", minutes=1, budget=again).discard()
    assert "cache" in slow.lines[-1] or "cache" in slow.lines[-2]


def test_a_guided_teacher_draws_as_many_samples_as_there_is_time_for(
    slow: RecordedBudget, teacher: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = slow.time
    monkeypatch.setattr(Run, "batch_size", lambda self: 32)
    monkeypatch.setattr(Run, "frames", now.slow(Run.frames, 2.0))
    begun = now.now
    training = api.prepare_distillation(teacher, tmp_path / "fast", minutes=1, guidance=2.0, budget=slow.budget)
    distilled = training.run.config.family.distilled
    assert 64 <= distilled.samples == len(training.train) + len(training.held_out) < distil.DRAWN
    assert now.now - begun <= 0.2 * 60 + 2.0 + 0.2 * 60 and any(f"{distil.DRAWN:,}" in line for line in slow.lines)
    training.discard()
