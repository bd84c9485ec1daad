"""A folder with small runs and data, and the studio on it."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from reverie.cli.studio import form
from reverie.runs.run import Run
from reverie.studio.app import Studio
from reverie.studio.guard import Guard
from reverie.studio.library import path_id
from tests.studio.asgi import PORT, TOKEN

DIGITS, PATTERNS = path_id("runs/digits8"), path_id("runs/patterns")
HTML = "<img src=x onerror=alert(1)>"


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory, digits_run: Run, patterns_run: Run) -> Path:
    """Return a folder with two runs, and data with a class that is named like HTML and a broken file."""
    root = tmp_path_factory.mktemp("studio")
    shutil.copytree(digits_run.path, root / "runs" / "digits8")
    shutil.copytree(patterns_run.path, root / "runs" / "patterns")
    for name in (HTML, "plain"):
        (root / "photos" / name).mkdir(parents=True)
        for k in range(4):
            Image.fromarray(np.full((9, 9), 40 * k + 20, np.uint8)).save(root / "photos" / name / f"{k}.png")
    (root / "photos" / "plain" / "<b>broken<b>.png").write_bytes(b"<html>no picture</html>")
    return root


@pytest.fixture
def studio(folder: Path) -> Studio:
    return Studio(folder, form())


@pytest.fixture
def app(studio: Studio) -> Guard:
    return Guard(studio.app(), port=PORT, token=TOKEN)
