"""Values as the page takes them: arrays of bytes become pictures, others lists, and what is no number null."""

from __future__ import annotations

import base64
import io
import math
from typing import Any

import numpy as np
from PIL import Image


def png(pixels: np.ndarray) -> str:
    """Return a picture as an address that holds it.  pixels: (H, W) or (H, W, C) uint8."""
    buffer = io.BytesIO()
    image = Image.fromarray(pixels[..., 0] if pixels.ndim == 3 and pixels.shape[-1] == 1 else pixels)
    image.save(buffer, format="png", compress_level=1)
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode()


def packed(values: np.ndarray) -> dict[str, Any]:
    """Return numbers as the bytes of float32, which the page reads at once: {"shape": ..., "float32": base64}."""
    return {"shape": list(values.shape), "float32": base64.b64encode(values.astype("<f4").tobytes()).decode()}


def as_json(value: Any) -> Any:
    """Return a value made of what JSON knows."""
    match value:
        case np.ndarray() if value.dtype == np.uint8 and value.ndim in (2, 3):
            return png(value)
        case np.ndarray() | np.generic():
            return as_json(value.tolist())
        case float():
            return value if math.isfinite(value) else None
        case dict():
            return {str(key): as_json(part) for key, part in value.items()}
        case list() | tuple():
            return [as_json(part) for part in value]
        case None | bool() | int() | str():
            return value
        case _:
            return str(value)
