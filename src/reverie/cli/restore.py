"""The commands that draw what is missing of a picture: inpaint and restore."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from reverie.cli.options import (
    DeviceOption,
    JsonOption,
    OverwriteOption,
    QuietOption,
    RunPath,
    named,
    sampling,
    screen_for,
)

if TYPE_CHECKING:
    from reverie.api import Restored, Screen

OutOption = Annotated[str, typer.Option("--out", help="Sheet X.png, results X.npy, or a folder with both.")]
CountOption = Annotated[int | None, typer.Option("-n", help="How many results; 6 images or 500 points if not given.")]
ClassOption = Annotated[str | None, typer.Option("--label", help="Class to draw; without it what is known decides.")]


def _tell(screen: Screen, made: Restored, out: str, overwrite: bool, seed: int) -> None:
    files = made.save(out, overwrite)
    figures = {key: value for key, value in made.figures.items() if value is not None and key != "psnr_each"}
    lines = [f"{key.replace('_', ' ')} {value:.3g}" for key, value in figures.items() if isinstance(value, float)]
    other = [f"drawn in another order than that of the likelihood: {order}"] if (order := figures.get("order")) else []
    shown = ", ".join(map(str, files[-1:] if len(files) > 3 else files))
    more = f" and {len(files) - 1} more in the same folder" if len(files) > 3 else ""
    screen.result(
        {"files": [str(f) for f in files], "results": len(made), "seed": seed, **made.figures},
        "\n".join([f"wrote {shown}{more}", *([", ".join(lines)] if lines else []), *other]),
    )


@sampling()
def inpaint(
    run: RunPath,
    image: Annotated[
        Path | None, typer.Argument(help="The picture, a file or .npy of any size; none for points.", metavar="IMAGE")
    ] = None,
    mask: Annotated[
        str | None,
        typer.Option(
            "--mask",
            help="White is filled, black is kept: a picture as large as IMAGE, left-half, or rows,columns 10:20,5:25.",
        ),
    ] = None,
    known: Annotated[str | None, typer.Option("--known", help="For points: the known coordinates, like x=0.5.")] = None,
    out: OutOption = "inpainted.png",
    overwrite: OverwriteOption = False,
    n: CountOption = None,
    method: Annotated[
        str | None, named("inpainters", "How: dps:scale=3, moment, repaint:jump=5,repeats=5 or replace", "--method")
    ] = None,
    label: ClassOption = None,
    device: DeviceOption = "auto",
    json: JsonOption = False,
    quiet: QuietOption = False,
    **options: Any,
) -> None:
    """Fill the white part of a mask in a picture, several times; known pixels come back bit for bit."""
    screen = screen_for(json, quiet)
    from reverie import api

    opened = api.load(run, device)
    api.check_results(out, overwrite)
    with screen.counting("inpainting") as advance:
        made = api.inpaint(
            opened, image, mask=mask, known=known, n=n, method=method, on_progress=advance,
            label=label, **options,
        )  # fmt: skip
    _tell(screen, made, out, overwrite, options["seed"])


@sampling()
def restore(
    run: RunPath,
    image: Annotated[Path, typer.Argument(help="The degraded picture, a file or .npy of any size.", metavar="IMAGE")],
    task: Annotated[str, named("tasks", "What to undo: upscale:factor=4, deblur:width=2 or colour", "--task")],
    degrade: Annotated[bool, typer.Option("--degrade", help="IMAGE is clean: degrade it first, and compare.")] = False,
    noise: Annotated[
        float | None, typer.Option("--noise", help="Noise of the picture, of values 0 to 1; dps does without.")
    ] = None,
    out: OutOption = "restored.png",
    overwrite: OverwriteOption = False,
    n: CountOption = None,
    method: Annotated[str, named("posteriors", "moment or dps:scale=3", "--method")] = "moment",
    label: ClassOption = None,
    device: DeviceOption = "auto",
    json: JsonOption = False,
    quiet: QuietOption = False,
    **options: Any,
) -> None:
    """Scale up, deblur or colour a picture, several times."""
    screen = screen_for(json, quiet)
    from reverie import api

    opened = api.load(run, device)
    api.check_results(out, overwrite)
    with screen.counting("restoring") as advance:
        made = api.restore(
            opened, image, task=task, degrade=degrade, noise=noise, n=n, method=method, on_progress=advance,
            label=label, **options,
        )  # fmt: skip
    _tell(screen, made, out, overwrite, options["seed"])


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command()(inpaint)
    app.command()(restore)
