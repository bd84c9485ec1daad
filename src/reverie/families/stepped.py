"""What families share whose models learn by steps and whose settings are one table: choosing, checking and planning."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar, TypeVar

import torch
from pydantic import ValidationError

from reverie.base.errors import UserError
from reverie.base.spec import Spec, one_line
from reverie.data.codec import standard_spec
from reverie.diffusion.plan import IMAGE_MINUTES, POINT_STEPS
from reverie.families.diffusion.variational import codec_of
from reverie.families.model import Family, FamilyPlan, FamilySettings, PlanRequest

Settings = TypeVar("Settings", bound=FamilySettings)
BATCH, RATE = 128, 2e-3


def codec_for(request: PlanRequest) -> Spec:
    """Return the units of the data: the levels that images have, points standardised."""
    train = request.train
    return codec_of(train) if train.kind == "images" else standard_spec(train.batch(torch.arange(len(train)))[0])


class SteppedFamily(Family[Settings]):
    """A family whose models learn by steps, with defaults for the data that what is asked for replaces."""

    can: ClassVar[frozenset[str]] = frozenset({"labels"})

    @abstractmethod
    def chosen(self, request: PlanRequest, codec: Spec) -> dict[str, Any]:
        """Return settings for data where nothing else is asked for.  codec: the units of the data, see `codec_for`."""

    @abstractmethod
    def reason(self, settings: Settings) -> str:
        """Say in one line what was chosen."""

    def training(self, settings: Settings) -> dict[str, Any]:
        """Return fields of the table [training] where nothing else is asked for."""
        return {"batch": BATCH, "learning_rate": RATE}

    def plan(self, request: PlanRequest) -> FamilyPlan[Settings]:
        """Choose settings for the data, and take what is asked for."""
        wished = {key: value for key, value in request.wished.items() if value is not None}
        settings = self.read({"name": self.name, **self.chosen(request, codec_for(request)), **wished})
        length: dict[str, Any] = {"minutes": request.minutes, "steps": request.steps}
        if request.minutes is None and request.steps is None:
            length = {"minutes": IMAGE_MINUTES} if request.data.kind == "images" else {"steps": POINT_STEPS}
        training = {**self.training(settings), **length, **request.training}
        return FamilyPlan(settings, training, (self.reason(settings),))

    def read(self, table: Mapping[str, Any]) -> Settings:
        """Check settings."""
        try:
            return self.settings.model_validate(table)
        except ValidationError as error:
            raise UserError(f"cannot train like this: {one_line(error)}") from None

    def agrees(self, settings: Settings, key: str, value: Any, shape: tuple[int, ...], labels: int) -> bool:
        """Tell whether an option, as it was given, is what settings have already."""
        return bool(getattr(self.read({**settings.model_dump(), key: value}), key) == getattr(settings, key))
