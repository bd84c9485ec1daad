"""Where samples can be written: what the name of an output asks for, and refusals before any work is done for it."""

from __future__ import annotations

from pathlib import Path

from reverie.base.errors import UserError
from reverie.base.files import check_folder
from reverie.data.kind import Kind, kind_of
from reverie.draw.picture import check_video, max_film_samples, max_on_sheet
from reverie.runs.outputs import check_labels, check_place

SUFFIXES = (".npy", ".png", ".gif", ".mp4", ".csv", ".txt")
TEXTS: dict[Kind, str] = {"text": ".txt", "pairs": ".csv"}  # what is written of kinds that are no numbers


def is_folder(out: str | Path) -> bool:
    """Tell whether an output is a folder: it ends in a slash, exists as one, or has no suffix."""
    return str(out).endswith("/") or Path(out).is_dir() or not Path(out).suffix


def check_output(out: str | Path, overwrite: bool = False) -> None:
    """Refuse an output that cannot be written, or would replace other files, before any work is done for it."""
    path = Path(out)
    if not is_folder(out) and path.suffix.lower() not in SUFFIXES:
        raise UserError(f"cannot write {path}: choose a name that ends in {', '.join(SUFFIXES)}, or a folder")
    if not is_folder(out):
        check_video(path)
    check_folder(path if is_folder(out) else path.parent)
    if is_folder(out):
        check_place(path, overwrite)
    elif path.suffix.lower() == ".npy" and not overwrite:
        check_labels(path)


def check_kind(out: str | Path, kind: Kind) -> None:
    """Refuse to write text as anything but text, and anything else as text."""
    suffix = "" if is_folder(out) else Path(out).suffix.lower()
    if kind in TEXTS and suffix != TEXTS[kind]:
        raise UserError(f"cannot write {kind} to {out}; choose a name that ends in {TEXTS[kind]}, or leave --out out to see it")
    numbers = SUFFIXES[: -2 if kind == "images" else -1]
    if kind not in TEXTS and suffix and suffix not in numbers:
        raise UserError(f"cannot write {kind} to {out}; choose a name that ends in {', '.join(numbers)}, or a folder")


def check_capacity(out: str | Path, n: int, shape: tuple[int, ...]) -> None:
    """Refuse more data of a shape, (D,) or (C, H, W), than one picture or film can show, before they are drawn."""
    if is_film(out):
        check_film(n, shape)
    elif not streams(out, shape) and kind_of(shape) == "images" and n > (most := max_on_sheet(shape[1], shape[2])):
        bare = Path(out).with_suffix("")
        raise UserError(
            f"{out} cannot show {n:,} images: a sheet holds at most {most:,} of {shape[1]}x{shape[2]} pixels; "
            f"ask for fewer with -n, or write a folder (--out {bare}/) or an array (--out {bare}.npy)"
        )


def check_film(n: int, shape: tuple[int, ...]) -> None:
    """Refuse a film whose frames would take too much memory."""
    if n > (most := max_film_samples(shape)):
        what = f"images of {shape[1]}x{shape[2]} pixels" if kind_of(shape) == "images" else kind_of(shape)
        raise UserError(
            f"a film shows at most {most:,} {what}, whose frames are all held in memory, got {n:,}; film fewer of them, "
            "or write them without the way to them, as a folder or as X.npy"
        )


def is_film(out: str | Path) -> bool:
    """Tell whether this output shows the way and not only the end."""
    return not is_folder(out) and Path(out).suffix.lower() in (".gif", ".mp4")


def streams(out: str | Path, shape: tuple[int, ...]) -> bool:
    """Tell whether this output of data of this shape is written batch by batch: an array, or a folder of images."""
    return kind_of(shape) == "images" if is_folder(out) else Path(out).suffix.lower() == ".npy"
