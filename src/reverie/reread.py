"""The data of a run, read again as they were read for its training."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from reverie.config import DataConfig
from reverie.data import Dataset, load_data
from reverie.errors import UserError


def reread(
    known: DataConfig,
    *,
    data_dir: str | Path | None = None,
    strict: bool = False,
    on_progress: Callable[[str, int, int], None] | None = None,
) -> Dataset:
    """Return the data that a run was trained on, and refuse them if they are not what they were."""
    options: dict[str, Any] = {**known.reading, "data_dir": data_dir, "strict": strict, "on_progress": on_progress}
    dataset = load_data(known.source or known.name, seed=known.seed, **options)
    if known.fingerprint and dataset.fingerprint() != known.fingerprint:
        counts = f"{known.count:,} and are now {len(dataset):,}" if len(dataset) != known.count else "as many"
        raise UserError(f"the data {known.source or known.name} have changed since the run was trained: they were {counts}")
    return dataset
