"""The verbs of Reverie, those of steering among them.  The command line and Python call these and nothing else."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Unpack

from torch import Tensor

from reverie.base.errors import UserError
from reverie.base.progress import Tell
from reverie.data import DATASETS
from reverie.data.augment import AUGMENTATIONS
from reverie.data.memory import DataSource
from reverie.diffusion.known import INPAINTERS, POSTERIORS
from reverie.diffusion.loss import TIMES, WEIGHTS
from reverie.diffusion.measurements import MEASUREMENTS
from reverie.diffusion.pair import TARGETS
from reverie.diffusion.plan import PRESETS
from reverie.diffusion.samplers import GRIDS, SAMPLERS
from reverie.diffusion.schedule import SCHEDULES
from reverie.diffusion.views import VIEWS
from reverie.evaluation.evaluation import Evaluation, Say, evaluate_run
from reverie.evaluation.html import check_report
from reverie.evaluation.inspection import inspect
from reverie.evaluation.metrics.features import FEATURES
from reverie.nets import NETWORKS
from reverie.runs.run import Options, Run, load
from reverie.runs.samples import Samples, check_output, check_room, streams, wants_film, write
from reverie.runs.step import Step
from reverie.steering.restore import inpaint, restore
from reverie.steering.verbs import begin_classifier, edit, illusion, interpolate, invert
from reverie.training.options import TrainingOptions
from reverie.training.prepare import check_options, prepare
from reverie.training.resume import resume as go_on
from reverie.training.screen import Screen, someone_watches
from reverie.training.summary import verdict
from reverie.training.trainer import Training


def _watched(progress: bool | None) -> Screen:
    """Return what shows progress: asked for, or else wherever someone is likely to see it."""
    return Screen(as_json=False, quiet=not (someone_watches() if progress is None else progress))


def _reported(steps: Iterable[Step], on_step: Callable[[Step], None] | None) -> Iterator[Step]:
    """Pass reports on, and tell them to whoever asked for them."""
    for step in steps:
        if on_step:
            on_step(step)
        yield step


def train(
    data: DataSource | None = None,
    out: str | Path | None = None,
    *,
    resume: str | Path | None = None,
    progress: bool | None = None,
    on_step: Callable[[Step], None] | None = None,
    **options: Unpack[TrainingOptions],
) -> Run:
    """Train a model of a data set and return the run: `reverie.train("spiral", "runs/spiral", steps=2000)`.

    data: a name, a path, or data themselves: an array or tensor of points (N, D) or of images, a pair (x, labels), a list of
    PIL images, a table, or a data set of torch or Hugging Face: `reverie.train((images, labels), minutes=10)`.
    Or go on with one that was interrupted: `reverie.train(resume="runs/spiral")`, and data then says where its data are now; or
    begin with the weights of another: `reverie.train("cats", start_from="runs/animals")`.
    progress: show a bar and the verdict; if not given, on a terminal and in notebooks.  on_step: called with each report.
    """
    screen = _watched(progress)
    with screen.reading() as on_progress:
        options["on_progress"] = options.get("on_progress") or on_progress
        training = begin(data, out, resume=resume, **options)
    for line in training.introduction():
        screen.say(line)

    try:
        last = screen.follow_training(_reported(training, on_step))
    except KeyboardInterrupt:
        screen.say(f"interrupted; {training.kept()}")
        raise
    run = training.run
    for line in (f"trained {last.i:,} steps in {last.seconds:.0f} s", *verdict(run).lines, f"run: {run.path}"):
        screen.say(line)
    return run


def begin(
    data: DataSource | None = None,
    out: str | Path | None = None,
    *,
    resume: str | Path | None = None,
    **options: Unpack[TrainingOptions],
) -> Training:
    """Return a training that is ready to start, or to go on: `for step in reverie.api.begin("spiral", steps=2000): ...`."""
    check_options(options)
    if resume is not None:
        if out is not None:
            raise UserError("give either --out for a new run or --resume for one that is there")
        if "start_from" in options:
            raise UserError("--from starts a new run and --resume goes on with one; give only one of them")
        if options.pop("keep_data", False):
            raise UserError("keep_data is for a new run; one that is there keeps its data or does not")
        return go_on(resume, data=data, **options)
    if data is None:
        raise UserError("DATA is missing: give a name such as digits, or a path, or go on with a run by --resume RUN")
    if options.pop("extend", False):
        raise UserError("--extend goes with --resume RUN")
    return prepare(data, out, **options)


def train_classifier(
    run: str | Path | Run, *, device: str = "auto", minutes: float | None = None, steps: int | None = None, seed: int = 0,
    data: DataSource | None = None, data_dir: str | Path | None = None, progress: bool | None = None,
    on_progress: Tell | None = None, on_step: Callable[[Step], None] | None = None,
) -> dict[str, float]:  # fmt: skip
    """Train the classifier of a run and return its accuracy by time: `reverie.train_classifier("runs/digits", minutes=1)`.

    It lives in the run, where `classifier_guidance` finds it.  data, data_dir: where the run's data are now, or the data
    themselves; progress, on_step: as in `train`.
    """
    screen = _watched(progress)
    with screen.reading() as bars:
        training = begin_classifier(
            run, device=device, minutes=minutes, steps=steps, seed=seed, data=data, data_dir=data_dir,
            on_progress=on_progress or bars,
        )  # fmt: skip
    screen.follow_training(_reported(training, on_step))
    return training.accuracy


def sample_to(
    run: str | Path | Run, n: int, out: str | Path, first: int = 0, *, device: str = "auto", on_progress: Tell | None = None,
    **options: Unpack[Options],
) -> list[Path]:  # fmt: skip
    """Draw n samples and write them as `out` says, arrays and folders batch by batch; return the files written.

    `reverie.api.sample_to("runs/spiral", 10**6, "points.npy")` holds one batch in memory at a time.
    """
    run = run if isinstance(run, Run) else load(run, device)
    check_output(out)
    check_room(out, n, run.config.data.shape)
    if streams(out, run.config.data.shape):
        return write(run.batches(n, first, on_progress=on_progress, **options), n, out)
    return run.sample(n, first, film=wants_film(out), on_progress=on_progress, **options).save(out)


def sample(
    run: str | Path | Run, n: int = 16, first: int = 0, *, out: str | Path | None = None, film: bool = False,
    device: str = "auto", on_progress: Tell | None = None, **options: Unpack[Options],
) -> Samples:  # fmt: skip
    """Draw n samples from a run: `reverie.sample("runs/spiral", 2000).save("points.npy")`.

    first: the number of the first one: sample k of a seed alone is `reverie.sample(run, 1, first=k)`; out: short for
    `.save(out)`; film: keep the frames on the way, for .gif and .mp4.
    """
    run = run if isinstance(run, Run) else load(run, device)
    if out is not None:
        check_output(out)
        check_room(out, n, run.config.data.shape)
        film = film or wants_film(out)
    made = run.sample(n, first, film=film, on_progress=on_progress, **options)
    if out is not None:
        made.save(out)
    return made


def evaluate(
    run: str | Path | Run, n: int | None = None, *, out: str | Path | None = None, device: str = "auto", quick: bool = False,
    features: str | Callable[[Tensor], Tensor] = "auto", data: DataSource | None = None,
    data_dir: str | Path | None = None, progress: bool | None = None, say: Say | None = None, on_progress: Tell | None = None,
    **options: Unpack[Options],
) -> Evaluation:  # fmt: skip
    """Measure n samples of a run against its data: `reverie.evaluate("runs/spiral")["sliced_wasserstein"]`.

    n: 2,048, or 512 if quick.  features: what images are compared by: auto, classifier, general, pixels, or any function from
    images (B, C, H, W) in [0, 1] to (B, D).  data: where the run's data are now, if they were moved, or the data themselves.
    The result prints itself, and `.save("report.html")`, or out, writes a report.  progress: show bars; if not given, on a
    terminal and in notebooks, unless on_progress is told instead.
    """
    if out is not None:
        check_report(out)
    run = run if isinstance(run, Run) else load(run, device)
    screen = _watched(progress if on_progress is None else False)
    with screen.reading() as bars:
        found = evaluate_run(
            run, n, quick=quick, features=features, data=data, data_dir=data_dir, say=say or screen.say,
            tell=on_progress or bars, options=options,
        )  # fmt: skip
    if out is not None:
        found.save(out)
    return found


def names() -> dict[str, list[str]]:
    """Return every name that the commands take, by kind: `reverie.api.names()["samplers"]`."""
    tables: dict[str, Any] = {
        "data": DATASETS, "schedules": SCHEDULES, "targets": TARGETS, "weights": WEIGHTS, "times": TIMES,
        "networks": (*NETWORKS, *PRESETS), "samplers": SAMPLERS, "grids": GRIDS, "features": ("auto", *FEATURES),
        "augmentations": ("auto", "none", *AUGMENTATIONS), "views": VIEWS, "tasks": MEASUREMENTS, "inpainters": INPAINTERS,
        "posteriors": POSTERIORS,
    }  # fmt: skip
    return {kind: list(table) for kind, table in tables.items()}


__all__ = [
    "Screen", "Training", "begin", "begin_classifier", "edit", "evaluate", "illusion", "inpaint", "inspect", "interpolate",
    "invert", "load", "names", "prepare", "restore", "sample", "sample_to", "train", "train_classifier", "verdict",
]  # fmt: skip
