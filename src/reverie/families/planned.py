"""What families that learn by steps share: settings that are chosen for the data, checked, and compared with what is asked."""

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
from reverie.families.diffusion.likelihood_training import FEW, codec_of
from reverie.families.model import Family, FamilyPlan, FamilySettings, PlanRequest

STEPS_A_MINUTE = 2000  # that one core makes with the network of a small image
FEW_NUMBERS = 10**6  # of all training data together, below which they are few
Settings = TypeVar("Settings", bound=FamilySettings)
TEXT_MINUTES, PAIR_MINUTES = 3.0, 2.0  # that models of text and of pairs are trained for when nothing is said


def codec_for(request: PlanRequest) -> Spec:
    """Return the units of the data: the levels that images have, points and moments of series standardised."""
    train = request.train
    if train.kind in WRITTEN:
        return {}  # tokens have no units
    if train.kind == "images":
        return codec_of(train)
    x = train.batch(torch.arange(len(train)))[0]
    return standard_spec(x.flatten(0, -2))


def decoder_for(codec: Spec) -> str:
    """Return the observation for data of these units; see `reverie.families.vae.observation`."""
    levels = build(CODECS, codec, "codec").levels
    if levels is None:
        return "gaussian"
    return "bernoulli" if levels == 2 else "categorical" if levels <= FEW else "logistic"


def is_small_dataset(request: PlanRequest) -> bool:
    """Tell whether a network could learn the data by heart."""
    return len(request.train) * math.prod(request.train.shape) < FEW_NUMBERS


def small_data_learning_rate(request: PlanRequest, most: float, farthest: float) -> float:
    """Return a learning rate by which weights go no farther in many steps than in few: so far, few data are learned by heart.

    farthest: learning rate times steps, at most.
    """
    steps = request.steps or round((request.minutes or IMAGE_MINUTES) * STEPS_A_MINUTE)
    return min(most, farthest / max(1, steps))


class PlannedFamily(Family[Settings]):
    """A family that learns by steps, with settings for the data where nothing else is asked for.

    usual: fields of the table [training] when nothing is said; learned: settings that are learned from the data, of which only
    the way can be asked for, and `chosen` goes by it.
    """

    data_dependent: ClassVar[frozenset[str]] = frozenset()

    training_defaults: ClassVar[Mapping[str, Any]] = {"batch": 128, "learning_rate": 2e-3}

    @abstractmethod
    def default_settings(self, request: PlanRequest, codec: Spec) -> dict[str, Any]:
        """Return settings for data where nothing else is asked for.  codec: the units of the data."""

    @abstractmethod
    def describe_settings(self, settings: Settings) -> str:
        """Say in one line what was chosen."""

    def training(self, request: PlanRequest, settings: Settings) -> Mapping[str, Any]:
        """Return fields of the table [training] for data, where nothing else is asked for."""
        return self.training_defaults

    def plan(self, request: PlanRequest) -> FamilyPlan[Settings]:
        """Choose settings for the data, and take what is asked for."""
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
        """Return how many data a step takes when nothing is said."""
        return int(self.training_defaults["batch"])

    def read(self, table: Mapping[str, Any]) -> Settings:
        """Check settings."""
        try:
            return self.settings.model_validate(table)
        except ValidationError as error:
            raise UserError(f"cannot train like this: {first_problem(error)}") from None

    def matches(self, settings: Settings, key: str, value: Any, shape: tuple[int, ...], labels: int) -> bool:
        """Tell whether an option, as it was given, is what settings have already."""
        return bool(getattr(self.read({**settings.model_dump(), key: value}), key) == getattr(settings, key))
