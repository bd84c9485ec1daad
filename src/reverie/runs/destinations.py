"""Output formats of samples by file name, with checks before sampling."""

from __future__ import annotations

from pathlib import Path

from reverie.base.errors import UserError
from reverie.base.files import check_folder
from reverie.data.kind import Kind, kind_of
from reverie.draw.picture import check_video, max_film_samples, max_on_sheet
from reverie.runs.outputs import check_labels, check_place

SUFFIXES = (".npy", ".png", ".gif", ".mp4", ".csv", ".txt")
TEXTS: dict[Kind, str] = {"text": ".txt", "pairs": ".csv"}  # formats of kinds without numbers


def is_folder(out: str | Path) -> bool:
    """Return whether an output is a folder: it ends in a slash, exists as one, or has no suffix."""
    return str(out).endswith("/") or Path(out).is_dir() or not Path(out).suffix


def check_output(out: str | Path, overwrite: bool = False) -> None:
    """Refuse an output that cannot be written or would replace other files."""
    path = Path(out)
    if not is_folder(out) and path.suffix.lower() not in SUFFIXES:
        raise UserError(f"cannot write {path}; choose a name that ends in {', '.join(SUFFIXES)}, or a folder")
    if not is_folder(out):
        check_video(path)
    check_folder(path if is_folder(out) else path.parent)
    if is_folder(out):
        check_place(path, overwrite)
    elif path.suffix.lower() == ".npy" and not overwrite:
        check_labels(path)


def check_kind(out: str | Path, kind: Kind) -> None:
    """Refuse a format that does not suit the kind of data."""
    suffix = "" if is_folder(out) else Path(out).suffix.lower()
    if kind in TEXTS and suffix != TEXTS[kind]:
        raise UserError(f"cannot write {kind} to {out}; choose a name that ends in {TEXTS[kind]}, or omit --out to print it")
    numbers = SUFFIXES[: -2 if kind == "images" else -1]
    if kind not in TEXTS and suffix and suffix not in numbers:
        raise UserError(f"cannot write {kind} to {out}; choose a name that ends in {', '.join(numbers)}, or a folder")


def check_capacity(out: str | Path, n: int, shape: tuple[int, ...]) -> None:
    """Refuse more data of a shape, (D,) or (C, H, W), than a sheet or film can show."""
    if is_film(out):
        check_film(n, shape)
    elif not is_streamed(out, shape) and kind_of(shape) == "images" and n > (maximum := max_on_sheet(shape[1], shape[2])):
        bare = Path(out).with_suffix("")
        raise UserError(
            f"{out} cannot show {n:,} images: a sheet has at most {maximum:,} of {shape[1]}x{shape[2]} pixels; "
            f"use a smaller -n, a folder (--out {bare}/) or an array (--out {bare}.npy)"
        )


def check_film(n: int, shape: tuple[int, ...]) -> None:
    """Refuse a film whose frames do not fit into memory."""
    if n > (maximum := max_film_samples(shape)):
        what = f"images of {shape[1]}x{shape[2]} pixels" if kind_of(shape) == "images" else kind_of(shape)
        raise UserError(
            f"a film shows at most {maximum:,} {what}, as its frames are in memory, got {n:,}; use a smaller -n, "
            "or write the samples only, as a folder or as X.npy"
        )


def is_film(out: str | Path) -> bool:
    """Return whether an output is a film of the trajectory."""
    return not is_folder(out) and Path(out).suffix.lower() in (".gif", ".mp4")


def is_streamed(out: str | Path, shape: tuple[int, ...]) -> bool:
    """Return whether an output is written batch by batch."""
    return kind_of(shape) == "images" if is_folder(out) else Path(out).suffix.lower() == ".npy"
