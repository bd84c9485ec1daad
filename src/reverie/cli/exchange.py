"""The commands by which models leave and come: export and import."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from reverie.cli.options import AdapterOption, DeviceOption, JsonOption, QuietOption, RunPath, sampling, screen_for

ReplaceOption = Annotated[bool, typer.Option("--overwrite", help="Replace what such a command wrote there before.")]
NOT_TAKEN = (
    "label", "prompt", "negative_prompt", "condition", "condition_image", "guidance_interval", "guidance_rescale",
    "classifier_guidance", "precision",
)  # fmt: skip


@sampling(*NOT_TAKEN)
def export(
    run: RunPath,
    out: Annotated[str, typer.Option("--out", help="X.html one page that draws, X.onnx, or a folder for a hub.")],
    format: Annotated[str | None, typer.Option("--format", help="html, onnx, hub or diffusers; by --out if not given.")] = None,
    overwrite: ReplaceOption = False,
    adapter: AdapterOption = None,
    measure: Annotated[bool, typer.Option("--measure", help="Measure samples for the card of a folder, quickly.")] = False,
    licence: Annotated[str, typer.Option("--licence", help="Licence that the card of a folder names.")] = "unknown",
    device: DeviceOption = "cpu",
    json: JsonOption = False,
    quiet: QuietOption = False,
    **options: Any,
) -> None:
    """Write a run as one HTML page that draws, an ONNX file, or a folder for a hub or for diffusers."""
    screen = screen_for(json, quiet)
    from reverie import api

    path = api.export(
        api.with_adapters(api.load(run, device), adapter or ()), out, format=format, overwrite=overwrite, measure=measure,
        licence=licence, **options,
    )  # fmt: skip
    files = [path] if path.is_file() else sorted(p for p in path.rglob("*") if p.is_file())
    size = sum(file.stat().st_size for file in files)
    named = f"{path}" if path.is_file() else f"{len(files)} files in {path}"
    screen.result({"files": [str(file) for file in files], "bytes": size}, f"wrote {named}, {size / 1e6:.1f} MB")


def import_(
    source: Annotated[Path, typer.Argument(help="Folder that export or diffusers wrote.", metavar="SOURCE")],
    out: Annotated[Path, typer.Option("--out", help="Folder of the run to make.")],
    name: Annotated[str | None, typer.Option("--name", help="What the data are called; else the folder's name.")] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace a run that is in the folder.")] = False,
    json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Make a run of a folder that export or diffusers wrote."""
    screen = screen_for(json, quiet)
    from reverie import api

    made = api.import_model(source, out, name=name, overwrite=overwrite)
    screen.result({"run": str(made.path)}, f"run: {made.path}\nsample: reverie sample {made.path} --out samples.png")


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command()(export)
    app.command(name="import")(import_)
