"""The verbs of Reverie, those of steering among them.  The command line and Python call these and nothing else."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Unpack

from torch import Tensor

from reverie.base.errors import UserError
from reverie.base.progress import Tell, silent
from reverie.data import DATASETS
from reverie.data.augment import AUGMENTATIONS
from reverie.diffusion.known import INPAINTERS, POSTERIORS
from reverie.diffusion.loss import TIMES, WEIGHTS
from reverie.diffusion.measurements import MEASUREMENTS
from reverie.diffusion.pair import TARGETS
from reverie.diffusion.plan import PRESETS
from reverie.diffusion.samplers import GRIDS, SAMPLERS
from reverie.diffusion.schedule import SCHEDULES
from reverie.diffusion.views import VIEWS
from reverie.evaluation.evaluation import Evaluation, Say, evaluate_run
from reverie.evaluation.inspection import inspect
from reverie.evaluation.metrics.features import FEATURES
from reverie.nets import NETWORKS
from reverie.runs.run import Options, Progress, Run, load
from reverie.runs.samples import Samples, check_output, check_room, streams, wants_film, write
from reverie.runs.step import Step
from reverie.steering.restore import inpaint, restore
from reverie.steering.verbs import begin_classifier, edit, illusion, interpolate, invert, train_classifier
from reverie.training.prepare import check_options, prepare
from reverie.training.resume import resume as go_on
from reverie.training.summary import verdict
from reverie.training.trainer import Training


def train(
    data: str | None = None,
    out: str | Path | None = None,
    *,
    resume: str | Path | None = None,
    on_step: Callable[[Step], None] | None = None,
    **options: Any,
) -> Run:
    """Train a model of a data set and return the run: `reverie.train("spiral", "runs/spiral", steps=2000)`.

    Or go on with one that was interrupted: `reverie.train(resume="runs/spiral")`, and data then says where its data are now; or
    begin with the weights of another: `reverie.train("cats", start_from="runs/animals")`.
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
    check_options(options)
    if resume is not None:
        if out is not None:
            raise UserError("give either --out for a new run or --resume for one that is there")
        if "start_from" in options:
            raise UserError("--from starts a new run and --resume goes on with one; give only one of them")
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
    check_room(out, n, run.config.data.shape)
    if streams(out, run.config.data.shape):
        return write(run.batches(n, on_progress=on_progress, **options), n, out)
    return run.sample(n, film=wants_film(out), on_progress=on_progress, **options).save(out)


def sample(run: str | Path | Run, n: int = 16, *, device: str = "auto", **options: Unpack[Options]) -> Samples:
    """Draw n samples from a run: `reverie.sample("runs/spiral", 2000).save("points.npy")`."""
    run = run if isinstance(run, Run) else load(run, device)
    return run.sample(n, **options)


def evaluate(
    run: str | Path | Run, n: int | None = None, *, device: str = "auto", quick: bool = False,
    features: str | Callable[[Tensor], Tensor] = "auto", data: str | Path | None = None,
    data_dir: str | Path | None = None, say: Say = lambda text: None, on_progress: Tell = silent, **options: Unpack[Options],
) -> Evaluation:  # fmt: skip
    """Measure n samples of a run against its data: `reverie.evaluate("runs/spiral")["sliced_wasserstein"]`.

    n: 2,048, or 512 if quick.  features: what images are compared by: auto, classifier, general, pixels, or any function from
    images (B, C, H, W) in [0, 1] to (B, D).  data: where the run's data are now, if they were moved.
    The result prints itself, and `.save("report.html")` writes a report.
    """
    run = run if isinstance(run, Run) else load(run, device)
    return evaluate_run(
        run, n, quick=quick, features=features, data=data, data_dir=data_dir, say=say, tell=on_progress, options=options
    )  # fmt: skip


def names() -> dict[str, list[str]]:
    """Return every name that the commands take, by kind."""
    tables: dict[str, Any] = {
        "data": DATASETS, "schedules": SCHEDULES, "targets": TARGETS, "weights": WEIGHTS, "times": TIMES,
        "networks": (*NETWORKS, *PRESETS), "samplers": SAMPLERS, "grids": GRIDS, "features": ("auto", *FEATURES),
        "augmentations": ("auto", "none", *AUGMENTATIONS), "views": VIEWS, "tasks": MEASUREMENTS, "inpainters": INPAINTERS,
        "posteriors": POSTERIORS,
    }  # fmt: skip
    return {kind: list(table) for kind, table in tables.items()}


__all__ = [
    "Training", "begin", "begin_classifier", "edit", "evaluate", "illusion", "inpaint", "inspect", "interpolate", "invert",
    "load", "names", "prepare", "restore", "sample", "sample_to", "train", "train_classifier", "verdict",
]  # fmt: skip
