"""Runs at a glance, the broken ones among them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

import reverie
from reverie import api
from reverie.runs.folder import METRICS, WEIGHTS_FILE, read_metrics


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return reverie.train("moons", tmp_path_factory.mktemp("runs") / "moons", points=300, steps=30).path


def test_runs_are_listed_and_broken_ones_say_why(run: Path, command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = ("good", "a/b/deep", "a/b/c/too-deep", "torn", "unreadable", "no-weights", "bad-metrics", "odd-metrics")
    for name in names:
        shutil.copytree(run, tmp_path / name)
    (tmp_path / "notes").mkdir()
    (tmp_path / "torn" / WEIGHTS_FILE).write_bytes((run / WEIGHTS_FILE).read_bytes()[:100])
    (tmp_path / "unreadable" / "config.toml").write_text("format = 2\nfamily = 3\n")
    shutil.rmtree(tmp_path / "no-weights" / "checkpoints")
    (tmp_path / "no-weights" / WEIGHTS_FILE).unlink()
    (tmp_path / "bad-metrics" / METRICS).write_text('{"i": 5, "loss": 1, "fraction": "half", "seconds": [], "held_out": {}}\n')
    (tmp_path / "odd-metrics" / METRICS).write_text('{"i": 5, "loss": 1, "fraction": 0.5, "seconds": NaN}\n')
    monkeypatch.setattr(reverie.runs.run, "read_weights", None)  # nothing reads them

    code, out, _ = command("runs", tmp_path, "--json")
    found = {Path(row["path"]).relative_to(tmp_path).as_posix(): row for row in json.loads(out)["runs"]}
    assert code == 0 and list(found) == sorted(set(names) - {"a/b/c/too-deep"})
    problems = {name: row["problem"] for name, row in found.items() if row["problem"]}
    assert set(problems) == {"torn", "unreadable", "no-weights", "bad-metrics", "odd-metrics"}
    assert "truncated" in problems["torn"] and "family" in problems["unreadable"]
    assert "before its first checkpoint" in problems["no-weights"] and "damaged" in problems["bad-metrics"]
    good, held = found["good"], found["good"]["held_out"]
    assert good["data"] == "moons" and good["count"] == 300 and good["steps"] == 30 and good["family"] == "diffusion"
    checked = [row for row in read_metrics(run) if "held_out" in row]
    assert held == checked[-1]["held_out"] and good["fraction"] == 1

    code, out, _ = command("runs", tmp_path)
    lines = out.splitlines()
    assert code == 0 and lines[0].split() == ["run", "data", "family", "length", "held", "out", "verdict"]
    assert any("moons (300)  diffusion  30 steps" in line and f"{held:.4g}" in line for line in lines)
    assert sum(line.startswith(f"{tmp_path}/torn: ") for line in lines) == 1 and len(lines) == 8
    code, out, _ = command("runs", run)
    assert code == 0 and len(out.splitlines()) == 2 and str(run) in out


def test_the_verdict_is_that_of_the_run(run: Path) -> None:
    (line,) = api.runs(run)
    verdict = api.verdict(api.load(run))
    if verdict.findings:
        assert all(finding.check in line.verdict for finding in verdict.findings)
    else:
        assert line.verdict.startswith(verdict.lines[0].partition(":")[0])


def test_no_runs_and_no_folder(command, tmp_path: Path) -> None:
    code, out, _ = command("runs", tmp_path)
    assert code == 0 and str(tmp_path) in out and "reverie train" in out
    code, _, err = command("runs", tmp_path / "nowhere")
    assert code == 2 and str(tmp_path / "nowhere") in err
