"""The seam: what training, sampling, measuring and the run folder know of a model, whatever its family."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Generic, Literal, Self, TypeVar

import torch
from pydantic import model_validator
from torch import Tensor, nn

from reverie.base.config_section import ConfigSection
from reverie.base.deadline import Deadline
from reverie.base.errors import UserError
from reverie.base.progress import OnProgress, silent
from reverie.base.spec import Spec, as_list
from reverie.base.tensors import TensorSpec, device_of, tensor_specs
from reverie.data import Dataset
from reverie.data.codec import Units
from reverie.data.kind import Kind
from reverie.diffusion.classifier import Classifier
from reverie.diffusion.error_curve import ErrorCurve
from reverie.diffusion.likelihood.flow import LogProb
from reverie.diffusion.samplers import Frame
from reverie.families.graphical import GRAPHICAL, GraphicalModel

Likelihood = Literal["exact", "lower bound", "none"]


def check_labelled(labels: int, cond: Tensor | None, count: int) -> None:
    """Refuse to do without labels where a model was trained with some.  cond: (count,) or None."""
    if labels and (cond is None or len(cond) != count):
        raise UserError(f"the model was trained with {labels} labels, and needs one for each datum")


class FamilySettings(ConfigSection):
    """The table [family] of config.toml: the family's name and its own options."""

    name: str

    @model_validator(mode="before")
    @classmethod
    def _listed(cls, given: Any) -> Any:
        """Take a lone word for a list of one where a field holds several."""
        if not isinstance(given, Mapping):
            return given
        types = {name: one.annotation for name, one in cls.model_fields.items()}
        return {key: as_list(types.get(key), value) for key, value in given.items()}

    @classmethod
    def read(cls, table: Mapping[str, Any]) -> Self:
        """Return the settings that a run folder has; families add what runs of older versions did not record."""
        return cls.model_validate(table)


@dataclass(frozen=True)
class SamplingInputs:
    """What to draw.

    seeds: (B,) int64; cond: (B,) labels, (B, K) where K are composed, or None; weights: of the composed labels; options: see
    `Family.options`; classifier, weak, mean_error: give the classifier of noised data that the run has, an earlier state of the
    model, and how far its estimates are off, or refuse.
    """

    seeds: Tensor
    cond: Tensor | None = None
    weights: tuple[float, ...] = (1.0,)
    options: Mapping[str, Any] = field(default_factory=dict)
    classifier: Callable[[], Classifier] | None = None
    weak: Callable[[], Model] | None = None
    mean_error: Callable[[], ErrorCurve] | None = None


def check_one_label(inputs: SamplingInputs) -> None:
    """Refuse to compose labels, which takes guidance."""
    if inputs.weights != (1.0,) or (inputs.cond is not None and inputs.cond.ndim > 1):
        raise UserError("labels are composed by guidance, which this family does not have; give one label")


class Model(nn.Module, ABC):
    """A generative model.  Its own units are those of `encode`; users' units are those of the data, [0, 1] for images."""

    shape: tuple[int, ...]  # of one datum, in user units

    def encode(self, x: Tensor) -> Tensor:
        """Return data in the model's units.  x: (B, ...) in user units."""
        return x

    def decode(self, z: Tensor) -> Tensor:
        """Return data in user units."""
        return z

    @property
    def device(self) -> torch.device:
        """Where the model is."""
        return device_of(self)

    @property
    def lossy(self) -> bool:
        """Whether decode(encode(x)) is only about x."""
        return False

    @property
    def units(self) -> Units:
        """The units that samples are looked at in: the model's own, or those of images where it draws codes of them."""
        return self

    def picture(self, z: Tensor) -> Tensor:
        """Return samples in these units."""
        return z

    @abstractmethod
    def frames(self, inputs: SamplingInputs) -> Iterator[Frame]:
        """Draw one datum per seed and yield what is on the way, in the model's units; the last frame's x0 is what is drawn."""

    @abstractmethod
    def held_out_metrics(self, data: Dataset, seed: int) -> dict[str, Any]:
        """Return figures of data that were not trained on: `held_out`, the less the better, and what else is to be kept."""

    def final_metrics(self, train: Dataset, seed: int) -> dict[str, Any]:
        """Return further figures that are worked out once, when the training ends."""
        return {}

    def facts(self) -> dict[str, Any]:
        """Return plain facts of the model for `reverie inspect`."""
        return {"parameters": sum(t.numel() for t in self.state_dict().values())}

    def summary_line(self) -> str:
        """Say how large the model is."""
        numbers = sum(t.numel() for t in self.state_dict().values())
        return f"model: {numbers:,} numbers"

    def warn(self) -> None:
        """Warn of settings that may give bad samples."""
        return

    @abstractmethod
    def log_prob(self, x: Tensor, cond: Tensor | None, seeds: Tensor) -> LogProb:
        """Return the log-probability of data in user units, in nats; see `Family.likelihood` for what it is."""


class CompletionModel(ABC):
    """A model that draws what is not known of a datum, given what is, without a denoiser to steer."""

    @abstractmethod
    def completes_exactly(self, seen: Tensor) -> bool:
        """Tell whether it draws from a conditional distribution of its own, or only about so.  seen: of one datum, bool."""

    @abstractmethod
    def completes_in_own_order(self, seen: Tensor) -> bool:
        """Tell whether that is the conditional of `log_prob`, or of another order's joint.  seen: of one datum, bool."""

    @abstractmethod
    def complete(
        self, inputs: SamplingInputs, truth: Tensor, seen: Tensor, log_prior: Tensor | None, note: Callable[[float], None]
    ) -> Iterator[Frame]:
        """Draw what is not seen, one datum for each seed, and yield frames in model units.

        truth, seen: of one datum, in user units; log_prior: of labels, (L,), which are drawn as well where none is wanted;
        note: is told how much of the work told anything in the end, 1 where the draw is exact.
        """


class TrainedModel(Model):
    """A model that learns by steps down the gradient of a loss."""

    def initialize(self, data: Dataset, deadline: Deadline | None = None) -> None:
        """Set first weights that depend on the training data.  deadline: by which work that can be shortened is to end."""
        return

    def set_progress(self, fraction: float) -> None:
        """Note how much of the training is done, 0 to 1, before each step: for what changes on the way."""
        return

    def finalize(self, data: Dataset) -> None:
        """Work out what follows from the weights and the training data, before the model is looked at."""
        return

    @abstractmethod
    def loss(self, x: Tensor, cond: Tensor | None, seed: int) -> Tensor:
        """Return the training loss of each datum, (B,): a function of data, labels and seed alone."""


class FittedModel(Model):
    """A model that is fitted in closed form or by a few rounds over all data."""

    @abstractmethod
    def fit(self, data: Dataset, seed: int) -> Iterator[float]:
        """Fit and yield the mean cost of the data after each round, in nats for each dimension."""


@dataclass(frozen=True)
class PlanRequest:
    """What a family plans for: the training data, the budget, and what was asked for.

    wished: the family's own options that were given; training: further fields of the table [training] that were given;
    device: "cpu", "cuda" or "mps"; tell: is told of long work.
    """

    data: Dataset
    train: Dataset
    minutes: float | None = None
    steps: int | None = None
    seed: int = 0
    device: str = "cpu"
    requested: Mapping[str, Any] = field(default_factory=dict)
    training: Mapping[str, Any] = field(default_factory=dict)
    progress: OnProgress = silent


Settings = TypeVar("Settings", bound=FamilySettings)


@dataclass(frozen=True)
class FamilyPlan(Generic[Settings]):
    """A choice for everything, and why.  training: fields of the table [training]."""

    settings: Settings
    training: Mapping[str, Any]
    reasons: tuple[str, ...]


class Family(ABC, Generic[Settings]):
    """A kind of model: how it is planned and built, and what it can do.

    kinds: of data it takes; default_for: those for which it is chosen where no family is named; can: further abilities, by
    which verbs are refused or offered; options: those of sampling, with what each is when it is not given; likelihood: what
    `log_prob` is.
    """

    name: ClassVar[str]
    summary: ClassVar[str]
    kinds: ClassVar[tuple[Kind, ...]] = ("points", "images")
    default_for: ClassVar[frozenset[Kind]] = frozenset()
    can: ClassVar[frozenset[str]] = frozenset()
    options: ClassVar[Mapping[str, Any]] = {}
    likelihood: ClassVar[Likelihood] = "none"
    dequantises: ClassVar[bool] = True  # whether an exact likelihood of images is one of noise added to their levels
    settings: type[Settings]
    learns_by_steps: ClassVar[bool] = True  # and can be trained for longer; else it is fitted at once
    set_by_training: ClassVar[frozenset[str]] = frozenset()  # settings that cannot be asked for: they are found by training

    @property
    def option_names(self) -> tuple[str, ...]:
        """The names of the settings that can be asked for."""
        return tuple(name for name in self.settings.model_fields if name != "name" and name not in self.set_by_training)

    @property
    def graph(self) -> GraphicalModel:
        """Which variables of a datum depend on which."""
        return GRAPHICAL[self.name]

    def held_out_measure(self, settings: Settings) -> str:
        """Return what `held_out` measures where it has no unit: figures are comparable only where this is the same."""
        return f"loss of {self.name}"

    @abstractmethod
    def plan(self, request: PlanRequest) -> FamilyPlan[Settings]:
        """Choose settings for data and a budget; refuse what cannot be."""

    @abstractmethod
    def build(self, settings: Settings, shape: tuple[int, ...], labels: int, seed: int) -> Model:
        """Make the model that settings describe, with first weights drawn from the seed; refuse parts that do not fit."""

    def tensor_specs(self, settings: Settings, shape: tuple[int, ...], labels: int) -> dict[str, TensorSpec]:
        """Return the form of every tensor that the model has, without making any; refuse parts that do not fit."""
        with torch.device("meta"):
            return tensor_specs(self.build(settings, shape, labels, 0).state_dict())

    def check(self, requested: Mapping[str, Any]) -> None:
        """Refuse options that no data could make possible, before data are read."""
        if wrong := [key for key in requested if key not in self.option_names]:
            having = [name for name, other in FAMILIES.items() if wrong[0] in other.option_names]
            families = f"; families that have: {', '.join(having)}" if having else ""
            raise UserError(f"the family {self.name} has no option {wrong[0]!r}{families}")

    def network(self, form: Dataset, minutes: float | None, steps: int | None, requested: Mapping[str, Any]) -> Spec | None:
        """Return the network for data of a form, so that its memory can be foreseen; None where there is none."""
        return None

    def levels(self, form: Dataset, requested: Mapping[str, Any]) -> int:
        """Return of how many levels of each number a model for data of a form will keep the probability, at most."""
        return 0

    def batch(self, form: Dataset) -> int:
        """Return how many data a step takes when nothing is said."""
        return 64

    def matches(self, settings: Settings, key: str, value: Any, shape: tuple[int, ...], labels: int) -> bool:
        """Tell whether an option, as it was given, is what settings have already."""
        return bool(getattr(settings, key) == value)


FAMILIES: dict[str, Family[Any]] = {}  # filled by `reverie.families`, so that a refusal can name the others
