"""The command that packs a folder of images into shards."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from reverie.cli.options import JsonOption, LabelsOption, OverwriteOption, QuietOption, StrictOption, screen_for


def pack(
    folder: Annotated[Path, typer.Argument(help="A folder, .zip or .tar of images.", metavar="FOLDER")],
    out: Annotated[Path, typer.Option("--out", help="The folder for the shards and their index.")],
    shard_size: Annotated[str, typer.Option("--shard-size", help="About how large each tar file is, like 256MB or 1GB.")] = (
        "256MB"
    ),
    labels: LabelsOption = "auto",
    condition_columns: Annotated[
        str | None,
        typer.Option("--condition-columns", help="Columns of metadata with numbers to keep.", metavar="COLUMNS"),
    ] = None,
    strict: StrictOption = False,
    overwrite: OverwriteOption = False,
    json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Pack a folder of images into shards, which are trained on without being held in memory, here or from a bucket."""
    screen = screen_for(json, quiet)
    from reverie import api

    try:
        with screen.reading() as on_progress:
            made = api.pack(folder, out, shard_size=shard_size, labels=labels, condition_columns=condition_columns,
                            strict=strict, overwrite=overwrite, on_progress=on_progress)  # fmt: skip
    except KeyboardInterrupt:
        screen.say(f"interrupted; {out} appears when all images are packed, so nothing was kept")
        raise
    screen.result(made.figures(), str(made))


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(pack)
