"""The weights of a run: written with the settings they were trained with, and read only into the model that these describe."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, TypeAdapter, ValidationError
from torch import nn

from reverie.base.errors import UserError
from reverie.base.section import Section
from reverie.base.tensors import Form, read_tensors, write_tensors
from reverie.families.model import Model
from reverie.nets.lora import adapter_weights, merged_weights
from reverie.runs.adapters import AdapterFacts, write_adapter
from reverie.runs.config import Config, build_model, model_forms
from reverie.runs.folder import CONFIG, WEIGHTS_FILE

AGAIN = "; restore it or train the run again"


class MadeFor(Section):
    """What weights mean something with: the data's shape, a hash of their labels or conditions, and the table [family].

    Without the settings that are found by training, which are written down after the weights.
    """

    format: Literal[1] = 1
    shape: tuple[int, ...] = Field(min_length=1, max_length=3)
    labels: str
    family: dict[str, Any]


def made_for(config: Config) -> MadeFor:
    """Return what the weights of a run are made for."""
    family, names = config.model_family, json.dumps(config.data.labels).encode()
    if config.data.condition is not None:
        names += config.data.condition.model_dump_json().encode()
    return MadeFor(
        shape=config.data.shape,
        labels=hashlib.blake2b(names, digest_size=16).hexdigest(),
        family=config.family.model_dump(mode="json", exclude=set(family.found)),
    )


def _differences(kept: MadeFor, config: Config) -> list[str]:
    """Return the names of the settings that weights were made for and that the configuration has otherwise."""
    family = config.model_family
    try:  # as this version writes it: settings that came later have their defaults
        settings = family.settings.model_validate(kept.family).model_dump(mode="json", exclude=set(family.found))
    except ValidationError:
        return ["family"]
    now = made_for(config)
    differing = [f"family.{key}" for key, value in now.family.items() if settings.get(key) != value]
    return differing + [f"data.{key}" for key in ("shape", "labels") if getattr(kept, key) != getattr(now, key)]


def write_weights(folder: Path, config: Config, model: nn.Module, file: str = WEIGHTS_FILE) -> None:
    """Write model.safetensors, or another file of weights; low-rank adapters are merged into it and saved beside it."""
    write_tensors(folder / file, merged_weights(model), made_for(config).model_dump_json())
    if (
        file == WEIGHTS_FILE
        and config.training.lora is not None
        and config.start is not None
        and (alone := adapter_weights(model))
    ):
        labels = config.data.labels
        write_adapter(folder, alone, AdapterFacts(base=config.start.weights, rank=config.training.lora, labels=labels))


def read_weights(folder: Path, config: Config, file: str = WEIGHTS_FILE) -> Model:
    """Return the model with the weights of model.safetensors, or of another file.

    Configuration and header are compared before the model is made, so a file costs no more memory than it has bytes.
    """
    path = folder / file
    if not path.is_file():
        raise UserError(f"the run {folder} has no weights: {path} is missing; train it again")

    def wanted(kept: MadeFor | None) -> dict[str, Form]:  # older files do not say what they were made for
        if kept is not None and (differing := _differences(kept, config)):
            raise UserError(f"{path} does not fit {CONFIG}: it was trained with another {' and '.join(differing)}{AGAIN}")
        return model_forms(config)

    state, _ = read_tensors(path, wanted, TypeAdapter(MadeFor | None), fits=CONFIG, advice=AGAIN)
    model = build_model(config)
    model.load_state_dict(state)
    return model
