"""Getting ready to train: everything is checked before anything is written."""

from __future__ import annotations

import json
import math
import platform
from collections.abc import Callable, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from pydantic import ValidationError

from reverie import checkpoint, snapshots
from reverie import tensorboard as events
from reverie.checkpoint import NETWORKS
from reverie.codec import standard_spec
from reverie.config import Config, DataConfig, TrainingConfig
from reverie.data import Dataset, load_data
from reverie.errors import UserError
from reverie.files import writable_folder
from reverie.inspection import describe
from reverie.learner import Learner
from reverie.noise import check_seed
from reverie.plan import PRESETS, network_for, plan
from reverie.reread import placed, reread, source_of
from reverie.run import Run, choose_device
from reverie.schedule import SCHEDULES
from reverie.spec import Spec, complete, one_line, parse
from reverie.trainer import RUN_FILES, RUN_FOLDERS, Training, clear

SPREAD_SAMPLE = 2000  # images enough to know their standard deviation
READING = ("points", "size", "fit", "channels", "labels", "data_dir", "strict", "on_progress")
KEPT_READING = ("points", "size", "fit", "channels", "labels", "data_dir")  # what a run must remember of them


def _free_folder(name: str) -> Path:
    for k in range(1, 10_000):
        path = Path("runs") / (name if k == 1 else f"{name}-{k}")
        if not path.exists():
            return path
    raise UserError("runs/ is full of runs of this name; choose a folder with --out")


def _claim(out: str | Path | None, name: str, overwrite: bool) -> Path:
    """Return the folder of a new run, made and writable; another run in it is refused or, if so asked, removed."""
    path = Path(out) if out is not None else _free_folder(name)
    if (path / checkpoint.CONFIG).exists() and not overwrite:
        raise UserError(f"{path} already holds a run; choose another --out, or give --overwrite to replace it")
    known = (*RUN_FILES, *RUN_FOLDERS) if (path / checkpoint.CONFIG).exists() else ()
    if path.is_dir() and (others := sorted(p.name for p in path.iterdir() if p.name not in known)):
        raise UserError(f"{path} holds other files ({others[0]} ...); choose a new or empty folder with --out")
    writable_folder(path)
    with snapshots.locked(path):  # not while another training is at work there
        clear(path)
    return path


def spread(dataset: Dataset) -> float:
    """Return the standard deviation of the data in model units: 1 for points, that of 2 x - 1 for images."""
    if not dataset.is_images:
        return 1.0
    index = torch.linspace(0, len(dataset) - 1, min(len(dataset), SPREAD_SAMPLE)).long()
    return max(float(2 * dataset.batch(index)[0].std()), 1e-3)


def _preset(network: str | Spec) -> Spec:
    """Return the spec of a network, with the name of a preset replaced by what it stands for."""
    wished = parse(network)
    preset = PRESETS.get(str(wished.get("name")))
    return wished if preset is None else {**preset, **wished, "name": preset["name"]}


def prepare(
    data: str,
    out: str | Path | None = None,
    *,
    steps: int | None = None,
    minutes: float | None = None,
    epochs: float | None = None,
    seed: int = 0,
    device: str = "auto",
    schedule: str | Spec | None = None,
    network: str | Spec | None = None,
    target: str | None = None,
    overwrite: bool = False,
    tensorboard: bool = False,
    **options: Any,
) -> Training:
    """Check everything, make the run folder and return the training; nothing is written if anything is wrong.

    What is not given is chosen for the data (`reverie.plan`).  options: how to read the data, as in `load_data` (size, fit,
    labels, ...), and further fields of TrainingConfig (batch, learning_rate, weight, times, ...).
    """
    reading = {key: options.pop(key) for key in READING if key in options}
    events.check(tensorboard)
    where = choose_device(device)
    check_seed(seed)
    if sum(length is not None for length in (steps, minutes, epochs)) > 1:
        raise UserError("give only one of --steps, --minutes and --epochs")
    for name, length in (("steps", steps), ("minutes", minutes), ("epochs", epochs)):
        if length is not None and not 0 < length < math.inf:
            raise UserError(f"the number of {name} must be above 0, got {length}")
    dataset = load_data(data, seed=seed, **reading)
    if reading.get("data_dir") is not None:
        reading["data_dir"] = str(Path(reading["data_dir"]).expanduser().resolve())
    train_set, held_out = dataset.split(seed)
    if epochs is not None:
        steps = max(1, round(epochs * len(train_set) / options.get("batch", 64)))
    chosen = plan(dataset, minutes, steps)
    reasons = chosen.reasons if network is None else ()
    wished = _preset(network) if network is not None else chosen.network
    if taken := [key for key in ("channels", "height", "width", "labels") if key in wished]:
        raise UserError(f"the network's {taken[0]} are told by the data and cannot be given with --network")
    precision = "bf16" if where.type == "cuda" and torch.cuda.is_bf16_supported() else "fp32"
    try:
        training = TrainingConfig(**{"seed": seed, "precision": precision, **chosen.settings, **options})
    except ValidationError as error:
        raise UserError(f"cannot train like this: {one_line(error)}") from None
    config = Config(
        versions={"reverie": version("reverie"), "torch": str(torch.__version__), "python": platform.python_version()},
        target=target or chosen.target,
        sigma_data=spread(train_set),
        data=DataConfig(
            name=dataset.name, source=source_of(data),
            count=len(dataset), seed=seed, shape=dataset.shape, labels=dataset.label_names,
            label_counts=tuple(dataset.label_counts()), fingerprint=dataset.fingerprint(),
            reading={key: reading[key] for key in KEPT_READING if reading.get(key) is not None},
        ),
        codec={"name": "pixels"} if dataset.is_images else standard_spec(train_set.batch(torch.arange(len(train_set)))[0]),
        schedule=complete(SCHEDULES, schedule or chosen.schedule, "schedule"),
        network=complete(NETWORKS, network_for(dataset, wished), "network"),
        training=training,
    )  # fmt: skip
    model = checkpoint.build_model(config).to(where)
    about = tuple(describe(dataset))
    model.denoiser.schedule.warn_if_signal_remains()
    path = _claim(out, dataset.name, overwrite)
    checkpoint.write_config(path, config)
    learner = Learner(model, training)
    return Training(Run(config, learner.average.model, path), learner, train_set, held_out, about, reasons, tensorboard)


def _longer(run: Run, minutes: float | None, steps: int | None) -> Config:
    """Return the configuration of a run that goes on for more minutes or steps; the other unit is converted by its speed."""
    rows, now = run.metrics(), run.config.training
    if minutes is None and steps is None:
        raise UserError("say for how long to go on with --minutes or --steps beside --extend")
    if not rows:
        raise UserError(f"{run.path} has no reports in {checkpoint.METRICS}, so its speed is not known")
    per_minute = 60 * rows[-1]["i"] / max(rows[-1]["seconds"], 1e-3)
    if now.minutes is not None:
        length = {"minutes": rows[-1]["seconds"] / 60 + (minutes if minutes is not None else (steps or 0) / per_minute)}
    else:
        length = {"steps": rows[-1]["i"] + (steps if steps is not None else max(1, round((minutes or 0) * per_minute)))}
    return run.config.model_copy(update={"training": now.model_copy(update=length)})


def _differences(config: Config, given: Mapping[str, Any]) -> list[str]:
    """Return how settings that were given differ from those of a run, a phrase each."""
    kept: dict[str, Any] = {
        **config.training.model_dump(), **config.data.reading, "schedule": config.schedule, "network": config.network,
        "target": config.target,
    }  # fmt: skip
    differing = []
    for key, value in given.items():
        if key == "schedule":
            same = json.dumps(complete(SCHEDULES, value, "schedule")) == json.dumps(kept[key])
        elif key == "network":
            told = {k: kept[key][k] for k in ("channels", "height", "width", "labels", "stem") if k in kept[key]}
            same = json.dumps(complete(NETWORKS, {**told, **_preset(value)}, "network")) == json.dumps(kept[key])
        else:
            same = kept.get(key) == value
        if not same:
            differing.append(f"{key} was {_said(kept.get(key))} and is now {_said(value)}")
    return differing


def _said(setting: Any) -> str:
    return " ".join(f"{k}={v}" for k, v in setting.items()) if isinstance(setting, dict) else str(setting)


def resume(
    path: str | Path,
    *,
    extend: bool = False,
    minutes: float | None = None,
    steps: int | None = None,
    device: str = "auto",
    tensorboard: bool = False,
    data: str | Path | None = None,
    data_dir: str | Path | None = None,
    strict: bool = False,
    on_progress: Callable[[str, int, int], None] | None = None,
    **given: Any,
) -> Training:
    """Go on with a run where its last whole checkpoint left it; `extend` goes on with a finished one for longer.

    data, data_dir: where its data are now, if they were moved; given: settings as for `prepare`; those that differ from the
    run's are refused.
    """
    path, where = Path(path), choose_device(device)
    events.check(tensorboard)
    config = checkpoint.read_config(path)
    if not extend:
        given |= {key: value for key, value in (("minutes", minutes), ("steps", steps)) if value is not None}
    if changed := _differences(config, given):
        raise UserError(f"{path} was begun with other settings: {'; '.join(changed)}; leave them out, or train a new run")
    learner = Learner(checkpoint.build_model(config).to(where), config.training)
    with snapshots.locked(path):
        complaints = snapshots.restore(path, learner)
    run = Run(config, learner.average.model, path)
    if extend:
        run.config = config = _longer(run, minutes, steps)
    t = config.training
    if max(learner.i / (t.steps or math.inf), learner.seconds / 60 / (t.minutes or math.inf)) >= 1:
        raise UserError(f"{path} is finished; go on for longer with --extend --minutes 10, say")
    dataset = reread(config.data, data=data, data_dir=data_dir, strict=strict, on_progress=on_progress)
    run.config = config = config.model_copy(update={"data": placed(config.data, data, data_dir)})
    with snapshots.locked(path):
        checkpoint.keep_rows(path, learner.i)
        checkpoint.write_config(path, config)
    train_set, held_out = dataset.split(config.data.seed)
    about = (*complaints, f"continuing at step {learner.i:,}")
    return Training(run, learner, train_set, held_out, about, (), tensorboard)
