"""The verbs of training: models, students and classifiers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Unpack

from reverie.api.watching import reported, watched
from reverie.base.budget import Budget
from reverie.base.deprecations import renamed_options
from reverie.base.errors import UserError
from reverie.base.progress import OnProgress

if TYPE_CHECKING:
    from reverie.data.in_memory import DataSource
    from reverie.runs.run import Run
    from reverie.runs.screen import Screen
    from reverie.runs.step import Step
    from reverie.training.options import DistilOptions, TrainingOptions
    from reverie.training.trainer import Training


@renamed_options
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
    screen = watched(progress)
    budget = Budget(say=screen.say)
    with screen.reading() as on_progress:
        options["on_progress"] = options.get("on_progress") or on_progress
        training = begin(data, out, resume=resume, budget=budget, **options)
    return _followed(screen, training, on_step)


def _followed(screen: Screen, training: Training, on_step: Callable[[Step], None] | None) -> Run:
    """Train to the end, show how it goes, and return the run."""
    from reverie.training.summary import verdict

    for line in training.introduction():
        screen.say(line)
    try:
        last = screen.follow_training(reported(training, on_step), training.budget)
    except KeyboardInterrupt:
        screen.say(f"interrupted; {training.kept()}")
        raise
    run = training.run
    for line in (last.done, *verdict(run).lines, f"run: {run.path}"):
        screen.say(line)
    return run


@renamed_options
def begin(
    data: DataSource | None = None,
    out: str | Path | None = None,
    *,
    resume: str | Path | None = None,
    budget: Budget | None = None,
    **options: Unpack[TrainingOptions],
) -> Training:
    """Return a training that is ready to start, or to go on: `for step in reverie.api.begin("spiral", steps=2000): ...`.

    budget: the time of the whole command, which begins when it is made; else it begins here.
    """
    from reverie.training.prepare import check_options, prepare
    from reverie.training.resume import resume as go_on

    check_options(options)
    if resume is not None:
        if out is not None:
            raise UserError("give either --out for a new run or --resume for one that is there")
        if "start_from" in options:
            raise UserError("--from starts a new run and --resume goes on with one; give only one of them")
        if options.pop("keep_data", False):
            raise UserError("keep_data is for a new run; one that is there keeps its data or does not")
        return go_on(resume, data=data, budget=budget, **options)
    if data is None:
        raise UserError("DATA is missing: give a name such as digits, or a path, or go on with a run by --resume RUN")
    if options.pop("extend", False):
        raise UserError("--extend goes with --resume RUN")
    return prepare(data, out, budget=budget, **options)


@renamed_options
def distil(
    run: str | Path, out: str | Path | None = None, *, minutes: float | None = None, steps: int | None = None,
    guidance: float = 1.0, seed: int = 0, device: str = "auto", overwrite: bool = False, data: DataSource | None = None,
    data_dir: str | Path | None = None, progress: bool | None = None, on_step: Callable[[Step], None] | None = None,
    **options: Unpack[DistilOptions],
) -> Run:  # fmt: skip
    """Teach a student of a run to draw in 1, 2 or 4 evaluations and return it: `reverie.distil("runs/digits", "runs/fast")`.

    The student is a run like others, and goes on after an interruption by `reverie.train(resume=...)`.  minutes: 5 if no
    length is given; guidance: of the run, folded into the student; data, data_dir: where the run's data are now; options:
    further fields of TrainingConfig, such as batch and learning_rate.
    """
    from reverie.training.distil import prepare_distillation

    screen = watched(progress)
    budget = Budget(say=screen.say)
    with screen.reading() as bars:
        training = prepare_distillation(
            run, out, minutes=minutes, steps=steps, guidance=guidance, seed=seed, device=device, overwrite=overwrite, data=data,
            data_dir=data_dir, on_progress=bars, budget=budget, **options,
        )  # fmt: skip
    return _followed(screen, training, on_step)


def train_classifier(
    run: str | Path | Run, *, device: str = "auto", minutes: float | None = None, steps: int | None = None, seed: int = 0,
    data: DataSource | None = None, data_dir: str | Path | None = None, progress: bool | None = None,
    on_progress: OnProgress | None = None, on_step: Callable[[Step], None] | None = None,
) -> dict[str, float]:  # fmt: skip
    """Train the classifier of a run and return its accuracy by time: `reverie.train_classifier("runs/digits", minutes=1)`.

    It lives in the run, where `classifier_guidance` finds it.  data, data_dir: where the run's data are now, or the data
    themselves; progress, on_step: as in `train`.
    """
    from reverie.steering.entry_points import begin_classifier

    screen = watched(progress)
    with screen.reading() as bars:
        training = begin_classifier(
            run, device=device, minutes=minutes, steps=steps, seed=seed, data=data, data_dir=data_dir,
            on_progress=on_progress or bars,
        )  # fmt: skip
    screen.follow_training(reported(training, on_step))
    return training.accuracy
