"""What sampling gives: an array that can show and save itself."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import DTypeLike

from reverie.errors import UserError
from reverie.files import atomic, writable_folder
from reverie.picture import Film, png_bytes, point_frames, save, scatter, write_film

SUFFIXES = (".npy", ".png", ".gif", ".mp4")


def check_output(path: Path) -> None:
    """Refuse an output that cannot be written, before any work is done for it."""
    if path.suffix and path.suffix.lower() not in SUFFIXES:
        raise UserError(f"cannot write {path}: choose a name that ends in {', '.join(SUFFIXES)}, or a folder")
    writable_folder(path if not path.suffix else path.parent)


def wants_film(path: Path) -> bool:
    """Tell whether this output shows the way and not only the end."""
    return path.suffix.lower() in (".gif", ".mp4")


@dataclass(frozen=True)
class Samples:
    """Samples in user units, their labels, and the frames on the way where they were kept.  x: (N, D) float32."""

    x: np.ndarray
    labels: Sequence[str] | None = None
    film: Film = ()

    def __len__(self) -> int:
        return len(self.x)

    def __array__(self, dtype: DTypeLike | None = None, copy: bool | None = None) -> np.ndarray:
        return np.array(self.x, dtype=dtype)

    def _repr_png_(self) -> bytes:
        return png_bytes(scatter(self.x, self.labels))

    def save(self, path: str | Path) -> list[Path]:
        """Write .npy, .png, .gif or .mp4, or a folder with points and picture; return the files written."""
        path = Path(path)
        check_output(path)
        match path.suffix.lower():
            case ".npy":
                return self._save_array(path)
            case ".png":
                save(scatter(self.x, self.labels), path)
            case ".gif" | ".mp4":
                if not self.film:
                    raise UserError(f"cannot write the film {path}: sample with film=True to keep the frames")
                write_film(path, point_frames(self.film, self.labels))
            case _:
                save(scatter(self.x, self.labels), path / "picture.png")
                return [*self._save_array(path / "points.npy"), path / "picture.png"]
        return [path]

    def _save_array(self, path: Path) -> list[Path]:
        with atomic(path) as aside, aside.open("wb") as file:
            np.save(file, self.x.astype(np.float32))
        if self.labels is None:
            return [path]
        text = io.StringIO()
        csv.writer(text).writerows([("index", "label"), *enumerate(self.labels)])
        beside = path.with_suffix(".labels.csv")
        with atomic(beside) as aside:
            aside.write_text(text.getvalue())
        return [path, beside]
