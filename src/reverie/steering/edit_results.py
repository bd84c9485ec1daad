"""Results of editing, inversion and interpolation: arrays with plots and files."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import DTypeLike

from reverie.base.errors import UserError
from reverie.base.files import check_folder, write_array
from reverie.draw.picture import PICTURE_SUFFIXES, check_video, png_bytes, save
from reverie.runs.samples import Samples, describe_samples
from reverie.steering.edit_sheets import edit_sheet, inversion_sheet, save_interpolation

SHEET_SUFFIXES = (*PICTURE_SUFFIXES, ".npy")
INTERPOLATION_SUFFIXES = (".mp4", ".gif", ".png", ".npy")


def check_suffix(out: str | Path, suffixes: tuple[str, ...]) -> Path:
    """Refuse an output that cannot be written, before any computation."""
    path = Path(out)
    if path.suffix.lower() not in suffixes or path.is_dir():
        raise UserError(f"cannot write {path}: use a name that ends in {', '.join(suffixes)}")
    check_video(path)
    check_folder(path.parent)
    return path


def _save_sheet(path: str | Path, sheet: Figure, x: np.ndarray) -> list[Path]:
    out = check_suffix(path, SHEET_SUFFIXES)
    if out.suffix.lower() == ".npy":
        write_array(out, x)
    else:
        save(sheet, out)
    return [out]


@dataclass(frozen=True, repr=False)
class Edits:
    """Edits of an image.  image: (H, W[, C]); x: (S, N, H, W[, C]) in [0, 1] for S strengths and N seeds."""

    image: np.ndarray
    x: np.ndarray
    strengths: tuple[float, ...]
    caption: str = ""

    def __repr__(self) -> str:
        return f"Edits({describe_samples(self.x[0])} at each strength of {', '.join(f'{s:g}' for s in self.strengths)})"

    def _repr_png_(self) -> bytes:
        return png_bytes(edit_sheet(self, self.caption))

    def save(self, path: str | Path) -> list[Path]:
        """Write the sheet (.png), strengths as columns and seeds as rows, or the images (.npy); return the files."""
        return _save_sheet(path, edit_sheet(self, self.caption), self.x)


@dataclass(frozen=True, repr=False)
class Inversion:
    """An image, its noise, and its reconstruction from the noise.

    image, reconstruction: (H, W[, C]) in [0, 1]; noise: unit noise of the same shape; error: the root mean square difference
    of image and reconstruction; noise_mean, noise_std: 0 and 1 for Gaussian noise; evaluations: of the network.
    """

    image: np.ndarray
    noise: np.ndarray
    reconstruction: np.ndarray
    error: float
    noise_mean: float
    noise_std: float
    evaluations: int

    def __repr__(self) -> str:
        return f"Inversion(error {self.error:.4g}, noise of mean {self.noise_mean:.2f} and std {self.noise_std:.2f})"

    def _repr_png_(self) -> bytes:
        return png_bytes(inversion_sheet(self))

    def save(self, path: str | Path) -> list[Path]:
        """Write the sheet (.png), or the noise (.npy); return the files written."""
        return _save_sheet(path, inversion_sheet(self), self.noise)


@dataclass(frozen=True, repr=False)
class Interpolation:
    """The images of an interpolation.  x: (N, H, W) or (N, H, W, C) in [0, 1]."""

    x: np.ndarray

    def __len__(self) -> int:
        return len(self.x)

    def __array__(self, dtype: DTypeLike | None = None, copy: bool | None = None) -> np.ndarray:
        return np.array(self.x, dtype=dtype)

    def __repr__(self) -> str:
        return f"Interpolation({describe_samples(self.x)})"

    def _repr_png_(self) -> bytes:
        return Samples(self.x).picture()

    def save(self, path: str | Path) -> list[Path]:
        """Write a film forwards and backwards (.mp4, .gif), up to 12 images in a row (.png), or all images (.npy)."""
        out = check_suffix(path, INTERPOLATION_SUFFIXES)
        if out.suffix.lower() == ".npy":
            write_array(out, self.x)
        else:
            save_interpolation(self.x, out)
        return [out]
