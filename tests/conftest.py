"""Shared fixtures: named schedules, and runs that are trained once for all workers.  A test modifies copies only."""

from __future__ import annotations

import fcntl
import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from hypothesis import settings

import reverie
from reverie.cli.main import main
from reverie.diffusion.schedule import Schedule
from reverie.diffusion.schedules import SCHEDULES
from reverie.runs.run import Run

settings.register_profile("steady", deadline=None, derandomize=True, max_examples=40)
settings.load_profile("steady")
torch.set_num_threads(1)  # the tests run in two workers
TINY = "unet:widths=[8,12],groups=4,embedding_dim=16"


@pytest.fixture(params=list(SCHEDULES))
def schedule(request: pytest.FixtureRequest) -> Schedule:
    return SCHEDULES[request.param]()


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Run]:
    """Train a run by name, unless this or another worker has; others wait."""
    base = tmp_path_factory.getbasetemp()
    shared = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "shared"
    shared.mkdir(exist_ok=True)

    def train(name: str, data: str, **options: object) -> Run:
        with (shared / f"{name}.lock").open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            if not (shared / name).exists():
                reverie.train(data, shared / f"{name}.unfinished", **options).path.rename(shared / name)
        return reverie.load(shared / name)

    return train


@pytest.fixture(scope="session")
def spiral_run(trained: Callable[..., Run]) -> Run:
    return trained("spiral", "spiral", steps=800, points=2000)


@pytest.fixture(scope="session")
def patterns_run(trained: Callable[..., Run]) -> Run:
    return trained("patterns", "patterns", steps=1200, network="mlp:hidden=64")


@pytest.fixture(scope="session")
def digits_run(trained: Callable[..., Run]) -> Run:
    """Return a run of a tiny network on digits of 8 x 8 with labels."""
    return trained("digits8", "digits8", steps=150, network=TINY)


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """Run the command line in this process; return exit code, standard output and standard error."""

    def run(*words: str | Path | int | float) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["reverie", *map(str, words)])
        capsys.readouterr()
        with pytest.raises(SystemExit) as end:
            main()
        out, err = capsys.readouterr()
        assert isinstance(end.value.code, int)
        return end.value.code, out, err

    return run
