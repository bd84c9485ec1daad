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
MAX_CONFIG = 2**22  # bytes; the names of all labels are among them
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
        beside = [str(path.parent) for path in folder.parent.glob("*/" + CONFIG)] if folder.parent.is_dir() else []
        close = get_close_matches(str(folder), beside, n=1, cutoff=0.6)
        meant = f"did you mean {close[0]}? else " if close else ""
        raise UserError(
            f"there is no run at {folder}; {meant}train one with: reverie train spiral --out {shlex.quote(str(folder))}"
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
    except ValueError as error:  # no TOML, or no text
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
    """Return the valid rows of metrics.jsonl, and the problem of each of the others."""
    path = own_file(folder, METRICS)
    rows: list[dict[str, Any]] = []
    wrong: list[str] = []
    if not path.is_file():
        return rows, wrong
    with path.open("rb") as file:
        for number, line in _lines(file):
            try:
                read_row(row := with_present_keys(read_json(line.decode()), METRICS))
            except ValidationError as error:
                wrong.append(f"line {number}: {first_problem(error)}")
            except ValueError as error:
                wrong.append(f"line {number}: {error}")
            else:
                rows.append(row)
    return rows, wrong


def _rows(folder: Path) -> list[dict[str, Any]]:
    """Return the valid rows; warn once about others."""
    rows, wrong = read_rows(folder)
    if wrong:
        warning = f"{len(wrong)} rows of {folder / METRICS} are invalid and ignored, first {wrong[0]}"
        if warning not in _warned:
            _warned.add(warning)
            warnings.warn(warning, ReverieWarning, stacklevel=3)
    return rows


def read_metrics(folder: Path) -> list[dict[str, Any]]:
    """Read the reports of metrics.jsonl."""
    return [row for row in _rows(folder) if "finding" not in row]


def read_findings(folder: Path) -> list[Finding]:
    """Read the findings that were still active at the last check, and all rollbacks."""
    found: dict[str, Finding] = {}
    for row in _rows(folder):
        if "held_out" in row:
            still = row.get("active", ())
            found = {name: finding for name, finding in found.items() if name in still or finding.check == RESCUE}
        if "finding" in row:
            finding = FindingRow.model_validate(row).to_finding()
            found[f"{RESCUE} {len(found)}" if finding.check == RESCUE else finding.check] = finding
    return list(found.values())


def drop_rows_after(folder: Path, last: int) -> None:
    """Remove the rows of metrics.jsonl after a step."""
    lines = [json.dumps(row) + "\n" for row in _rows(folder) if row["i"] <= last]
    with atomic(own_file(folder, METRICS)) as path:
        path.write_text("".join(lines), encoding="utf-8")
