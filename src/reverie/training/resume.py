"""Resuming a run from its last checkpoint."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from reverie.base.budget import Budget
from reverie.base.errors import UserError
from reverie.base.progress import silent
from reverie.base.spec import first_problem, parse
from reverie.base.team import world_size
from reverie.base.worker_processes import check_processes
from reverie.data import Dataset
from reverie.data.in_memory import DataSource
from reverie.families.model import Model, TrainedModel
from reverie.runs import folder
from reverie.runs.config import Config, TrainingConfig, build_model
from reverie.runs.confine import check_references
from reverie.runs.data_copy import DATA_COPY
from reverie.runs.device import device_for
from reverie.runs.lock import Lock
from reverie.runs.run import Run, load
from reverie.runs.source_data import CHOSEN, load_source_data, relocated
from reverie.runs.weights import is_finished
from reverie.training import checkpoints, finetuning
from reverie.training import tensorboard as events
from reverie.training.claim import CODEC_FOLDER, check_own, sweep
from reverie.training.codec_training import is_latent, total_length, use_codec
from reverie.training.distil import restore_distillation, teacher_of
from reverie.training.learner import Learner
from reverie.training.loop import limit_budget
from reverie.training.sharding import check_shard
from reverie.training.trainer import Training


def _extended(run: Run, minutes: float | None, steps: int | None) -> Config:
    """Return the configuration of an extended run; minutes and steps are converted by its speed."""
    rows, now = run.metrics(), run.config.training
    if minutes is None and steps is None:
        raise UserError("--extend needs a length; add --minutes or --steps")
    if not rows:
        raise UserError(f"{run.path} has no reports in {folder.METRICS}, so its speed is unknown; train it again")
    per_minute = 60 * rows[-1]["i"] / max(rows[-1]["seconds"], 1e-3)
    if now.minutes is not None:
        length = {"minutes": rows[-1]["seconds"] / 60 + (minutes if minutes is not None else (steps or 0) / per_minute)}
    else:
        length = {"steps": rows[-1]["i"] + (steps if steps is not None else max(1, round((minutes or 0) * per_minute)))}
    try:
        training = TrainingConfig.model_validate({**now.model_dump(), **length})
    except ValidationError as error:
        raise UserError(f"cannot extend the run: {first_problem(error)}") from None
    return run.config.model_copy(update={"training": training})


def differences(config: Config, given: Mapping[str, Any]) -> list[str]:
    """Describe each given setting that differs from that of a run."""
    family, data = config.model_family, config.data
    current: dict[str, Any] = {**config.training.model_dump(), **data.reading, **dict(config.family)}
    current |= {"latent_space": is_latent(config), **dict(zip(("minutes", "steps"), total_length(config), strict=True))}
    if config.codec is not None:
        current["codec"] = config.codec.run
    differing = []
    for key, value in given.items():
        if key == "family":
            same = parse(value)["name"] == family.name
        elif key == "codec" and isinstance(value, str | Path):
            same = str(Path(value).resolve()) in (current["codec"], str(Path(str(current["codec"])).parent))
        elif key in family.settings.model_fields:
            same = family.matches(config.family, key, value, data.shape, len(data.labels))
        elif key in CHOSEN and value == "auto":
            same = True  # keeps the choice of the run
        else:
            same = current.get(key) == value
        if not same:
            old = family.name if key == "family" else _format_setting(current.get(key))
            differing.append(f"{key} was {old} and is now {_format_setting(value)}")
    return differing


def _format_setting(setting: Any) -> str:
    if isinstance(setting, tuple | list):
        return ", ".join(map(_format_setting, setting)) or "none"
    return " ".join(f"{k}={v}" for k, v in setting.items()) if isinstance(setting, dict) else str(setting)


def _restore_codec(
    path: Path, config: Config, model: Model, dataset: Dataset, device: str, reading: Mapping[str, Any]
) -> Training | None:
    """Set the autoencoder of an untrained model, or return the training of the autoencoder, if that is to resume first."""
    if not is_latent(config) or config.start is not None:
        return None
    train = dataset.split(config.data.seed)[0]
    if config.codec is not None:
        run = load(config.codec.run, "cpu")
        if finetuning.record(run).weights != config.codec.weights:
            raise UserError(f"the weights of {run.path} have changed since this run used them; train a new run with --codec")
        use_codec(model, run, train)
        return None
    codec_folder = path / CODEC_FOLDER
    if not (codec_folder / folder.CONFIG).is_file():
        raise UserError(f"{path} was stopped before the training of its autoencoder; train it again")
    if is_finished(codec_folder):
        use_codec(model, load(codec_folder, "cpu"), train)
        return None
    return resume(codec_folder, device=device, dataset=dataset, **reading)


def check_resumable(path: Path) -> None:
    """Refuse a run that refers, itself or in its autoencoder, to paths outside the folder of `confined`."""
    for run_folder in (path, path / CODEC_FOLDER):
        if run_folder == path or (run_folder / folder.CONFIG).exists():
            check_references(folder.read_config(run_folder), has_copy=(run_folder / DATA_COPY).exists())


def _reached_its_end(run: Run, learner: Learner) -> bool:
    """Return whether the last report is at the full length of a run, and the checkpoint at that step or later."""
    rows = run.metrics()
    return bool(rows) and rows[-1]["fraction"] == 1 and learner.i >= rows[-1]["i"]


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
    dataset: Dataset | None = None,
    processes: int = 1,
    shard: bool = False,
    budget: Budget | None = None,
    **given: Any,
) -> Training:
    """Resume a run from its last complete checkpoint; with `extend`, train a finished run for longer.

    A run that was stopped before its first checkpoint starts at step 0, after its autoencoder if it has its own.  data,
    data_dir: the new location of its data, or the data themselves; dataset: the data if already read; given: settings as for
    `prepare`, which must equal those of the run; budget: the time of the whole command.
    """
    budget = budget or Budget()
    path, torch_device = Path(path), device_for(device)
    check_processes(processes)
    events.check(tensorboard)
    folder.check_run(path)
    with ExitStack() as stack:
        lock = Lock(path)
        stack.callback(lock.release)
        check_own(path)
        sweep(path)
        config = folder.read_config(path)
        if not extend:
            given |= {key: value for key, value in (("minutes", minutes), ("steps", steps)) if value is not None}
        if changed := differences(config, given):
            raise UserError(f"{path} was started with other settings: {'; '.join(changed)}; omit them, or train a new run")
        checkpoints.check_fit(path, config)
        model, fresh, first = build_model(config), checkpoints.is_untrained(path), None
        reading: dict[str, Any] = {"data": data, "data_dir": data_dir, "strict": strict, "on_progress": on_progress}
        if fresh:
            dataset = dataset or load_source_data(config.data, folder=path, **reading)
            train_set = dataset.split(config.data.seed)[0]
            if isinstance(model, TrainedModel):
                model.initialize(train_set)
            finetuning.restore_start(model, config, train_set)
            first = _restore_codec(path, config, model, dataset, device, reading)
        model, teacher = model.to(torch_device), teacher_of(config, torch_device)
        if teacher is not None and (processes > 1 or world_size() > 1):
            raise UserError(f"{path} is a distillation, which uses one process; omit --processes and torchrun")
        learner = Learner(model, config.training)
        complaints = [] if fresh else checkpoints.restore(path, learner)
        run = Run(config, learner.average.model, path)
        finished, by_steps = is_finished(path), config.model_family.learns_by_steps
        if not by_steps and (extend or finished):
            raise UserError(
                f"{path} is of the family {config.family.name}, which is fitted without steps; there is nothing to resume"
            )
        if extend:
            run.config = config = _extended(run, minutes, steps)
        t = config.training
        if shard:
            check_shard(t, max(processes, world_size()))
        if learner.i / (t.steps or math.inf) >= 1 or (not extend and _reached_its_end(run, learner)):
            if finished:
                raise UserError(f"{path} is finished; to train longer add --extend --minutes 10")
            learner.restore(learner.good)  # stopped after the last step, before the weights were written: repeat the end
        dataset = dataset or load_source_data(config.data, folder=path, **reading)
        run.config = config = config.model_copy(update={"data": relocated(config.data, data, data_dir)})
        codec_minutes = first.run.config.training.minutes or 0.0 if first is not None else 0.0
        total_minutes = t.minutes + codec_minutes if t.minutes is not None else None
        done = learner.seconds + (first.learner.seconds if first is not None else 0.0)
        limit_budget(budget, t, torch_device, total_minutes, done)
        folder.drop_rows_after(path, learner.i if by_steps and not fresh else -1)
        folder.write_config(path, config)
        train_set, held_out = dataset.split(config.data.seed)
        if teacher is not None:
            train_set, held_out = restore_distillation(learner, teacher, config, dataset, on_progress or silent, budget)
        restart = f"{path} was stopped before its first checkpoint and starts at step 0"
        about = (*complaints, restart if fresh else f"resuming at step {learner.i:,}")
        if first is not None:
            about = first.about
        training = Training(
            run, learner, train_set, held_out, lock, about, (), tensorboard, processes, shard, new=False, first=first,
            budget=budget,
        )  # fmt: skip
        stack.pop_all()  # the training releases the lock
        return training
