"""The copy of the training data in a run folder (keep_data)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import numpy as np
import torch
from pydantic import Field, TypeAdapter
from torch import Tensor

from reverie.base.errors import UserError
from reverie.base.tensors import TensorSpec, read_tensors, write_tensors
from reverie.data.dataset import Dataset
from reverie.data.kind import WRITTEN
from reverie.data.lazy import LazyImages
from reverie.data.text_pairs import TextPairs
from reverie.data.text_windows import END_OF_TEXT, TextWindows, windows_of
from reverie.runs.config import DataConfig

DATA_COPY = "data.safetensors"
DTYPES = {"points": torch.float32, "series": torch.float32, "images": torch.uint8}
Characters = Annotated[int, Field(ge=1, le=2**31)]  # total length of the texts, in the header


def check_copyable(dataset: Dataset) -> None:
    """Refuse data that cannot be copied into a run."""
    if isinstance(dataset.x, LazyImages):
        raise UserError("these images do not fit into memory and cannot be copied into the run; omit keep_data")
    if dataset.conditions is not None:
        raise UserError("conditions other than labels cannot be copied into the run; omit keep_data")


def write_data_copy(folder: Path, dataset: Dataset) -> None:
    """Write the data of a run into its folder; texts as codes of their characters."""
    check_copyable(dataset)
    x, path = dataset.x, folder / DATA_COPY
    if isinstance(x, TextWindows | TextPairs):
        tensors = {"codes": torch.from_numpy(np.ascontiguousarray(x.codes, np.int32))}
        if isinstance(x, TextPairs):
            tensors["lengths"] = torch.from_numpy(x.lengths)
        write_tensors(path, tensors, str(len(x.codes)))
        return
    assert isinstance(x, Tensor)
    write_tensors(path, {"x": x} | ({} if dataset.labels is None else {"labels": dataset.labels}))


def read_data_copy(folder: Path, config: DataConfig) -> Dataset:
    """Return the data from the copy in a run."""
    path, advice = folder / DATA_COPY, "; remove it and pass the data with data="
    if config.kind in WRITTEN:
        return Dataset(config.name, _texts(path, config, advice))
    expected = {"x": TensorSpec(DTYPES[config.kind], (config.count, *config.shape))}
    if config.labels:
        expected["labels"] = TensorSpec(torch.int64, (config.count,))
    parts, _ = read_tensors(path, lambda _: expected, TypeAdapter(None), fits="the data of this run", advice=advice)
    labels = parts.get("labels")
    if labels is not None and (int(labels.min()) < 0 or int(labels.max()) >= len(config.labels)):
        raise UserError(f"{path} contains labels that this run does not have{advice}")
    return Dataset(config.name, parts["x"], labels, config.labels, columns=config.columns)


def _texts(path: Path, config: DataConfig, advice: str) -> TextWindows | TextPairs:
    """Return the text, or the pairs of texts, from the copy in a run."""

    def expected_specs(characters: int) -> Mapping[str, TensorSpec]:
        lengths = {"lengths": TensorSpec(torch.int64, (config.count, 2))} if config.kind == "pairs" else {}
        return {"codes": TensorSpec(torch.int32, (characters,)), **lengths}

    parts, _ = read_tensors(path, expected_specs, TypeAdapter(Characters), fits="the data of this run", advice=advice)
    codes, lengths = parts["codes"].numpy(), parts.get("lengths")
    if codes.min() < 0 or codes.max() > END_OF_TEXT or (lengths is None and len(codes) < config.shape[0]):
        raise UserError(f"{path} does not contain the text of this run{advice}")
    if lengths is None:
        return windows_of(codes, config.shape[0])
    if int(lengths.min()) < 0 or int(lengths.max()) > config.shape[1] or int(lengths.sum()) != len(codes):
        raise UserError(f"{path} does not contain the pairs of this run{advice}")
    ends = lengths.reshape(-1).cumsum(0).reshape(-1, 2)
    return TextPairs(codes, (ends - lengths).numpy(), lengths.numpy(), config.shape[1])
