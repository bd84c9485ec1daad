"""The commands that train and distil."""

from __future__ import annotations

import shlex
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from reverie.base.budget import Budget
from reverie.base.errors import UserError
from reverie.cli.options import (
    DEVICE,
    ClockOption,
    DataDirOption,
    DeviceOption,
    JsonOption,
    MovedDataOption,
    OverwriteRunOption,
    QuietOption,
    RunPath,
    SeedOption,
    completer,
    option,
    screen_for,
    training,
)
from reverie.cli.settings import read_settings

if TYPE_CHECKING:
    from reverie.api import Screen, Training

PICTURES = ("loss.png", "schedule.png", "previews")
LENGTHS = ("minutes", "steps", "epochs")


@training
def train(
    data: Annotated[
        str | None,
        typer.Argument(
            help="Name or path of a data set.", metavar="DATA", autocompletion=completer("data"), show_default=False
        ),
    ] = None,
    out: Annotated[Path | None, option("Folder of the new run", "--out", default="runs/DATA", metavar="RUN")] = None,
    config: Annotated[
        Path | None,
        option("TOML file with options by these names, or a run to repeat; the command line takes precedence", "--config",
               default="none", metavar="FILE|RUN"),
    ] = None,
    resume: Annotated[Path | None, option("Run to resume", "--resume", default="none", metavar="RUN")] = None,
    extend: Annotated[bool, option("With --resume, train a finished run for more --minutes or --steps", "--extend")] = False,
    moved: MovedDataOption = None,
    device: Annotated[str | None, option(DEVICE, "--device", default="auto", metavar="NAME")] = None,
    json: JsonOption = False,
    quiet: QuietOption = False,
    **options: Any,
) -> None:  # fmt: skip
    """Train a model on a data set, or resume a run."""
    screen = screen_for(json, quiet)
    budget = Budget(notify=screen.notify)
    from reverie import api

    if api.serve_if_worker(device or "auto"):
        return
    if out is not None and api.is_resumable(out):
        resume, out, data, moved, config, options = out, None, None, None, None, {}
    if moved is not None:
        if resume is None or data is not None:
            raise UserError("--data is for --resume RUN; give DATA of a new run as the argument, without --data")
        data = str(moved)
    settings: dict[str, Any] = {**options, "data": data, "out": out, "device": device}
    settings = {k: value for k, value in settings.items() if value is not None and (value is not False or k == "latent_space")}
    settings |= {"extend": True} if extend else {}
    if config is not None:
        stored = read_settings(config)
        if any(key in settings for key in LENGTHS):  # a length on the command line replaces any in the file
            stored = {key: value for key, value in stored.items() if key not in LENGTHS}
        settings = {**stored, **settings}
    with screen.reading() as on_progress:
        settings |= {"on_progress": on_progress, "budget": budget}
        prepared = api.begin(settings.pop("data", None), settings.pop("out", None), resume=resume, **settings)
    run_training(screen, prepared)


def run_training(screen: Screen, training: Training) -> None:
    """Train to the end, or to an interruption, and print the result."""
    from reverie import api
    from reverie.base.signals import Stopped

    run = training.run
    try:
        for note in training.introduction():
            screen.notify(note)
        last = screen.follow_training(training, training.budget)
    except Stopped:
        saved = f"at step {training.steps_done:,} and saved\nresume:  {training.resume_command()}"
        screen.notify(f"stopped {saved if training.steps_done else 'before the first step; nothing was saved'}")
        raise
    except KeyboardInterrupt:
        training.discard()
        screen.notify(f"interrupted; {training.checkpoint_note()}")
        raise
    verdict = api.verdict(run)
    commands = {"sample": training.sample_command(), **verdict.commands}
    screen.result(
        {
            "run": str(run.path), "steps": last.i, "seconds": last.seconds, "loss": last.loss, "held_out_loss": last.held_out,
            **({"unit": last.unit} if last.unit else {}),
            "verdict": list(verdict.lines), "findings": [asdict(f) for f in verdict.findings], "commands": commands,
        },
        "\n".join([
            last.done, *verdict.lines, f"run:     {run.path}",
            *(f"{name + ':':<8} {command}" for name, command in commands.items()),
            "view:    " + " ".join(shlex.quote(str(run.path / name)) for name in PICTURES if (run.path / name).exists()),
        ]),
    )  # fmt: skip


def distil(
    run: RunPath,
    out: Annotated[Path | None, option("Folder of the student", "--out", default="runs/RUN-fast", metavar="RUN")] = None,
    minutes: Annotated[float | None, option("Length in minutes", "--minutes", default="5", metavar="M")] = None,
    steps: Annotated[int | None, option("Length in optimizer steps", "--steps", default="by --minutes", metavar="N")] = None,
    guidance: Annotated[
        float, option("Guidance scale of the teacher, which the student learns; 1 is none", "--guidance", metavar="SCALE")
    ] = 1.0,
    batch: Annotated[int | None, option("Batch size", "--batch", default="as of the teacher", metavar="N")] = None,
    learning_rate: Annotated[
        float | None, option("Peak learning rate", "--learning-rate", default="by that of the teacher", metavar="RATE")
    ] = None,
    clock: ClockOption = None,
    seed: SeedOption = 0,
    overwrite: OverwriteRunOption = False,
    data: MovedDataOption = None,
    data_dir: DataDirOption = None,
    device: DeviceOption = "auto",
    json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Distil a run into a student that samples in 1, 2 or 4 network evaluations."""
    screen = screen_for(json, quiet)
    budget = Budget(notify=screen.notify)
    from reverie import api

    chosen: dict[str, Any] = {"batch": batch, "learning_rate": learning_rate, "clock": clock}
    with screen.reading() as on_progress:
        prepared = api.prepare_distillation(
            run, out, minutes=minutes, steps=steps, guidance=guidance, seed=seed, device=device, overwrite=overwrite,
            data=None if data is None else str(data), data_dir=data_dir, on_progress=on_progress, budget=budget,
            **{key: value for key, value in chosen.items() if value is not None},
        )  # fmt: skip
    run_training(screen, prepared)
