"""Names of files and classes that steer a terminal, are no text, or have letters that a terminal lacks."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import reverie

Command = Callable[..., tuple[int, str, str]]
CLASSES = (b"\x1b[31mred", b"caf\xe9", "\u202eabc \u06f3".encode())


@pytest.fixture
def hostile(tmp_path: Path) -> Path:
    """A folder of classes whose names no terminal should be shown."""
    random = np.random.default_rng(0)
    root = Path(os.fsdecode(os.fsencode(tmp_path) + b"/data\x07\xe9"))
    for name in CLASSES:
        folder = root / os.fsdecode(name)
        folder.mkdir(parents=True)
        for k in range(6):
            Image.fromarray(random.integers(0, 256, (8, 8), dtype=np.uint8)).save(folder / f"{k}.png")
        (folder / os.fsdecode(b"\x1b]0;x\x07\xff.png")).write_bytes(b"no image")
    return root


def test_names_are_shown_escaped(hostile: Path, command: Command) -> None:
    code, out, err = command("inspect", hostile)
    assert code == 0 and r"\x1b[31mred 6" in out and r"caf\xe9 6" in out and "\x1b" not in out + err and "\u202e" not in out
    assert r"\x1b]0;x\x07\xff.png: not an image" in out
    code, _, err = command("inspect", f"{hostile}\n\x1b[2J")
    assert code == 2 and err.startswith("error: ") and err.count("\n") == 1 and "\x1b" not in err


@pytest.mark.parametrize("encoding", ["ascii", "utf-8"])
def test_a_terminal_without_the_characters_gets_escapes(hostile: Path, encoding: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from reverie.cli.main import main

    streams = [io.TextIOWrapper(io.BytesIO(), encoding=encoding, write_through=True) for _ in range(2)]
    monkeypatch.setattr(sys, "stdout", streams[0])
    monkeypatch.setattr(sys, "stderr", streams[1])
    monkeypatch.setattr(sys, "argv", ["reverie", "inspect", str(hostile)])
    with pytest.raises(SystemExit) as end:
        main()
    assert end.value.code == 0
    printed = streams[0].buffer.getvalue().decode(encoding)  # type: ignore[attr-defined]
    assert (r"\u06f3" if encoding == "ascii" else "\u06f3") in printed


def test_runs_know_such_classes_by_what_is_shown(hostile: Path, tmp_path: Path, command: Command) -> None:
    code, _, err = command("train", hostile, "--family", "gaussian", "--out", tmp_path / "run")
    assert code == 0 and "\x1b" not in err
    run = reverie.load(tmp_path / "run")
    assert run.config.data.labels == (r"\u202eabc ۳", r"\x1b[31mred", r"caf\xe9") and r"\xe9" in run.config.data.source
    code, _, _ = command("sample", tmp_path / "run", "-n", "2", "--label", r"caf\xe9", "--out", tmp_path / "a.npy")
    assert code == 0 and r"caf\xe9" in (tmp_path / "a.labels.csv").read_text()
