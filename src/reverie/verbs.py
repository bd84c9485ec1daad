"""The verbs of Reverie: train, sample, evaluate, inspect.  The command line and Python call these and nothing else."""

from __future__ import annotations

import json
import platform
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, Unpack

import torch
from pydantic import ValidationError

from reverie import checkpoint
from reverie.checkpoint import NETWORKS
from reverie.codec import standard_spec
from reverie.config import Config, DataConfig, TrainingConfig
from reverie.data import DATASETS, Dataset, load_data
from reverie.errors import UserError
from reverie.files import reason, writable_folder
from reverie.loss import TIMES, WEIGHTS
from reverie.metrics.points import score_points
from reverie.pair import TARGETS
from reverie.picture import loss_curve, save, scatter
from reverie.run import Options, Run, choose_device, load
from reverie.sampler import GRIDS, SAMPLERS, Frame
from reverie.samples import Samples, check_output, wants_film
from reverie.schedule import SCHEDULES
from reverie.spec import Spec, complete, one_line
from reverie.training import Average, Step, fit

POINT_STEPS = 10_000
LOSS_PICTURE = "loss.png"
RUN_FILES = (checkpoint.CONFIG, checkpoint.WEIGHTS_FILE, checkpoint.METRICS, LOSS_PICTURE)


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
    if path.is_dir() and (others := sorted(p.name for p in path.iterdir() if p.name not in RUN_FILES)):
        raise UserError(f"{path} holds other files ({others[0]} ...); choose a new or empty folder with --out")
    writable_folder(path)
    for file in RUN_FILES:
        (path / file).unlink(missing_ok=True)
    return path


@dataclass
class Training:
    """A training that is ready to start: iterate over it for its reports.

    Weights are saved at every held-out check, at the end, and when the iteration is broken off.
    """

    run: Run
    average: Average
    train: Dataset
    held_out: Dataset

    def __iter__(self) -> Iterator[Step]:
        run, settings = self.run, self.run.config.training
        raw = run.model
        run.model = self.average.model  # what is sampled and saved
        try:
            with (run.path / checkpoint.METRICS).open("w") as file:
                for step in fit(raw, self.average, self.train, self.held_out, settings):
                    file.write(json.dumps(step.as_row()) + "\n")
                    file.flush()
                    if step.held_out is not None:
                        checkpoint.write_weights(run.path, run.model)
                    yield step
        except OSError as error:
            raise UserError(f"cannot write to {run.path}: {reason(error)}; the weights saved last are kept") from error
        finally:
            if self.average.updates and all(torch.isfinite(p).all() for p in run.model.parameters()):
                checkpoint.write_weights(run.path, run.model)
                save(loss_curve(run.metrics()), run.path / LOSS_PICTURE)


def prepare(
    data: str,
    out: str | Path | None = None,
    *,
    steps: int | None = None,
    minutes: float | None = None,
    seed: int = 0,
    device: str = "auto",
    points: int = 10_000,
    schedule: str | Spec = "cosine",
    network: str | Spec = "mlp",
    target: str = "v",
    overwrite: bool = False,
    **settings: Any,
) -> Training:
    """Check everything, make the run folder and return the training; nothing is written if anything is wrong.

    settings: further fields of TrainingConfig (batch, learning_rate, weight, times, ...).
    """
    if steps is None and minutes is None:
        steps = POINT_STEPS
    try:
        training = TrainingConfig(steps=steps, minutes=minutes, seed=seed, **settings)
    except ValidationError as error:
        raise UserError(f"cannot train like this: {one_line(error)}") from None
    where = choose_device(device)
    dataset = load_data(data, points, seed)
    train_set, held_out = dataset.split(seed)
    counts = torch.bincount(dataset.labels, minlength=len(dataset.label_names)).tolist() if dataset.labels is not None else ()
    shape = {"channels": dataset.x.shape[1], "labels": len(dataset.label_names)}
    config = Config(
        versions={"reverie": version("reverie"), "torch": str(torch.__version__), "python": platform.python_version()},
        target=target,
        data=DataConfig(
            name=dataset.name, count=len(dataset), seed=seed, shape=tuple(dataset.x.shape[1:]),
            labels=dataset.label_names, label_counts=tuple(counts), fingerprint=dataset.fingerprint(),
        ),
        codec=standard_spec(train_set.x),
        schedule=complete(SCHEDULES, schedule, "schedule"),
        network={**complete(NETWORKS, network, "network"), **shape},
        training=training,
    )  # fmt: skip
    model = checkpoint.build_model(config).to(where)
    model.denoiser.schedule.warn_if_signal_remains()
    path = _claim(out, dataset.name, overwrite)
    checkpoint.write_config(path, config)
    return Training(Run(config, model, path), Average(model, training.ema_share), train_set, held_out)


def train(data: str, out: str | Path | None = None, *, on_step: Callable[[Step], None] | None = None, **options: Any) -> Run:
    """Train a model of a data set and return the run: `reverie.train("spiral", "runs/spiral", steps=2000)`."""
    training = prepare(data, out, **options)
    for step in training:
        if on_step:
            on_step(step)
    return training.run


def sample_to(
    run: str | Path | Run, n: int, out: str | Path, *, device: str = "auto", on_frame: Callable[[Frame], None] | None = None,
    **options: Unpack[Options],
) -> list[Path]:  # fmt: skip
    """Draw n samples and write them as `out` says; return the files written."""
    path = Path(out)
    run = run if isinstance(run, Run) else load(run, device)
    check_output(path)
    return run.sample(n, film=wants_film(path), on_frame=on_frame, **options).save(path)


def sample(run: str | Path | Run, n: int = 16, *, device: str = "auto", **options: Unpack[Options]) -> Samples:
    """Draw n samples from a run: `reverie.sample("runs/spiral", 2000).save("points.npy")`."""
    run = run if isinstance(run, Run) else load(run, device)
    return run.sample(n, **options)


def evaluate(run: str | Path | Run, n: int = 2000, *, device: str = "auto", **options: Unpack[Options]) -> dict[str, Any]:
    """Measure n samples of a run against fresh data and return the figures, with counts and seeds beside them."""
    run = run if isinstance(run, Run) else load(run, device)
    samples = run.sample(n, **options)
    rows = [row for row in run.metrics() if "held_out" in row]
    fresh_seed = run.config.data.seed + 1
    return {
        "run": str(run.path),
        "data": run.config.data.name,
        "samples": n,
        "seed": options.get("seed", 0),
        "held_out_loss": rows[-1]["held_out"] if rows else None,
        **score_points(run.config.data.name, samples.x, load_data(run.config.data.name, 2 * max(n, 2), fresh_seed).x.numpy()),
    }


def inspect(
    what: str | Path, *, out: str | Path | None = None, points: int = 10_000, seed: int = 0, device: str = "auto"
) -> dict[str, Any]:
    """Describe a run folder or a data set; with `out`, draw it as well."""
    if str(what) not in DATASETS and Path(what).is_dir():
        return _inspect_run(load(what, device), out)
    dataset = load_data(str(what), points, seed)
    x = dataset.x
    counts = torch.bincount(dataset.labels, minlength=len(dataset.label_names)).tolist() if dataset.labels is not None else []
    if out is not None:
        names = [dataset.label_names[int(k)] for k in dataset.labels] if dataset.labels is not None else None
        save(scatter(x.numpy(), names, dataset.name), Path(out))
    return {
        "data": dataset.name,
        "count": len(x),
        "shape": list(x.shape[1:]),
        "range": [float(x.min()), float(x.max())],
        "mean": x.mean(0).tolist(),
        "std": x.std(0).tolist(),
        "labels": dict(zip(dataset.label_names, counts, strict=True)),
        "fingerprint": dataset.fingerprint(),
    }


def _inspect_run(run: Run, out: str | Path | None) -> dict[str, Any]:
    rows = run.metrics()
    schedule = run.model.denoiser.schedule
    alpha, sigma = schedule(1.0)
    schedule.warn_if_signal_remains()
    if out is not None and rows:
        save(loss_curve(rows), Path(out))
    held = [row for row in rows if "held_out" in row]
    return {
        "run": str(run.path),
        "data": run.config.data.name,
        "shape": list(run.config.data.shape),
        "labels": list(run.config.data.labels),
        "parameters": sum(p.numel() for p in run.model.parameters()),
        "network": run.config.network,
        "target": run.config.target,
        "schedule": run.config.schedule,
        "schedule_end": {"alpha": float(alpha), "sigma": float(sigma)},
        "steps": rows[-1]["i"] if rows else 0,
        "seconds": rows[-1]["seconds"] if rows else 0.0,
        "finished": bool(rows) and rows[-1]["fraction"] == 1,
        "training_loss": rows[-1]["loss"] if rows else None,
        "held_out_loss": held[-1]["held_out"] if held else None,
        "held_out_loss_by_noise": held[-1].get("held_out_levels", []) if held else [],
    }


def names() -> dict[str, list[str]]:
    """Return every name that the commands take, by kind."""
    tables: dict[str, Any] = {
        "data": DATASETS, "schedules": SCHEDULES, "targets": TARGETS, "weights": WEIGHTS, "times": TIMES,
        "networks": NETWORKS, "samplers": SAMPLERS, "grids": GRIDS,
    }  # fmt: skip
    return {kind: list(table) for kind, table in tables.items()}
