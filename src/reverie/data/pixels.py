"""Decoding of one image of any format, mode and size to 8-bit pixels of one shape."""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import cache
from io import BytesIO
from typing import BinaryIO

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError

from reverie.base.allocator import return_freed_memory
from reverie.base.errors import UserError, pick
from reverie.data.memory_limits import Quota

# Detected from the content, never the name; no format that executes code.
FORMATS = ("PNG", "JPEG", "WEBP", "BMP", "GIF", "TIFF", "PPM")
PIXEL_LIMIT = 64_000_000
FORMAT_LIMITS = {"WEBP": 32_000_000}  # its decoder holds six copies of an image
PIXELS = Quota(PIXEL_LIMIT)  # decoded at a time by all threads together
LARGE = 2**23  # pixels of an image from which its memory is returned to the system
STRIP = 2**20  # pixels processed at a time in memory-intensive steps
SIDE_LIMIT = 1024
DEFAULT_SIDE = 64
KINDS = {
    "1": "black-and-white", "L": "grey", "LA": "grey", "P": "palette", "PA": "palette",
    "RGB": "RGB", "RGBA": "RGB", "RGBX": "RGB", "I": "32-bit", "F": "floating-point",
}  # fmt: skip
DEEP = ("16-bit", "32-bit", "floating-point")
GREY = ("black-and-white", "grey", *DEEP)
ORIENTATION = 0x0112


class BrokenImage(Exception):
    """An image cannot be used, for the reason in the message."""


@dataclass(frozen=True, slots=True)
class Header:
    """The header of an image: size after rotation, mode, and what decoding discards."""

    height: int
    width: int
    mode: str
    transparent: bool
    rotated: bool
    animated: bool

    @property
    def kind(self) -> str:
        """The mode in words."""
        return "16-bit" if self.mode.startswith("I;16") else KINDS.get(self.mode, self.mode)


@dataclass(frozen=True, slots=True)
class Recipe:
    """The size and mode to which all images of a dataset are converted."""

    height: int
    width: int
    channels: int
    fit: str = "crop"


@contextmanager
def quiet_pillow() -> Iterator[None]:
    """Suppress Pillow's warnings about sizes and metadata; Reverie reports problems itself."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", category=UserWarning, module=r"PIL\b")
        warnings.simplefilter("ignore", Image.DecompressionBombWarning)
        yield


@cache
def decoding_pool() -> ThreadPoolExecutor:
    """Return the thread pool that decodes images; Pillow releases the GIL."""
    return ThreadPoolExecutor(min(4, os.cpu_count() or 1), thread_name_prefix="reverie-images")


def parse_size(text: str) -> tuple[int, int]:
    """Parse "32" or "64x48" (height x width)."""
    match = re.fullmatch(r"\s*(\d{1,5})(?:\s*[xX]\s*(\d{1,5}))?\s*", text)
    if match is None:
        raise UserError(f"cannot read the size {text!r}; write --size 32, or --size 64x48 for height x width")
    height, width = int(match[1]), int(match[2] or match[1])
    if not (1 <= height <= SIDE_LIMIT and 1 <= width <= SIDE_LIMIT):
        raise UserError(f"the size {text!r} is out of range; each side of --size must be from 1 to {SIDE_LIMIT} pixels")
    return height, width


def check_fit(fit: str) -> None:
    """Refuse an unknown fit; auto depends on the sizes of the images."""
    pick({"auto": None, **FITS}, fit, "fit")


def check_channels(channels: int | None) -> None:
    """Refuse an invalid number of channels."""
    if channels not in (None, 1, 3, 4):
        raise UserError(f"--channels must be 1 (grey), 3 (colour) or 4 (colour with transparency), got {channels}")


def read_header(file: BinaryIO | bytes) -> Header:
    """Return the header of an image; raise BrokenImage if it is not an image or has too many pixels."""
    try:
        with Image.open(BytesIO(file) if isinstance(file, bytes) else file, formats=FORMATS) as image:
            return header_of(image)
    except Exception as error:  # decoders raise nearly any exception for a hostile file
        raise BrokenImage(_why(error)) from None


def header_of(image: Image.Image) -> Header:
    """Return the header of an open image; raise BrokenImage if it has too many pixels."""
    _check_pixels(image)
    width, height = image.size
    orientation = _orientation(image)
    if orientation in (5, 6, 7, 8) and image.format != "TIFF":  # the size of a TIFF is already upright
        width, height = height, width
    animated = bool(getattr(image, "is_animated", False))
    return Header(height, width, image.mode, _transparent(image), orientation != 1, animated)


def fitted(image: Image.Image, recipe: Recipe) -> np.ndarray:
    """Return the first frame of an open image, upright, converted by the recipe: (C, H, W) uint8."""
    try:
        with _reserve(image):
            return _fitted(image, recipe)
    except Exception as error:  # decoders raise nearly any exception for a hostile file
        raise BrokenImage(_why(error)) from None


def _fitted(image: Image.Image, recipe: Recipe) -> np.ndarray:
    image.load()
    return fit_image(convert_mode(_upright(image), recipe.channels), recipe)


def decode(data: bytes, recipe: Recipe) -> np.ndarray:
    """Decode the first frame, upright, converted by the recipe: (C, H, W) uint8."""
    try:
        with Image.open(BytesIO(data), formats=FORMATS) as image:
            _check_pixels(image)
            if image.format == "JPEG":  # decode photos at a fraction of their resolution
                image.draft(None, (3 * max(recipe.height, recipe.width),) * 2)
            with _reserve(image):
                try:
                    return _fitted(image, recipe)
                finally:
                    large = image.width * image.height > LARGE
                    image.close()  # free its pixels before the next image is decoded
                    if large:
                        return_freed_memory()
    except Exception as error:  # decoders raise nearly any exception for a hostile file
        raise BrokenImage(_why(error)) from None


def convert_mode(image: Image.Image, channels: int) -> Image.Image:
    """Convert an image to L, RGB or RGBA; transparency is composited over white unless 4 channels are requested."""
    mode = {1: "L", 3: "RGB", 4: "RGBA"}[channels]
    if image.mode[0] == "I" or image.mode == "F":
        image = _eight_bits(image)
    if channels == 4 or not _transparent(image):
        return image.convert(mode)
    out = Image.new(mode, image.size)
    for box in _strips(image):
        strip = image.crop(box).convert("RGBA")
        out.paste(Image.alpha_composite(Image.new("RGBA", strip.size, (255, 255, 255, 255)), strip).convert(mode), box[:2])
    return out


def _strips(image: Image.Image) -> Iterator[tuple[int, int, int, int]]:
    """Yield boxes of a few rows each, so that temporary copies are small."""
    rows = max(1, STRIP // max(1, image.width))
    for top in range(0, image.height, rows):
        yield 0, top, image.width, min(top + rows, image.height)


def fit_image(image: Image.Image, recipe: Recipe) -> np.ndarray:
    """Fit an L, RGB or RGBA image to the size.  Returns (C, H, W) uint8."""
    size = (recipe.width, recipe.height)
    fitted = image if image.size == size else FITS[recipe.fit](image, size)
    pixels = np.asarray(fitted)
    return pixels[None] if pixels.ndim == 2 else np.ascontiguousarray(pixels.transpose(2, 0, 1))


def _crop(image: Image.Image, size: tuple[int, int]) -> Image.Image:
    """Resize to cover the size and crop the rest evenly on both sides."""
    return ImageOps.fit(image, size, Image.Resampling.LANCZOS)


def _stretch(image: Image.Image, size: tuple[int, int]) -> Image.Image:
    """Resize height and width independently."""
    return image.resize(size, Image.Resampling.LANCZOS)


def _pad(image: Image.Image, size: tuple[int, int]) -> Image.Image:
    """Resize to fit inside, centred; the margin has the mean colour of the image's edge."""
    scale = min(size[0] / image.width, size[1] / image.height)
    inner = (max(1, min(size[0], round(image.width * scale))), max(1, min(size[1], round(image.height * scale))))
    small = image.resize(inner, Image.Resampling.LANCZOS)
    pixels = np.asarray(small).reshape(inner[1], inner[0], -1)
    edge = np.concatenate([pixels[0], pixels[-1], pixels[:, 0], pixels[:, -1]])
    colour = tuple(int(v) for v in edge.mean(0).round())
    canvas = Image.new(image.mode, size, colour if len(colour) > 1 else colour[0])
    canvas.paste(small, ((size[0] - inner[0]) // 2, (size[1] - inner[1]) // 2))
    return canvas


FITS = {"crop": _crop, "pad": _pad, "stretch": _stretch}


def _pixel_limit(image: Image.Image) -> int:
    return FORMAT_LIMITS.get(image.format or "", PIXEL_LIMIT)


def _reserve(image: Image.Image) -> AbstractContextManager[None]:
    """Wait for memory for the pixels of an image; formats with memory-intensive decoders count for more."""
    return PIXELS.of(image.width * image.height * PIXEL_LIMIT // _pixel_limit(image))


def _check_pixels(image: Image.Image) -> None:
    limit = _pixel_limit(image)
    if image.width * image.height > limit:
        raise BrokenImage(f"too large ({image.width} x {image.height} pixels; the limit is {limit // 10**6} megapixels)")


def _orientation(image: Image.Image) -> int:
    """Return the orientation in the header, 1 (upright) to 8."""
    if "exif" not in image.info and image.format != "TIFF":
        return 1  # reading the EXIF data of a PNG would decode it
    try:
        orientation = image.getexif().get(ORIENTATION, 1)
    except Exception:  # an image with damaged EXIF data can still be used
        return 1
    return orientation if orientation in range(1, 9) else 1


def _upright(image: Image.Image) -> Image.Image:
    """Return the image rotated upright; without rotation the image itself, not a copy."""
    try:
        return ImageOps.exif_transpose(image) if image.getexif().get(ORIENTATION, 1) != 1 else image
    except Exception:  # an image with damaged EXIF data can still be used
        return image


def _transparent(image: Image.Image) -> bool:
    palette = image.palette.mode if image.mode == "P" and image.palette is not None else ""
    return image.mode in ("LA", "PA", "RGBA") or "transparency" in image.info or palette.endswith("A")


def _eight_bits(image: Image.Image) -> Image.Image:
    """Convert pixels of more than 8 bits to 8 bits: 16-bit by 257, others by their likely range."""

    def values(box: tuple[int, int, int, int]) -> np.ndarray:
        return np.nan_to_num(np.asarray(image.crop(box)).astype(np.float64), nan=0.0, posinf=0.0, neginf=0.0)

    base, top = 0.0, 65535.0
    if not (image.mode.startswith("I;16") or (image.mode == "I" and image.format in ("PNG", "PPM"))):
        ranges = [(float(strip.min()), float(strip.max())) for strip in map(values, _strips(image))]
        low, high = min(low for low, _ in ranges), max(high for _, high in ranges)
        if image.mode == "F" and low >= 0 and high <= 1:
            top = 1.0
        elif low >= 0 and high <= 255:
            top = 255.0
        elif not (low >= 0 and high <= 65535):  # no known range: use the image's own
            base, top = low, max(high - low, 1e-12)
    out = Image.new("L", image.size)
    for box in _strips(image):
        pixels = ((values(box) - base) * (255.0 / top)).round().clip(0, 255).astype(np.uint8)
        out.paste(Image.fromarray(pixels), box[:2])
    return out


def _why(error: Exception) -> str:
    """Describe in a few words why an image was not read."""
    if isinstance(error, BrokenImage):
        return str(error)
    if isinstance(error, UnidentifiedImageError):
        return "not an image"
    if isinstance(error, Image.DecompressionBombError):
        number = re.search(r"\d+", str(error))
        size = f"{int(number[0]) / 1e6:.0f} megapixels" if number else "too many pixels"
        return f"too large ({size}; the limit is {PIXEL_LIMIT // 10**6} megapixels)"
    message = " ".join(str(error).split()) or type(error).__name__
    if "truncated" in message.lower() or isinstance(error, EOFError):
        return "truncated: the file ends before the image does"
    return f"cannot be decoded ({message[:100]})"
