"""The verbs: export a run as a file or folder that others can use, and import what others made as a run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Unpack

from reverie.base.deprecations import renamed_options
from reverie.base.errors import UserError, pick
from reverie.base.files import check_folder
from reverie.data.kind import WRITTEN
from reverie.exchange.diffusers import export_diffusers, import_diffusers, is_diffusers
from reverie.exchange.html_page import export_html
from reverie.exchange.hub import ModelCard, export_hub, import_hub
from reverie.exchange.onnx import export_onnx
from reverie.runs.destinations import is_folder
from reverie.runs.folder import CONFIG
from reverie.runs.run import Run, load
from reverie.runs.sampling_options import Options

FILES: dict[str, Callable[[Run, Path, Options], Path]] = {"html": export_html, "onnx": export_onnx}
FORMATS = (*FILES, "hub", "diffusers")
# Options of sampling that say how an export draws; the rest is chosen where it is used.
TAKEN = ("sampler", "steps", "grid", "guidance", "autoguidance", "seed")


def chosen_format(out: str | Path, wished: str | None) -> str:
    """Return the format by what the output ends in, or as it was asked for; refuse an ending that means nothing."""
    ending = Path(out).suffix.lower().removeprefix(".")
    if wished is not None:
        return pick({name: name for name in FORMATS}, wished, "format")
    if ending in FILES and not Path(out).is_dir():
        return ending
    if is_folder(out):
        return "hub"
    raise UserError(f"cannot tell what {out} shall be: choose a name that ends in .html or .onnx, or a folder;"
                    " --format diffusers writes a folder for diffusers")  # fmt: skip


@renamed_options
def export(
    run: str | Path | Run, out: str | Path, *, format: str | None = None, overwrite: bool = False, measure: bool = False,
    licence: str = "unknown", device: str = "cpu", **options: Unpack[Options],
) -> Path:  # fmt: skip
    """Write a run as one HTML page, an ONNX file or a folder: `reverie.export("runs/digits", "digits.html")`.

    format: html, onnx, hub or diffusers, by what `out` ends in if not given; measure, licence: of the card of a folder;
    options: sampler, steps, grid and guidance that a page or ONNX file begins with.
    """
    kind, path = chosen_format(out, format), Path(out)
    if wrong := sorted(key for key, value in options.items() if key not in TAKEN and value not in (None, 0.0, "fp32")):
        raise UserError(f"an export takes no --{wrong[0].replace('_', '-')}; it is chosen where the export is used")
    check_folder(path.parent if kind in FILES else path)
    opened = run if isinstance(run, Run) else load(run, device)
    if opened.kind in WRITTEN:
        raise UserError(
            f"{opened.path} is a run of {opened.kind}, which no format takes yet; give the folder itself away, it needs no more"
        )
    given: Options = {key: value for key, value in options.items() if key in TAKEN and value is not None}  # type: ignore[assignment]  # a part of it
    if kind in FILES:
        return FILES[kind](opened, path, given)
    if kind == "diffusers":
        return export_diffusers(opened, path, overwrite)
    return export_hub(opened, path, ModelCard(licence, measure), given, overwrite)


def import_model(source: str | Path, out: str | Path, *, name: str | None = None, overwrite: bool = False) -> Run:
    """Make a run of a folder that `export` or diffusers wrote: `reverie.import_model("ddpm-cat/", "runs/cat")`.

    name: what the data are called, the folder's name if not given.
    """
    folder = Path(source)
    if not folder.is_dir():
        raise UserError(f"there is no folder {folder} to import; download a model first, for example with: hf download NAME")
    if (folder / CONFIG).exists():
        return import_hub(folder, Path(out), overwrite)
    if is_diffusers(folder):
        return import_diffusers(folder, Path(out), name or folder.resolve().name, overwrite)
    raise UserError(f"{folder} holds no model that can be imported: neither {CONFIG} nor a UNet2DModel of diffusers")
