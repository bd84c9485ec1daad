"""The verbs of Reverie, those of `reverie.steering` among them.  The command line and Python call these and nothing else."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any, Unpack

import numpy as np
import torch

from reverie.checkpoint import NETWORKS
from reverie.data import DATASETS, load_data
from reverie.errors import UserError
from reverie.inspection import inspect
from reverie.inverse import INPAINTERS, POSTERIORS
from reverie.loss import TIMES, WEIGHTS
from reverie.measurements import MEASUREMENTS
from reverie.metrics.points import score_points
from reverie.pair import TARGETS
from reverie.plan import PRESETS
from reverie.prepare import prepare
from reverie.prepare import resume as go_on
from reverie.restoration import inpaint, restore
from reverie.run import Options, Progress, Run, load
from reverie.samplers import GRIDS, SAMPLERS
from reverie.samples import Samples, check_output, streams, wants_film, write
from reverie.schedule import SCHEDULES
from reverie.steering import begin_classifier, edit, illusion, interpolate, invert, train_classifier
from reverie.trainer import Training
from reverie.training import Step
from reverie.verdict import verdict
from reverie.views import VIEWS


def train(
    data: str | None = None,
    out: str | Path | None = None,
    *,
    resume: str | Path | None = None,
    on_step: Callable[[Step], None] | None = None,
    **options: Any,
) -> Run:
    """Train a model of a data set and return the run: `reverie.train("spiral", "runs/spiral", steps=2000)`.

    Or go on with one that was interrupted: `reverie.train(resume="runs/spiral")`.
    """
    training = begin(data, out, resume=resume, **options)
    for step in training:
        if on_step:
            on_step(step)
    return training.run


def begin(
    data: str | None = None, out: str | Path | None = None, *, resume: str | Path | None = None, **options: Any
) -> Training:
    """Return a training that is ready to start, or to go on."""
    if resume is not None:
        if out is not None:
            raise UserError("give either --out for a new run or --resume for one that is there")
        if data is not None:
            options["data"] = data
        return go_on(resume, **options)
    if data is None:
        raise UserError("DATA is missing: give a name such as digits, or a path, or go on with a run by --resume RUN")
    if options.pop("extend", False):
        raise UserError("--extend goes with --resume RUN")
    return prepare(data, out, **options)


def sample_to(
    run: str | Path | Run, n: int, out: str | Path, *, device: str = "auto", on_progress: Progress | None = None,
    **options: Unpack[Options],
) -> list[Path]:  # fmt: skip
    """Draw n samples and write them as `out` says, arrays and folders batch by batch; return the files written."""
    run = run if isinstance(run, Run) else load(run, device)
    check_output(out)
    if streams(out, run.config.data.shape):
        return write(run.batches(n, on_progress=on_progress, **options), n, out)
    return run.sample(n, film=wants_film(out), on_progress=on_progress, **options).save(out)


def sample(run: str | Path | Run, n: int = 16, *, device: str = "auto", **options: Unpack[Options]) -> Samples:
    """Draw n samples from a run: `reverie.sample("runs/spiral", 2000).save("points.npy")`."""
    run = run if isinstance(run, Run) else load(run, device)
    return run.sample(n, **options)


def _fresh_points(run: Run, n: int, label: str | None) -> np.ndarray:
    """Return 2n points the model has not seen, of one label if so asked: newly made, or as many held out as there are."""
    data = run.config.data
    if n < 1:
        raise UserError(f"the number of samples must be at least 1, got {n}")
    if data.source in DATASETS:
        fresh = load_data(data.source, max(2 * n, 2) * max(1, len(data.labels)), data.seed + 1)
    else:
        fresh = load_data(data.source).split(data.seed)[1]
    if label in data.labels and fresh.labels is not None:
        fresh = fresh.take(torch.nonzero(fresh.labels == data.labels.index(label))[:, 0])
    return fresh.batch(torch.arange(min(2 * n, len(fresh) // 2 * 2)))[0].numpy()


def evaluate(run: str | Path | Run, n: int = 2000, *, device: str = "auto", **options: Unpack[Options]) -> dict[str, Any]:
    """Measure n samples of a run against fresh data and return the figures, with counts and seeds beside them."""
    run = run if isinstance(run, Run) else load(run, device)
    data = run.config.data
    if len(data.shape) != 1:
        raise UserError(
            f"{run.path} is a model of images, which evaluate cannot measure yet;"
            f" `reverie inspect {shlex.quote(str(run.path))}` shows its held-out error at every noise level"
        )
    fresh = _fresh_points(run, n, options.get("label"))
    samples = run.sample(len(fresh) // 2, **options)
    rows = [row for row in run.metrics() if "held_out" in row]
    return {
        "run": str(run.path),
        "data": data.name,
        "samples": len(samples),
        "seed": options.get("seed", 0),
        "label": options.get("label"),
        "guidance": options.get("guidance", 1.0),
        **{key: options.get(key) for key in ("guidance_interval", "classifier_guidance") if options.get(key)},
        **dict(zip(("sampler", "steps", "grid"), run.usual(options), strict=True)),
        "held_out_loss": rows[-1]["held_out"] if rows else None,
        **score_points(data.source, samples.x, fresh),
    }


def names() -> dict[str, list[str]]:
    """Return every name that the commands take, by kind."""
    tables: dict[str, Any] = {
        "data": DATASETS, "schedules": SCHEDULES, "targets": TARGETS, "weights": WEIGHTS, "times": TIMES,
        "networks": (*NETWORKS, *PRESETS), "samplers": SAMPLERS, "grids": GRIDS,
        "views": VIEWS, "tasks": MEASUREMENTS, "inpainters": INPAINTERS, "posteriors": POSTERIORS,
    }  # fmt: skip
    return {kind: list(table) for kind, table in tables.items()}


__all__ = [
    "Training", "begin", "begin_classifier", "edit", "evaluate", "illusion", "inpaint", "inspect", "interpolate", "invert",
    "load", "names", "prepare", "restore", "sample", "sample_to", "train", "train_classifier", "verdict",
]  # fmt: skip
