"""The commands for inverse problems: inpaint and restore."""

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
    option,
    sampling,
    screen_for,
)

if TYPE_CHECKING:
    from reverie.api import Restored, Screen

OutOption = Annotated[str, option("Sheet X.png, results X.npy, or a folder with both", "--out", metavar="PATH")]
CountOption = Annotated[int | None, option("Number of results", "-n", default="6 images or 500 points", metavar="N")]
ClassOption = Annotated[
    str | None, option("Class of the results", "--label", default="by the known pixels alone", metavar="LABEL")
]


def _print_result(screen: Screen, results: Restored, out: str, overwrite: bool, seed: int) -> None:
    files = results.save(out, overwrite)
    figures = {key: value for key, value in results.figures.items() if value is not None and key != "psnr_each"}
    lines = [f"{key.replace('_', ' ')} {value:.3g}" for key, value in figures.items() if isinstance(value, float)]
    other = [f"sampled in another order than that of the likelihood: {order}"] if (order := figures.get("order")) else []
    listed = ", ".join(map(str, files[-1:] if len(files) > 3 else files))
    more = f" and {len(files) - 1} more in the same folder" if len(files) > 3 else ""
    screen.result(
        {"files": [str(f) for f in files], "results": len(results), "seed": seed, **results.figures},
        "\n".join([f"wrote {listed}{more}", *([", ".join(lines)] if lines else []), *other]),
    )


@sampling()
def inpaint(
    run: RunPath,
    image: Annotated[
        Path | None, typer.Argument(help="Image file or .npy of any size; none for points.", metavar="IMAGE")
    ] = None,
    mask: Annotated[
        str | None,
        option("Mask, white is sampled and black is kept: a picture, left-half, or rows,columns 10:20,5:25",
               "--mask", default="none", metavar="MASK"),
    ] = None,
    known: Annotated[
        str | None,
        option("Known coordinates of points, such as x=0.5", "--known", default="none", metavar="NAME=VALUE"),
    ] = None,
    out: OutOption = "inpainted.png",
    overwrite: OverwriteOption = False,
    n: CountOption = None,
    method: Annotated[
        str | None,
        option("Method of inpainting: dps:scale=3, moment, repaint:jump=5,repeats=5 or replace", "--method",
               default="by the kind of data", metavar="NAME", kind="inpainters"),
    ] = None,
    label: ClassOption = None,
    device: DeviceOption = "auto",
    json: JsonOption = False,
    quiet: QuietOption = False,
    **options: Any,
) -> None:  # fmt: skip
    """Inpaint: sample the white pixels of a mask several times; the known pixels stay unchanged."""
    screen = screen_for(json, quiet)
    from reverie import api

    loaded = api.load(run, device)
    api.check_results(out, overwrite)
    with screen.counting("inpainting") as advance:
        results = api.inpaint(
            loaded, image, mask=mask, known=known, n=n, method=method, on_progress=advance,
            label=label, **options,
        )  # fmt: skip
    _print_result(screen, results, out, overwrite, options["seed"])


@sampling()
def restore(
    run: RunPath,
    image: Annotated[Path, typer.Argument(help="Degraded image, a file or .npy of any size.", metavar="IMAGE")],
    task: Annotated[
        str,
        option("Degradation to invert: upscale:factor=4, deblur:width=2 or colour", "--task", metavar="NAME", kind="tasks"),
    ],
    degrade: Annotated[bool, option("Degrade IMAGE, which is clean, first, and compare", "--degrade")] = False,
    noise: Annotated[
        float | None,
        option("Standard deviation of the noise of IMAGE, for values 0 to 1; dps needs none", "--noise",
               default="rounding to 8 bits", metavar="STD"),
    ] = None,
    out: OutOption = "restored.png",
    overwrite: OverwriteOption = False,
    n: CountOption = None,
    method: Annotated[
        str, option("Posterior sampling: moment or dps:scale=3", "--method", metavar="NAME", kind="posteriors")
    ] = "moment",
    label: ClassOption = None,
    device: DeviceOption = "auto",
    json: JsonOption = False,
    quiet: QuietOption = False,
    **options: Any,
) -> None:  # fmt: skip
    """Restore an image several times: upscale, deblur or colorize it."""
    screen = screen_for(json, quiet)
    from reverie import api

    loaded = api.load(run, device)
    api.check_results(out, overwrite)
    with screen.counting("restoring") as advance:
        results = api.restore(
            loaded, image, task=task, degrade=degrade, noise=noise, n=n, method=method, on_progress=advance,
            label=label, **options,
        )  # fmt: skip
    _print_result(screen, results, out, overwrite, options["seed"])


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command()(inpaint)
    app.command()(restore)
