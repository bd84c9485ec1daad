"""The .cdb format of the Hoda digits: a header of 1,024 bytes, then records of a label and a small image."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from reverie.base.errors import UserError
from reverie.base.files import reason
from reverie.data.fitting import divisible_side
from reverie.data.memory_limits import allocate_pixels, check_expansion
from reverie.data.pixels import DEFAULT_SIDE, Recipe
from reverie.data.reading import ReadingOptions, fit_all

HEADER = 1024
MARGIN = 2  # margin in pixels around the largest image
MAX_FILE = 2**30
BATCH = 512  # images decoded at a time: at most 34 MB of pixels


@dataclass(frozen=True)
class Records:
    """The encoded images of one file.

    data: (B,) uint8, the whole file; heights, widths, labels: (N,); starts, sizes: (N,), offset and length in bytes of each
    image.
    """

    path: Path
    data: np.ndarray
    grey: bool
    heights: np.ndarray
    widths: np.ndarray
    labels: np.ndarray
    starts: np.ndarray
    sizes: np.ndarray

    def __len__(self) -> int:
        return len(self.labels)

    def pixels(self, begin: int = 0, end: int | None = None) -> np.ndarray:
        """Return the pixels of some images, row by row, concatenated: (P,) uint8."""
        part = slice(begin, end)
        read = _read_grey if self.grey else _read_runs
        try:
            return read(self.data, self.heights[part], self.widths[part], self.starts[part], self.sizes[part])
        except _InvalidRecord as invalid:
            number = begin + invalid.k + 1
            raise UserError(
                f"{self.path} is damaged: the pixels of record {number} do not match its size; get the file again"
            ) from None


class _InvalidRecord(Exception):
    """The index of an image with invalid pixel data."""

    def __init__(self, k: int) -> None:
        super().__init__(k)
        self.k = k


def read_cdb(path: Path) -> Records:
    """Read one file; foreground is 255, background 0.  Every length is checked against the file size first."""
    try:
        if path.stat().st_size > MAX_FILE:
            raise UserError(f"{path} is over {MAX_FILE >> 30} GiB, too large for a .cdb file; split it")
        data = path.read_bytes()
    except OSError as error:
        raise UserError(f"{path} cannot be read: {reason(error)}") from None
    if len(data) < HEADER:
        raise UserError(f"{path} is not a .cdb file: it has {len(data)} bytes, and the header alone has {HEADER}; get it again")
    height, width, count = struct.unpack_from("<BBI", data, 4)
    grey = data[522]
    if grey > 1:
        raise UserError(
            f"{path} is not a supported .cdb file: its image type is {grey}, expected 0 (binary) or 1 (grey); get another file"
        )
    has_fixed_size = height > 0 and width > 0
    record_header = 4 if has_fixed_size else 6
    if count == 0 or count > (len(data) - HEADER) // record_header:
        raise UserError(f"{path} states {count} records, which do not fit into its {len(data)} bytes; get the file again")
    rows = np.empty((count, 4), np.int64)  # label, height, width, first byte
    sizes = np.empty(count, np.int64)
    offset = HEADER
    for k in range(count):
        if offset + record_header > len(data) or data[offset] != 0xFF:
            raise UserError(f"{path} is damaged: record {k + 1} of {count} has no start mark; get the file again")
        w, h = (width, height) if has_fixed_size else (data[offset + 2], data[offset + 3])
        size = data[offset + record_header - 2] | data[offset + record_header - 1] << 8
        start = offset + record_header
        if h == 0 or w == 0 or start + size > len(data):
            raise UserError(f"{path} is damaged: record {k + 1} of {count} is empty or ends after the file; get the file again")
        rows[k] = data[offset + 1], h, w, start
        sizes[k] = size
        offset = start + size
    labels, heights, widths, starts = rows.T
    return Records(path, np.frombuffer(data, np.uint8), bool(grey), heights, widths, labels, starts, sizes)


def _read_grey(data: np.ndarray, heights: np.ndarray, widths: np.ndarray, starts: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """Decode grey images, which are stored by columns."""
    invalid = np.flatnonzero(sizes != heights * widths)
    if len(invalid):
        raise _InvalidRecord(int(invalid[0]))
    parts = [
        data[start : start + h * w].reshape(w, h).T.reshape(-1) for start, h, w in zip(starts, heights, widths, strict=True)
    ]
    return np.concatenate(parts)


def _read_runs(data: np.ndarray, heights: np.ndarray, widths: np.ndarray, starts: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """Decode the run lengths of all images together: a row ends at the run that completes its width."""
    too_short = np.flatnonzero(sizes < heights)  # every row needs at least one run
    if len(too_short):
        raise _InvalidRecord(int(too_short[0]))
    positions = np.repeat(starts - np.concatenate([[0], np.cumsum(sizes)[:-1]]), sizes) + np.arange(int(sizes.sum()))
    runs = data[positions].astype(np.int64)
    covered = np.cumsum(runs)
    row_ends = np.cumsum(np.repeat(widths, heights))  # pixels up to the end of each row
    ends = np.searchsorted(covered, row_ends, "left")
    inside = ends < len(covered)
    exact = inside & (covered[np.minimum(ends, len(covered) - 1)] == row_ends)
    owner = np.repeat(np.arange(len(heights)), heights)
    last = np.cumsum(heights) - 1  # the last row of each image must consume its record
    exact[last] &= ends[last] == np.cumsum(sizes) - 1
    invalid = np.flatnonzero(~exact)
    if len(invalid):
        raise _InvalidRecord(int(owner[invalid[0]]))
    first = np.concatenate([[0], ends[:-1] + 1])
    position = np.arange(len(runs)) - np.repeat(first, np.diff(np.concatenate([first, [len(runs)]])))
    return np.repeat(np.where(position % 2 == 1, 255, 0).astype(np.uint8), runs)


def read_cdb_files(
    paths: Sequence[Path], options: ReadingOptions
) -> tuple[np.ndarray, np.ndarray, dict[tuple[int, int], int], list[str]]:
    """Read files together, each image centred on one common square, then resized.

    Returns (N, 1, H, W) uint8, labels (N,), the counts of (height, width) and notes.
    """
    files = [read_cdb(path) for path in paths]
    largest = max(int(max(f.heights.max(), f.widths.max())) for f in files)
    side = largest + 2 * MARGIN
    height, width = options.size or (divisible_side(min(side, DEFAULT_SIDE)),) * 2
    recipe = Recipe(height, width, 1, "crop" if options.fit == "auto" else options.fit)
    total = sum(len(f) for f in files)
    packed = sum(len(f.data) for f in files)
    check_expansion(total * side**2, packed, str(paths[0]), "get the file again, or remove the large images")
    out = allocate_pixels((total, 1, height, width))
    if out is None:
        raise UserError(f"no memory for {total:,} images of {height}x{width}; choose a smaller --size")
    done = 0
    sizes: dict[tuple[int, int], int] = {}
    for f in files:
        for begin in range(0, len(f), BATCH):
            batch = range(begin, min(begin + BATCH, len(f)))
            pixels = f.pixels(batch.start, batch.stop)
            areas = f.heights[begin : batch.stop] * f.widths[begin : batch.stop]
            starts = np.concatenate([[0], np.cumsum(areas)])
            canvas = np.zeros((len(batch), 1, side, side), np.uint8)
            for j, k in enumerate(batch):
                h, w = int(f.heights[k]), int(f.widths[k])
                sizes[h, w] = sizes.get((h, w), 0) + 1
                top, left = (side - h) // 2, (side - w) // 2
                canvas[j, 0, top : top + h, left : left + w] = pixels[starts[j] : starts[j + 1]].reshape(h, w)
            out[done : done + len(batch)] = fit_all(canvas, recipe, ReadingOptions())
            done += len(batch)
            options.report_progress("placing digits", done, total)
    note = f"each image centred on a {side}x{side} square, then resized to {height}x{width}"
    return out, np.concatenate([f.labels for f in files]), sizes, [note]
