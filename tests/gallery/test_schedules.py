"""The gallery of schedules: its curves are theirs, and those of runs are what was learned."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import reverie
from reverie import api
from reverie.base.errors import UserError
from reverie.diffusion.learned import Learned
from reverie.diffusion.schedule import Rectified
from reverie.gallery.schedules import MAX_RUNS, curves
from reverie.runs.learned_schedule import TIMES, log_snr_before_and_after
from reverie.runs.run import Run
from tests.conftest import TINY


def test_the_curves_of_the_straight_path() -> None:
    t = TIMES.numpy()
    log_snr, alpha, sigma = curves(Rectified())
    assert np.allclose(alpha, 1 - t) and np.allclose(sigma, t)
    assert np.allclose(log_snr[1:-1], 2 * np.log((1 - t[1:-1]) / t[1:-1]))
    assert log_snr[0] == np.inf and log_snr[-1] == -np.inf


def test_before_is_what_the_config_says_and_after_what_was_learned(trained: Callable[..., Run], digits_run: Run) -> None:
    run = trained("digits8-likelihood", "digits8", steps=40, network=TINY, purpose="likelihood")
    before, after = log_snr_before_and_after(run) or pytest.fail("it has a learned schedule")
    spec, schedule = run.diffusion_settings.schedule, run.diffusion.denoiser.schedule
    assert isinstance(schedule, Learned) and len(before) == len(after) == len(TIMES)
    assert before[[0, -1]].tolist() == pytest.approx([spec["first"], spec["last"]], abs=1e-5)
    ends = [float(end.detach()) for end in schedule.ends()]
    assert after[[0, -1]].tolist() == pytest.approx(ends, abs=1e-5) and (before - after).abs().max() > 0.01
    assert log_snr_before_and_after(digits_run) is None


def test_the_command_draws_all_schedules_and_those_of_runs(command, digits_run: Run, tmp_path: Path) -> None:
    code, out, err = command("gallery", "schedules", "--out", tmp_path / "all.png")
    assert code == 0 and "all.png" in out, err
    code, out, err = command("gallery", "schedules", digits_run.path, digits_run.path, "--out", tmp_path / "runs.png")
    assert code == 0, err
    with Image.open(tmp_path / "all.png") as plain, Image.open(tmp_path / "runs.png") as more:
        assert plain.size[0] == more.size[0] > 1000 and more.size[1] > 1.5 * plain.size[1]


def test_what_has_no_schedule_is_refused(digits_run: Run, tmp_path: Path, command) -> None:
    fitted = reverie.train("moons", tmp_path / "fitted", points=200, family="gaussian")
    with pytest.raises(UserError, match=r"needs a diffusion model.*gaussian"):
        api.gallery("schedules", tmp_path / "s.png", runs=[fitted])
    with pytest.raises(UserError, match=f"at most {MAX_RUNS} runs"):
        api.gallery("schedules", tmp_path / "s.png", runs=[digits_run] * (MAX_RUNS + 1))
    with pytest.raises(UserError, match="no option 'runs'"):
        api.gallery("normal", tmp_path / "s.png", runs=[digits_run])
    assert command("gallery", "schedules", tmp_path / "none", "--out", tmp_path / "s.png")[0] == 2
    assert not (tmp_path / "s.png").exists()
