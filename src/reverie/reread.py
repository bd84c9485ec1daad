"""The data of a run, read again as they were read for its training."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from reverie.config import DataConfig
from reverie.data import Dataset, load_data
from reverie.errors import UserError

KEPT = ("points", "size", "fit", "channels", "labels")  # of the options, what a run must remember to read its data again
CHOSEN = {"fit": "fit", "labels": "labels_by"}  # what `load_data` chooses if it may, and where its report tells the choice


def kept_reading(options: Mapping[str, Any], dataset: Dataset) -> dict[str, Any]:
    """Return the options to store in a run: those given, with what was chosen in place of auto."""
    given = {key: options[key] for key in KEPT if options.get(key) is not None and options[key] != "auto"}
    return {**{key: dataset.report[place] for key, place in CHOSEN.items() if place in dataset.report}, **given}


def _as_then(known: DataConfig) -> dict[str, Any]:
    """Return the options that a run's data were read with; runs from before choices were stored cropped, in their own size."""
    reading: dict[str, Any] = dict(known.reading)
    if len(known.shape) == 3:
        reading = {"fit": "crop", "size": f"{known.shape[1]}x{known.shape[2]}", **reading}
    return reading if known.labels else {**reading, "labels": "none"}


def reread(
    known: DataConfig,
    *,
    data_dir: str | Path | None = None,
    strict: bool = False,
    on_progress: Callable[[str, int, int], None] | None = None,
) -> Dataset:
    """Return the data that a run was trained on, and refuse them if they are not what they were."""
    options = {**_as_then(known), "data_dir": data_dir, "strict": strict, "on_progress": on_progress}
    dataset = load_data(known.source or known.name, seed=known.seed, **options)
    if options.get("labels", "auto") == "auto" and dataset.label_names != known.labels and "labels_by" in dataset.report:
        with suppress(UserError):  # auto once took the whole path of every folder
            dataset = load_data(known.source or known.name, seed=known.seed, **{**options, "labels": "folder"})
    if known.fingerprint and dataset.fingerprint() != known.fingerprint:
        counts = f"{known.count:,} and are now {len(dataset):,}" if len(dataset) != known.count else "as many"
        raise UserError(f"the data {known.source or known.name} have changed since the run was trained: they were {counts}")
    return dataset
