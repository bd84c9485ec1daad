"""What the studio has open: runs and their data, pictures that were sent to it, and what was drawn last."""

from __future__ import annotations

import secrets
import tempfile
from collections import OrderedDict
from pathlib import Path
from typing import Any, Generic, TypeVar

import numpy as np

from reverie import api
from reverie.base.errors import UserError
from reverie.studio.library import Library

T = TypeVar("T")
OPEN_RUNS, OPEN_DATA, PICTURES, DRAWINGS = 3, 2, 64, 12  # kept at a time
MOST_KEPT = 2**26  # numbers of one drawing that is kept


class Recent(OrderedDict[str, T], Generic[T]):
    """The last few of something."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self.most = most

    def keep(self, key: str, value: T) -> T:
        """Keep one more, and forget the oldest."""
        self[key] = value
        self.move_to_end(key)
        while len(self) > self.most:
            self.popitem(last=False)
        return value


class Opened:
    """Opens runs and data by their ids, and keeps the last few.  Used by the thread that works, and by no other."""

    def __init__(self, library: Library) -> None:
        self.library = library
        self._runs: Recent[tuple[object, api.Run]] = Recent(OPEN_RUNS)
        self._data: Recent[api.Dataset] = Recent(OPEN_DATA)
        self.pictures: Recent[np.ndarray] = Recent(PICTURES)  # (C, H, W) in [0, 1]
        self.drawings: Recent[tuple[str, np.ndarray]] = Recent(DRAWINGS)  # the id of the run, and what was drawn

    def run(self, key: str) -> api.Run:
        """Return a run with its model, read again where its weights have changed."""
        found = self.library.run(key)
        weights = found.path / "model.safetensors"
        stamp = (weights.stat().st_mtime_ns, weights.stat().st_size) if weights.is_file() else None
        if key not in self._runs or self._runs[key][0] != stamp:
            self._data.pop(key, None)
            return self._runs.keep(key, (stamp, api.load(found.path)))[1]
        return self._runs.keep(key, self._runs[key])[1]

    def data(self, key: str) -> api.Dataset:
        """Return the data that a run was trained on, without those that were held out."""
        run = self.run(key)
        if key in self._data:
            return self._data.keep(key, self._data[key])
        known = run.config.data
        return self._data.keep(key, api.load_source_data(known, folder=run.path).split(known.seed)[0])

    def take(self, run: api.Run, content: bytes) -> tuple[str, np.ndarray]:
        """Keep a picture that was sent, in the shape of a run's images; return its id and the picture, (C, H, W)."""
        shape = run.config.data.shape
        if run.kind != "images":
            raise UserError("this is a run of points, which has no pictures")
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "picture"
            file.write_bytes(content)
            try:
                picture = api.read_picture(file, (shape[0], shape[1], shape[2]), "image", run.fit)
            except UserError as error:
                raise UserError(str(error).replace(f"the image {file}", "the picture")) from None
        key = secrets.token_hex(8)
        return key, self.pictures.keep(key, picture.x)

    def picture(self, key: str, run: api.Run) -> np.ndarray:
        """Return a picture that was sent for a run, (C, H, W)."""
        if key not in self.pictures:
            raise UserError("this picture is no longer kept; send it again")
        if self.pictures[key].shape != run.config.data.shape:
            raise UserError("this picture was sent for a run of other images; send it again")
        return self.pictures[key]

    def keep_drawing(self, run: str, x: np.ndarray) -> str | None:
        """Keep what was drawn, so that more can be asked of it; return its id."""
        if x.size > MOST_KEPT:
            return None
        key = secrets.token_hex(8)
        self.drawings.keep(key, (run, x))
        return key

    def drawing(self, key: str) -> tuple[str, np.ndarray]:
        """Return what was drawn, with the id of its run."""
        if key not in self.drawings:
            raise UserError("this drawing is no longer kept; draw it again")
        return self.drawings[key]


def shown(x: Any) -> np.ndarray:
    """Return images in [0, 1] as bytes: (N, H, W) or (N, H, W, C) uint8."""
    return (np.nan_to_num(np.asarray(x, np.float32)).clip(0, 1) * 255).round().astype(np.uint8)


def atlas(*rows: np.ndarray) -> np.ndarray:
    """Lay images out in rows, those of one argument below those of the one before.  rows: (N, H, W[, C]) uint8 each."""
    return np.concatenate([np.concatenate(list(row), axis=1) for row in rows], axis=0)
