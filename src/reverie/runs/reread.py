"""The data of a run, read again as they were read for its training."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from reverie.base.errors import UserError
from reverie.data import DATASETS, FROM_FILES, Dataset, load_data
from reverie.runs.config import DataConfig

# Of the options, what a run must remember to read its data again.
KEPT = ("points", "size", "fit", "channels", "labels", "data_dir")
CHOSEN = {"fit": "fit", "labels": "labels_by"}  # what `load_data` chooses if it may, and where its report tells the choice


def kept_reading(options: Mapping[str, Any], dataset: Dataset) -> dict[str, Any]:
    """Return the options to store in a run: those given, with what was chosen in place of auto."""
    given = {key: options[key] for key in KEPT if options.get(key) is not None and options[key] != "auto"}
    if "data_dir" in given:
        given["data_dir"] = str(Path(given["data_dir"]).expanduser().resolve())
    return {**{key: dataset.report[place] for key, place in CHOSEN.items() if place in dataset.report}, **given}


def _as_then(known: DataConfig) -> dict[str, Any]:
    """Return the options that a run's data were read with; runs from before choices were stored cropped, in their own size."""
    reading: dict[str, Any] = dict(known.reading)
    if known.kind == "images":
        reading = {"fit": "crop", "size": f"{known.shape[1]}x{known.shape[2]}", **reading}
    return reading if known.labels else {**reading, "labels": "none"}


def source_of(data: str | Path) -> str:
    """Return what a run remembers of where its data are: a name, or the whole path."""
    return str(data) if str(data) in DATASETS else str(Path(data).expanduser().resolve())


def placed(known: DataConfig, data: str | Path | None, data_dir: str | Path | None) -> DataConfig:
    """Return the data of a run with the place where they are now, if another one is given than the run remembers."""
    source = known.source or known.name if data is None else source_of(data)
    if data_dir is not None and source not in FROM_FILES:
        raise UserError(
            f"--data-dir says where the files of {', '.join(FROM_FILES)} are, and the run's data are {source};"
            " if they are elsewhere now, give --data PATH"
        )
    reading = {key: value for key, value in known.reading.items() if key != "data_dir" or source in FROM_FILES}
    if data_dir is not None:
        reading["data_dir"] = str(Path(data_dir).expanduser().resolve())
    return known.model_copy(update={"source": source, "reading": reading})


def reread(
    known: DataConfig,
    *,
    data: str | Path | None = None,
    data_dir: str | Path | None = None,
    strict: bool = False,
    on_progress: Callable[[str, int, int], None] | None = None,
) -> Dataset:
    """Return the data that a run was trained on, from another place if one is given, and refuse any others."""
    now = placed(known, data, data_dir)
    if data is None and now.source not in DATASETS and not Path(now.source).exists():
        raise UserError(f"the data of the run are no longer at {now.source}; if they are elsewhere now, give --data PATH")
    options = {**_as_then(now), "strict": strict, "on_progress": on_progress}
    dataset = load_data(now.source, seed=known.seed, **options)
    if options.get("labels", "auto") == "auto" and dataset.label_names != known.labels and "labels_by" in dataset.report:
        with suppress(UserError):  # auto once took the whole path of every folder
            dataset = load_data(now.source, seed=known.seed, **{**options, "labels": "folder"})
    same = dataset.fingerprint() == known.fingerprint if known.fingerprint else len(dataset) == known.count
    if not same or dataset.shape != known.shape:
        raise UserError(
            f"{now.source} does not hold the data that the run was trained on: they were {known.count:,} and here are"
            f" {f'{len(dataset):,}' if len(dataset) != known.count else 'as many, but others'}; give --data PATH if the old"
            " ones are elsewhere, or train a new run on these"
        )
    return dataset
