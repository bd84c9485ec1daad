"""The command that packs a folder of images into shards."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from reverie.cli.options import JsonOption, LabelsOption, OverwriteOption, QuietOption, StrictOption, option, screen_for


def pack(
    folder: Annotated[Path, typer.Argument(help="Folder, .zip or .tar of images.", metavar="FOLDER")],
    out: Annotated[Path, option("Folder for the shards and their index", "--out", metavar="FOLDER")],
    shard_size: Annotated[
        str, option("Approximate size of each tar file, such as 256MB or 1GB", "--shard-size", metavar="SIZE")
    ] = "256MB",
    labels: LabelsOption = "auto",
    condition_columns: Annotated[
        str | None, option("Metadata columns with numbers to keep", "--condition-columns", default="none", metavar="COLUMNS")
    ] = None,
    strict: StrictOption = False,
    overwrite: OverwriteOption = False,
    json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Pack a folder of images into shards, which training streams from disk or a bucket."""
    screen = screen_for(json, quiet)
    from reverie import api

    try:
        with screen.reading() as on_progress:
            packed = api.pack(folder, out, shard_size=shard_size, labels=labels, condition_columns=condition_columns,
                            strict=strict, overwrite=overwrite, on_progress=on_progress)  # fmt: skip
    except KeyboardInterrupt:
        screen.notify(f"interrupted; {out} was not written")
        raise
    screen.result(packed.figures(), str(packed))


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(pack)
