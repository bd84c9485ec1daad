"""The commands that export and import models."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from reverie.cli.options import (
    AdapterOption,
    DeviceOption,
    JsonOption,
    OverwriteRunOption,
    QuietOption,
    RunPath,
    option,
    sampling,
    screen_for,
)

# Options of sampling that an exported page or file has no default for.
NOT_EXPORTED = (
    "label", "prompt", "negative_prompt", "condition", "condition_image", "guidance_interval", "guidance_rescale",
    "classifier_guidance", "precision",
)  # fmt: skip


@sampling(*NOT_EXPORTED)
def export(
    run: RunPath,
    out: Annotated[str, option("X.html (a page that samples), X.onnx, or a folder for a hub", "--out", metavar="PATH")],
    format: Annotated[
        str | None, option("Format: html, onnx, hub or diffusers", "--format", default="by --out", metavar="NAME")
    ] = None,
    overwrite: Annotated[bool, option("Replace an earlier export", "--overwrite")] = False,
    adapter: AdapterOption = None,
    measure: Annotated[bool, option("Evaluate a few samples for the model card of a folder", "--measure")] = False,
    licence: Annotated[str, option("Licence on the model card of a folder", "--licence", metavar="NAME")] = "unknown",
    device: DeviceOption = "cpu",
    json: JsonOption = False,
    quiet: QuietOption = False,
    **options: Any,
) -> None:
    """Export a run as an HTML page that samples, an ONNX file, or a folder for a hub or for diffusers."""
    screen = screen_for(json, quiet)
    from reverie import api

    path = api.export(
        api.with_adapters(api.load(run, device), adapter or ()), out, format=format, overwrite=overwrite, measure=measure,
        licence=licence, **options,
    )  # fmt: skip
    files = [path] if path.is_file() else sorted(p for p in path.rglob("*") if p.is_file())
    size = sum(file.stat().st_size for file in files)
    written = f"{path}" if path.is_file() else f"{len(files)} files in {path}"
    screen.result({"files": [str(file) for file in files], "bytes": size}, f"wrote {written}, {size / 1e6:.1f} MB")


def import_(
    source: Annotated[Path, typer.Argument(help="Folder that `reverie export` or diffusers wrote.", metavar="SOURCE")],
    out: Annotated[Path, option("Folder of the new run", "--out", metavar="RUN")],
    name: Annotated[str | None, option("Name of the data", "--name", default="name of SOURCE", metavar="NAME")] = None,
    overwrite: OverwriteRunOption = False,
    json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Import a folder that `reverie export` or diffusers wrote as a run."""
    screen = screen_for(json, quiet)
    from reverie import api

    imported = api.import_model(source, out, name=name, overwrite=overwrite)
    screen.result(
        {"run": str(imported.path)}, f"run: {imported.path}\nsample: reverie sample {imported.path} --out samples.png"
    )


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command()(export)
    app.command(name="import")(import_)
