"""One picture or mask from a file, in the shape a model wants, with its values untouched."""

from __future__ import annotations

import re
import warnings
from pathlib import Path

import numpy as np

from reverie.data.arrays import eight_bits, read_npy
from reverie.data.pixels import Broken, Recipe, decode, read_header
from reverie.data.sources import FILE_LIMIT
from reverie.errors import ReverieWarning, UserError
from reverie.files import reason

Shape = tuple[int, int, int]

BOXES = {  # rows and columns to be filled, as shares of height and width
    "left-half": (0.0, 1.0, 0.0, 0.5),
    "right-half": (0.0, 1.0, 0.5, 1.0),
    "top-half": (0.0, 0.5, 0.0, 1.0),
    "bottom-half": (0.5, 1.0, 0.0, 1.0),
    "centre": (0.25, 0.75, 0.25, 0.75),
}


def read_picture(path: str | Path, shape: Shape, what: str, fit: str | None = None) -> np.ndarray:
    """Return a picture in the shape asked for, (C, H, W) float32 in [0, 1]; 8-bit values k become k / 255.

    fit: how a picture of another size is brought to this one; None refuses it.  An .npy file holds one picture, (H, W),
    (H, W, C) or (C, H, W); real numbers from 0 to 1 are taken as they are.
    """
    path = Path(path)
    try:
        size = path.stat().st_size
        if not path.is_file():
            raise UserError(f"the {what} {path} is {'a folder' if path.is_dir() else 'no regular file'}; give one picture")
        if size > FILE_LIMIT:
            raise UserError(f"the {what} {path} is too large ({size >> 20} MiB; the limit is {FILE_LIMIT >> 20} MiB)")
        if path.suffix.lower() == ".npy":
            with path.open("rb") as file:
                return fit_array(read_npy(file, size, str(path)), shape, f"the {what} {path}")
        data = path.read_bytes()
    except OSError as error:
        raise UserError(f"the {what} {path} cannot be read: {reason(error)}") from None
    except ValueError as error:
        if isinstance(error, UserError):
            raise
        raise UserError(f"the {what} {str(path)!r} is no file name") from None
    channels, height, width = shape
    try:
        head = read_header(data)
        if fit is None and (head.height, head.width) != (height, width):
            raise UserError(
                f"the {what} {path} is {head.height}x{head.width} pixels, and {height}x{width} (height x width) are needed"
            )
        if (head.height, head.width) != (height, width):
            warnings.warn(
                f"the {what} {path} of {head.height}x{head.width} pixels was brought to {height}x{width} ({fit})",
                ReverieWarning,
                stacklevel=2,
            )
        return decode(data, Recipe(height, width, channels, fit or "crop")).astype(np.float32) / np.float32(255)
    except Broken as error:
        raise UserError(f"the {what} {path} cannot be read: {error}") from None


def fit_array(values: np.ndarray, shape: Shape, what: str) -> np.ndarray:
    """Return one picture that is an array in the shape asked for, (C, H, W) float32 in [0, 1]."""
    channels, height, width = shape
    if values.dtype.kind not in "buif" or values.size == 0:
        raise UserError(f"{what} does not hold the numbers of a picture")
    x = values[None] if values.ndim == 2 else values
    if x.ndim == 3 and x.shape != shape and x.shape == (height, width, channels):
        x = np.moveaxis(x, -1, 0)
    if x.shape != shape:
        raise UserError(f"{what} has the shape {values.shape}; {height}x{width} pixels with {channels} channels are needed")
    if not (x.dtype.kind == "f" and x.min() >= 0 and x.max() <= 1):
        x = eight_bits(x, what)[0].astype(np.float32) / np.float32(255)
    return np.ascontiguousarray(x, np.float32)


def read_mask(mask: str | Path, shape: Shape) -> np.ndarray:
    """Return which numbers of a picture are known, (C, H, W) bool: the white pixels of a mask are to be filled.

    mask: a file, a name from BOXES, or a box of rows and columns such as 10:20,5:25 (the first inside, the last not).  White
    in a file is what is at least half as bright as its brightest pixel.
    """
    height, width = shape[1:]
    text = str(mask)
    fill = np.zeros((height, width), bool)
    if text in BOXES:
        top, bottom, left, right = BOXES[text]
        fill[round(top * height) : round(bottom * height), round(left * width) : round(right * width)] = True
    elif box := re.fullmatch(r"(\d{1,6}):(\d{1,6}),(\d{1,6}):(\d{1,6})", text):
        top, bottom, left, right = (int(part) for part in box.groups())
        if not (top < bottom <= height and left < right <= width):
            raise UserError(f"the box {text} does not lie within {height} rows and {width} columns; write rows, then columns")
        fill[top:bottom, left:right] = True
    else:
        if not Path(text).exists():
            raise UserError(
                f"the mask {text!r} is no file; give a picture with white where to fill, a box like 10:20,5:25, or one of:"
                f" {', '.join(BOXES)}"
            )
        bright = read_picture(text, (1, height, width), "mask")[0]
        fill = bright >= max(float(bright.max()), 1e-6) / 2  # masks of 0 and 1 are meant as those of 0 and 255
    if not fill.any():
        raise UserError(f"the mask {text} has nothing to fill; make the pixels that are to be drawn white")
    if fill.all():
        raise UserError(f"the mask {text} leaves no pixel known; make what is to be kept black, or use reverie sample")
    return np.broadcast_to(~fill, shape)
