"""A copy of its data that a run keeps in its folder if it is asked to."""

from __future__ import annotations

from pathlib import Path

import torch
from pydantic import TypeAdapter

from reverie.base.errors import UserError
from reverie.base.tensors import Form, read_tensors, write_tensors
from reverie.data.dataset import Dataset
from reverie.data.lazy import LazyImages
from reverie.data.windows import TextWindows
from reverie.runs.config import DataConfig

KEPT_DATA = "data.safetensors"
DTYPES = {"points": torch.float32, "series": torch.float32, "images": torch.uint8}


def check_keepable(dataset: Dataset) -> None:
    """Refuse to keep data that are not in memory themselves, and text."""
    if isinstance(dataset.x, TextWindows):
        raise UserError("the text of a run is not copied into it; leave keep_data out, and keep the file")
    if isinstance(dataset.x, LazyImages):
        raise UserError("these images are too many for memory and so for a copy in the run; leave keep_data out")
    if dataset.conditions is not None:
        raise UserError("captions, numbers and images that are told of data are not copied with these; leave keep_data out")


def keep_data(folder: Path, dataset: Dataset) -> None:
    """Write the data of a run, as they were read, into its folder."""
    check_keepable(dataset)
    assert isinstance(dataset.x, torch.Tensor)
    write_tensors(folder / KEPT_DATA, {"x": dataset.x} | ({} if dataset.labels is None else {"labels": dataset.labels}))


def read_kept(folder: Path, known: DataConfig) -> Dataset:
    """Return the data that a run kept."""
    path, advice = folder / KEPT_DATA, "; remove it and give the data with data="
    wanted = {"x": Form(DTYPES[known.kind], (known.count, *known.shape))}
    if known.labels:
        wanted["labels"] = Form(torch.int64, (known.count,))
    parts, _ = read_tensors(path, lambda _: wanted, TypeAdapter(None), fits="the data of this run", advice=advice)
    labels = parts.get("labels")
    if labels is not None and (int(labels.min()) < 0 or int(labels.max()) >= len(known.labels)):
        raise UserError(f"{path} holds labels that this run does not have{advice}")
    return Dataset(known.name, parts["x"], labels, known.labels)
