"""The run folder: config.toml, model.safetensors, metrics.jsonl.  Never a pickle."""

from __future__ import annotations

import json
import os
import shlex
import tomllib
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import tomli_w
from pydantic import TypeAdapter, ValidationError
from torch import nn

from reverie.base.errors import UserError
from reverie.base.files import atomic, own_file, read_own, reason
from reverie.base.spec import one_line
from reverie.base.tensors import forms_of, read_tensors, write_tensors
from reverie.runs.config import Config
from reverie.runs.finding import RESCUE, Finding

CONFIG, WEIGHTS_FILE, METRICS = "config.toml", "model.safetensors", "metrics.jsonl"
MOST_CONFIG = 2**22  # bytes; the names of all labels are among them
EARLY_FILE = "early.safetensors"  # the average weights early in training, away from which autoguidance leads


def write_config(folder: Path, config: Config) -> None:
    """Write config.toml."""
    with atomic(own_file(folder, CONFIG)) as path:
        path.write_text(tomli_w.dumps(config.as_table()), encoding="utf-8")


def check_run(folder: Path) -> None:
    """Refuse a folder that is not there or holds no run."""
    if not folder.is_dir():
        raise UserError(f"there is no run at {folder}; train one with: reverie train spiral --out {shlex.quote(str(folder))}")
    if not os.path.lexists(folder / CONFIG):
        raise UserError(f"{folder} is not a run: it has no {CONFIG}")


def read_config(folder: Path) -> Config:
    """Read and check config.toml."""
    path = folder / CONFIG
    check_run(folder)
    try:
        return Config.model_validate(tomllib.loads(read_own(folder, CONFIG, MOST_CONFIG)))
    except OSError as error:
        raise UserError(f"cannot read {path}: {reason(error)}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UserError(f"{path} is not valid TOML: {error}") from None
    except ValidationError as error:
        raise UserError(f"{path} is not a valid configuration: {one_line(error)}") from None


def write_weights(folder: Path, model: nn.Module, file: str = WEIGHTS_FILE) -> None:
    """Write model.safetensors, or another file of weights."""
    write_tensors(folder / file, model.state_dict())


def read_weights(folder: Path, model: nn.Module, file: str = WEIGHTS_FILE) -> None:
    """Load model.safetensors, or another file of weights, into a model that must have exactly these tensors."""
    path = folder / file
    if not path.is_file():
        raise UserError(f"the run {folder} has no weights: {path} is missing; train it again")
    wanted, again = forms_of(model.state_dict()), "; restore it or train the run again"
    model.load_state_dict(read_tensors(path, lambda _: wanted, TypeAdapter(None), fits=CONFIG, advice=again)[0])


def _rows(folder: Path) -> Iterator[dict[str, Any]]:
    """Yield what metrics.jsonl says; lines that are not whole, such as one cut off by a crash, are left out."""
    text = read_own(folder, METRICS, errors="replace") if os.path.lexists(folder / METRICS) else ""
    for line in text.splitlines():
        try:
            row = json.loads(line)
        except ValueError:
            continue
        if isinstance(row, dict) and isinstance(row.get("i"), int):
            yield row


def read_metrics(folder: Path) -> list[dict[str, Any]]:
    """Read the reports of metrics.jsonl."""
    return [row for row in _rows(folder) if {"loss", "fraction", "seconds"} <= row.keys()]


def read_findings(folder: Path) -> list[Finding]:
    """Read what the doctor found and was still so at the last check; rescues are always told."""
    found: dict[str, Finding] = {}
    for row in _rows(folder):
        if "held_out" in row:
            still = row.get("active", ())
            found = {name: finding for name, finding in found.items() if name in still or finding.check == RESCUE}
        if "finding" in row:
            with suppress(TypeError):
                finding = Finding(**row["finding"])
                found[f"{RESCUE} {len(found)}" if finding.check == RESCUE else finding.check] = finding
    return list(found.values())


def keep_rows(folder: Path, last: int) -> None:
    """Drop what metrics.jsonl says of steps after the last one that was kept."""
    lines = [json.dumps(row) + "\n" for row in _rows(folder) if row["i"] <= last]
    with atomic(own_file(folder, METRICS)) as path:
        path.write_text("".join(lines), encoding="utf-8")
