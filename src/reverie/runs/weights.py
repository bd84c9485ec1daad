"""The weights of a run, stored with the settings of their model, which are validated on reading."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, TypeAdapter, ValidationError
from torch import nn

from reverie.base.config_section import ConfigSection
from reverie.base.errors import UserError
from reverie.base.tensors import TensorSpec, read_facts, read_tensors, write_tensors
from reverie.families.model import Model
from reverie.nets.lora import adapter_weights, merged_weights
from reverie.runs.adapters import AdapterFacts, write_adapter
from reverie.runs.config import Config, build_model, model_forms, present_family
from reverie.runs.folder import CONFIG, WEIGHTS_FILE, read_metrics

ADVICE = "; restore it or train the run again"


class WeightsMetadata(ConfigSection):
    """The metadata of weights: shape of the data, a hash of their labels or conditions, and the table [family].

    Excludes settings that are determined at the end of training.  ended: the step at which the training ended, 0 before, None
    in older files.
    """

    format: Literal[1] = 1
    shape: tuple[int, ...] = Field(min_length=1, max_length=3)
    labels: str
    family: dict[str, Any]
    ended: int | None = Field(default=None, ge=0)


FACTS: TypeAdapter[WeightsMetadata | None] = TypeAdapter(WeightsMetadata | None)


def weights_metadata(config: Config, ended: int | None = None) -> WeightsMetadata:
    """Return the metadata of the weights of a run."""
    family, names = config.model_family, json.dumps(config.data.labels).encode()
    if config.data.condition is not None:
        # hashed with the key "spread" of older versions, whose weights have the hash in their header
        names += config.data.condition.model_dump_json().replace('"std":', '"spread":').encode()
    return WeightsMetadata(
        shape=config.data.shape,
        labels=hashlib.blake2b(names, digest_size=16).hexdigest(),
        family=config.family.model_dump(mode="json", exclude=set(family.set_by_training)),
        ended=ended,
    )


def _differences(stored: WeightsMetadata, config: Config) -> list[str]:
    """Return the names of the settings in which the metadata of weights and a configuration differ."""
    family = config.model_family
    try:  # with defaults for newer settings
        settings = family.settings.model_validate(present_family(stored.family)).model_dump(
            mode="json", exclude=set(family.set_by_training)
        )
    except ValidationError:
        return ["family"]
    now = weights_metadata(config)
    differing = [f"family.{key}" for key, value in now.family.items() if settings.get(key) != value]
    return differing + [f"data.{key}" for key in ("shape", "labels") if getattr(stored, key) != getattr(now, key)]


def write_weights(
    folder: Path, config: Config, model: nn.Module, file: str = WEIGHTS_FILE, ended: int | None = None
) -> None:  # fmt: skip
    """Write model.safetensors, or another file of weights; adapters are merged into it and also saved separately.

    ended: see `WeightsMetadata`.  Weights are written last, so they record whether training is complete.
    """
    rank, start = config.training.lora, config.start
    if file == WEIGHTS_FILE and rank is not None and start is not None and (adapter := adapter_weights(model)):
        write_adapter(folder, adapter, AdapterFacts(base=start.weights, rank=rank, labels=config.data.labels))
    write_tensors(folder / file, merged_weights(model), weights_metadata(config, ended).model_dump_json())


def is_finished(folder: Path) -> bool:
    """Return whether a run is complete, from its last report and the metadata of its weights."""
    rows = read_metrics(folder)
    if not rows or rows[-1]["fraction"] < 1 or not (folder / WEIGHTS_FILE).is_file():
        return False
    try:
        metadata = read_facts(folder / WEIGHTS_FILE, FACTS)
    except UserError:  # a damaged file is written again
        return False
    return metadata is None or metadata.ended in (None, rows[-1]["i"])


def read_weights(folder: Path, config: Config, file: str = WEIGHTS_FILE) -> Model:
    """Return the model with the weights of model.safetensors, or of another file.

    The header is checked before the model is built, so that invalid files use little memory.
    """
    path = folder / file
    if not path.is_file():
        raise UserError(f"the run {folder} has no weights: {path} is missing; train it again")

    def expected_specs(stored: WeightsMetadata | None) -> dict[str, TensorSpec]:  # older files have no metadata
        if stored is not None and (differing := _differences(stored, config)):
            raise UserError(f"{path} does not fit {CONFIG}: different {' and '.join(differing)}{ADVICE}")
        return model_forms(config)

    state, _ = read_tensors(path, expected_specs, FACTS, fits=CONFIG, advice=ADVICE)
    model = build_model(config)
    model.load_state_dict(state)
    return model
