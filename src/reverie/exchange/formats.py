"""Export of a run to a file or folder for other programs, and import of models as runs."""

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
SAMPLING_OPTIONS = ("sampler", "steps", "grid", "guidance", "autoguidance", "seed")  # of an exported page or file


def chosen_format(out: str | Path, requested: str | None) -> str:
    """Return the requested format, or that of the suffix of the output; refuse unknown suffixes."""
    ending = Path(out).suffix.lower().removeprefix(".")
    if requested is not None:
        return pick({name: name for name in FORMATS}, requested, "format")
    if ending in FILES and not Path(out).is_dir():
        return ending
    if is_folder(out):
        return "hub"
    raise UserError(f"unknown format of {out}: use a name that ends in .html or .onnx, or a folder;"
                    " --format diffusers writes a folder for diffusers")  # fmt: skip


@renamed_options
def export(
    run: str | Path | Run, out: str | Path, *, format: str | None = None, overwrite: bool = False, measure: bool = False,
    licence: str = "unknown", device: str = "cpu", **options: Unpack[Options],
) -> Path:  # fmt: skip
    """Export a run as an HTML page, an ONNX file or a folder: `reverie.export("runs/digits", "digits.html")`.

    format: html, onnx, hub or diffusers, by default from the suffix of `out`; measure, licence: of a folder's model card;
    options: the default sampler, steps, grid and guidance of a page or an ONNX file.
    """
    kind, path = chosen_format(out, format), Path(out)
    ignored = (key for key, value in options.items() if key not in SAMPLING_OPTIONS and value not in (None, 0.0, "fp32"))
    if unsupported := sorted(ignored):
        raise UserError(f"export does not take --{unsupported[0].replace('_', '-')}; leave it out")
    check_folder(path.parent if kind in FILES else path)
    loaded = run if isinstance(run, Run) else load(run, device)
    if loaded.kind in WRITTEN:
        raise UserError(f"{loaded.path} is a run of {loaded.kind}, which no format supports yet; share the run folder itself")
    chosen: Options = {key: value for key, value in options.items() if key in SAMPLING_OPTIONS and value is not None}  # type: ignore[assignment]  # a subset
    if kind in FILES:
        return FILES[kind](loaded, path, chosen)
    if kind == "diffusers":
        return export_diffusers(loaded, path, overwrite)
    return export_hub(loaded, path, ModelCard(licence, measure), chosen, overwrite)


def import_model(source: str | Path, out: str | Path, *, name: str | None = None, overwrite: bool = False) -> Run:
    """Import a folder from `export` or from diffusers as a run: `reverie.import_model("ddpm-cat/", "runs/cat")`.

    name: of the data, by default that of the folder.
    """
    folder = Path(source)
    if not folder.is_dir():
        raise UserError(f"there is no folder {folder}; download a model first, for example with: hf download NAME")
    if (folder / CONFIG).exists():
        return import_hub(folder, Path(out), overwrite)
    if is_diffusers(folder):
        return import_diffusers(folder, Path(out), name or folder.resolve().name, overwrite)
    raise UserError(
        f"{folder} contains no model to import: neither {CONFIG} nor a UNet2DModel of diffusers;"
        " give a folder that reverie export or diffusers wrote"
    )
