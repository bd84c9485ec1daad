"""A single image or mask from a file or an array, converted to the shape of a model; unchanged if the shape is right."""

from __future__ import annotations

import re
import warnings
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image, ImageOps

from reverie.base.errors import ReverieWarning, UserError, pick
from reverie.base.files import reason
from reverie.data.arrays import read_npy, to_uint8
from reverie.data.pixels import FITS, BrokenImage, Recipe, convert_mode, decode, fit_image, read_header
from reverie.data.sources import FILE_LIMIT

Shape = tuple[int, int, int]
Size = tuple[int, int]

CHANNELS = (1, 3, 4)
BOXES = {  # (top, bottom, left, right) of the region to fill, as fractions of height and width
    "left-half": (0.0, 1.0, 0.0, 0.5),
    "right-half": (0.0, 1.0, 0.5, 1.0),
    "top-half": (0.0, 0.5, 0.0, 1.0),
    "bottom-half": (0.5, 1.0, 0.0, 1.0),
    "centre": (0.25, 0.75, 0.25, 0.75),
}


@dataclass(frozen=True)
class Picture:
    """An image in the requested shape.

    x: (C, H, W) float32 in [0, 1]; name: its name in messages; size: original height and width; fit: how it was resized, if it
    was.
    """

    x: np.ndarray
    name: str
    size: Size
    fit: str

    def warn_if_resized(self, also: str = "") -> None:
        """Warn if the image was resized.  also: appended to the warning."""
        height, width = self.x.shape[1:]
        if self.size != (height, width):
            message = f"{self.name} of {_format_size(self.size)} pixels was resized to {height}x{width} ({self.fit}){also}"
            warnings.warn(message, ReverieWarning, stacklevel=2)


def read_picture(image: str | Path | np.ndarray, shape: Shape, what: str, fit: str = "crop") -> Picture:
    """Return an image in the requested shape, resized and with channels converted if necessary.

    image: a file, or an array (H, W), (H, W, C) or (C, H, W), also from an .npy file; fit: how images of another size are
    resized.  8-bit values k become k / 255; real numbers from 0 to 1 stay unchanged.
    """
    pick(FITS, fit, "fit")
    channels, height, width = shape
    if isinstance(image, np.ndarray):
        return _fit_array(image, shape, f"the {what}", fit)
    name, content = f"the {what} {image}", _read_file(image, what)
    if isinstance(content, np.ndarray):
        return _fit_array(content, shape, name, fit)
    try:
        head = read_header(content)
        pixels = decode(content, Recipe(height, width, channels, fit))
    except BrokenImage as error:
        raise UserError(f"{name} cannot be read: {error}; give an image file or .npy") from None
    return Picture(pixels.astype(np.float32) / np.float32(255), name, (head.height, head.width), fit)


def _read_file(file: str | Path, what: str) -> bytes | np.ndarray:
    """Return the bytes of a file, or the array of an .npy file."""
    path = Path(file)
    try:
        size = path.stat().st_size
        if not path.is_file():
            raise UserError(
                f"the {what} {path} is {'a folder' if path.is_dir() else 'not a regular file'}; give one image file"
            )
        if size > FILE_LIMIT:
            raise UserError(
                f"the {what} {path} is too large ({size >> 20} MiB; the limit is {FILE_LIMIT >> 20} MiB); give a smaller one"
            )
        if path.suffix.lower() == ".npy":
            with path.open("rb") as opened:
                return read_npy(opened, size, str(path))
        return path.read_bytes()
    except OSError as error:
        raise UserError(f"the {what} {path} cannot be read: {reason(error)}; give an image file or .npy") from None
    except ValueError as error:
        if isinstance(error, UserError):
            raise
        raise UserError(f"the {what} {str(path)!r} is not a valid file name; give an image file") from None


def _fit_array(values: np.ndarray, shape: Shape, name: str, fit: str) -> Picture:
    x = _planes(values, shape, name)
    size = (x.shape[1], x.shape[2])
    if not (x.dtype.kind == "f" and x.min() >= 0 and x.max() <= 1 and x.shape == shape):
        pixels = to_uint8(x, name)[0]
        if x.shape != shape:
            image = Image.fromarray(pixels[0] if len(pixels) == 1 else np.ascontiguousarray(np.moveaxis(pixels, 0, -1)))
            pixels = fit_image(convert_mode(image, shape[0]), Recipe(shape[1], shape[2], shape[0], fit))
        x = pixels.astype(np.float32) / np.float32(255)
    return Picture(np.ascontiguousarray(x, np.float32), name, size, fit)


def _planes(values: np.ndarray, shape: Shape, name: str) -> np.ndarray:
    """Return an image array as (C, H, W); its channels are last or first."""
    if values.dtype.kind not in "buif" or values.size == 0:
        raise UserError(f"{name} does not contain the numbers of an image; give an array (H, W), (H, W, C) or (C, H, W)")
    if values.ndim == 2:
        return values[None]
    channels, height, width = shape
    if values.shape == shape:
        return values
    if values.ndim == 3 and (values.shape == (height, width, channels) or values.shape[-1] in CHANNELS):
        return np.moveaxis(values, -1, 0)
    if values.ndim == 3 and values.shape[0] in CHANNELS:
        return values
    raise UserError(f"{name} has the shape {values.shape}; expected (H, W), (H, W, C) or (C, H, W) with 1, 3 or 4 channels")


def read_mask(mask: str | Path | np.ndarray, shape: Shape, size: Size | None = None, fit: str = "crop") -> np.ndarray:
    """Return which numbers of an image are known, (C, H, W) bool: white pixels of a mask are to be filled.

    mask: a file, a name from BOXES, a box of rows and columns such as 10:20,5:25 (ends exclusive), or an array (H, W) that is
    non-zero where to fill.  White in a file means at least half as bright as its brightest pixel.  size, fit: those of the
    image; the mask is resized in the same way, and every pixel that a white pixel touches is filled.  A mask may also
    have the target size already.
    """
    after = shape[1], shape[2]
    before = after if size is None else size
    name = "the mask" if isinstance(mask, np.ndarray) else f"the mask {mask}"
    fill = _read_fill(mask, before)
    if fill.shape == before:
        fill = _resize_mask(fill, after, fit)
    if fill.shape != after:
        also = f", or of {_format_size(after)} as the run's images" if before != after else ""
        raise UserError(f"{name} has {_format_size(fill.shape)} pixels; expected {_format_size(before)}, as its image{also}")
    if not fill.any():
        raise UserError(f"{name} marks nothing to fill; make the pixels to generate white")
    if fill.all():
        raise UserError(f"{name} leaves no pixel known; make the pixels to keep black, or use reverie sample")
    return np.broadcast_to(~fill, shape)


def _read_fill(mask: str | Path | np.ndarray, size: Size) -> np.ndarray:
    """Return where to fill, (H, W) bool: files and arrays keep their size, boxes get this size."""
    if isinstance(mask, np.ndarray):
        if mask.ndim != 2:
            raise UserError(f"the mask has the shape {mask.shape}; expected (H, W), non-zero where to fill")
        return np.asarray(mask != 0)
    height, width = size
    text = str(mask)
    fill = np.zeros(size, bool)
    if text in BOXES:
        top, bottom, left, right = BOXES[text]
        fill[round(top * height) : round(bottom * height), round(left * width) : round(right * width)] = True
    elif box := re.fullmatch(r"(\d{1,6}):(\d{1,6}),(\d{1,6}):(\d{1,6})", text):
        first_row, end_row, first_column, end_column = (int(part) for part in box.groups())
        if not (first_row < end_row <= height and first_column < end_column <= width):
            raise UserError(f"the box {text} exceeds {height} rows or {width} columns; write rows, then columns")
        fill[first_row:end_row, first_column:end_column] = True
    else:
        if not Path(text).exists():
            raise UserError(
                f"the mask {text!r} does not exist; give an image with white where to fill, a box like 10:20,5:25, or one"
                f" of: {', '.join(BOXES)}"
            )
        bright = _read_grey(text)
        fill = bright >= max(float(bright.max()), 1e-6) / 2  # masks of 0 and 1 mean the same as masks of 0 and 255
    return fill


def _read_grey(file: str) -> np.ndarray:
    """Return the brightness of a mask's pixels at their original size, (H, W)."""
    name, content = f"the mask {file}", _read_file(file, "mask")
    if isinstance(content, np.ndarray):
        planes = _planes(content, (1, 0, 0), name)
        return np.asarray(_fit_array(planes, (1, planes.shape[1], planes.shape[2]), name, "crop").x[0])
    try:
        head = read_header(content)
        return np.asarray(decode(content, Recipe(head.height, head.width, 1))[0])
    except BrokenImage as error:
        raise UserError(f"{name} cannot be read: {error}; give an image file or .npy") from None


def _resize_mask(fill: np.ndarray, size: Size, fit: str) -> np.ndarray:
    """Resize a mask like its image; partly white pixels become white, and padding black."""
    if fill.shape == size:
        return fill
    image, target = Image.fromarray(fill.astype(np.uint8) * 255), (size[1], size[0])
    if fit == "crop":
        return np.asarray(ImageOps.fit(image, target, Image.Resampling.BOX), bool)
    scale = min(size[0] / fill.shape[0], size[1] / fill.shape[1])
    inner = target if fit == "stretch" else tuple(max(1, round(side * scale)) for side in image.size)
    canvas = Image.new("L", target, 0)
    canvas.paste(image.resize(inner, Image.Resampling.BOX), tuple((a - b) // 2 for a, b in zip(target, inner, strict=True)))
    return np.asarray(canvas, bool)


def _format_size(size: tuple[int, ...]) -> str:
    return "x".join(map(str, size))
