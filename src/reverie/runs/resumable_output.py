"""A folder of images that can be gone on with: what is finished is kept, and a second call draws the rest."""

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
from reverie.runs.outputs import MANIFEST, Manifest, check_place, for_images, left_in, read_manifest, write_manifest
from reverie.runs.run import Run
from reverie.runs.samples import Samples
from reverie.runs.sampling_options import Options, check_count, check_first
from reverie.runs.writing import Interrupted, write_label_rows


@dataclass(frozen=True)
class ImageFiles(Sequence[Path]):
    """The paths of numbered images, and of files beside them, each made when it is asked for: there may be millions."""

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
    """Return a hash of what is asked for, weights of the run included."""
    given = {key: _plain(value) for key, value in options.items() if value is not None}
    wish = {"run": identity(run), "n": n, "first": first, "batch": run.batch_size(), "options": given}
    return hashlib.sha256(json.dumps(wish, sort_keys=True).encode()).hexdigest()


def _plain(value: object) -> str:
    return hashlib.sha256(value.tobytes()).hexdigest() if isinstance(value, np.ndarray) else str(value)


def is_interrupted(folder: Path, asked: str) -> bool:
    """Tell whether a folder holds some of the images that are asked for, by its manifest."""
    return folder.is_dir() and read_manifest(folder).asked == asked


def finished_images(folder: Path, manifest: Manifest, shape: tuple[int, ...]) -> np.ndarray:
    """Return which images are there: (n,) bool.  shape: (C, H, W); what has another size, or is no image, is drawn again."""
    done = np.zeros(manifest.images, bool)
    for entry in folder.iterdir():
        if manifest.holds(entry.name) and entry.suffix == ".png" and entry.stem.isdecimal():
            path = own_file(folder, entry.name)
            with suppress(OSError, SyntaxError, Image.DecompressionBombError), Image.open(path) as image:
                right = image.format == "PNG" and image.size == (shape[2], shape[1])
                image.verify()  # its checksums: after the power failed a file may be there in part
                done[int(entry.stem)] = right
    return done


def sample_to_folder(
    run: Run, n: int, folder: Path, first: int = 0, *, overwrite: bool = False, tell: OnProgress | None = None,
    say: Callable[[str], None] = lambda text: None, options: Options,
) -> ImageFiles:  # fmt: skip
    """Draw images first .. first + n - 1 of the seed into a folder, of which one round of batches is held at a time.

    What an earlier call of the same wish finished is kept, unless it is to be overwritten, and so is what this call finished
    when it is interrupted or fails.
    """
    check_count(n)
    check_first(first)
    shape, size = run.config.data.shape, run.batch_size()
    manifest = for_images(n, request_hash(run, n, first, options))
    goes_on = not overwrite and is_interrupted(folder, manifest.asked or "")
    earlier = [] if goes_on else check_place(folder, overwrite)
    done = finished_images(folder, manifest, shape) if goes_on else np.zeros(n, bool)
    if goes_on:
        for name in left_in(folder, manifest):
            own_file(folder, name).unlink(missing_ok=True)
    if before := int(done.sum()):
        say(f"{before:,} of {n:,} images are in {folder} already, and are kept")
    missing = [k for k in range(run.batch_count(n)) if not done[k * size : (k + 1) * size].all()]
    begun, made = goes_on, list[Path]()
    try:
        for number, batch in run.numbered(n, first, missing, tell, options):
            if not begun:  # until something is drawn it may still be refused
                begun, made = True, make_folder(folder)
                for name in earlier:
                    own_file(folder, name).unlink(missing_ok=True)
                write_manifest(folder, manifest)
            _put(batch, number * size, folder, manifest, done)
    except KeyboardInterrupt:
        if not done.any():
            _clear(folder, made, begun)
            raise Interrupted("no image was finished, so nothing was kept") from None
        _write_labels(run, folder, first, done, options)
        raise Interrupted(
            f"{int(done.sum()):,} of {n:,} images are in {folder} and stay there; the same command goes on with them"
        ) from None
    except UserError as error:
        if not done.any():
            _clear(folder, made, begun)
            raise
        raise UserError(f"{error}; {int(done.sum()):,} of {n:,} images are in {folder}, and the same command goes on") from None
    if hasattr(os, "sync"):
        os.sync()
    return ImageFiles(folder, manifest, tuple(_write_labels(run, folder, first, done, options)))


def _put(batch: Samples, start: int, folder: Path, manifest: Manifest, done: np.ndarray) -> None:
    """Write the images of a batch that are not there."""
    for k, image in enumerate(batch.x, start):
        if not done[k]:
            with atomic(own_file(folder, manifest.name(k)), flushed=False) as aside:  # `finished_images` sees what is torn
                Image.fromarray(to_bytes(image)).save(aside)
            done[k] = True


def _clear(folder: Path, made: Sequence[Path], begun: bool) -> None:
    """Leave nothing where nothing was finished."""
    if begun:
        own_file(folder, MANIFEST).unlink(missing_ok=True)
        remove_empty(made)


def _write_labels(run: Run, folder: Path, first: int, done: np.ndarray, options: Options) -> list[Path]:
    """Write what each image that is there was asked to be."""

    def rows() -> Iterator[tuple[int, str]]:
        size = run.batch_size()
        for start in range(0, len(done), size):
            count = min(size, len(done) - start)
            names = run.names(run.condition(options, count, first + start), options) or ()
            yield from ((start + k, name) for k, name in enumerate(names) if done[start + k])

    return write_label_rows(rows(), own_file(folder, "labels.csv"))
