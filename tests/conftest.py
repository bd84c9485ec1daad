"""What the tests share: schedules with a name, and runs that are trained once."""

from __future__ import annotations

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
torch.set_num_threads(1)  # the tests run two at a time


@pytest.fixture(params=list(SCHEDULES))
def schedule(request: pytest.FixtureRequest) -> Schedule:
    return SCHEDULES[request.param]()


@pytest.fixture(scope="session")
def spiral_run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return reverie.train("spiral", tmp_path_factory.mktemp("runs") / "spiral", steps=800, points=2000)


@pytest.fixture(scope="session")
def patterns_run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return reverie.train("patterns", tmp_path_factory.mktemp("runs") / "patterns", steps=2500, network="mlp:hidden=64")


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """Run the command line in this process and return exit code, standard output and standard error."""

    def run(*words: str | Path | int | float) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["reverie", *map(str, words)])
        capsys.readouterr()
        with pytest.raises(SystemExit) as end:
            main()
        out, err = capsys.readouterr()
        assert isinstance(end.value.code, int)
        return end.value.code, out, err

    return run
