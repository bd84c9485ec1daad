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

from reverie.base.errors import UserError, pick
from reverie.base.files import atomic, reason
from reverie.base.spec import build, one_line
from reverie.data.augment import build_augment, told_entries
from reverie.data.codec import CODECS
from reverie.diffusion.denoiser import NetDenoiser
from reverie.diffusion.loss import TIMES, WEIGHTS
from reverie.diffusion.pair import TARGETS
from reverie.diffusion.schedule import SCHEDULES
from reverie.families.diffusion import Diffusion
from reverie.nets import NETWORKS
from reverie.runs.config import Config
from reverie.runs.finding import RESCUE, Finding

CONFIG, WEIGHTS_FILE, METRICS = "config.toml", "model.safetensors", "metrics.jsonl"

MOST_PARAMETERS = 500_000_000
ALPHA_LIMIT = 1e-3  # below this alpha at t = 1, targets whose decoding divides by alpha are useless there


def _check_parts(config: Config) -> None:
    """Refuse a configuration whose parts do not fit each other."""
    data, network = config.data, config.network
    shape = (
        (network.get("channels"),) if "height" not in network else tuple(network[k] for k in ("channels", "height", "width"))
    )
    if tuple(data.shape) != shape:
        raise UserError(f"the data have the shape {data.shape} but the network is for {shape}")
    if len(data.labels) != network.get("labels", 0):
        raise UserError(f"the data have {len(data.labels)} labels but the network has {network.get('labels', 0)}")
    if (told := len(told_entries(config.training.augment, data.shape))) != network.get("told", 0):
        raise UserError(f"the augmentations tell {told} numbers but the network is told {network.get('told', 0)}")
    if data.labels and not sum(data.label_counts):
        raise UserError("the data have labels, but none of them is ever used")
    if data.kind == "points" and "mean" in config.codec and len(config.codec["mean"]) != data.shape[0]:
        raise UserError(f"the data have {data.shape[0]} coordinates but the codec has {len(config.codec['mean'])}")


def build_model(config: Config) -> Diffusion:
    """Make the model that a configuration describes, with weights drawn from the training seed."""
    schedule = build(SCHEDULES, config.schedule, "schedule")
    for table, name, what in ((TARGETS, config.target, "target"), (WEIGHTS, config.training.weight, "weight")):
        pick(table, name, what)
    pick(TIMES, config.training.times, "way to draw times")
    alpha = float(schedule(1.0)[0])
    if config.target in ("eps", "score") and alpha < ALPHA_LIMIT:
        raise UserError(
            f"the target {config.target!r} divides by alpha, which this {config.schedule['name']} schedule takes down to"
            f" {alpha:.2g} (wanted at least {ALPHA_LIMIT}); train 'v', 'flow' or 'edm', or use the linear schedule"
        )
    _check_parts(config)
    with torch.device("meta"):  # a plan of the network without its memory
        parameters = sum(p.numel() for p in build(NETWORKS, config.network, "network").parameters())
    if parameters > MOST_PARAMETERS:
        raise UserError(f"this network has {parameters:,} parameters; at most {MOST_PARAMETERS:,} are allowed")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.training.seed)
        net = build(NETWORKS, config.network, "network")
    codec = build(CODECS, config.codec, "codec")
    denoiser = NetDenoiser(net, schedule, config.target, config.sigma_data)
    t = config.training
    augment = build_augment(t.augment, config.data.shape)
    return Diffusion(denoiser, codec, config.data.shape, t.weight, t.times, t.label_dropout, augment)


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


def write_weights(folder: Path, model: nn.Module) -> None:
    """Write model.safetensors."""
    state = {name: tensor.detach().cpu().contiguous() for name, tensor in model.state_dict().items()}
    try:
        with atomic(folder / WEIGHTS_FILE) as path:
            save_file(state, path)
    except SafetensorError as error:
        raise UserError(f"cannot write {folder / WEIGHTS_FILE}: {error}; the disk may be full") from None


def read_weights(folder: Path, model: nn.Module) -> None:
    """Load model.safetensors into a model that must have exactly these tensors."""
    path = folder / WEIGHTS_FILE
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
