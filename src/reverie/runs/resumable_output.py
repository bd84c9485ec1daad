"""A folder of images that can be resumed: a second call keeps the finished images and generates the rest."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import overload

import numpy as np
from PIL import Image

from reverie.base.errors import UserError
from reverie.base.files import atomic, make_folder, own_file, remove_empty
from reverie.base.progress import OnProgress
from reverie.draw.picture import to_bytes
from reverie.runs.distributed import identity
from reverie.runs.outputs import MANIFEST, Manifest, check_place, for_images, read_manifest, temporary_files, write_manifest
from reverie.runs.run import Run
from reverie.runs.samples import Samples
from reverie.runs.sampling_options import Options, check_count, check_first
from reverie.runs.writing import Interrupted, write_label_rows


@dataclass(frozen=True)
class ImageFiles(Sequence[Path]):
    """The paths of numbered images and other files, created lazily, as there may be millions."""

    folder: Path
    manifest: Manifest
    beside: tuple[Path, ...] = ()

    def __len__(self) -> int:
        return self.manifest.images + len(self.beside)

    @overload
    def __getitem__(self, key: int) -> Path: ...

    @overload
    def __getitem__(self, key: slice) -> list[Path]: ...

    def __getitem__(self, key: int | slice) -> Path | list[Path]:
        if isinstance(key, slice):
            return [self[k] for k in range(*key.indices(len(self)))]
        k = range(len(self))[key]
        return self.folder / self.manifest.name(k) if k < self.manifest.images else self.beside[k - self.manifest.images]


def request_hash(run: Run, n: int, first: int, options: Options) -> str:
    """Return a hash of the request, including the weights of the run."""
    plain = {key: _as_text(value) for key, value in options.items() if value is not None}
    request = {"run": identity(run), "n": n, "first": first, "batch": run.batch_size(), "options": plain}
    return hashlib.sha256(json.dumps(request, sort_keys=True).encode()).hexdigest()


def _as_text(value: object) -> str:
    return hashlib.sha256(value.tobytes()).hexdigest() if isinstance(value, np.ndarray) else str(value)


def is_interrupted(folder: Path, request: str) -> bool:
    """Return whether a folder contains some images of a request, by its manifest."""
    return folder.is_dir() and read_manifest(folder).request == request


def finished_images(folder: Path, manifest: Manifest, shape: tuple[int, ...]) -> np.ndarray:
    """Return which images are complete: (n,) bool.  shape: (C, H, W), which complete images have."""
    done = np.zeros(manifest.images, bool)
    for entry in folder.iterdir():
        if manifest.holds(entry.name) and entry.suffix == ".png" and entry.stem.isdecimal():
            path = own_file(folder, entry.name)
            with suppress(OSError, SyntaxError, Image.DecompressionBombError), Image.open(path) as image:
                is_valid = image.format == "PNG" and image.size == (shape[2], shape[1])
                image.verify()  # checks its checksums, as a file may be truncated after a power failure
                done[int(entry.stem)] = is_valid
    return done


def sample_to_folder(
    run: Run, n: int, folder: Path, first: int = 0, *, overwrite: bool = False, on_progress: OnProgress | None = None,
    notify: Callable[[str], None] = lambda text: None, options: Options,
) -> ImageFiles:  # fmt: skip
    """Generate images first .. first + n - 1 of the seed into a folder, with one round of batches in memory.

    Keeps the images of an earlier call with the same request, unless `overwrite` is set, and the finished images of this call
    if it is interrupted or fails.
    """
    check_count(n)
    check_first(first)
    shape, size = run.config.data.shape, run.batch_size()
    manifest = for_images(n, request_hash(run, n, first, options))
    resumes = not overwrite and is_interrupted(folder, manifest.request or "")
    earlier = [] if resumes else check_place(folder, overwrite)
    done = finished_images(folder, manifest, shape) if resumes else np.zeros(n, bool)
    if resumes:
        for name in temporary_files(folder, manifest):
            own_file(folder, name).unlink(missing_ok=True)
    if finished := int(done.sum()):
        notify(f"resuming: {finished:,} of {n:,} images are in {folder}")
    missing = [k for k in range(run.batch_count(n)) if not done[k * size : (k + 1) * size].all()]
    started, created = resumes, list[Path]()
    try:
        for number, batch in run.numbered(n, first, missing, on_progress, options):
            if not started:  # options may be refused until the first batch
                started, created = True, make_folder(folder)
                for name in earlier:
                    own_file(folder, name).unlink(missing_ok=True)
                write_manifest(folder, manifest)
            _write_missing(batch, number * size, folder, manifest, done)
    except KeyboardInterrupt:
        if not done.any():
            _discard_output(folder, created, started)
            raise Interrupted("no image was finished") from None
        _write_labels(run, folder, first, done, options)
        raise Interrupted(f"{int(done.sum()):,} of {n:,} images are in {folder}; run the same command to resume") from None
    except UserError as error:
        if not done.any():
            _discard_output(folder, created, started)
            raise
        raise UserError(
            f"{error}; {int(done.sum()):,} of {n:,} images are in {folder}; run the same command to resume"
        ) from None
    if hasattr(os, "sync"):
        os.sync()
    return ImageFiles(folder, manifest, tuple(_write_labels(run, folder, first, done, options)))


def _write_missing(batch: Samples, start: int, folder: Path, manifest: Manifest, done: np.ndarray) -> None:
    """Write the missing images of a batch."""
    for k, image in enumerate(batch.x, start):
        if not done[k]:
            with atomic(
                own_file(folder, manifest.name(k)), flushed=False
            ) as temporary:  # `finished_images` detects truncated files
                Image.fromarray(to_bytes(image)).save(temporary)
            done[k] = True


def _discard_output(folder: Path, created: Sequence[Path], started: bool) -> None:
    """Remove manifest and folders if no image was finished."""
    if started:
        own_file(folder, MANIFEST).unlink(missing_ok=True)
        remove_empty(created)


def _write_labels(run: Run, folder: Path, first: int, done: np.ndarray, options: Options) -> list[Path]:
    """Write the label or condition of each finished image."""

    def rows() -> Iterator[tuple[int, str]]:
        size = run.batch_size()
        for start in range(0, len(done), size):
            count = min(size, len(done) - start)
            names = run.names(run.condition(options, count, first + start), options) or ()
            yield from ((start + k, name) for k, name in enumerate(names) if done[start + k])

    return write_label_rows(rows(), own_file(folder, "labels.csv"))
