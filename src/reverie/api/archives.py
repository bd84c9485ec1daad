"""The verbs of compression: images into one file without loss, and back."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from reverie.api.watching import opened, watched
from reverie.base.progress import OnProgress

if TYPE_CHECKING:
    from reverie.compression.results import Compressed, Decompressed
    from reverie.data.in_memory import DataSource
    from reverie.runs.run import Run


def compress(
    run: str | Path | Run, images: DataSource, out: str | Path, *, steps: int | None = None, seed: int = 0,
    data_dir: str | Path | None = None, device: str = "cpu", progress: bool | None = None,
    on_progress: OnProgress | None = None,
) -> Compressed:  # fmt: skip
    """Write images into one file without any loss: `reverie.compress("runs/digits", "pictures/", "pictures.rvi")`.

    images: a folder, a file, a name or data in memory, of the run's own size and channels, as nothing is changed; steps: of the
    chain they are coded along, more are shorter and slower; seed: of the noise by which the chain is chosen; device: one that
    computes the same digits every time, and that `decompress` has as well.  The result prints what it came to.
    """
    from reverie.compression.archive import STEPS
    from reverie.compression.archive import compress as write
    from reverie.compression.images import check_file, read_lossless

    run = opened(run, device)
    check_file(out)
    screen = watched(progress if on_progress is None else False)
    with screen.reading() as bars:
        tell = on_progress or bars
        x, names = read_lossless(images, tuple(run.diffusion.shape), seed, data_dir, tell)
        return write(run, x, out, names=names, steps=STEPS if steps is None else steps, seed=seed, tell=tell)


def decompress(
    run: str | Path | Run, file: str | Path, out: str | Path | None = None, *, overwrite: bool = False, device: str = "cpu",
    progress: bool | None = None, on_progress: OnProgress | None = None,
) -> Decompressed:  # fmt: skip
    """Return the images of a file that `compress` wrote, bit for bit, and write them where `out` is given.

    `reverie.decompress("runs/digits", "pictures.rvi", "pictures/")`.  out: a folder for PNG files by their names, or a sheet
    X.png, or X.npy; overwrite: replace labels beside the array.
    """
    from reverie.compression.archive import decompress as read

    run = opened(run, device)
    screen = watched(progress if on_progress is None else False)
    with screen.reading() as bars:
        return read(run, file, out=out, overwrite=overwrite, tell=on_progress or bars)
