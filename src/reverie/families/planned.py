"""The common part of trained families: default settings for the data, validated and compared with requests."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar, TypeVar

import torch
from pydantic import ValidationError

from reverie.base.errors import UserError
from reverie.base.spec import Spec, build, first_problem
from reverie.data import Dataset
from reverie.data.codec import CODECS, standard_spec
from reverie.data.kind import WRITTEN
from reverie.diffusion.plan import IMAGE_MINUTES, POINT_STEPS
from reverie.families.diffusion.likelihood_training import MAX_LEVELS, codec_of
from reverie.families.model import Family, FamilyPlan, FamilySettings, PlanRequest

STEPS_A_MINUTE = 2000  # of one CPU core with a small image network
MAX_SMALL_NUMBERS = 10**6  # values of all training data below which a dataset counts as small
Settings = TypeVar("Settings", bound=FamilySettings)
TEXT_MINUTES, PAIR_MINUTES = 3.0, 2.0  # default training time


def codec_for(request: PlanRequest) -> Spec:
    """Return the codec of the data: the levels of images, standardisation of points and series."""
    train = request.train
    if train.kind in WRITTEN:
        return {}  # tokens have no units
    if train.kind == "images":
        return codec_of(train)
    x = train.batch(torch.arange(len(train)))[0]
    return standard_spec(x.flatten(0, -2))


def decoder_for(codec: Spec) -> str:
    """Return the name of the observation model for a codec; see `reverie.families.vae.observation`."""
    levels = build(CODECS, codec, "codec").levels
    if levels is None:
        return "gaussian"
    return "bernoulli" if levels == 2 else "categorical" if levels <= MAX_LEVELS else "logistic"


def is_small_dataset(request: PlanRequest) -> bool:
    """Return whether a network could memorize the data."""
    return len(request.train) * math.prod(request.train.shape) < MAX_SMALL_NUMBERS


def small_data_learning_rate(request: PlanRequest, max_rate: float, max_product: float) -> float:
    """Return a learning rate that bounds learning rate times steps: weights that move farther memorize small data.

    max_product: the largest learning rate times steps.
    """
    steps = request.steps or round((request.minutes or IMAGE_MINUTES) * STEPS_A_MINUTE)
    return min(max_rate, max_product / max(1, steps))


class PlannedFamily(Family[Settings]):
    """A family trained by gradient descent, with default settings for the data.

    training_defaults: fields of the table [training].  data_dependent: settings computed from the data by
    `default_settings`; a request only selects the method, such as the type of tokenizer.
    """

    data_dependent: ClassVar[frozenset[str]] = frozenset()

    training_defaults: ClassVar[Mapping[str, Any]] = {"batch": 128, "learning_rate": 2e-3}

    @abstractmethod
    def default_settings(self, request: PlanRequest, codec: Spec) -> dict[str, Any]:
        """Return default settings for the data.  codec: the units of the data."""

    @abstractmethod
    def describe_settings(self, settings: Settings) -> str:
        """Return the settings as one line."""

    def training(self, request: PlanRequest, settings: Settings) -> Mapping[str, Any]:
        """Return default fields of the table [training] for the data."""
        return self.training_defaults

    def plan(self, request: PlanRequest) -> FamilyPlan[Settings]:
        """Combine default settings with requested ones."""
        requested = {
            key: value for key, value in request.requested.items() if value is not None and key not in self.data_dependent
        }
        settings = self.read({"name": self.name, **self.default_settings(request, codec_for(request)), **requested})
        length: dict[str, Any] = {"minutes": request.minutes, "steps": request.steps}
        if request.minutes is None and request.steps is None:
            minutes = {"images": IMAGE_MINUTES, "text": TEXT_MINUTES, "pairs": PAIR_MINUTES}.get(request.data.kind)
            length = {"steps": POINT_STEPS} if minutes is None else {"minutes": minutes}
        training = {**self.training(request, settings), **length, **request.training}
        return FamilyPlan(settings, training, (self.describe_settings(settings),))

    def batch(self, form: Dataset) -> int:
        """Return the default batch size."""
        return int(self.training_defaults["batch"])

    def read(self, table: Mapping[str, Any]) -> Settings:
        """Validate settings."""
        try:
            return self.settings.model_validate(table)
        except ValidationError as error:
            raise UserError(f"invalid settings: {first_problem(error)}") from None

    def matches(self, settings: Settings, key: str, value: Any, shape: tuple[int, ...], labels: int) -> bool:
        """Return whether a requested option equals the setting."""
        return bool(getattr(self.read({**settings.model_dump(), key: value}), key) == getattr(settings, key))
