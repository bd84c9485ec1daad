"""Loaded runs and datasets, uploaded images and recent samples, by their ids."""

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
MAX_RUNS, MAX_DATASETS, MAX_IMAGES, MAX_SAMPLES = 3, 2, 64, 12  # cached at a time
MAX_NUMBERS = 2**26  # in one cached array of samples


class LRUCache(OrderedDict[str, T], Generic[T]):
    """The most recently used values."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.size = size

    def put(self, key: str, value: T) -> T:
        """Add a value, or mark it as used, and evict the least recently used ones."""
        self[key] = value
        self.move_to_end(key)
        while len(self) > self.size:
            self.popitem(last=False)
        return value


class OpenRuns:
    """Loads runs and datasets by id and caches them.  Only the worker thread may use it."""

    def __init__(self, library: Library) -> None:
        self.library = library
        self._runs: LRUCache[tuple[object, api.Run]] = LRUCache(MAX_RUNS)
        self._data: LRUCache[api.Dataset] = LRUCache(MAX_DATASETS)
        self._images: LRUCache[np.ndarray] = LRUCache(MAX_IMAGES)  # (C, H, W) in [0, 1]
        self._samples: LRUCache[tuple[str, np.ndarray]] = LRUCache(MAX_SAMPLES)  # id of the run, and its samples

    def run(self, key: str) -> api.Run:
        """Return a run with its model, loaded again if its weights have changed."""
        item = self.library.run(key)
        weights = item.path / "model.safetensors"
        stamp = (weights.stat().st_mtime_ns, weights.stat().st_size) if weights.is_file() else None
        if key not in self._runs or self._runs[key][0] != stamp:
            self._data.pop(key, None)
            return self._runs.put(key, (stamp, api.load(item.path)))[1]
        return self._runs.put(key, self._runs[key])[1]

    def data(self, key: str) -> api.Dataset:
        """Return the training data of a run, without the held-out set."""
        run = self.run(key)
        if key in self._data:
            return self._data.put(key, self._data[key])
        config = run.config.data
        return self._data.put(key, api.load_source_data(config, folder=run.path).split(config.seed)[0])

    def add_image(self, run: api.Run, content: bytes) -> tuple[str, np.ndarray]:
        """Store an uploaded image, fitted to the image size of a run; return its id and the image, (C, H, W)."""
        shape = run.config.data.shape
        if run.kind != "images":
            raise UserError(f"cannot use an image with a run of {run.kind}; choose a run of images")
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "image"
            file.write_bytes(content)
            try:
                image = api.read_picture(file, (shape[0], shape[1], shape[2]), "image", run.fit)
            except UserError as error:
                raise UserError(str(error).replace(f"the image {file}", "the image")) from None
        key = secrets.token_hex(8)
        return key, self._images.put(key, image.x)

    def image(self, key: str, run: api.Run) -> np.ndarray:
        """Return an image that was uploaded for a run, (C, H, W)."""
        if key not in self._images:
            raise UserError("the uploaded image has expired; upload it again")
        if self._images[key].shape != run.config.data.shape:
            raise UserError("the image was uploaded for a run with another image size; upload it again")
        return self._images[key]

    def add_samples(self, run: str, x: np.ndarray) -> str | None:
        """Store samples of a run, so that later requests can refer to them; return their id, None if they are too large."""
        if x.size > MAX_NUMBERS:
            return None
        key = secrets.token_hex(8)
        self._samples.put(key, (run, x))
        return key

    def samples(self, key: str) -> tuple[str, np.ndarray]:
        """Return the id of a run and samples of it."""
        if key not in self._samples:
            raise UserError("the samples have expired; sample them again")
        return self._samples[key]


def to_uint8(x: Any) -> np.ndarray:
    """Return images in [0, 1] as bytes: (N, H, W) or (N, H, W, C) uint8."""
    return (np.nan_to_num(np.asarray(x, np.float32)).clip(0, 1) * 255).round().astype(np.uint8)


def atlas(*rows: np.ndarray) -> np.ndarray:
    """Return one image with a row of images for each argument.  rows: (N, H, W[, C]) uint8 each."""
    return np.concatenate([np.concatenate(list(row), axis=1) for row in rows], axis=0)
