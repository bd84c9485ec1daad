"""Getting ready to train: everything is checked before anything is written."""

from __future__ import annotations

import json
import math
import platform
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib.metadata import version
from inspect import signature
from pathlib import Path
from typing import Any

import torch
from pydantic import ValidationError

from reverie.base.errors import UserError, unknown
from reverie.base.files import writable_folder
from reverie.base.noise import check_seed
from reverie.base.progress import silent
from reverie.base.spec import Spec, complete, one_line, parse
from reverie.data import Dataset, load_data
from reverie.data.augment import read, told_entries
from reverie.data.augment_plan import choose_augment
from reverie.data.codec import standard_spec
from reverie.data.describe import describe
from reverie.data.memory import DataSource
from reverie.data.pixels import DEFAULT_SIDE
from reverie.diffusion.plan import (
    check_width,
    expectation,
    largest_colour_side,
    network_for,
    plan,
    slow_size,
    small_for_the_budget,
)
from reverie.diffusion.schedule import SCHEDULES
from reverie.runs import folder, kept
from reverie.runs.config import Config, DataConfig, TrainingConfig
from reverie.runs.reread import CHOSEN, kept_reading, placed, reread, source_of
from reverie.runs.run import Run, choose_device, load
from reverie.training import checkpoints, start
from reverie.training import tensorboard as events
from reverie.training.learner import Learner
from reverie.training.remedy import spoken
from reverie.training.trainer import RUN_FILES, RUN_FOLDERS, Training, clear
from reverie.training.wishes import Wishes, check_folder

SPREAD_SAMPLE = 2000  # images enough to know their standard deviation
READING = ("points", "size", "fit", "channels", "labels", "data_dir", "strict", "on_progress")
NO_OPTIONS = ("data", "out", "path", "options", "given")  # parameters that are not options of a training


def _free_folder(name: str) -> Path:
    for k in range(1, 10_000):
        path = Path("runs") / (name if k == 1 else f"{name}-{k}")
        if not path.exists():
            return path
    raise UserError("runs/ is full of runs of this name; choose a folder with --out")


def _check_free(path: Path, overwrite: bool) -> None:
    """Refuse a folder that holds another run, unless it is to be replaced, or other files."""
    check_folder(path)
    if (path / folder.CONFIG).exists() and not overwrite:
        raise UserError(f"{path} already holds a run; choose another --out, or give --overwrite to replace it")
    known = (*RUN_FILES, *RUN_FOLDERS) if (path / folder.CONFIG).exists() else ()
    if path.is_dir() and (others := sorted(p.name for p in path.iterdir() if p.name not in known)):
        raise UserError(f"{path} holds other files ({others[0]} ...); choose a new or empty folder with --out")


def _claim(out: str | Path | None, name: str, overwrite: bool) -> Path:
    """Return the folder of a new run, made and writable; another run in it is refused or, if so asked, removed."""
    path = Path(out) if out is not None else _free_folder(name)
    _check_free(path, overwrite)
    writable_folder(path)
    with checkpoints.locked(path):  # not while another training is at work there
        clear(path)
    return path


def spread(dataset: Dataset) -> float:
    """Return the standard deviation of the data in model units: 1 for points, that of 2 x - 1 for images."""
    if dataset.kind != "images":
        return 1.0
    return max(float(2 * dataset.some(SPREAD_SAMPLE).std()), 1e-3)


def check_options(given: Iterable[str]) -> None:
    """Refuse the name of an option that no training takes, before anything is read."""
    named = (*signature(prepare).parameters, *signature(resume).parameters)
    known = [name for name in dict.fromkeys((*named, *READING, *TrainingConfig.model_fields)) if name not in NO_OPTIONS]
    if wrong := [name for name in given if name not in known]:
        raise unknown(wrong[0], known, "option of training")


def prepare(
    data: DataSource,
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
    augment: str | Sequence[str | Spec] = "auto",
    start_from: str | Path | None = None,
    overwrite: bool = False,
    tensorboard: bool = False,
    keep_data: bool = False,
    **options: Any,
) -> Training:
    """Check everything, make the run folder and return the training; nothing is written if anything is wrong.

    What is not given is chosen for the data (`reverie.diffusion.plan`).  options: how to read the data, as in `load_data`
    (size, fit, labels, ...), and further fields of TrainingConfig (batch, learning_rate, weight, times, ...).  augment: see
    `reverie.data.augment_plan`; start_from: a run whose weights are the first ones; keep_data: whether the run keeps a copy.
    """
    check_options(options)
    reading = {key: options.pop(key) for key in READING if key in options}
    events.check(tensorboard)
    where = choose_device(device)
    check_seed(seed)
    if sum(length is not None for length in (steps, minutes, epochs)) > 1:
        raise UserError("give only one of --steps, --minutes and --epochs")
    for name, length in (("steps", steps), ("minutes", minutes), ("epochs", epochs)):
        if length is not None and not 0 < length < math.inf:
            raise UserError(f"the number of {name} must be above 0, got {length}")
    if augment not in ("auto", "none"):
        augment = read(augment)
    before = load(start_from, "cpu") if start_from is not None else None
    asked = start.network_of(before) if before is not None and network is None else network
    wishes = Wishes(minutes, steps, schedule, asked, target, options, where)
    wishes.check(data, reading.get("size"))
    if out is not None:
        _check_free(Path(out), overwrite)
    foresee = wishes.foresee if before is None or reading.get("size") else None  # else the size is not known yet
    largest = largest_colour_side(minutes, steps, where.type) if epochs is None else DEFAULT_SIDE
    dataset = load_data(data, seed=seed, on_form=foresee, largest_colour=largest, **reading)
    if before is not None:
        if reading.get("size") is None and (size := start.size_of(before, dataset)):
            reading["size"] = size
            dataset = load_data(data, seed=seed, on_form=wishes.foresee, **reading)
        start.check_shape(before, dataset)
    options |= wishes.smaller
    if keep_data:
        kept.check_keepable(dataset)
    train_set, held_out = dataset.split(seed)
    if epochs is not None:
        usual = plan(dataset, None, 1).settings | options
        steps = max(1, round(epochs * len(train_set) / (usual["batch"] * usual.get("accumulate", 1))))
    chosen = plan(dataset, minutes, steps)
    reasons = (*(chosen.reasons if network is None else ()), *wishes.notes)
    if before is not None:
        chosen = start.follow(chosen, before, target)
        reasons = (*chosen.reasons, *wishes.notes)
    wished = parse(network) if network is not None else chosen.network
    precision = "bf16" if where.type == "cuda" and torch.cuda.is_bf16_supported() else "fp32"
    try:
        training = TrainingConfig(**{"seed": seed, "precision": precision, **chosen.settings, **options})
    except ValidationError as error:
        raise UserError(f"cannot train like this: {one_line(error)}") from None
    passes = training.steps * training.batch * training.accumulate / len(train_set) if training.steps else None
    changes, why = choose_augment(augment, train_set, passes, seed, reading.get("on_progress") or silent)
    training = training.model_copy(update={"augment": changes})
    told = {"told": n} if (n := len(told_entries(changes, dataset.shape))) else {}
    codec: Spec = {"name": "pixels"}
    if dataset.kind != "images":
        codec = before.config.codec if before else standard_spec(train_set.batch(torch.arange(len(train_set)))[0])
    config = Config(
        versions={"reverie": version("reverie"), "torch": str(torch.__version__), "python": platform.python_version()},
        target=target or chosen.target,
        sigma_data=before.config.sigma_data if before else spread(train_set),
        data=DataConfig(
            name=dataset.name, source=source_of(data),
            count=len(dataset), seed=seed, shape=dataset.shape, labels=dataset.label_names,
            label_counts=tuple(dataset.label_counts()), fingerprint=dataset.fingerprint(),
            reading=kept_reading(reading, dataset),
        ),
        codec=codec,
        schedule=complete(SCHEDULES, schedule or chosen.schedule, "schedule"),
        network={**network_for(dataset.shape, len(dataset.label_names), wished), **told},
        training=training,
        start=start.record(before) if before else None,
        asked={
            **{key: getattr(training, key) for key in options if key not in wishes.smaller},
            **({"seed": seed} if seed else {}),
            **{key: spoken(spec) for key, spec in (("schedule", schedule), ("network", network), ("target", target)) if spec},
            **({"augment": ",".join(map(spoken, [augment] if augment == "none" else changes))} if augment != "auto" else {}),
            **({"from": str(start_from)} if start_from is not None else {}),
        },
    )  # fmt: skip
    check_width(config.network)
    model = folder.build_model(config)
    if before is not None:
        reasons += start.carry(before, model, config)
    reasons += (why,) if why else ()
    if not reading.get("size") and (small := small_for_the_budget(dataset, largest)):
        reasons += (small,)
    if (slow := slow_size(config.network)) and "stem" not in wished:
        reasons += (slow,)
    if dataset.kind == "images" and training.minutes and where.type == "cpu":
        reasons += (expectation(dataset.shape, training.minutes),)
    model = model.to(where)
    about = tuple(describe(dataset))
    model.denoiser.schedule.warn_if_signal_remains()
    path = _claim(out, dataset.name, overwrite)
    if out is None and path.name != dataset.name:
        about += (f"this run goes to {path}, because {path.with_name(dataset.name)} is there already",)
    if keep_data:
        kept.keep_data(path, dataset)
    folder.write_config(path, config)
    learner = Learner(model, training)
    return Training(Run(config, learner.average.model, path), learner, train_set, held_out, about, reasons, tensorboard)


def _longer(run: Run, minutes: float | None, steps: int | None) -> Config:
    """Return the configuration of a run that goes on for more minutes or steps; the other unit is converted by its speed."""
    rows, now = run.metrics(), run.config.training
    if minutes is None and steps is None:
        raise UserError("say for how long to go on with --minutes or --steps beside --extend")
    if not rows:
        raise UserError(f"{run.path} has no reports in {folder.METRICS}, so its speed is not known")
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
            asked = parse(value)
            planned = network_for(config.data.shape, len(config.data.labels), asked)
            free = {"stem", "widths", "told"} - asked.keys()  # what another version may have chosen for the same words
            same = all(json.dumps(planned.get(k)) == json.dumps(v) for k, v in kept[key].items() if k not in free)
        elif key == "augment":
            same = value == "auto" or (() if value == "none" else read(value)) == kept[key]
        elif key in CHOSEN and value == "auto":
            same = True  # what was chosen then is kept
        else:
            same = kept.get(key) == value
        if not same:
            differing.append(f"{key} was {_said(kept.get(key))} and is now {_said(value)}")
    return differing


def _said(setting: Any) -> str:
    if isinstance(setting, tuple | list):
        return ", ".join(map(_said, setting)) or "none"
    return " ".join(f"{k}={v}" for k, v in setting.items()) if isinstance(setting, dict) else str(setting)


def resume(
    path: str | Path,
    *,
    extend: bool = False,
    minutes: float | None = None,
    steps: int | None = None,
    device: str = "auto",
    tensorboard: bool = False,
    data: DataSource | None = None,
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
    config = folder.read_config(path)
    if not extend:
        given |= {key: value for key, value in (("minutes", minutes), ("steps", steps)) if value is not None}
    if changed := _differences(config, given):
        raise UserError(f"{path} was begun with other settings: {'; '.join(changed)}; leave them out, or train a new run")
    learner = Learner(folder.build_model(config).to(where), config.training)
    with checkpoints.locked(path):
        complaints = checkpoints.restore(path, learner)
    run = Run(config, learner.average.model, path)
    if extend:
        run.config = config = _longer(run, minutes, steps)
    t = config.training
    if max(learner.i / (t.steps or math.inf), learner.seconds / 60 / (t.minutes or math.inf)) >= 1:
        raise UserError(f"{path} is finished; go on for longer with --extend --minutes 10, say")
    dataset = reread(config.data, folder=path, data=data, data_dir=data_dir, strict=strict, on_progress=on_progress)
    run.config = config = config.model_copy(update={"data": placed(config.data, data, data_dir)})
    with checkpoints.locked(path):
        folder.keep_rows(path, learner.i)
        folder.write_config(path, config)
    train_set, held_out = dataset.split(config.data.seed)
    about = (*complaints, f"continuing at step {learner.i:,}")
    return Training(run, learner, train_set, held_out, about, (), tensorboard)
