"""The commands that steer sampling: train-classifier, illusion, edit, invert, interpolate."""

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
    option,
    sampling,
    screen_for,
)

steering = typer.Typer()

ImagePath = Annotated[Path, typer.Argument(help="Image file, which is resized to the run's size.", metavar="IMAGE")]
Minutes = Annotated[float | None, option("Length in minutes", "--minutes", default="2", metavar="M")]
Steps = Annotated[int | None, option("Length in optimizer steps", "--steps", default="by --minutes", metavar="N")]
InverterOption = Annotated[
    str | None, option("Deterministic sampler: ddim or heun", "--sampler", default="heun", metavar="NAME")
]
SheetOption = Annotated[Path, option("Sheet of images to write", "--out", metavar="X.png")]
SEED_OR_IMAGE = "SEED|IMAGE"


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
    """Train a classifier of noisy samples, for `reverie sample --classifier-guidance`."""
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
        saved = f"the classifier so far is in {training.path}" if training.path else "nothing was saved"
        screen.notify(f"stopped before the end; {saved}")
        raise
    accuracy = ", ".join(f"t = {t} {share:.1%}" for t, share in training.accuracy.items())
    name = training.run.config.data.labels[0]
    screen.result(
        {"file": str(training.path), "steps": last.i, "seconds": last.seconds, "accuracy": training.accuracy},
        f"{last.done}\nheld-out accuracy: {accuracy}\nwrote {training.path}\n"
        f"sample:  reverie sample {shlex.quote(str(run))} --label {shlex.quote(name)} --guidance 0 --classifier-guidance 4",
    )


@steering.command()
@sampling("label")
def illusion(
    run: RunPath,
    views: Annotated[
        str, option("Views separated by commas, such as identity,rotate180", "--views", metavar="NAMES", kind="views")
    ],
    labels: Annotated[
        str | None, option("One label for each view, such as 6,9", "--labels", default="none", metavar="LABELS")
    ] = None,
    n: Annotated[int, option("Number of images", "-n", metavar="N")] = 1,
    out: Annotated[Path, option("X.png (views), X.gif or X.mp4 (film), or X.npy", "--out", metavar="FILE")] = Path(
        "illusion.png"
    ),
    guidance: Annotated[
        float | None,
        option("Guidance scale of every view", "--guidance", default="3 with --labels, otherwise 1", metavar="SCALE"),
    ] = None,
    device: DeviceOption = "auto",
    json: JsonOption = False,
    quiet: QuietOption = False,
    **options: Any,
) -> None:
    """Sample illusions: images that match another label in each view."""
    screen = screen_for(json, quiet)
    from reverie import api

    if guidance is not None:
        options["guidance"] = guidance
    with screen.counting("sampling") as advance:
        illusions = api.illusion(run, views, labels, n, out=out, device=device, on_progress=advance, **options)
    values = {"files": [str(out)], "views": list(illusions.titles), "samples": n, "seed": options["seed"]}
    screen.result(values, f"{', '.join(illusions.titles)}\nwrote {out}")


@steering.command()
@sampling()
def edit(
    run: RunPath,
    image: ImagePath,
    strength: Annotated[
        str,
        option("Time t of the noise that is added to the image, above 0 and at most 1; several: 0.3,0.6,0.9", "--strength",
               metavar="T"),
    ] = "0.6",
    n: Annotated[int, option("Number of results at each strength", "-n", metavar="N")] = 4,
    out: SheetOption = Path("edit.png"),
    device: DeviceOption = "auto",
    json: JsonOption = False,
    quiet: QuietOption = False,
    **options: Any,
) -> None:  # fmt: skip
    """Edit an image: add noise up to time t and denoise it, with another label if one is given."""
    screen = screen_for(json, quiet)
    from reverie import api

    with screen.counting("sampling") as advance:
        edits = api.edit(run, image, strength, n, out=out, device=device, on_progress=advance, **options)
    values = {"files": [str(out)], "strengths": list(edits.strengths), "samples": n, "seed": options["seed"]}
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
    """Invert an image: compute the noise that the model maps to it, map it back, and report the error."""
    screen = screen_for(json, quiet)
    from reverie import api

    with screen.counting("inverting") as advance:
        inversion = api.invert(run, image, out=out, device=device, on_progress=advance, sampler=sampler, **options)
    screen.table({
        "rms_error": inversion.error, "noise_mean": inversion.noise_mean, "noise_std": inversion.noise_std,
        "evaluations": inversion.evaluations, "picture": str(out),
    })  # fmt: skip


@steering.command()
@sampling("seed")
def interpolate(
    run: RunPath,
    begin: Annotated[str, option("Start: a seed or an image file", "--from", metavar=SEED_OR_IMAGE)],
    end: Annotated[str, option("End: a seed or an image file", "--to", metavar=SEED_OR_IMAGE)],
    out: Annotated[Path, option("X.gif or X.mp4 (film), X.png (some frames), or X.npy", "--out", metavar="FILE")] = Path(
        "interpolation.gif"
    ),
    frames: Annotated[int, option("Number of frames", "--frames", metavar="N")] = 60,
    sampler: InverterOption = None,
    device: DeviceOption = "auto",
    json: JsonOption = False,
    quiet: QuietOption = False,
    **options: Any,
) -> None:
    """Interpolate between two seeds or images in noise space, as a film."""
    screen = screen_for(json, quiet)
    from reverie import api

    with screen.counting("sampling") as advance:
        api.interpolate(run, begin, end, frames, out=out, device=device, on_progress=advance, sampler=sampler, **options)
    screen.result({"files": [str(out)], "frames": frames}, f"wrote {out}")
