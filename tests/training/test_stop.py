"""Requests to stop during long work, and time limits when all stages are slow."""

from __future__ import annotations

import math
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

import reverie
from reverie import api
from reverie.base.budget import Budget
from reverie.base.signals import Stopped, stop_requests
from reverie.data import Dataset
from reverie.diffusion.plan import network_for
from reverie.families.diffusion import noise_levels as levels
from reverie.families.diffusion.model import Diffusion
from reverie.runs import folder
from reverie.runs.config import TrainingConfig
from reverie.training import gradient, step_rate
from reverie.training.gradient import micro_batches
from reverie.training.loop import CheckSchedule
from reverie.training.previews import Previews

OPTIONS: dict[str, Any] = {"points": 300, "steps": 40, "seed": 5}
LONG = 60.0  # seconds that no test takes


def wait_long() -> None:
    """Wait as long work does: a little at a time."""
    for _ in range(round(LONG / 0.05)):
        time.sleep(0.05)


def request_stop(number: int = signal.SIGINT) -> None:
    """Send a signal, as Ctrl-C or the end of the program does."""
    os.kill(os.getpid(), number)
    time.sleep(0.05)


@pytest.fixture(autouse=True)
def _little_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("reverie.base.signals.GRACE_PERIOD", 0.2)


def images(count: int, side: int) -> Dataset:
    """Return grey noise."""
    return Dataset("noise", torch.randint(0, 256, (count, 1, side, side), dtype=torch.uint8))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_long_work_is_broken_off_soon(number: int) -> None:
    with stop_requests() as stop, pytest.raises(Stopped):
        stop.is_interruptible = True
        request_stop(number)
        wait_long()


def test_what_may_not_be_broken_off_ends_by_itself() -> None:
    with stop_requests() as stop:
        request_stop()
        time.sleep(0.6)
        assert stop()


def test_a_second_control_c_interrupts_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("reverie.base.signals.GRACE_PERIOD", LONG)
    with stop_requests() as stop, pytest.raises(KeyboardInterrupt) as interrupted:
        stop.is_interruptible = True
        request_stop()
        request_stop()
        wait_long()
    assert not isinstance(interrupted.value, Stopped)


def test_a_training_stopped_in_a_long_preview_is_kept_and_resumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command
) -> None:
    whole = reverie.train("moons", tmp_path / "whole", **OPTIONS)

    def slow(self: Previews, i: int) -> Any:
        request_stop()
        wait_long()

    with monkeypatch.context() as patched:
        patched.setattr(Previews, "take", slow)
        code, _, err = command("train", "moons", "--points", 300, "--steps", 40, "--seed", 5, "--out", tmp_path / "run")
    assert code == 130 and "stopped at step 1" in err and "reverie train --resume" in err
    list(api.begin(resume=tmp_path / "run"))
    ours, theirs = (load_file(path / folder.WEIGHTS_FILE) for path in (tmp_path / "run", whole.path))
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)


@pytest.mark.parametrize("where", ["gradient", "update"])
def test_a_step_that_takes_long_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str) -> None:
    whole = reverie.train("moons", tmp_path / "whole", **OPTIONS)
    steps = 0

    def slow(*_: Any) -> None:
        nonlocal steps
        steps += 1
        if steps == 12:
            request_stop()
            wait_long()

    if where == "gradient":
        own = gradient.Gradients.__call__
        monkeypatch.setattr(gradient.Gradients, "__call__", lambda *given: (slow(), own(*given))[1])
    else:
        update = torch.optim.AdamW.step
        monkeypatch.setattr(torch.optim.AdamW, "step", lambda self, *given: (update(self, *given), slow())[0])
    training = api.begin("moons", tmp_path / "run", **OPTIONS)
    with pytest.raises(Stopped):
        list(training)
    assert training.learner.i == 11
    monkeypatch.undo()
    list(api.begin(resume=tmp_path / "run"))
    ours, theirs = (load_file(path / folder.WEIGHTS_FILE) for path in (tmp_path / "run", whole.path))
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)


def test_a_training_interrupted_before_it_begins_leaves_no_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command
) -> None:
    def slow(self: Diffusion) -> str:
        raise KeyboardInterrupt

    monkeypatch.setattr(Diffusion, "summary_line", slow)
    code, _, err = command("train", "moons", "--steps", 40, "--out", tmp_path / "run")
    assert code == 130 and "interrupted; no checkpoint" in err and not (tmp_path / "run").exists()


def test_batches_of_large_images_are_cut_so_that_one_can_be_waited_for() -> None:
    assert micro_batches(False, 1, {"batch": 32}, images(2, 8)) == 1
    large = Dataset("large", torch.empty(40, 3, 1000, 1000, dtype=torch.uint8, device="meta"))
    assert micro_batches(False, 1, {"batch": 16}, large) == 12 and micro_batches(False, 32, {"batch": 64}, large) == 32
    middling = Dataset("middling", torch.empty(400, 3, 256, 256, dtype=torch.uint8, device="meta"))
    assert micro_batches(False, 1, {"batch": 16}, middling) == 1


class TestTheMinutesHold:
    def test_batches_are_smaller_where_a_step_takes_long(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        data = images(20, 8)
        model = api.prepare(data.x, tmp_path / "run", steps=1, network="unet:widths=8").learner.model
        monkeypatch.setattr(step_rate, "LARGE", 1)
        monkeypatch.setattr(step_rate, "seconds_each", lambda *_: 0.5)
        settings = TrainingConfig(minutes=1.0, batch=16)

        def budget(seconds: float) -> Budget:
            made = Budget(wall=lambda: 0.0)
            made.limit(seconds)
            return made

        smaller, note = step_rate.in_time(model, data, settings, (), budget(60))
        assert smaller.batch == 5 and note is not None and "5 instead of 16" in note
        assert step_rate.in_time(model, data, settings, ("batch",), budget(60))[0] == settings
        assert step_rate.in_time(model, data, TrainingConfig(steps=10, batch=16), (), budget(math.inf))[0].batch == 16
        barely, note = step_rate.in_time(model, data, TrainingConfig(minutes=0.1, batch=16), (), budget(6))
        assert barely.batch == 1 and note is not None and "12 steps" in note and "0.1 minutes" in note

    def test_both_stages_of_latent_diffusion_go_by_the_same_clock(self, tmp_path: Path) -> None:
        training = api.prepare(
            images(20, 16).x, tmp_path / "run", minutes=0.1, latent_space=True, clock="processor", network="unet:widths=8"
        )
        assert training.first is not None and training.first.run.config.training.clock == "processor"
        training.close()

    def test_a_step_is_timed_and_forgotten(self, tmp_path: Path) -> None:
        data = images(20, 8)
        model = api.prepare(data.x, tmp_path / "run", steps=1, network="unet:widths=8").learner.model
        before = {name: t.clone() for name, t in model.state_dict().items()}
        assert isinstance(model, Diffusion)
        assert step_rate.seconds_each(model, data, TrainingConfig(minutes=1.0), time.process_time) > 0
        assert all(p.grad is None for p in model.parameters())
        assert all(torch.equal(t, before[name]) for name, t in model.state_dict().items())

    def test_checks_wait_where_steps_take_long(self) -> None:
        quick, slow, by_steps = CheckSchedule(60, 0, 0), CheckSchedule(60, 0, 0), CheckSchedule(math.inf, 0, 0)
        assert quick.due(0.01, 0.5, 0.05) and by_steps.due(0.01, 5, 5)
        assert not any(slow.due(k / 20, 3 * k, 3.0) for k in range(20)) and slow.due(1.0, 60, 3.0)
        quick.record(0.01, 20.0, first=True)
        assert quick.due(0.06, 3.6, 0.05) and not quick.due(0.04, 2.4, 0.05)
        quick.record(0.3, 20.0, first=False)
        assert not quick.due(0.8, 48, 0.05) and quick.due(1.0, 60, 0.05)

    def test_figures_of_very_large_images_take_fewer_draws(self) -> None:
        def draws(side: int) -> int:
            return levels.check_draws(Dataset("x", torch.empty(4, 3, side, side, dtype=torch.uint8, device="meta")))

        assert [draws(side) for side in (16, 64, 128, 256, 1000)] == [512, 256, 256, 64, 8]

    def test_each_datum_is_coded_once(self) -> None:
        seen: list[float] = []

        def encode(x: Tensor) -> Tensor:
            seen.extend(x.flatten().tolist())
            return 2 * x

        known, x = dict[int, Tensor](), torch.arange(5.0)[:, None]
        for numbers in ([0, 1, 2], [3, 4, 0], [1, 2, 3]):
            assert torch.equal(levels._encode_once(encode, x[numbers], numbers, known), 2 * x[numbers])
        assert seen == [0, 1, 2, 3, 4]

    def test_a_map_that_cannot_be_made_small_has_no_attention(self) -> None:
        assert network_for((8, 250, 250), 0, "unet-tiny")["attention"] is False
        assert network_for((8, 250, 250), 0, "unet-tiny:attention=true")["attention"] is True
        assert network_for((3, 64, 64), 0, "unet-tiny")["attention"] is True
