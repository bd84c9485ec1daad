"""A training that is killed at any change of its folder ends as one that was left alone, bit for bit."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.training.kills import cases


def killed(case: str, place: Path, *ending: str) -> dict[str, Any]:
    call = [sys.executable, "-m", "tests.training.kills", case, str(place), *ending]
    done = subprocess.run(call, capture_output=True, text=True, timeout=3600, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    assert not found["wrong"], (found["wrong"], done.stderr)
    return found


@pytest.mark.parametrize(("case", "ending"), [("latent", "codec/model.safetensors"), ("vae", "model.safetensors")])
def test_killed_before_its_weights_are_written(case: str, ending: str, tmp_path: Path) -> None:
    assert killed(case, tmp_path, ending)["kills"] >= 2


@pytest.mark.slow
@pytest.mark.parametrize("case", cases())
def test_killed_at_every_change(case: str, tmp_path: Path) -> None:
    assert killed(case, tmp_path)["kills"] >= 9
