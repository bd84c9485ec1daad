"""Adapters (LoRA): small files of low-rank changes of the weights of a base run."""

from __future__ import annotations

import copy
import hashlib
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import torch
from pydantic import Field, TypeAdapter
from torch import Tensor

from reverie.base.config_section import ConfigSection
from reverie.base.errors import UserError
from reverie.base.files import own_file
from reverie.base.tensors import TensorSpec, read_tensors, write_tensors
from reverie.nets.lora import LABEL_TABLE, adaptable_layers
from reverie.runs.folder import WEIGHTS_FILE

if TYPE_CHECKING:
    from reverie.runs.run import Run

ADAPTER_FILE = "adapter.safetensors"
MAX_WEIGHT = 100.0


class AdapterFacts(ConfigSection):
    """The metadata of an adapter: hash of the weights of its base, rank, and labels of its training data."""

    format: Literal[1] = 1
    base: str = Field(max_length=64)
    rank: Annotated[int, Field(ge=1, le=1024)]
    labels: tuple[str, ...] = Field(max_length=100_000)


def weights_hash(run: Path) -> str:
    """Return a hash of the weights of a run, which identifies it in other runs."""
    with own_file(run, WEIGHTS_FILE).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()[:16]


def write_adapter(folder: Path, tensors: dict[str, Tensor], facts: AdapterFacts) -> None:
    """Write the file of an adapter."""
    write_tensors(folder / ADAPTER_FILE, tensors, json.dumps(facts.model_dump(mode="json")))


def read_weighted(text: str) -> tuple[Path, float]:
    """Read `RUN` or `RUN:0.7`."""
    name, colon, weight = text.rpartition(":")
    if not colon:
        return Path(text), 1.0
    try:
        value = float(weight)
    except ValueError:
        return Path(text), 1.0  # the colon is part of the path
    if not abs(value) <= MAX_WEIGHT:
        raise UserError(f"the weight of an adapter must be between -{MAX_WEIGHT:g} and {MAX_WEIGHT:g}, got {weight}")
    return Path(name), value


def with_adapters(run: Run, adapters: Sequence[str]) -> Run:
    """Return a run with the weighted changes of adapters added to its weights; adapters: "runs/hoda:0.7", ..."""
    if not adapters:
        return run
    base, model = weights_hash(run.path), copy.deepcopy(run.model)
    layers = dict(adaptable_layers(model.requires_grad_(True)))
    tables = {name: p for name, p in model.named_parameters() if name.endswith(LABEL_TABLE)}
    state = model.state_dict()
    before = {name: p.detach().clone() for name, p in tables.items()}
    for text in adapters:
        adapter, weight = read_weighted(text)
        if not (adapter / ADAPTER_FILE).is_file():
            raise UserError(
                f"{adapter} has no {ADAPTER_FILE}; train one with: reverie train DATA --from {run.path} --lora rank=8"
            )

        def expected_specs(facts: AdapterFacts, adapter: Path = adapter) -> dict[str, TensorSpec]:
            if facts.base != base:
                raise UserError(
                    f"the adapter of {adapter} does not fit the weights of {run.path}; train one with"
                    f" --from {run.path} --lora rank=8"
                )
            specs: dict[str, TensorSpec] = {}
            for name in layers:
                matrix = state[f"{name}.weight"]
                specs[f"{name}.up"] = TensorSpec(torch.float32, (len(matrix), facts.rank))
                specs[f"{name}.down"] = TensorSpec(torch.float32, (facts.rank, matrix[0].numel()))
            for name, table in tables.items():
                specs[name] = TensorSpec(torch.float32, (len(facts.labels) + 1, table.shape[1]))
            return specs

        tensors, facts = read_tensors(
            adapter / ADAPTER_FILE, expected_specs, TypeAdapter(AdapterFacts), fits=f"the network of {run.path}"
        )
        with torch.no_grad():
            for name in layers:
                matrix = state[f"{name}.weight"]
                change = (tensors[f"{name}.up"] @ tensors[f"{name}.down"]).view(matrix.shape)
                matrix.add_(change.to(matrix), alpha=weight)
            if facts.labels == run.config.data.labels:  # otherwise the labels of the base stay
                for name, table in tables.items():
                    table.add_(tensors[name].to(table) - before[name], alpha=weight)
    changes = (*run.changes, *(f"adapter {text}" for text in adapters))
    return replace(run, model=model.requires_grad_(False).eval(), changes=changes)
