"""Densities as models, and families that are fitted to all data at once."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Iterator
from typing import Any, ClassVar, TypeVar

import torch
from pydantic import ValidationError
from torch import Tensor

from reverie.base.errors import UserError
from reverie.base.noise import image_seeds
from reverie.base.spec import first_problem
from reverie.data import Dataset
from reverie.data.kind import kind_of
from reverie.diffusion.likelihood.flow import LogProb
from reverie.diffusion.pair import Pair
from reverie.diffusion.samplers import Frame
from reverie.families.density import Density
from reverie.families.model import (
    Family,
    FamilyPlan,
    FamilySettings,
    FittedModel,
    Likelihood,
    PlanRequest,
    SamplingInputs,
    check_one_label,
)

METRIC_DATA = 4096  # data, at most, for held-out metrics
MAX_NUMBERS = 2**30  # values of all training data
PIXEL_LEVELS = 256


class FittedDensity(FittedModel):
    """A density as a model.  Samples of images are clamped to [0, 1]."""

    density: Density

    def __init__(self, density: Density, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.density, self.shape = density, shape

    def decode(self, z: Tensor) -> Tensor:
        """Return data in user units."""
        return z.clamp(0, 1) if kind_of(self.shape) == "images" else z

    def fit(self, data: Dataset, seed: int) -> Iterator[float]:
        """Fit the density to all data and yield the mean negative log-likelihood after each pass, in nats per dimension."""
        if len(data) * math.prod(data.shape) > MAX_NUMBERS:
            raise UserError(f"too many data to fit at once: {len(data):,} of shape {data.shape}; give fewer or smaller data")
        yield from self.density.fit(*data.batch(torch.arange(len(data))), seed)

    def frames(self, inputs: SamplingInputs) -> Iterator[Frame]:
        """Sample in one step and yield one frame."""
        check_one_label(inputs)
        x = self.density.sample(inputs.seeds, inputs.cond).float()
        yield Frame(0, 1, 0.0, x, Pair(x, torch.zeros_like(x)))

    def log_prob(self, x: Tensor, cond: Tensor | None, seeds: Tensor) -> LogProb:
        """Return the log-density of points, or the log-probability of the levels of images, in nats: (B,)."""
        nats = self.density.log_prob(x, cond, seeds).double()
        return LogProb(nats, torch.zeros_like(nats), 0, "closed form", math.prod(self.shape))

    def facts(self) -> dict[str, Any]:
        """Return values for `reverie inspect`."""
        return {**super().facts(), **self.density.facts()}

    def held_out_metrics(self, data: Dataset, seed: int) -> dict[str, Any]:
        """Return the mean negative log-likelihood of held-out data, in nats per dimension: `held_out`."""
        x, labels = data.batch(torch.arange(min(len(data), METRIC_DATA)))
        log_prob = self.log_prob(x, labels, image_seeds(seed, len(x)))
        return {"held_out": float(-log_prob.nats.mean()) / log_prob.size}


Settings = TypeVar("Settings", bound=FamilySettings)


class FittedFamily(Family[Settings]):
    """A family fitted to all data at once, with an exact likelihood."""

    capabilities: ClassVar[frozenset[str]] = frozenset({"labels"})
    likelihood: ClassVar[Likelihood] = "exact"
    learns_by_steps: ClassVar[bool] = False
    rounds: ClassVar[int] = 1  # passes over the data, at most

    def held_out_measure(self, settings: Settings) -> str:
        """Return nats/dim."""
        return "nats/dim"

    def plan(self, request: PlanRequest) -> FamilyPlan[Settings]:
        """Combine default settings with requested ones."""
        requested = {key: value for key, value in request.requested.items() if value is not None}
        try:
            settings = self.settings.model_validate({"name": self.name, **requested})
        except ValidationError as error:
            raise UserError(f"invalid settings: {first_problem(error)}") from None
        unused = [f"--{name}" for name, value in (("minutes", request.minutes), ("steps", request.steps)) if value is not None]
        reason = f"{self.name}: fitted to all {len(request.train):,} data at once"
        reason += f"; {' and '.join(unused)} has no effect" if unused else ""
        training = {key: value for key, value in request.training.items() if key not in ("minutes", "steps")}
        return FamilyPlan(settings, {**training, "steps": self.rounds, "batch": min(len(request.train), 10**6)}, (reason,))

    @abstractmethod
    def density(self, settings: Settings, shape: tuple[int, ...], labels: int, levels: int | None) -> Density:
        """Build the density for data of a shape.  levels: 256 for images, None for points."""

    def build(self, settings: Settings, shape: tuple[int, ...], labels: int, seed: int) -> FittedDensity:
        """Build the model."""
        return FittedDensity(self.density(settings, shape, labels, PIXEL_LEVELS if kind_of(shape) == "images" else None), shape)
