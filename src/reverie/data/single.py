"""One image of the user's own, brought to the form that a run was trained on."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from reverie.data.pixels import Broken, Recipe, decode, read_header
from reverie.data.sources import FILE_LIMIT
from reverie.errors import UserError
from reverie.files import reason


def read_image(path: str | Path, shape: tuple[int, ...], fit: str = "crop") -> tuple[Tensor, str | None]:
    """Return an image file as (C, H, W) in [0, 1], and a sentence where its size had to be changed.  shape: (C, H, W)."""
    path = Path(path).expanduser()
    if len(shape) != 3:
        raise UserError(f"{path} is an image, and this is a run of points")
    channels, height, width = shape
    try:
        if not path.is_file():
            raise UserError(f"there is no image at {path}; give the path of a picture file")
        if path.stat().st_size > FILE_LIMIT:
            raise UserError(f"{path} is too large for an image ({path.stat().st_size / 2**20:.0f} MiB)")
        data = path.read_bytes()
        header = read_header(data)
        pixels = torch.tensor(decode(data, Recipe(height, width, channels, fit)))
    except Broken as error:
        raise UserError(f"{path} cannot be used as an image: {error}") from None
    except (OSError, ValueError) as error:
        if isinstance(error, UserError):
            raise
        raise UserError(f"cannot read {path}: {reason(error) if isinstance(error, OSError) else error}") from None
    note = None
    if (header.height, header.width) != (height, width):
        note = f"{path} is {header.height}x{header.width} and was fitted to {height}x{width} like the training data ({fit})"
    return pixels.float() / 255, note
