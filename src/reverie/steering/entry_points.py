"""The functions illusion, edit, invert and interpolate of the Python interface.  `out` is short for `.save(out)`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Unpack

import numpy as np

from reverie.base.deprecations import renamed_options
from reverie.base.progress import OnProgress
from reverie.data.in_memory import DataSource
from reverie.runs.run import Run, load
from reverie.runs.sampling_options import Options
from reverie.steering import editing
from reverie.steering.edit_results import INTERPOLATION_SUFFIXES, SHEET_SUFFIXES, Edits, Interpolation, Inversion, check_suffix
from reverie.steering.illusion import SUFFIXES, Illusions
from reverie.steering.illusion import illusion as sample_illusion
from reverie.training.classifier_training import ClassifierTraining


def _open(run: str | Path | Run, device: str) -> Run:
    return run if isinstance(run, Run) else load(run, device)


def begin_classifier(
    run: str | Path | Run, *, device: str = "auto", minutes: float | None = None, steps: int | None = None, seed: int = 0,
    data: DataSource | None = None, data_dir: str | Path | None = None, on_progress: OnProgress | None = None,
) -> ClassifierTraining:  # fmt: skip
    """Return the training of a run's classifier, ready to start: `for step in reverie.api.begin_classifier(run): ...`."""
    return ClassifierTraining(
        _open(run, device), minutes=minutes, steps=steps, seed=seed, data=data, data_dir=data_dir, on_progress=on_progress
    )


@renamed_options
def illusion(
    run: str | Path | Run, views: str | Sequence[str], labels: str | Sequence[str] | None = None, n: int = 1, *,
    out: str | Path | None = None, device: str = "auto", on_progress: OnProgress | None = None, **options: Unpack[Options],
) -> Illusions:  # fmt: skip
    """Sample pictures that match another label in every view: `reverie.illusion(run, "identity,rotate180", "6,9")`."""
    if out is not None:
        check_suffix(out, SUFFIXES)
    result = sample_illusion(_open(run, device), views, labels, n, on_progress=on_progress, **options)
    if out is not None:
        result.save(out)
    return result


@renamed_options
def edit(
    run: str | Path | Run, image: str | Path | np.ndarray, strength: str | float | Sequence[float] = 0.6, n: int = 1, *,
    out: str | Path | None = None, device: str = "auto", on_progress: OnProgress | None = None, **options: Unpack[Options],
) -> Edits:  # fmt: skip
    """Edit an image n times at each strength: `reverie.edit(run, "seven.png", 0.6, label="3")`."""
    if out is not None:
        check_suffix(out, SHEET_SUFFIXES)
    result = editing.edit(_open(run, device), image, strength, n, on_progress=on_progress, **options)
    if out is not None:
        result.save(out)
    return result


@renamed_options
def invert(
    run: str | Path | Run, image: str | Path | np.ndarray, *,
    out: str | Path | None = None, device: str = "auto", on_progress: OnProgress | None = None, **options: Unpack[Options],
) -> Inversion:  # fmt: skip
    """Invert an image to its noise and reconstruct it: `reverie.invert(run, "seven.png").error`."""
    if out is not None:
        check_suffix(out, SHEET_SUFFIXES)
    result = editing.invert(_open(run, device), image, on_progress=on_progress, **options)
    if out is not None:
        result.save(out)
    return result


@renamed_options
def interpolate(
    run: str | Path | Run, begin: str | int | Path | np.ndarray, end: str | int | Path | np.ndarray, frames: int = 60, *,
    out: str | Path | None = None, device: str = "auto", on_progress: OnProgress | None = None, **options: Unpack[Options],
) -> Interpolation:  # fmt: skip
    """Interpolate between two seeds or images: `reverie.interpolate(run, 3, "seven.png").save("film.gif")`."""
    if out is not None:
        check_suffix(out, INTERPOLATION_SUFFIXES)
    result = Interpolation(editing.interpolate(_open(run, device), begin, end, frames, on_progress=on_progress, **options))
    if out is not None:
        result.save(out)
    return result
