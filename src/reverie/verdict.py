"""The verdict on a run: what is wrong, how good it is, and what to do next."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from reverie import checkpoint
from reverie.doctor import RESCUE, Finding
from reverie.run import Run

STILL_FALLING = 0.03  # by which the held-out loss must have fallen in the second half of a run for more time to be worth it


@dataclass(frozen=True)
class Verdict:
    """Three lines for a person, what the doctor found, and the commands to go on and to mend."""

    lines: tuple[str, str, str]
    findings: tuple[Finding, ...]
    commands: dict[str, str]


def _figures(levels: Sequence[float]) -> str:
    return " ".join(f"{value:.3g}" for value in levels)


def _progress(rows: Sequence[dict[str, Any]]) -> str:
    if not rows:
        return "no check on held-out data was made"
    first, last = rows[0], rows[-1]
    line = f"held-out loss {last['held_out']:.4f}, at first {first['held_out']:.4f}; from least to most noise"
    line += f" {_figures(last['held_out_levels'])}"
    if last.get("optimum_levels"):
        line += f"; on training data {_figures(last['seen_levels'])}, at least"
        line += f" {_figures(last['optimum_levels'])}"
    return line


def _next(rows: Sequence[dict[str, Any]], findings: Sequence[Finding]) -> str:
    if findings:
        return f"next: {findings[0].advice}"
    middle = [row for row in rows if row["fraction"] <= 0.5]
    if not middle or len(rows) < 3:
        return "next: train longer; this was too short to judge"
    fell = 1 - rows[-1]["held_out"] / middle[-1]["held_out"]
    if fell > STILL_FALLING:
        return f"next: the held-out loss fell by {fell:.0%} in the second half, so more time will help"
    return f"next: the held-out loss fell by only {max(fell, 0):.1%} in the second half, so more time will give little"


def verdict(run: Run) -> Verdict:
    """Judge a run by its reports and findings."""
    rows = [row for row in run.metrics() if "held_out" in row]
    findings = tuple(checkpoint.read_findings(run.path))
    if findings:
        health = f"{len(findings)} found wrong: " + " | ".join(str(finding) for finding in findings)
    else:
        health = "healthy: the doctor found nothing wrong"
    path, training = shlex.quote(str(run.path)), run.config.training
    finished = bool(rows) and rows[-1]["fraction"] == 1
    longer = f" --extend --minutes {training.minutes or 5:g}" if finished else ""
    commands = {"go on": f"reverie train --resume {path}{longer}"}
    if findings:
        lower = any(finding.check == RESCUE for finding in findings)  # otherwise the usual rate is the best guess
        commands["mend"] = _again(run) + (f" --learning-rate {training.learning_rate / 10:g}" if lower else "")
    return Verdict((health, _progress(rows), _next(rows, findings)), findings, commands)


def _again(run: Run) -> str:
    """Return the command that trains a new run beside this one on the same data for as long."""
    training, data = run.config.training, run.config.data
    length = f"--minutes {training.minutes:g}" if training.minutes else f"--steps {training.steps}"
    read = "".join(f" --{key} {shlex.quote(str(value))}" for key, value in data.reading.items())
    return f"reverie train {shlex.quote(data.source)} --out {shlex.quote(f'{run.path}-mended')} {length}{read}"
