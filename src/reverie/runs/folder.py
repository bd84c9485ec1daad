"""The run folder: config.toml, model.safetensors, metrics.jsonl.  Never a pickle."""

from __future__ import annotations

import json
import shlex
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import tomli_w
import torch
from pydantic import ValidationError
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from reverie.base.errors import UserError
from reverie.base.files import atomic, reason
from reverie.base.spec import one_line
from reverie.runs.config import Config
from reverie.runs.finding import RESCUE, Finding

CONFIG, WEIGHTS_FILE, METRICS = "config.toml", "model.safetensors", "metrics.jsonl"
EARLY_FILE = "early.safetensors"  # the average weights early in training, away from which autoguidance leads


def write_config(folder: Path, config: Config) -> None:
    """Write config.toml."""
    with atomic(folder / CONFIG) as path:
        path.write_text(tomli_w.dumps(config.as_table()))


def read_config(folder: Path) -> Config:
    """Read and check config.toml."""
    path = folder / CONFIG
    if not folder.is_dir():
        raise UserError(f"there is no run at {folder}; train one with: reverie train spiral --out {shlex.quote(str(folder))}")
    try:
        return Config.model_validate(tomllib.loads(path.read_text()))
    except FileNotFoundError:
        raise UserError(f"{folder} is not a run: it has no {CONFIG}") from None
    except OSError as error:
        raise UserError(f"cannot read {path}: {reason(error)}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UserError(f"{path} is not valid TOML: {error}") from None
    except ValidationError as error:
        raise UserError(f"{path} is not a valid configuration: {one_line(error)}") from None


def write_weights(folder: Path, model: nn.Module, file: str = WEIGHTS_FILE) -> None:
    """Write model.safetensors, or another file of weights."""
    state = {name: tensor.detach().cpu().contiguous() for name, tensor in model.state_dict().items()}
    try:
        with atomic(folder / file) as path:
            save_file(state, path)
    except SafetensorError as error:
        raise UserError(f"cannot write {folder / file}: {error}; the disk may be full") from None


def read_weights(folder: Path, model: nn.Module, file: str = WEIGHTS_FILE) -> None:
    """Load model.safetensors, or another file of weights, into a model that must have exactly these tensors."""
    path = folder / file
    try:
        state: Mapping[str, Tensor] = load_file(path)
    except FileNotFoundError:
        raise UserError(f"the run {folder} has no weights: {path} is missing; train it again") from None
    except (SafetensorError, OSError) as error:
        raise UserError(f"{path} is truncated or damaged ({error}); restore it or train the run again") from None
    wanted = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    found = {name: tuple(tensor.shape) for name, tensor in state.items()}
    if wrong := sorted(name for name in wanted.keys() | found.keys() if wanted.get(name) != found.get(name)):
        first = wrong[0]
        raise UserError(
            f"{path} does not fit {CONFIG}: {len(wrong)} tensors differ, first {first}"
            f" (wanted {wanted.get(first, 'none')}, found {found.get(first, 'none')})"
        )
    if bad := [name for name, tensor in state.items() if not torch.isfinite(tensor).all()]:
        raise UserError(f"{path} holds values that are not finite, first in {bad[0]}; restore it or train the run again")
    model.load_state_dict(state)


def _rows(folder: Path) -> Iterator[dict[str, Any]]:
    """Yield what metrics.jsonl says; lines that are not whole, such as one cut off by a crash, are left out."""
    path = folder / METRICS
    for line in path.read_text(errors="replace").splitlines() if path.is_file() else ():
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
    with atomic(folder / METRICS) as path:
        path.write_text("".join(lines))
