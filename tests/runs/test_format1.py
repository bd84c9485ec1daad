"""Runs of format 1, kept as they were written, load, sample, resume and are measured as before."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

import reverie
from reverie.families.diffusion.settings import DiffusionSettings
from reverie.runs.config import Config
from reverie.runs.folder import read_config
from reverie.runs.run import load

KEPT = Path(__file__).parent / "format1"


@pytest.fixture(params=["points", "images"])
def old(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A copy of a run that was interrupted half-way, beside what it drew then and when it was finished."""
    shutil.copytree(KEPT / request.param, tmp_path / request.param)
    return tmp_path / request.param


def test_an_old_run_samples_as_it_did(old: Path) -> None:
    run = load(old)
    assert isinstance(run.config.family, DiffusionSettings) and run.config.format == 2
    assert run.autoguidance == 1
    np.testing.assert_allclose(run.sample(8, seed=3, steps=5).x, np.load(KEPT / f"{old.name}-half.npy"), atol=1e-4)


def test_an_old_run_resumes_to_the_same_end(old: Path) -> None:
    then = load(old).chosen_sampling({})[0]
    run = reverie.train(resume=old)
    np.testing.assert_allclose(
        run.sample(8, seed=3, steps=5, sampler=then, autoguidance=1.0).x,
        np.load(KEPT / f"{old.name}-end.npy"),
        atol=2e-3,
    )
    assert "format = 2" in (old / "config.toml").read_text() and isinstance(read_config(old), Config)


def test_an_old_run_is_measured_and_described(old: Path) -> None:
    found = reverie.evaluate(old, 16, quick=True)
    assert found["family"] == "diffusion" and found["sections"]["likelihood"]
    assert reverie.inspect(old)["network"]["name"] in ("mlp", "unet")
