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
MOST_CONFIG = 2**22  # bytes; the names of all labels are among them
EARLY_FILE = "early.safetensors"  # the average weights early in training, away from which autoguidance leads
LONGEST_ROW = 2**16  # bytes of a line of metrics.jsonl
_said: set[str] = set()  # what was said of rows that are left out: they are read again and again


def write_config(folder: Path, config: Config) -> None:
    """Write config.toml."""
    with atomic(own_file(folder, CONFIG)) as path:
        path.write_text(tomli_w.dumps(config.as_table()), encoding="utf-8")


def check_run(folder: Path) -> None:
    """Refuse a folder that is not there or holds no run."""
    if not folder.is_dir():
        beside = [str(path.parent) for path in folder.parent.glob("*/" + CONFIG)] if folder.parent.is_dir() else []
        close = get_close_matches(str(folder), beside, n=1, cutoff=0.6)
        meant = f"did you mean {close[0]}? else " if close else ""
        raise UserError(
            f"there is no run at {folder}; {meant}train one with: reverie train spiral --out {shlex.quote(str(folder))}"
        )
    if not os.path.lexists(folder / CONFIG):
        raise UserError(f"{folder} is not a run: it has no {CONFIG}")


def read_config(folder: Path) -> Config:
    """Read and check config.toml."""
    path = folder / CONFIG
    check_run(folder)
    try:
        table = read_toml(read_own(folder, CONFIG, MOST_CONFIG))
    except OSError as error:
        raise UserError(f"cannot read {path}: {reason(error)}") from error
    except ValueError as error:  # no TOML, or no text
        raise UserError(f"{path} is not valid TOML: {error}") from None
    try:
        return Config.model_validate(table)
    except ValidationError as error:
        raise UserError(f"{path} is not a valid configuration: {first_problem(error)}") from None


def _lines(file: IO[bytes]) -> Iterator[tuple[int, bytes]]:
    """Yield the whole lines of a file by number, the first LONGEST_ROW bytes of each; not one whose end is still to come."""
    number = 0
    while line := file.readline(LONGEST_ROW):
        number, start = number + 1, line
        while line and not line.endswith(b"\n"):
            line = file.readline(LONGEST_ROW)
        if line:
            yield number, start


def read_rows(folder: Path) -> tuple[list[dict[str, Any]], list[str]]:
    """Return the rows of metrics.jsonl that are valid, and what is wrong with each of the others."""
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
    """Return the rows that are valid; that others are left out is said once."""
    rows, wrong = read_rows(folder)
    if wrong:
        said = f"{len(wrong)} of the rows in {folder / METRICS} are not valid and left out, first {wrong[0]}"
        if said not in _said:
            _said.add(said)
            warnings.warn(said, ReverieWarning, stacklevel=3)
    return rows


def read_metrics(folder: Path) -> list[dict[str, Any]]:
    """Read the reports of metrics.jsonl."""
    return [row for row in _rows(folder) if "finding" not in row]


def read_findings(folder: Path) -> list[Finding]:
    """Read what the doctor found and was still so at the last check; rescues are always told."""
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
    """Drop what metrics.jsonl says of steps after the last one that was kept."""
    lines = [json.dumps(row) + "\n" for row in _rows(folder) if row["i"] <= last]
    with atomic(own_file(folder, METRICS)) as path:
        path.write_text("".join(lines), encoding="utf-8")
