"""The commands that compress images into one lossless file, and decompress it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from reverie.cli.options import (
    DataDirOption,
    DeviceOption,
    JsonOption,
    OverwriteOption,
    QuietOption,
    RunPath,
    SeedOption,
    completer,
    option,
    screen_for,
)


def compress(
    run: RunPath,
    images: Annotated[
        str,
        typer.Argument(
            help="Folder, file or data set name of images of the run's size.", metavar="IMAGES",
            autocompletion=completer("data"),
        ),
    ],
    out: Annotated[Path, option("File to write, such as images.rvi", "--out", metavar="FILE")],
    steps: Annotated[
        int | None,
        option("Steps of the diffusion chain; more steps give a smaller file and take longer", "--steps", default="50",
               metavar="N"),
    ] = None,
    data_dir: DataDirOption = None,
    seed: SeedOption = 0,
    device: DeviceOption = "cpu",
    json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:  # fmt: skip
    """Compress images into one lossless file, at the bits/dim of the run's likelihood bound."""
    screen = screen_for(json, quiet)
    from reverie import api

    loaded = api.load(run, device)
    try:
        with screen.reading() as on_progress:
            compressed = api.compress(loaded, images, out, steps=steps, data_dir=data_dir, seed=seed, on_progress=on_progress)
    except KeyboardInterrupt:
        screen.notify(f"interrupted; {out} was not written")
        raise
    screen.result(compressed.figures(), str(compressed))


def decompress(
    run: RunPath,
    file: Annotated[Path, typer.Argument(help="File that `reverie compress` wrote with this run.", metavar="FILE")],
    out: Annotated[str, option("Folder for PNG files, X.npy, or a sheet X.png", "--out", metavar="PATH")],
    overwrite: OverwriteOption = False,
    device: DeviceOption = "cpu",
    json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Decompress images, bit for bit."""
    screen = screen_for(json, quiet)
    from reverie import api

    loaded = api.load(run, device)
    try:
        with screen.reading() as on_progress:
            images = api.decompress(loaded, file, out, overwrite=overwrite, on_progress=on_progress)
    except KeyboardInterrupt:
        screen.notify(f"interrupted; {out} was not written")
        raise
    values = {"images": len(images), "shape": list(images.x.shape[1:]), "out": out, "names": images.names is not None}
    screen.result(values, f"wrote {len(images):,} image{'s' * (len(images) != 1)} to {out}")


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command()(compress)
    app.command()(decompress)
