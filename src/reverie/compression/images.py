"""Lossless reading and writing of images, and the sizes of other compressors for comparison."""

from __future__ import annotations

import io
import lzma
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from reverie.base.errors import UserError
from reverie.base.files import atomic, check_folder, expanded, make_folder, own_file, remove_empty
from reverie.base.progress import OnProgress, silent
from reverie.base.visible import visible
from reverie.compression.container import MAGIC, safe_name
from reverie.data import load_data
from reverie.data.in_memory import DataSource, is_in_memory
from reverie.data.kind import describe_shape
from reverie.data.pixels import BrokenImage, Header, Recipe, decode, quiet_pillow, read_header
from reverie.data.sources import FILE_LIMIT, FileEntry, is_image, list_folder, list_zip

MODES = {1: ("1", "L"), 3: ("RGB", "P"), 4: ("RGBA",)}  # image modes that each number of channels stores losslessly
SAME = ", and compression is lossless; convert the images first"
EXTREME = 9 | lzma.PRESET_EXTREME


def read_lossless(
    source: DataSource,
    shape: tuple[int, ...],
    seed: int = 0,
    data_dir: str | Path | None = None,
    on_progress: OnProgress = silent,
) -> tuple[Tensor, list[str] | None]:
    """Return images, (N, C, H, W) uint8, and their file names; raise an error for images that would have to be changed.

    source: a folder, a .zip file, an image file, or data by name, path or in memory.
    """
    if len(shape) != 3:
        raise UserError("only images can be compressed, and this run models other data")
    path = None if is_in_memory(source) else Path(str(source)).expanduser()
    try:
        reads_files = path is not None and (
            path.is_dir() or (path.is_file() and (is_image(path.name) or path.suffix == ".zip"))
        )
    except (OSError, ValueError):
        reads_files = False
    if path is not None and reads_files and data_dir is None:
        with quiet_pillow():
            return _read_files(path, shape, on_progress)
    size = f"{shape[1]}x{shape[2]}"
    reading: Any = {"seed": seed, "data_dir": data_dir, "labels": "none", "on_progress": on_progress}
    data = load_data(source, **reading)
    if data.kind != "images":
        raise UserError("only images can be compressed, and these data are not images")
    if data.shape[1:] != shape[1:] and set(data.report.get("sizes", ())) == {size}:
        data = load_data(source, size=size, **reading)  # the default size is smaller
    report = data.report
    if set(report.get("sizes", ())) - {size}:
        raise UserError(
            f"the images have the sizes {', '.join(report['sizes'])} and the run models {describe_shape(shape)}{SAME}"
        )
    modes = set(report.get("modes", ()))
    if data.shape != shape or not modes <= set(MODES[shape[0]]):
        mode_names = ", ".join(sorted(modes))
        raise UserError(
            f"the images are {describe_shape(data.shape)} of {mode_names} and the run models {describe_shape(shape)}{SAME}"
        )
    if report.get("rounded"):
        raise UserError(f"these numbers are not among the 256 levels of an image{SAME}")
    return _pixels(data.batch(torch.arange(len(data)))[0]), None


def to_unit_range(x: Tensor) -> Tensor:
    """Return uint8 images in user units, float32 in [0, 1]."""
    return x.float().div_(255)


def _pixels(x: Tensor) -> Tensor:
    return (255 * x).round().to(torch.uint8)


def _read_files(path: Path, shape: tuple[int, ...], on_progress: OnProgress) -> tuple[Tensor, list[str] | None]:
    if path.is_file() and path.suffix != ".zip":
        entries, broken = [FileEntry(path.name, path.stat().st_size, path)], []
    else:
        listing = list_folder(path) if path.is_dir() else list_zip(path)
        entries, broken = listing.images, listing.broken
    if broken:
        raise UserError(f"{visible(broken[0][0])} cannot be compressed: {broken[0][1]}; mend or remove it")
    if not entries:
        raise UserError(f"0 images found in {path}")
    out = np.empty((len(entries), *shape), np.uint8)
    for k, entry in enumerate(entries):
        try:
            if entry.size > FILE_LIMIT:
                raise BrokenImage("the file is too large")
            content = entry.read()
            out[k] = _unchanged(content, read_header(content), shape)
        except (BrokenImage, OSError) as error:
            raise UserError(f"{visible(entry.name)} cannot be compressed: {error}") from None
        on_progress("reading images", k + 1, len(entries))
    return torch.from_numpy(out), _png_names([entry.name for entry in entries])


def _unchanged(content: bytes, header: Header, shape: tuple[int, ...]) -> np.ndarray:
    """Return an image that has the required shape and mode: (C, H, W) uint8."""
    channels, height, width = shape
    if (header.height, header.width) != (height, width):
        raise BrokenImage(f"it has {header.height}x{header.width} pixels and the run models {describe_shape(shape)}{SAME}")
    if header.animated or header.rotated:
        raise BrokenImage(f"it {'is animated' if header.animated else 'has an EXIF rotation'}{SAME}")
    if header.kind in ("16-bit", "32-bit", "floating-point") or (header.transparent and channels != 4):
        raise BrokenImage(f"it is {'transparent' if header.transparent else header.kind}{SAME}")
    pixels = decode(content, Recipe(height, width, 3 if channels == 1 else channels))
    if channels == 1:
        if (pixels != pixels[:1]).any():
            raise BrokenImage(f"it is coloured and the run models grey images{SAME}")
        pixels = pixels[:1]
    return pixels


def _png_names(names: Sequence[str]) -> list[str]:
    """Return the PNG names of decompressed images; unsafe or duplicate names are replaced by numbers."""
    out: list[str] = []
    used: set[str] = set()
    for k, name in enumerate(names):
        relative = PurePosixPath(name)
        candidates = (str(relative.with_suffix(".png")), f"{name}.png", f"{k}.png")
        unused = next((w for w in candidates if safe_name(w) and w.lower() not in used), None)
        numbered = (f"{k}-{j}.png" for j in range(len(names) + 1))
        out.append(unused or next(w for w in numbered if w not in used))
        used.add(out[-1].lower())
    return out


def check_file(out: str | Path) -> Path:
    """Return the output path; raise an error for a folder or an existing file of another kind."""
    path = expanded(out)
    if str(out).endswith("/") or path.is_dir():
        raise UserError(f"{out} is a folder; give the file to write, like images.rvi")
    check_folder(path.parent)
    if path.is_file() and path.stat().st_size:
        with path.open("rb") as file:
            if file.read(len(MAGIC)) != MAGIC:
                raise UserError(
                    f"{path} exists and is not a file of compressed images, so it is not replaced; choose another --out"
                )
    return path


def check_targets(folder: Path, names: Sequence[str]) -> None:
    """Raise an error if the folder is not writable, a file would be replaced, or a link would be followed."""
    check_folder(folder)
    for name in names:
        path = own_file(folder, name)
        if path.exists():
            raise UserError(f"{path} exists; choose another --out")


def write_folder(folder: Path, names: Sequence[str], x: np.ndarray, on_progress: OnProgress = silent) -> list[Path]:
    """Write images as PNG files, all or none.  x: (N, H, W) or (N, H, W, C) uint8."""
    check_targets(folder, names)
    with _remove_on_failure() as (folders, written):
        folders += make_folder(folder)
        for k, (name, pixels) in enumerate(zip(names, x, strict=True)):
            path = own_file(folder, name)
            folders[:0] = make_folder(path.parent)
            with atomic(path) as temporary:
                Image.fromarray(pixels).save(temporary, format="png")
            written.append(path)
            on_progress("writing", k + 1, len(names))
    return written


@contextmanager
def _remove_on_failure() -> Iterator[tuple[list[Path], list[Path]]]:
    folders: list[Path] = []
    written: list[Path] = []
    try:
        yield folders, written
    except BaseException:
        for path in written:
            path.unlink(missing_ok=True)
        remove_empty(folders)
        raise


def png_bytes(pixels: np.ndarray) -> int:
    """Return the size in bytes of the smallest PNG that Pillow writes for an image: (H, W) or (H, W, C) uint8."""
    images = [Image.fromarray(pixels)]
    values, index = np.unique(pixels, return_inverse=True)
    if pixels.ndim == 2 and len(values) <= 16:  # a palette needs at most 4 bits per pixel
        indexed = Image.fromarray(index.reshape(pixels.shape).astype(np.uint8)).convert("P")
        indexed.putpalette(np.repeat(values, 3).tobytes())
        images.append(indexed)
    sizes = []
    for image in images:
        for strategy in (0, 1, 3):  # default, filtered, run lengths
            buffer = io.BytesIO()
            image.save(buffer, "png", optimize=True, compress_type=strategy)
            sizes.append(buffer.tell())
    return min(sizes)


def other_sizes(x: np.ndarray, on_progress: OnProgress = silent) -> dict[str, int]:
    """Return the bytes of other compressors: PNG per image, zlib and lzma for all images together.  x: uint8."""
    png = 0
    for k, pixels in enumerate(x):
        png += png_bytes(pixels)
        on_progress("comparing with PNG", k + 1, len(x))
    content = np.ascontiguousarray(x).tobytes()
    packed = lzma.compress(content, lzma.FORMAT_ALONE, preset=EXTREME)
    return {"png": png, "zlib": len(zlib.compress(content, 9)), "lzma": len(packed)}
