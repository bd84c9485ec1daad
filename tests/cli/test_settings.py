"""Settings from a file: the names of the options, and the command line wins."""

from __future__ import annotations

from pathlib import Path

import pytest

from reverie.cli.settings import read_settings
from reverie.runs.folder import read_config

TEXT = """
data = "moons"
steps = 9
points = 200
learning-rate = 0.01
ema_share = 0.3
batch = 32
augment = ["none"]

[schedule]
name = "linear"
steps = 50
"""


def test_a_file_sets_what_the_command_line_does_not(command, tmp_path: Path) -> None:
    (tmp_path / "s.toml").write_text(TEXT)
    code, out, err = command("train", "--config", tmp_path / "s.toml", "--out", tmp_path / "r", "--batch", 16)
    assert code == 0 and "trained 9 steps" in out, err
    config = read_config(tmp_path / "r")
    t = config.training
    assert (t.steps, t.batch, t.learning_rate, t.ema_share) == (9, 16, 0.01, 0.3)
    assert config.data.name == "moons" and config.data.count == 200
    schedule = dict(config.family)["schedule"]
    assert (schedule["name"], schedule["steps"]) == ("linear", 50)
    code, _, _ = command("train", "circles", "--config", tmp_path / "s.toml", "--out", tmp_path / "c", "--minutes", 0.001)
    config = read_config(tmp_path / "c")
    assert code == 0 and config.data.name == "circles" and config.training.steps is None  # another length, not a second one


def test_a_run_can_be_trained_again(command, tmp_path: Path) -> None:
    words = ("--steps", 3, "--points", 100, "--seed", 4, "--schedule", "linear:steps=60", "--warmup", 0.1)
    assert command("train", "circles", "--out", tmp_path / "first", *words)[0] == 0
    assert read_settings(tmp_path / "first") == read_settings(tmp_path / "first" / "config.toml")
    assert command("train", "--config", tmp_path / "first", "--out", tmp_path / "again")[0] == 0
    assert read_config(tmp_path / "again") == read_config(tmp_path / "first")


def test_a_run_of_another_family_can_be_trained_again(command, tmp_path: Path) -> None:
    words = ("--family", "mixture:components=3,restarts=1", "--points", 100)
    code, _, err = command("train", "moons", "--out", tmp_path / "first", *words)
    assert code == 0, err
    code, _, err = command("train", "--config", tmp_path / "first", "--out", tmp_path / "again")
    assert code == 0, err
    assert read_config(tmp_path / "again") == read_config(tmp_path / "first")


@pytest.mark.parametrize(
    ("text", "needle"),
    [
        ("stesp = 5", "did you mean 'steps'"),
        ("learning_rat = 5", "did you mean 'learning_rate'"),
        ('steps = "many"', "steps in {path}: 'many'"),
        ("steps = true", "steps in {path}: True"),
        ("steps = 2.5", "steps in {path}: 2.5"),
        ("learning_rate = [1]", "learning_rate in {path}: [1]"),
        ("strict = 1", "strict in {path}: 1"),
        ("out = 5", "out in {path}: 5"),
        ("schedule = { steps = 5 }", "schedule in {path}: {{'steps': 5}}"),
        ("data = 1979-05-27", "data in {path}"),
        ("resume = 'x'", "'resume'"),
        ("steps = ", "TOML: {path}"),
        ("steps = 5\nminutes = 5", "--steps, --minutes"),
        ("schedule = 'cosinus'", "did you mean 'cosine'"),
        ("ema_share = 7", "ema_share"),
        (None, "{path}"),
    ],
)
def test_a_wrong_file_is_one_sentence(command, tmp_path: Path, text: str | None, needle: str) -> None:
    path = tmp_path / "s.toml"
    if text is not None:
        path.write_text(text if text.startswith("data") else f"data = 'moons'\n{text}")
    code, out, err = command("train", "--config", path, *(() if text and text.startswith("out") else ("--out", tmp_path / "r")))
    assert code == 2 and out == "" and err.startswith("error: ") and err.count("\n") == 1
    assert needle.format(path=path) in err and not (tmp_path / "r").exists()


def test_a_file_that_is_no_text(command, tmp_path: Path) -> None:
    (tmp_path / "s.toml").write_bytes(b"\xff\xfe\x00")
    code, _, err = command("train", "--config", tmp_path / "s.toml")
    assert code == 2 and str(tmp_path / "s.toml") in err
    (tmp_path / "config.toml").write_text("[training]\nsteps = 'x'\n")
    code, _, err = command("train", "--config", tmp_path)
    assert code == 2 and str(tmp_path) in err
