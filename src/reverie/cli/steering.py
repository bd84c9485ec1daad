"""The commands that steer: train-classifier, illusion, edit, invert, interpolate."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated, Any

import typer

from reverie.cli.options import (
    DataDirOption,
    DeviceOption,
    JsonOption,
    MovedDataOption,
    QuietOption,
    RunPath,
    SeedOption,
    named,
    sampling,
    screen_for,
)

steering = typer.Typer()

ImagePath = Annotated[Path, typer.Argument(help="A picture file; it is fitted to the run's size.", metavar="IMAGE")]
Minutes = Annotated[float | None, typer.Option("--minutes", help="Train for this long; 2 if nothing is said.")]
Steps = Annotated[int | None, typer.Option("--steps", help="Train for this many steps.")]
InverterOption = Annotated[str | None, typer.Option("--sampler", help="ddim or heun; heun if nothing is said.")]
SheetOption = Annotated[Path, typer.Option("--out", help="Picture to draw.")]


@steering.command("train-classifier")
def train_classifier(
    run: RunPath,
    minutes: Minutes = None,
    steps: Steps = None,
    seed: SeedOption = 0,
    data: MovedDataOption = None,
    data_dir: DataDirOption = None,
    device: DeviceOption = "auto",
    json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Train a classifier of noised data, for `sample --classifier-guidance`."""
    screen = screen_for(json, quiet)
    from reverie import api
    from reverie.base.signals import Stopped

    with screen.reading() as on_progress:
        training = api.begin_classifier(
            run, device=device, minutes=minutes, steps=steps, seed=seed, data=data, data_dir=data_dir, on_progress=on_progress
        )
    try:
        last = screen.follow_training(training)
    except Stopped:
        kept = f"what it had learned is in {training.path}" if training.path else "nothing was kept"
        screen.say(f"stopped before the end; {kept}")
        raise
    told = {f"t = {t}": share for t, share in training.accuracy.items()}
    words = ", ".join(f"{time} {share:.1%}" for time, share in told.items())
    name = training.run.config.data.labels[0]
    screen.result(
        {"file": str(training.path), "steps": last.i, "seconds": last.seconds, "accuracy": training.accuracy},
        f"{last.done}\nheld-out data told rightly: {words}\nwrote {training.path}\n"
        f"sample:  reverie sample {shlex.quote(str(run))} --label {shlex.quote(name)} --guidance 0 --classifier-guidance 4",
    )


@steering.command()
@sampling("label")
def illusion(
    run: RunPath,
    views: Annotated[str, named("views", "Views with commas between, such as identity,rotate180", "--views")],
    labels: Annotated[str | None, typer.Option("--labels", help="A label for each view, such as 6,9.")] = None,
    n: Annotated[int, typer.Option("-n", help="How many.")] = 1,
    out: Annotated[Path, typer.Option("--out", help="X.png views, X.gif or X.mp4 film, X.npy.")] = Path("illusion.png"),
    guidance: Annotated[float | None, typer.Option("--guidance", help="Guidance scale of every view; 3 if not given.")] = None,
    device: DeviceOption = "auto",
    json: JsonOption = False,
    quiet: QuietOption = False,
    **options: Any,
) -> None:
    """Draw pictures that are something else in every view."""
    screen = screen_for(json, quiet)
    from reverie import api

    if guidance is not None:
        options["guidance"] = guidance
    with screen.counting("sampling") as advance:
        made = api.illusion(run, views, labels, n, out=out, device=device, on_progress=advance, **options)
    values = {"files": [str(out)], "views": list(made.titles), "samples": n, "seed": options["seed"]}
    screen.result(values, f"{', '.join(made.titles)}\nwrote {out}")


@steering.command()
@sampling()
def edit(
    run: RunPath,
    image: ImagePath,
    strength: Annotated[
        str, typer.Option("--strength", help="Time the image is noised to, above 0 and at most 1; several: 0.3,0.6,0.9.")
    ] = "0.6",
    n: Annotated[int, typer.Option("-n", help="How many at each strength.")] = 4,
    out: SheetOption = Path("edit.png"),
    device: DeviceOption = "auto",
    json: JsonOption = False,
    quiet: QuietOption = False,
    **options: Any,
) -> None:
    """Draw an image again: noise it part of the way and denoise it, as another label if so asked."""
    screen = screen_for(json, quiet)
    from reverie import api

    with screen.counting("sampling") as advance:
        made = api.edit(run, image, strength, n, out=out, device=device, on_progress=advance, **options)
    values = {"files": [str(out)], "strengths": list(made.strengths), "samples": n, "seed": options["seed"]}
    screen.result(values, f"wrote {out}")


@steering.command()
@sampling("seed")
def invert(
    run: RunPath,
    image: ImagePath,
    out: SheetOption = Path("inversion.png"),
    sampler: InverterOption = None,
    device: DeviceOption = "auto",
    json: JsonOption = False,
    quiet: QuietOption = False,
    **options: Any,
) -> None:
    """Take an image to the noise that the model draws it from, and back, and show the error."""
    screen = screen_for(json, quiet)
    from reverie import api

    with screen.counting("inverting") as advance:
        made = api.invert(run, image, out=out, device=device, on_progress=advance, sampler=sampler, **options)
    screen.table({
        "rms_error": made.error, "noise_mean": made.noise_mean, "noise_std": made.noise_std,
        "evaluations": made.evaluations, "picture": str(out),
    })  # fmt: skip


@steering.command()
@sampling("seed")
def interpolate(
    run: RunPath,
    begin: Annotated[str, typer.Option("--from", help="A seed, or a picture file.", metavar="SEED|IMAGE")],
    end: Annotated[str, typer.Option("--to", help="A seed, or a picture file.", metavar="SEED|IMAGE")],
    out: Annotated[Path, typer.Option("--out", help="X.gif or X.mp4 film, X.png some of its images, X.npy.")] = Path("way.gif"),
    frames: Annotated[int, typer.Option("--frames", help="Images on the way.")] = 60,
    sampler: InverterOption = None,
    device: DeviceOption = "auto",
    json: JsonOption = False,
    quiet: QuietOption = False,
    **options: Any,
) -> None:
    """Draw the way from one seed or image to another, through noise, as a film."""
    screen = screen_for(json, quiet)
    from reverie import api

    with screen.counting("sampling") as advance:
        api.interpolate(run, begin, end, frames, out=out, device=device, on_progress=advance, sampler=sampler, **options)
    screen.result({"files": [str(out)], "frames": frames}, f"wrote {out}")
