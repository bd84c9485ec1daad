"""The run folder: config.toml, model.safetensors, metrics.jsonl.  Never a pickle."""

from __future__ import annotations

import json
import os
import shlex
import warnings
from collections.abc import Iterator
from difflib import get_close_matches
from pathlib import Path
from typing import IO, Any

import tomli_w
from pydantic import ValidationError

from reverie.base.errors import ReverieWarning, UserError
from reverie.base.files import atomic, own_file, read_own, reason
from reverie.base.parse import read_json, read_toml
from reverie.base.spec import first_problem
from reverie.runs.config import Config, with_present_keys
from reverie.runs.finding import RESCUE, Finding, FindingRow
from reverie.runs.step import read_row

CONFIG, WEIGHTS_FILE, METRICS = "config.toml", "model.safetensors", "metrics.jsonl"
MAX_CONFIG = 2**22  # bytes, including the names of all labels
EARLY_FILE = "early.safetensors"  # EMA weights early in training, the weak model of autoguidance
LONGEST_ROW = 2**16  # bytes of a line of metrics.jsonl
_warned: set[str] = set()  # warnings of invalid rows, which are read repeatedly


def write_config(folder: Path, config: Config) -> None:
    """Write config.toml."""
    with atomic(own_file(folder, CONFIG)) as path:
        path.write_text(tomli_w.dumps(config.as_table()), encoding="utf-8")


def check_run(folder: Path) -> None:
    """Refuse a missing folder, or one without a run."""
    if not folder.is_dir():
        siblings = [str(path.parent) for path in folder.parent.glob("*/" + CONFIG)] if folder.parent.is_dir() else []
        close = get_close_matches(str(folder), siblings, n=1, cutoff=0.6)
        suggestion = f"did you mean {close[0]}? else " if close else ""
        raise UserError(
            f"there is no run at {folder}; {suggestion}train one with: reverie train spiral --out {shlex.quote(str(folder))}"
        )
    if not os.path.lexists(folder / CONFIG):
        raise UserError(f"{folder} is not a run: it has no {CONFIG}; train one with: reverie train DATA --out RUN")


def read_config(folder: Path) -> Config:
    """Read and check config.toml."""
    path = folder / CONFIG
    check_run(folder)
    try:
        table = read_toml(read_own(folder, CONFIG, MAX_CONFIG))
    except OSError as error:
        raise UserError(f"cannot read {path}: {reason(error)}") from error
    except ValueError as error:  # not TOML, or not text
        raise UserError(f"{path} is not valid TOML: {error}") from None
    try:
        return Config.model_validate(table)
    except ValidationError as error:
        raise UserError(f"{path} is not a valid configuration: {first_problem(error)}") from None


def _lines(file: IO[bytes]) -> Iterator[tuple[int, bytes]]:
    """Yield the number and first LONGEST_ROW bytes of each complete line of a file."""
    number = 0
    while line := file.readline(LONGEST_ROW):
        number, start = number + 1, line
        while line and not line.endswith(b"\n"):
            line = file.readline(LONGEST_ROW)
        if line:
            yield number, start


def read_rows(folder: Path) -> tuple[list[dict[str, Any]], list[str]]:
    """Return the valid rows of metrics.jsonl, and the problem of each invalid row."""
    path = own_file(folder, METRICS)
    rows: list[dict[str, Any]] = []
    problems: list[str] = []
    if not path.is_file():
        return rows, problems
    with path.open("rb") as file:
        for number, line in _lines(file):
            try:
                read_row(row := with_present_keys(read_json(line.decode()), METRICS))
            except ValidationError as error:
                problems.append(f"line {number}: {first_problem(error)}")
            except ValueError as error:
                problems.append(f"line {number}: {error}")
            else:
                rows.append(row)
    return rows, problems


def _rows(folder: Path) -> list[dict[str, Any]]:
    """Return the valid rows; warn once about invalid ones."""
    rows, problems = read_rows(folder)
    if problems:
        warning = f"{len(problems)} rows of {folder / METRICS} are invalid and ignored, first {problems[0]}"
        if warning not in _warned:
            _warned.add(warning)
            warnings.warn(warning, ReverieWarning, stacklevel=3)
    return rows


def read_metrics(folder: Path) -> list[dict[str, Any]]:
    """Read the reports of metrics.jsonl."""
    return [row for row in _rows(folder) if "finding" not in row]


def read_findings(folder: Path) -> list[Finding]:
    """Read the findings that were still active at the last check, and all rollbacks."""
    findings: dict[str, Finding] = {}
    for row in _rows(folder):
        if "held_out" in row:
            active = row.get("active", ())
            findings = {name: finding for name, finding in findings.items() if name in active or finding.check == RESCUE}
        if "finding" in row:
            finding = FindingRow.model_validate(row).to_finding()
            findings[f"{RESCUE} {len(findings)}" if finding.check == RESCUE else finding.check] = finding
    return list(findings.values())


def drop_rows_after(folder: Path, last: int) -> None:
    """Remove the rows of metrics.jsonl after a step."""
    lines = [json.dumps(row) + "\n" for row in _rows(folder) if row["i"] <= last]
    with atomic(own_file(folder, METRICS)) as path:
        path.write_text("".join(lines), encoding="utf-8")
