"""Reading options, size and fit, and reports, shared by all readers."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from reverie.base.errors import UserError
from reverie.base.visible import visible
from reverie.data.copies import count_duplicates
from reverie.data.dataset import Dataset
from reverie.data.fitting import choose_size_and_fit
from reverie.data.memory_limits import allocate_pixels
from reverie.data.pixels import DEFAULT_SIDE, Recipe, convert_mode, decoding_pool, fit_image

Progress = Callable[[str, int, int], None]  # (stage, number done, total)

CHUNK = 512  # images fitted by a thread at a time
CHUNK_NUMBERS = 2**20  # numbers converted at a time
NAMES_SHOWN = 12  # sizes listed individually in a report


@dataclass(frozen=True)
class ReadingOptions:
    """Options of reading data.

    size: (height, width); largest_colour: maximum side chosen for colour images; window: time steps of a series, or characters
    of a text; text: the column or field that holds text; condition_numbers, condition_image: metadata columns to condition on;
    pairs: columns of sources and targets, or the file of the targets; columns: coordinates of a table, or "all".
    """

    size: tuple[int, int] | None = None
    fit: str = "auto"
    channels: int | None = None
    labels: str = "auto"
    strict: bool = False
    data_dir: Path | None = None
    on_progress: Progress | None = None
    on_shape: Callable[[Dataset], None] | None = None
    largest_colour: int = DEFAULT_SIDE
    window: int | None = None
    text: str | None = None
    condition_numbers: tuple[str, ...] = ()
    condition_image: str | None = None
    pairs: str | None = None
    columns: tuple[str, ...] = ()

    def largest(self, channels: int) -> int:
        """Return the maximum side chosen for images with this number of channels."""
        return self.largest_colour if channels > 1 else DEFAULT_SIDE

    def report_progress(self, what: str, done: int, total: int) -> None:
        """Report progress, if a callback is set."""
        if self.on_progress is not None:
            self.on_progress(what, done, total)

    def report_shape(self, name: str, form: tuple[int, int, int, int], labels: Tensor | None, names: tuple[str, ...]) -> None:
        """Report the shape that images will have, (N, C, H, W), as a dataset without pixels, before they are read."""
        if self.on_shape is not None:
            self.on_shape(Dataset(name, torch.empty(form, dtype=torch.uint8, device="meta"), labels, names))


def natural_key(text: str) -> tuple[tuple[int, int, str], ...]:
    """Return a sort key that puts 2 before 10."""
    return tuple((0, int(part), "") if part.isdecimal() else (1, 0, part) for part in re.split(r"(\d{1,18})", text) if part)


def encode_labels(values: Sequence[str]) -> tuple[Tensor, tuple[str, ...]]:
    """Return labels as indices, (N,) int64, and their names in natural order.

    Names with non-printable characters are escaped.
    """
    escaped = {value: visible(value) for value in set(values)}
    values = [escaped[value] for value in values]
    names = tuple(sorted(set(values), key=lambda name: (natural_key(name), name)))
    number = {name: k for k, name in enumerate(names)}
    return torch.tensor([number[value] for value in values], dtype=torch.int64), names


def shown_sizes(sizes: Mapping[tuple[int, int], int]) -> dict[str, int]:
    """Return sizes as height x width with their counts, the most common first, the rest combined."""
    common = Counter(sizes).most_common()
    out = {f"{height}x{width}": n for (height, width), n in common[:NAMES_SHOWN]}
    rest = sum(n for _, n in common[NAMES_SHOWN:])
    return {**out, "other": rest} if rest else out


def class_counts(labels: Tensor | None, names: Sequence[str]) -> dict[str, int]:
    """Return the count of each class by name."""
    if labels is None:
        return {}
    return dict(zip(names, (int(n) for n in torch.bincount(labels, minlength=len(names))), strict=True))


def duplicate_note(count: int, what: str) -> tuple[str, ...]:
    """Return the note about duplicates, if any."""
    if not count:
        return ()
    return (f"1 {what} is an exact copy of another" if count == 1 else f"{count:,} {what}s are exact copies of others",)


def points_dataset(
    name: str,
    x: np.ndarray,
    labels: Tensor | None,
    names: tuple[str, ...],
    options: ReadingOptions,
    notes: Sequence[str],
    source: str,
) -> Dataset:
    """Return points as a dataset with its report.  x: (N, D); labels: (N,)."""
    if options.size is not None:
        raise UserError(f"{source} contains points, which have no size; leave --size out")
    if options.channels is not None:
        raise UserError(f"{source} contains points, which have no channels; leave --channels out")
    if options.labels == "none":
        labels, names = None, ()
    if len(x) == 0 or x.shape[1] == 0:
        raise UserError(f"{source} contains no points; expected rows of numbers")
    values = np.empty(x.shape, np.float32)
    step = max(1, CHUNK_NUMBERS // x.shape[1])
    for k in range(0, len(x), step):
        rows, out = x[k : k + step], values[k : k + step]
        with np.errstate(over="ignore"):
            out[...] = rows
        if not np.isfinite(out).all():
            invalid = np.flatnonzero(~np.isfinite(rows).all(1))
            if len(invalid):
                raise UserError(
                    f"row {k + invalid[0] + 1} of {source} is not finite (nan or infinity); fix or remove such rows"
                )
            raise UserError(f"{source} contains numbers too large for 32 bits; scale them down")
    tensor = torch.from_numpy(values)
    copies = count_duplicates(values)
    report = {
        "source": source, "kind": "points", "count": len(x), "shape": [x.shape[1]], "classes": class_counts(labels, names),
        "range": [float(tensor.min()), float(tensor.max())], "duplicates": copies, "broken": [],
    }  # fmt: skip
    return Dataset(name, tensor, labels, names, (*notes, *duplicate_note(copies, "point")), report)


def images_dataset(
    name: str,
    x: np.ndarray,
    labels: Tensor | None,
    names: tuple[str, ...],
    options: ReadingOptions,
    notes: Sequence[str],
    source: str,
) -> Dataset:
    """Return images in memory as a dataset with its report, fitted as requested.  x: (N, C, H, W) uint8."""
    if options.labels == "none":
        labels, names = None, ()
    elif options.labels != "auto":
        raise UserError(
            f"labels by {options.labels} need a folder or a .zip of images, which {source} is not; use auto or none"
        )
    count, channels, height, width = x.shape
    if not count or not height or not width:
        raise UserError(f"{source} contains no images (shape {x.shape}); give at least 2")
    all_notes = list(notes)
    sizes = Counter({(height, width): count})
    target = options.channels or (3 if channels == 4 else channels)
    size, fit, size_notes = choose_size_and_fit(sizes, options.size, options.fit, options.largest(target))
    all_notes.extend(size_notes)
    if target != channels:
        mode_names = {1: "grey", 3: "RGB", 4: "RGBA"}
        over = ", transparency composited over white" if channels == 4 else ""
        all_notes.append(f"{count} {mode_names[channels]} images converted to {mode_names[target]}{over}")
    options.report_shape(name, (count, target, *size), labels, names)
    copies = count_duplicates(x)
    report = {
        "source": source, "kind": "images", "count": count, "shape": [target, *size], "fit": fit,
        "sizes": {f"{height}x{width}": count}, "modes": {{1: "L", 3: "RGB", 4: "RGBA"}[channels]: count},
        "classes": class_counts(labels, names), "range": [int(x.min()), int(x.max())], "duplicates": copies, "broken": [],
    }  # fmt: skip
    fitted = fit_all(x, Recipe(*size, target, fit), options)
    return Dataset(name, torch.from_numpy(fitted), labels, names, (*all_notes, *duplicate_note(copies, "image")), report)


def fit_all(x: np.ndarray, recipe: Recipe, options: ReadingOptions) -> np.ndarray:
    """Fit images to one shape.  x: (N, C, H, W) uint8; returns the same with the recipe's shape."""
    if x.shape[1:] == (recipe.channels, recipe.height, recipe.width):
        return np.require(x, requirements=["C", "W"])  # torch requires writable memory
    shape = (len(x), recipe.channels, recipe.height, recipe.width)
    out = allocate_pixels(shape)
    if out is None:
        raise UserError(f"no space in memory or on disk for images of {shape}; choose a smaller --size")

    def fit_chunk(begin: int) -> int:
        for k, image in enumerate(x[begin : begin + CHUNK], begin):
            pixels = image[0] if len(image) == 1 else np.ascontiguousarray(image.transpose(1, 2, 0))
            out[k] = fit_image(convert_mode(Image.fromarray(pixels), recipe.channels), recipe)
        return min(begin + CHUNK, len(x))

    for done in decoding_pool().map(fit_chunk, range(0, len(x), CHUNK)):
        options.report_progress("resizing", done, len(x))
    return out
