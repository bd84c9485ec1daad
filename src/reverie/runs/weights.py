"""The weights of a run: written with the settings they were trained with, and read only into the model that these describe."""

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

AGAIN = "; restore it or train the run again"


class WeightsMetadata(ConfigSection):
    """What weights mean something with: the data's shape, a hash of their labels or conditions, and the table [family].

    Without the settings that are found by training, which are written down after the weights.  ended: the step at which the
    training of these weights ended, 0 while it is not over; None where that is not recorded, as in older files.
    """

    format: Literal[1] = 1
    shape: tuple[int, ...] = Field(min_length=1, max_length=3)
    labels: str
    family: dict[str, Any]
    ended: int | None = Field(default=None, ge=0)


FACTS: TypeAdapter[WeightsMetadata | None] = TypeAdapter(WeightsMetadata | None)


def weights_metadata(config: Config, ended: int | None = None) -> WeightsMetadata:
    """Return what the weights of a run are made for."""
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


def _differences(kept: WeightsMetadata, config: Config) -> list[str]:
    """Return the names of the settings that weights were made for and that the configuration has otherwise."""
    family = config.model_family
    try:  # as this version writes it: settings that came later have their defaults
        settings = family.settings.model_validate(present_family(kept.family)).model_dump(
            mode="json", exclude=set(family.set_by_training)
        )
    except ValidationError:
        return ["family"]
    now = weights_metadata(config)
    differing = [f"family.{key}" for key, value in now.family.items() if settings.get(key) != value]
    return differing + [f"data.{key}" for key in ("shape", "labels") if getattr(kept, key) != getattr(now, key)]


def write_weights(
    folder: Path, config: Config, model: nn.Module, file: str = WEIGHTS_FILE, ended: int | None = None
) -> None:  # fmt: skip
    """Write model.safetensors, or another file of weights; low-rank adapters are merged into it and saved beside it.

    ended: see `WeightsMetadata`; these weights are written last, so that a training is over where they say so.
    """
    rank, start = config.training.lora, config.start
    if file == WEIGHTS_FILE and rank is not None and start is not None and (alone := adapter_weights(model)):
        write_adapter(folder, alone, AdapterFacts(base=start.weights, rank=rank, labels=config.data.labels))
    write_tensors(folder / file, merged_weights(model), weights_metadata(config, ended).model_dump_json())


def is_finished(folder: Path) -> bool:
    """Tell whether the run in a folder was trained to its end: by its last report, and by its weights, which are those."""
    rows = read_metrics(folder)
    if not rows or rows[-1]["fraction"] < 1 or not (folder / WEIGHTS_FILE).is_file():
        return False
    try:
        made = read_facts(folder / WEIGHTS_FILE, FACTS)
    except UserError:  # a damaged file is written again
        return False
    return made is None or made.ended in (None, rows[-1]["i"])


def read_weights(folder: Path, config: Config, file: str = WEIGHTS_FILE) -> Model:
    """Return the model with the weights of model.safetensors, or of another file.

    Configuration and header are compared before the model is made, so a file costs no more memory than it has bytes.
    """
    path = folder / file
    if not path.is_file():
        raise UserError(f"the run {folder} has no weights: {path} is missing; train it again")

    def wanted(kept: WeightsMetadata | None) -> dict[str, TensorSpec]:  # older files do not say what they were made for
        if kept is not None and (differing := _differences(kept, config)):
            raise UserError(f"{path} does not fit {CONFIG}: it was trained with another {' and '.join(differing)}{AGAIN}")
        return model_forms(config)

    state, _ = read_tensors(path, wanted, FACTS, fits=CONFIG, advice=AGAIN)
    model = build_model(config)
    model.load_state_dict(state)
    return model
