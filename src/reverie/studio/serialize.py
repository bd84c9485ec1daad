"""Conversion of values to JSON: images as PNG data URLs, other arrays as lists, non-finite numbers as null."""

from __future__ import annotations

import base64
import io
import math
from typing import Any

import numpy as np
from PIL import Image


def png_url(pixels: np.ndarray) -> str:
    """Return an image as a data URL.  pixels: (H, W) or (H, W, C) uint8."""
    buffer = io.BytesIO()
    image = Image.fromarray(pixels[..., 0] if pixels.ndim == 3 and pixels.shape[-1] == 1 else pixels)
    image.save(buffer, format="png", compress_level=1)
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode()


def pack_floats(values: np.ndarray) -> dict[str, Any]:
    """Return numbers as little-endian float32 bytes: {"shape": ..., "float32": base64}."""
    return {"shape": list(values.shape), "float32": base64.b64encode(values.astype("<f4").tobytes()).decode()}


def serialize(value: Any) -> Any:
    """Return a value made of JSON types."""
    match value:
        case np.ndarray() if value.dtype == np.uint8 and value.ndim in (2, 3):
            return png_url(value)
        case np.ndarray() | np.generic():
            return serialize(value.tolist())
        case float():
            return value if math.isfinite(value) else None
        case dict():
            return {str(key): serialize(part) for key, part in value.items()}
        case list() | tuple():
            return [serialize(part) for part in value]
        case None | bool() | int() | str():
            return value
        case _:
            return str(value)
