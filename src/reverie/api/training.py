"""Training of models, distilled students and classifiers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Unpack

from reverie.api.progress import progress_screen, with_callback
from reverie.base.budget import Budget
from reverie.base.deprecations import renamed_options
from reverie.base.errors import UserError
from reverie.base.progress import OnProgress

if TYPE_CHECKING:
    from reverie.data.in_memory import DataSource
    from reverie.runs.run import Run
    from reverie.runs.screen import Screen
    from reverie.runs.step import Step
    from reverie.training.trainer import Training
    from reverie.training.training_options import DistilOptions, TrainingOptions


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

    data: a name, a path, or data in memory: an array or tensor of points (N, D) or of images, a pair (x, labels), a list of
    PIL images, a table, or a data set of torch or Hugging Face: `reverie.train((images, labels), minutes=10)`.
    resume: an interrupted run to continue, `reverie.train(resume="runs/spiral")`; data is then the present path of its data.
    start_from: a run whose weights initialize the new one, `reverie.train("cats", start_from="runs/animals")`.
    progress: show a bar and the verdict, by default on a terminal and in notebooks; on_step: called with each report.
    """
    screen = progress_screen(progress)
    budget = Budget(notify=screen.notify)
    with screen.reading() as on_progress:
        options["on_progress"] = options.get("on_progress") or on_progress
        training = begin(data, out, resume=resume, budget=budget, **options)
    return _run_to_end(screen, training, on_step)


def _run_to_end(screen: Screen, training: Training, on_step: Callable[[Step], None] | None) -> Run:
    """Train to the end with a progress display, and return the run."""
    from reverie.training.summary import verdict

    for line in training.introduction():
        screen.notify(line)
    try:
        last = screen.follow_training(with_callback(training, on_step), training.budget)
    except KeyboardInterrupt:
        screen.notify(f"interrupted; {training.checkpoint_note()}")
        raise
    run = training.run
    for line in (last.done, *verdict(run).lines, f"run: {run.path}"):
        screen.notify(line)
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
    """Return a training that is ready to start or resume: `for step in reverie.api.begin("spiral", steps=2000): ...`.

    budget: time limit of the whole command, which starts when the budget is created; by default it starts here.
    """
    from reverie.training.prepare import check_options, prepare
    from reverie.training.resume import resume as resume_run

    check_options(options)
    if resume is not None:
        if out is not None:
            raise UserError(f"--out {out} is for a new run and --resume {resume} continues one; give only one of them")
        if "start_from" in options:
            raise UserError(
                f"--from {options['start_from']} starts a new run and --resume {resume} continues one; give only one of them"
            )
        if options.pop("keep_data", False):
            raise UserError(f"keep_data is for a new run, and --resume {resume} continues one; leave keep_data out")
        return resume_run(resume, data=data, budget=budget, **options)
    if data is None:
        raise UserError("DATA is missing; give a name such as digits, a path, or --resume RUN to continue a run")
    if options.pop("extend", False):
        raise UserError("--extend is for a finished run; give it with --resume RUN")
    return prepare(data, out, budget=budget, **options)


@renamed_options
def distil(
    run: str | Path, out: str | Path | None = None, *, minutes: float | None = None, steps: int | None = None,
    guidance: float = 1.0, seed: int = 0, device: str = "auto", overwrite: bool = False, data: DataSource | None = None,
    data_dir: str | Path | None = None, progress: bool | None = None, on_step: Callable[[Step], None] | None = None,
    **options: Unpack[DistilOptions],
) -> Run:  # fmt: skip
    """Distil a run into a student that samples in 1, 2 or 4 evaluations: `reverie.distil("runs/digits", "runs/fast")`.

    The student is a run; `reverie.train(resume=...)` continues an interrupted one.  minutes: 5 if no length is given; guidance:
    scale of the teacher, which the student learns; data, data_dir: present path of the run's data; options: further fields of
    TrainingConfig, such as batch and learning_rate.
    """
    from reverie.training.distil import prepare_distillation

    screen = progress_screen(progress)
    budget = Budget(notify=screen.notify)
    with screen.reading() as bars:
        training = prepare_distillation(
            run, out, minutes=minutes, steps=steps, guidance=guidance, seed=seed, device=device, overwrite=overwrite, data=data,
            data_dir=data_dir, on_progress=bars, budget=budget, **options,
        )  # fmt: skip
    return _run_to_end(screen, training, on_step)


def train_classifier(
    run: str | Path | Run, *, device: str = "auto", minutes: float | None = None, steps: int | None = None, seed: int = 0,
    data: DataSource | None = None, data_dir: str | Path | None = None, progress: bool | None = None,
    on_progress: OnProgress | None = None, on_step: Callable[[Step], None] | None = None,
) -> dict[str, float]:  # fmt: skip
    """Train a noise-aware classifier and return its accuracy by time: `reverie.train_classifier("runs/digits", minutes=1)`.

    The run folder stores it for `classifier_guidance`.  data, data_dir: present path of the run's data, or the data themselves;
    progress, on_step: as in `train`.
    """
    from reverie.steering.entry_points import begin_classifier

    screen = progress_screen(progress)
    with screen.reading() as bars:
        training = begin_classifier(
            run, device=device, minutes=minutes, steps=steps, seed=seed, data=data, data_dir=data_dir,
            on_progress=on_progress or bars,
        )  # fmt: skip
    screen.follow_training(with_callback(training, on_step))
    return training.accuracy
