"""The command line.  torch is imported only when work starts."""

from __future__ import annotations

import shlex
import sys
import warnings
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.exceptions import TyperException

from reverie.base.errors import ReverieWarning, UserError
from reverie.cli import restore
from reverie.cli.evaluate import evaluate
from reverie.cli.gallery import gallery
from reverie.cli.options import (
    FIT_HELP,
    LABELS_HELP,
    ChannelsOption,
    DataDirOption,
    DeviceOption,
    FitOption,
    JsonOption,
    LabelsOption,
    MovedDataOption,
    QuietOption,
    RunPath,
    SeedOption,
    SizeOption,
    StrictOption,
    completer,
    named,
    sampling,
    screen_for,
)
from reverie.cli.steering import steering

app = typer.Typer(
    name="reverie",
    help="Train, sample, steer and measure denoising diffusion models on your own small data.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    epilog="Start with: reverie train spiral --out runs/spiral",
)
app.add_typer(gallery)
app.add_typer(steering)

USER_MISTAKE, INTERRUPTED = 2, 130


def _version(asked: bool) -> None:
    if asked:
        from importlib.metadata import version

        print(f"reverie {version('reverie')}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")] = False,
) -> None:
    pass


@app.command()
def train(
    data: Annotated[
        str | None, typer.Argument(help="Name of a data set, or a path.", metavar="DATA", autocompletion=completer("data"))
    ] = None,
    out: Annotated[Path | None, typer.Option("--out", help="Folder of the new run; runs/DATA if not given.")] = None,
    minutes: Annotated[float | None, typer.Option("--minutes", help="Train for this long.")] = None,
    steps: Annotated[int | None, typer.Option("--steps", help="Train for this many steps.")] = None,
    epochs: Annotated[float | None, typer.Option("--epochs", help="Train for this many passes over the data.")] = None,
    until: Annotated[str | None, typer.Option("--until", help="good: stop when nothing improves, within --minutes.")] = None,
    resume: Annotated[Path | None, typer.Option("--resume", help="Go on with this run instead.", metavar="RUN")] = None,
    extend: Annotated[bool, typer.Option("--extend", help="With --resume: for more --minutes or --steps.")] = False,
    seed: Annotated[int | None, typer.Option("--seed", help="Seed of everything random; 0 if not given.")] = None,
    device: DeviceOption = "auto",
    size: SizeOption = None,
    fit: Annotated[str | None, typer.Option("--fit", help=FIT_HELP)] = None,
    channels: ChannelsOption = None,
    labels: Annotated[str | None, typer.Option("--labels", help=LABELS_HELP)] = None,
    moved: MovedDataOption = None,
    data_dir: DataDirOption = None,
    strict: StrictOption = False,
    points: Annotated[int | None, typer.Option("--points", help="How many points to generate, for data that are.")] = None,
    batch: Annotated[int | None, typer.Option("--batch", help="Data per step.")] = None,
    accumulate: Annotated[int | None, typer.Option("--accumulate", help="Batches whose gradients make one step.")] = None,
    optimizer: Annotated[str | None, typer.Option("--optimizer", help="adamw or muon.")] = None,
    learning_rate: Annotated[float | None, typer.Option("--learning-rate", help="Highest learning rate.")] = None,
    decay: Annotated[str | None, typer.Option("--decay", help="How the learning rate falls: cosine or step.")] = None,
    schedule: Annotated[
        str | None, named("schedules", "Noise schedule, with options like linear:steps=40", "--schedule")
    ] = None,
    network: Annotated[str | None, named("networks", "Network, with options like mlp:hidden=64", "--network")] = None,
    target: Annotated[str | None, named("targets", "What the network predicts", "--target")] = None,
    weight: Annotated[str | None, named("weights", "Weight of the loss over noise levels", "--weight")] = None,
    times: Annotated[str | None, named("times", "How training times are drawn", "--times")] = None,
    augment: Annotated[
        str | None, named("augmentations", "Changes of training images, like flip,shift:share=0.2; auto, none", "--augment")
    ] = None,
    start_from: Annotated[Path | None, typer.Option("--from", help="Begin with this run's weights.", metavar="RUN")] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace a run that is in the folder.")] = False,
    tensorboard: Annotated[bool, typer.Option("--tensorboard", help="Write TensorBoard events as well.")] = False,
    json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Train a model of a data set, or go on with a run."""
    screen = screen_for(json, quiet)
    from reverie import api
    from reverie.base.signals import Stopped

    if moved is not None:
        if resume is None or data is not None:
            raise UserError("--data goes with --resume RUN alone; a new run takes DATA without it")
        data = str(moved)
    given: dict[str, Any] = {
        "minutes": minutes, "steps": steps, "epochs": epochs, "until": until, "seed": seed, "size": size, "fit": fit,
        "channels": channels, "labels": labels, "points": points, "batch": batch, "accumulate": accumulate,
        "optimizer": optimizer, "learning_rate": learning_rate, "decay": decay, "schedule": schedule, "network": network,
        "target": target, "weight": weight, "times": times, "data_dir": data_dir, "overwrite": overwrite or None,
        "augment": augment, "start_from": start_from,
        "extend": extend or None, "strict": strict or None, "tensorboard": tensorboard or None,
    }  # fmt: skip
    with screen.reading() as on_progress:
        training = api.begin(
            data, out, resume=resume, device=device, on_progress=on_progress,
            **{key: value for key, value in given.items() if value is not None},
        )  # fmt: skip
    run = training.run
    for note in training.introduction():
        screen.say(note)
    try:
        last = screen.follow_training(training)
    except Stopped:
        kept = f"at step {training.learner.i:,}, and kept\ngo on:   {training.resume_command()}"
        screen.say(f"stopped {kept if training.learner.i else 'before anything was learned, so nothing was kept'}")
        raise
    except KeyboardInterrupt:
        screen.say(f"interrupted; {training.kept()}")
        raise
    verdict = api.verdict(run)
    commands = {"sample": training.sample_command(), **verdict.commands}
    screen.result(
        {
            "run": str(run.path), "steps": last.i, "seconds": last.seconds, "loss": last.loss, "held_out_loss": last.held_out,
            "verdict": list(verdict.lines), "findings": [asdict(f) for f in verdict.findings], "commands": commands,
        },
        "\n".join([
            f"trained {last.i:,} steps in {last.seconds:.0f} s", *verdict.lines, f"run:     {run.path}",
            *(f"{name + ':':<8} {command}" for name, command in commands.items()),
            f"look at: {shlex.quote(str(run.path / 'loss.png'))} {shlex.quote(str(run.path / 'previews'))}",
        ]),
    )  # fmt: skip


@app.command()
@sampling()
def sample(
    run: RunPath,
    n: Annotated[int, typer.Option("-n", help="How many.")] = 16,
    out: Annotated[str, typer.Option("--out", help="X.png, X.gif, X.mp4, X.npy or a folder.")] = "samples.png",
    device: DeviceOption = "auto",
    json: JsonOption = False,
    quiet: QuietOption = False,
    **options: Any,
) -> None:
    """Draw samples from a run as a picture, a film or an array."""
    screen = screen_for(json, quiet)
    from reverie import api

    opened = api.load(run, device)
    try:
        with screen.counting(opened.kind) as advance:
            files = api.sample_to(opened, n, out, on_progress=advance, **options)
    except KeyboardInterrupt as stopped:
        screen.say(f"interrupted; {str(stopped) or f'{out} is written when all are drawn, so nothing was kept'}")
        raise
    wrote = ", ".join(map(str, files)) if len(files) < 4 else f"{len(files):,} files in {files[0].parent}"
    screen.result({"files": [str(f) for f in files], "samples": n, "seed": options["seed"]}, f"wrote {wrote}")


app.command()(evaluate)


@app.command()
def inspect(
    what: Annotated[str, typer.Argument(help="Name or path of a data set, or folder of a run.", metavar="DATA|RUN")],
    out: Annotated[Path | None, typer.Option("--out", help="Draw it to this picture as well.")] = None,
    size: SizeOption = None,
    fit: FitOption = "auto",
    channels: ChannelsOption = None,
    labels: LabelsOption = "auto",
    data_dir: DataDirOption = None,
    strict: StrictOption = False,
    seed: SeedOption = 0,
    device: DeviceOption = "auto",
    json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Describe a data set or a run."""
    screen = screen_for(json, quiet)
    from reverie import api

    with screen.reading() as on_progress:
        reading = {
            "size": size, "fit": fit, "channels": channels, "labels": labels, "data_dir": data_dir, "strict": strict,
            "on_progress": on_progress,
        }  # fmt: skip
        found = api.inspect(what, out=out, seed=seed, device=device, reading=reading)
    screen.table({**found, "picture": str(out)} if out is not None else found)


restore.register(app)


@app.command(name="list")
def list_names(
    kind: Annotated[str | None, typer.Argument(help="One kind only, such as samplers.")] = None,
    json: JsonOption = False,
) -> None:
    """List every name the other commands take: data, schedules, samplers and so on."""
    screen = screen_for(json, quiet=False)
    from reverie import api
    from reverie.base.errors import pick

    names = api.names()
    screen.table(names if kind is None else {kind: pick(names, kind, "kind of name")})


def _show_warning(message: Warning | str, category: type[Warning], *where: Any, **also: Any) -> None:
    if issubclass(category, ReverieWarning):
        print(f"warning: {message}", file=sys.stderr)


def main() -> None:
    """Run the command line: a user's mistake is one sentence and exit code 2, never a traceback."""
    warnings.showwarning = _show_warning
    warnings.simplefilter("always", ReverieWarning)
    try:
        code = app(standalone_mode=False)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        code = USER_MISTAKE
    except TyperException as error:
        if said := _sentence(error):  # nothing to say where the help was printed instead
            print(f"error: {said}", file=sys.stderr)
        code = USER_MISTAKE
    except MemoryError:
        print("error: there is not enough memory for this; ask for fewer or smaller things", file=sys.stderr)
        code = USER_MISTAKE
    except OSError as error:
        print(f"error: {error.filename or 'the output'}: {(error.strerror or str(error)).lower()}", file=sys.stderr)
        code = USER_MISTAKE
    except (KeyboardInterrupt, typer.Abort) as error:
        code = getattr(error, "code", INTERRUPTED)
    sys.exit(code if isinstance(code, int) else 0)


def _sentence(error: TyperException) -> str:
    said = error.format_message() if hasattr(error, "format_message") else str(error)
    return " ".join(str(said).split())
