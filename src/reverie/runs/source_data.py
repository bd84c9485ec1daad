"""Loading of the training data of an existing run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from reverie.base.errors import UserError
from reverie.base.files import expanded
from reverie.base.visible import storable
from reverie.data import DATASETS, FROM_FILES, Dataset, load_data
from reverie.data.in_memory import MEMORY_SOURCE, DataSource, is_in_memory
from reverie.data.point_table import ALL, joined_columns
from reverie.data.shards.store import is_pattern, is_remote
from reverie.runs.config import DataConfig, Reading
from reverie.runs.confine import check_data
from reverie.runs.data_copy import DATA_COPY, read_data_copy

STORED_OPTIONS = tuple(Reading.__annotations__)  # options that a run stores for reading its data
CHOSEN = {"fit": "fit", "labels": "labels_by"}  # option that `load_data` may choose -> its key in the report


def reading_options(options: Mapping[str, Any], dataset: Dataset) -> Reading:
    """Return the reading options to store in a run, with chosen values instead of auto."""
    stored = {key: options[key] for key in STORED_OPTIONS if options.get(key) is not None and options[key] != "auto"}
    if "data_dir" in stored:
        stored["data_dir"] = storable(str(expanded(stored["data_dir"]).resolve()))
    if "pairs" in stored and "," not in stored["pairs"]:  # a file, not columns
        stored["pairs"] = storable(str(expanded(stored["pairs"]).resolve()))
    if not isinstance(stored.get("columns", ""), str):
        stored["columns"] = joined_columns(stored["columns"])
    chosen = {key: dataset.report[name] for key, name in CHOSEN.items() if name in dataset.report}
    return cast(Reading, {**chosen, **stored})  # checked by the schema of the configuration


def _stored_options(config: DataConfig) -> dict[str, Any]:
    """Return the reading options of a run; older runs without stored choices cropped images to their size."""
    reading: dict[str, Any] = {**config.reading}
    if config.kind == "images":
        reading = {"fit": "crop", "size": f"{config.shape[1]}x{config.shape[2]}", **reading}
    elif config.kind in ("series", "text"):
        reading = {"window": config.shape[0], **reading}
    return reading if config.labels or config.condition is not None else {**reading, "labels": "none"}


def source_name(data: DataSource) -> str:
    """Return the source of data to store in a run: a name, an absolute path, or the marker of data in memory."""
    if is_in_memory(data):
        return MEMORY_SOURCE
    is_not_path = str(data) in DATASETS or is_remote(str(data))
    return str(data) if is_not_path else str(expanded(str(data)).resolve())


def relocated(config: DataConfig, data: DataSource | None, data_dir: str | Path | None) -> DataConfig:
    """Return the data configuration of a run with a new location, if one is given."""
    source = config.source or config.name if data is None or is_in_memory(data) else source_name(data)
    if data_dir is not None and source not in FROM_FILES:
        raise UserError(
            f"--data-dir is for {', '.join(FROM_FILES)}, and the data of the run are {source};"
            " if they have moved, add --data PATH"
        )
    reading = {key: value for key, value in config.reading.items() if key != "data_dir" or source in FROM_FILES}
    if data_dir is not None:
        reading["data_dir"] = str(expanded(data_dir).resolve())
    return config.model_copy(update={"source": source, "reading": reading})


def load_source_data(
    config: DataConfig,
    *,
    folder: Path | None = None,
    data: DataSource | None = None,
    data_dir: str | Path | None = None,
    strict: bool = False,
    on_progress: Callable[[str, int, int], None] | None = None,
) -> Dataset:
    """Return the training data of a run; refuse different data.

    folder: of the run, which may contain a copy; data: a new location, or the data themselves.
    """
    present = relocated(config, data, data_dir)
    if data is None and data_dir is None and folder is not None and (folder / DATA_COPY).exists():
        return _same(read_data_copy(folder, config), config, str(folder / DATA_COPY))
    if data is None or data_dir is not None:
        check_data(present)
    if data is None and present.source == MEMORY_SOURCE:
        raise UserError(
            "the data of the run were passed in Python and not copied; pass them again with data=x, or --data FILE.npy"
        )
    is_not_path = present.source in DATASETS or is_remote(present.source) or is_pattern(present.source)
    if data is None and not is_not_path and not Path(present.source).exists():
        raise UserError(f"the data of the run are not at {present.source}; if they have moved, add --data PATH")
    options = {**_stored_options(present), "strict": strict, "on_progress": on_progress}
    source: DataSource = data if data is not None and is_in_memory(data) else present.source
    dataset = load_data(source, seed=config.seed, **options)
    if options.get("labels", "auto") == "auto" and dataset.label_names != config.labels and "labels_by" in dataset.report:
        with suppress(UserError):  # older versions used the whole path of folders
            dataset = load_data(source, seed=config.seed, **{**options, "labels": "folder"})
    if dataset.columns and dataset.shape != config.shape and not config.columns:
        with suppress(UserError):  # older versions used ids and times as coordinates
            dataset = load_data(source, seed=config.seed, **{**options, "columns": ALL})
    return _same(dataset, config, present.source if source is present.source else "the given data")


def _same(dataset: Dataset, config: DataConfig, location: str) -> Dataset:
    """Return data if they are those of a run; refuse different ones."""
    is_same = dataset.fingerprint() == config.fingerprint if config.fingerprint else len(dataset) == config.count
    if not is_same or dataset.shape != config.shape:
        raise UserError(
            f"{location} does not contain the training data of the run: expected {config.count:,}, found"
            f" {len(dataset):,}{' others' * (len(dataset) == config.count)}; add --data PATH if the data have moved, or train a"
            " new run"
        )
    if dataset.conditions is not None and config.condition is not None:
        return replace(dataset, conditions=dataset.conditions.with_form(config.condition))
    return dataset
