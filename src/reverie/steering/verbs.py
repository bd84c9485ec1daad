"""The verbs of steering: train_classifier, illusion, edit, invert, interpolate.  With `out` they also write what they made."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Unpack

import numpy as np

from reverie.base.files import atomic
from reverie.draw.picture import check_picture, save
from reverie.runs.run import Options, Progress, Run, load
from reverie.runs.step import Step
from reverie.steering import editing
from reverie.steering.illusion import Illusions, check_output
from reverie.steering.illusion import illusion as draw_illusion
from reverie.steering.sheets import edit_sheet, inversion_sheet, save_way
from reverie.training.classifier import ClassifierTraining

WAY_SUFFIXES = (".mp4", ".gif", ".png", ".npy")


def _opened(run: str | Path | Run, device: str) -> Run:
    return run if isinstance(run, Run) else load(run, device)


def begin_classifier(run: str | Path | Run, *, device: str = "auto", **options: Any) -> ClassifierTraining:
    """Return the training of a run's classifier, ready to start.  options: minutes or steps, seed, data, data_dir."""
    return ClassifierTraining(_opened(run, device), **options)


def train_classifier(
    run: str | Path | Run, *, device: str = "auto", on_step: Callable[[Step], None] | None = None, **options: Any
) -> dict[str, float]:
    """Train the classifier of a run and return its accuracy on held-out data by time.

    options: minutes or steps, seed, data, data_dir.
    """
    training = begin_classifier(run, device=device, **options)
    for step in training:
        if on_step:
            on_step(step)
    return training.accuracy


def illusion(
    run: str | Path | Run, views: str | Sequence[str], labels: str | Sequence[str] | None = None, n: int = 1, *,
    out: str | Path | None = None, device: str = "auto", on_progress: Progress | None = None, **options: Unpack[Options],
) -> Illusions:  # fmt: skip
    """Draw pictures that are something else in every view: `reverie.illusion(run, "identity,rotate180", "6,9")`."""
    if out is not None:
        check_output(Path(out))
    made = draw_illusion(_opened(run, device), views, labels, n, on_progress=on_progress, **options)
    if out is not None:
        made.save(out)
    return made


def edit(
    run: str | Path | Run, image: str | Path | np.ndarray, strength: str | float | Sequence[float] = 0.6, n: int = 1, *,
    out: str | Path | None = None, device: str = "auto", on_progress: Progress | None = None, **options: Unpack[Options],
) -> editing.Edits:  # fmt: skip
    """Draw an image again, n times at each strength: `reverie.edit(run, "seven.png", 0.6, label="3")`."""
    if out is not None:
        check_picture(Path(out))
    run = _opened(run, device)
    made = editing.edit(run, image, strength, n, on_progress=on_progress, **options)
    if out is not None:
        label = options.get("label")
        save(edit_sheet(made, f"drawn again as {label}" if label is not None else ""), Path(out))
    return made


def invert(
    run: str | Path | Run, image: str | Path | np.ndarray, *,
    out: str | Path | None = None, device: str = "auto", on_progress: Progress | None = None, **options: Unpack[Options],
) -> editing.Inversion:  # fmt: skip
    """Take an image to the noise that the model draws it from, and back: `reverie.invert(run, "seven.png").error`."""
    if out is not None:
        check_picture(Path(out))
    made = editing.invert(_opened(run, device), image, on_progress=on_progress, **options)
    if out is not None:
        save(inversion_sheet(made), Path(out))
    return made


def interpolate(
    run: str | Path | Run, begin: str | int | Path | np.ndarray, end: str | int | Path | np.ndarray, frames: int = 60, *,
    out: str | Path | None = None, device: str = "auto", on_progress: Progress | None = None, **options: Unpack[Options],
) -> np.ndarray:  # fmt: skip
    """Draw the way between two seeds or images: `reverie.interpolate(run, 3, "seven.png", out="way.mp4")`.

    Returns (frames, H, W[, C]) in [0, 1].
    """
    if out is not None:
        check_output(Path(out), WAY_SUFFIXES)
    x = editing.interpolate(_opened(run, device), begin, end, frames, on_progress=on_progress, **options)
    if out is not None and Path(out).suffix.lower() == ".npy":
        with atomic(Path(out)) as aside, aside.open("wb") as file:
            np.save(file, x)
    elif out is not None:
        save_way(x, Path(out))
    return x
