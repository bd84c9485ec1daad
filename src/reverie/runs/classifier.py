"""The classifier that guides a run: it lives in the run folder beside the model."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from reverie.base.errors import UserError
from reverie.base.files import atomic
from reverie.base.spec import build, one_line
from reverie.diffusion.classifier import Classifier
from reverie.diffusion.schedule import SCHEDULES
from reverie.families.diffusion.settings import settings_of
from reverie.runs.config import Config

CLASSIFIER_FILE = "classifier.safetensors"


class ClassifierFacts(BaseModel):
    """What is written beside the weights.

    fingerprint: of the data it learned; accuracy: share of held-out data told rightly, at the times given.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    format: Literal[1] = 1
    fingerprint: str
    steps: int = Field(ge=0)
    seconds: float = Field(ge=0)
    seed: int = Field(ge=0)
    held_out: int = Field(ge=0)
    accuracy: dict[str, float] = Field(default_factory=dict, max_length=100)


def classifier_for(config: Config, seed: int = 0) -> Classifier:
    """Return an untrained classifier for the data of a run."""
    settings = settings_of(config.family)
    schedule = build(SCHEDULES, settings.schedule, "schedule")
    return Classifier(schedule, config.data.shape, len(config.data.labels), settings.sigma_data, seed)


def write_classifier(folder: Path, classifier: Classifier, facts: ClassifierFacts) -> Path:
    """Write the weights with the facts in their header, whole or not at all; return the file."""
    state = {name: tensor.detach().cpu().contiguous() for name, tensor in classifier.state_dict().items()}
    path = folder / CLASSIFIER_FILE
    try:
        with atomic(path) as aside:
            save_file(state, aside, {"facts": facts.model_dump_json()})
    except SafetensorError as error:
        raise UserError(f"cannot write {path}: {error}; the disk may be full") from None
    return path


def read_classifier(folder: Path, config: Config) -> Classifier:
    """Read the classifier of a run; names and shapes are checked before anything is loaded."""
    path, again = folder / CLASSIFIER_FILE, f"reverie train-classifier {shlex.quote(str(folder))}"
    if not path.is_file():
        raise UserError(f"the run {folder} has no classifier to be guided by; train one with: {again}")
    classifier = classifier_for(config)
    wanted = {name: list(tensor.shape) for name, tensor in classifier.state_dict().items()}
    try:
        with safe_open(path, framework="pt") as file:
            said = (file.metadata() or {}).get("facts", "")
            found = {name: file.get_slice(name).get_shape() for name in file.keys()}  # noqa: SIM118, not a dict
            if found != wanted or any(file.get_slice(name).get_dtype() != "F32" for name in found):
                raise UserError(f"{path} is not a classifier for this run; train it again with: {again}")
            state = {name: file.get_tensor(name) for name in found}
    except (SafetensorError, OSError) as error:
        raise UserError(f"{path} is truncated or damaged ({error}); train it again with: {again}") from None
    try:
        facts = ClassifierFacts.model_validate(json.loads(said))
    except ValidationError as error:
        raise UserError(f"{path} does not say what it learned: {one_line(error)}; train it again with: {again}") from None
    except (ValueError, RecursionError):
        raise UserError(f"{path} does not say what it learned; train it again with: {again}") from None
    if facts.fingerprint != config.data.fingerprint:
        raise UserError(f"{path} learned other data than the run did; train it again with: {again}")
    if bad := [name for name, tensor in state.items() if not tensor.isfinite().all()]:
        raise UserError(f"{path} holds values that are not finite, first in {bad[0]}; train it again with: {again}")
    classifier.load_state_dict(state)
    return classifier.requires_grad_(False).eval()
