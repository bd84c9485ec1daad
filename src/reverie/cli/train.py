"""The command that trains."""

from __future__ import annotations

import shlex
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from reverie.base.budget import Budget
from reverie.base.errors import UserError
from reverie.cli.options import (
    DataDirOption,
    DeviceOption,
    JsonOption,
    MovedDataOption,
    QuietOption,
    RunPath,
    SeedOption,
    completer,
    screen_for,
    training,
)
from reverie.cli.settings import read_settings

if TYPE_CHECKING:
    from reverie.api import Screen, Training

LOOK_AT = ("loss.png", "schedule.png", "previews")
LENGTHS = ("minutes", "steps", "epochs")


@training
def train(
    data: Annotated[
        str | None, typer.Argument(help="Name of a data set, or a path.", metavar="DATA", autocompletion=completer("data"))
    ] = None,
    out: Annotated[Path | None, typer.Option("--out", help="Folder of the new run; runs/DATA if not given.")] = None,
    config: Annotated[
        Path | None,
        typer.Option("--config", help="Settings by the names of these options, which win; or the run to train again."),
    ] = None,
    resume: Annotated[Path | None, typer.Option("--resume", help="Go on with this run instead.", metavar="RUN")] = None,
    extend: Annotated[bool, typer.Option("--extend", help="With --resume: for more --minutes or --steps.")] = False,
    moved: MovedDataOption = None,
    device: Annotated[str | None, typer.Option("--device", help="auto, cpu, cuda or mps.")] = None,
    json: JsonOption = False,
    quiet: QuietOption = False,
    **options: Any,
) -> None:
    """Train a model of a data set, or go on with a run."""
    screen = screen_for(json, quiet)
    budget = Budget(notify=screen.say)
    from reverie import api

    if api.serve_if_worker(device or "auto"):
        return
    if out is not None and api.is_resumable(out):
        resume, out, data, moved, config, options = out, None, None, None, None, {}
    if moved is not None:
        if resume is None or data is not None:
            raise UserError("--data goes with --resume RUN alone; a new run takes DATA without it")
        data = str(moved)
    given: dict[str, Any] = {**options, "data": data, "out": out, "device": device}
    given = {key: value for key, value in given.items() if value is not None and (value is not False or key == "latent_space")}
    given |= {"extend": True} if extend else {}
    if config is not None:
        written = read_settings(config)
        if any(key in given for key in LENGTHS):  # another length takes the place of the written one
            written = {key: value for key, value in written.items() if key not in LENGTHS}
        given = {**written, **given}
    with screen.reading() as on_progress:
        given |= {"on_progress": on_progress, "budget": budget}
        learning = api.begin(given.pop("data", None), given.pop("out", None), resume=resume, **given)
    follow(screen, learning)


def follow(screen: Screen, learning: Training) -> None:
    """Train to the end and tell how it went, or where it stopped."""
    from reverie import api
    from reverie.base.signals import Stopped

    run = learning.run
    try:
        for note in learning.introduction():
            screen.say(note)
        last = screen.follow_training(learning, learning.budget)
    except Stopped:
        kept = f"at step {learning.steps_done:,}, and kept\ngo on:   {learning.resume_command()}"
        screen.say(f"stopped {kept if learning.steps_done else 'before anything was learned, so nothing was kept'}")
        raise
    except KeyboardInterrupt:
        learning.discard()
        screen.say(f"interrupted; {learning.checkpoint_note()}")
        raise
    verdict = api.verdict(run)
    commands = {"sample": learning.sample_command(), **verdict.commands}
    screen.result(
        {
            "run": str(run.path), "steps": last.i, "seconds": last.seconds, "loss": last.loss, "held_out_loss": last.held_out,
            **({"unit": last.unit} if last.unit else {}),
            "verdict": list(verdict.lines), "findings": [asdict(f) for f in verdict.findings], "commands": commands,
        },
        "\n".join([
            last.done, *verdict.lines, f"run:     {run.path}",
            *(f"{name + ':':<8} {command}" for name, command in commands.items()),
            "look at: " + " ".join(shlex.quote(str(run.path / name)) for name in LOOK_AT if (run.path / name).exists()),
        ]),
    )  # fmt: skip


def distil(
    run: RunPath,
    out: Annotated[Path | None, typer.Option("--out", help="Folder of the student; runs/RUN-fast if not given.")] = None,
    minutes: Annotated[float | None, typer.Option("--minutes", help="How long to teach; 5 if no length is given.")] = None,
    steps: Annotated[int | None, typer.Option("--steps", help="How long to teach, in steps of the optimizer.")] = None,
    guidance: Annotated[
        float, typer.Option("--guidance", help="Guidance scale that is folded into the student; 1 is none.")
    ] = 1.0,
    batch: Annotated[int | None, typer.Option("--batch", help="Data in a batch.")] = None,
    learning_rate: Annotated[float | None, typer.Option("--learning-rate", help="Learning rate at its highest.")] = None,
    clock: Annotated[
        str | None, typer.Option("--clock", help="What --minutes are counted by: wall, or processor, all its threads together.")
    ] = None,
    seed: SeedOption = 0,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace a run that is in the folder.")] = False,
    data: MovedDataOption = None,
    data_dir: DataDirOption = None,
    device: DeviceOption = "auto",
    json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Teach a student of a run to draw in 1, 2 or 4 network evaluations."""
    screen = screen_for(json, quiet)
    budget = Budget(notify=screen.say)
    from reverie import api

    given: dict[str, Any] = {"batch": batch, "learning_rate": learning_rate, "clock": clock}
    with screen.reading() as on_progress:
        learning = api.prepare_distillation(
            run, out, minutes=minutes, steps=steps, guidance=guidance, seed=seed, device=device, overwrite=overwrite,
            data=None if data is None else str(data), data_dir=data_dir, on_progress=on_progress, budget=budget,
            **{key: value for key, value in given.items() if value is not None},
        )  # fmt: skip
    follow(screen, learning)
