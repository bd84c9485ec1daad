"""The commands that pack images into a file without loss, and take them out again."""

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
    screen_for,
)


def compress(
    run: RunPath,
    images: Annotated[
        str,
        typer.Argument(
            help="A folder, a file or the name of images of the run's own size.", metavar="IMAGES",
            autocompletion=completer("data"),
        ),
    ],
    out: Annotated[Path, typer.Option("--out", help="The file to write, like images.rvi.")],
    steps: Annotated[int | None, typer.Option("--steps", help="Of the chain; more is shorter and slower; 50 if none.")] = None,
    data_dir: DataDirOption = None,
    seed: SeedOption = 0,
    device: DeviceOption = "cpu",
    json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:  # fmt: skip
    """Pack images into one file without loss, as short as the run's bound says."""
    screen = screen_for(json, quiet)
    from reverie import api

    opened = api.load(run, device)
    try:
        with screen.reading() as on_progress:
            made = api.compress(opened, images, out, steps=steps, data_dir=data_dir, seed=seed, on_progress=on_progress)
    except KeyboardInterrupt:
        screen.say(f"interrupted; {out} is written when all images are coded, so nothing was kept")
        raise
    screen.result(made.figures(), str(made))


def decompress(
    run: RunPath,
    file: Annotated[Path, typer.Argument(help="A file that compress wrote, with this run.", metavar="FILE")],
    out: Annotated[str, typer.Option("--out", help="A folder for PNG files, X.npy, or a sheet X.png.")],
    overwrite: OverwriteOption = False,
    device: DeviceOption = "cpu",
    json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Take images out of a file again, bit for bit."""
    screen = screen_for(json, quiet)
    from reverie import api

    opened = api.load(run, device)
    try:
        with screen.reading() as on_progress:
            found = api.decompress(opened, file, out, overwrite=overwrite, on_progress=on_progress)
    except KeyboardInterrupt:
        screen.say("interrupted; nothing was kept")
        raise
    values = {"images": len(found), "shape": list(found.x.shape[1:]), "out": out, "names": found.names is not None}
    screen.result(values, f"wrote {len(found):,} image{'s' * (len(found) != 1)} to {out}")


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command()(compress)
    app.command()(decompress)
