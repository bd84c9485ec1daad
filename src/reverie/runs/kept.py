"""A copy of its data that a run keeps in its folder if it is asked to."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from reverie.base.errors import UserError
from reverie.base.files import atomic
from reverie.data.dataset import Dataset, LazyImages
from reverie.runs.config import DataConfig

KEPT_DATA = "data.safetensors"
DTYPES = {"points": "F32", "images": "U8"}


def check_keepable(dataset: Dataset) -> None:
    """Refuse to keep data that are not in memory themselves."""
    if isinstance(dataset.x, LazyImages):
        raise UserError("these images are too many for memory and so for a copy in the run; leave keep_data out")


def keep_data(folder: Path, dataset: Dataset) -> None:
    """Write the data of a run, as they were read, into its folder."""
    check_keepable(dataset)
    assert isinstance(dataset.x, torch.Tensor)
    parts = {"x": dataset.x.contiguous()} | ({} if dataset.labels is None else {"labels": dataset.labels.contiguous()})
    try:
        with atomic(folder / KEPT_DATA) as aside:
            save_file(parts, aside)
    except SafetensorError as error:
        raise UserError(f"cannot write {folder / KEPT_DATA}: {error}; the disk may be full") from None


def read_kept(folder: Path, known: DataConfig) -> Dataset:
    """Return the data that a run kept; names, types and shapes are checked before anything is loaded."""
    path = folder / KEPT_DATA
    wanted = {"x": (DTYPES[known.kind], [known.count, *known.shape])}
    if known.labels:
        wanted["labels"] = ("I64", [known.count])
    try:
        with safe_open(path, framework="pt") as file:
            slices = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118, not a dict
            if {name: (part.get_dtype(), part.get_shape()) for name, part in slices.items()} != wanted:
                raise UserError(f"{path} does not hold the data of this run; remove it and give them with data=")
            parts = {name: file.get_tensor(name) for name in wanted}
    except (SafetensorError, OSError) as error:
        raise UserError(f"{path} is truncated or damaged ({error}); remove it and give the data with data=") from None
    labels = parts.get("labels")
    if labels is not None and (int(labels.min()) < 0 or int(labels.max()) >= len(known.labels)):
        raise UserError(f"{path} holds labels that this run does not have; remove it and give the data with data=")
    return Dataset(known.name, parts["x"], labels, known.labels)
