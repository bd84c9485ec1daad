"""The file of the noise-aware classifier in a run folder."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated, Literal

import torch
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

from reverie.base.errors import UserError
from reverie.base.spec import build
from reverie.base.tensors import read_tensors, tensor_specs, write_tensors
from reverie.diffusion.classifier import Classifier
from reverie.diffusion.schedules import SCHEDULES
from reverie.families.diffusion.latent_codec import model_shape
from reverie.families.diffusion.settings import settings_of
from reverie.runs.config import Config

CLASSIFIER_FILE = "classifier.safetensors"


class ClassifierFacts(BaseModel):
    """The metadata of a classifier.

    fingerprint: of its training data; accuracy: on held-out data by diffusion time.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    format: Literal[1] = 1
    fingerprint: str
    steps: int = Field(ge=0, lt=2**63)
    seconds: float = Field(ge=0)
    seed: int = Field(ge=0, lt=2**31)
    held_out: int = Field(ge=0, lt=2**53)
    accuracy: dict[str, Annotated[float, Field(ge=0, le=1)]] = Field(default_factory=dict, max_length=100)


def classifier_for(config: Config, seed: int = 0, device: str = "cpu") -> Classifier:
    """Return an untrained classifier for the data of a run; on the device "meta" it allocates no memory."""
    settings = settings_of(config.family)
    schedule = build(SCHEDULES, settings.schedule, "schedule")
    with torch.device(device):
        shape = model_shape(settings.codec, config.data.shape)
        return Classifier(schedule, shape, len(config.data.labels), settings.sigma_data, seed)


def write_classifier(folder: Path, classifier: Classifier, facts: ClassifierFacts) -> Path:
    """Write the weights and metadata atomically; return the file."""
    write_tensors(folder / CLASSIFIER_FILE, classifier.state_dict(), facts.model_dump_json())
    return folder / CLASSIFIER_FILE


def read_classifier(folder: Path, config: Config) -> Classifier:
    """Read the classifier of a run."""
    path, advice = folder / CLASSIFIER_FILE, f"train it again with: reverie train-classifier {shlex.quote(str(folder))}"
    if not path.is_file():
        raise UserError(f"the run {folder} has no classifier; {advice.replace('it again', 'one')}")
    expected = tensor_specs(classifier_for(config, device="meta").state_dict())
    state, facts = read_tensors(
        path, lambda _: expected, TypeAdapter(ClassifierFacts), fits="a classifier of this run", advice=f"; {advice}"
    )
    if facts.fingerprint != config.data.fingerprint:
        raise UserError(f"{path} was trained on different data from the run; {advice}")
    classifier = classifier_for(config)
    classifier.load_state_dict(state)
    return classifier.requires_grad_(False).eval()
