"""Compression: images into one lossless file, and back."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from reverie.api.progress import open_run, progress_screen
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
    """Compress images into one file without loss: `reverie.compress("runs/digits", "pictures/", "pictures.rvi")`.

    images: a folder, a file, a data set name or data in memory, of the run's size and channels; steps: of the diffusion chain
    (more give a smaller file and take longer); seed: of the noise along the chain; device: one that computes the same
    bits every time and is also available to `decompress`.  The result prints its size in bits/dim.
    """
    from reverie.compression.archive import STEPS
    from reverie.compression.archive import compress as write
    from reverie.compression.images import check_file, read_lossless

    run = open_run(run, device)
    check_file(out)
    screen = progress_screen(progress if on_progress is None else False)
    with screen.reading() as bars:
        callback = on_progress or bars
        x, names = read_lossless(images, tuple(run.diffusion.shape), seed, data_dir, callback)
        return write(run, x, out, names=names, steps=STEPS if steps is None else steps, seed=seed, on_progress=callback)


def decompress(
    run: str | Path | Run, file: str | Path, out: str | Path | None = None, *, overwrite: bool = False, device: str = "cpu",
    progress: bool | None = None, on_progress: OnProgress | None = None,
) -> Decompressed:  # fmt: skip
    """Return the images of a compressed file bit for bit: `reverie.decompress("runs/digits", "pictures.rvi", "pictures/")`.

    out: also write them, to a folder of PNG files under their names, a sheet X.png, or X.npy; overwrite: replace the labels
    file next to the array.
    """
    from reverie.compression.archive import decompress as read

    run = open_run(run, device)
    screen = progress_screen(progress if on_progress is None else False)
    with screen.reading() as bars:
        return read(run, file, out=out, overwrite=overwrite, on_progress=on_progress or bars)
