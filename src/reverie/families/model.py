"""The family interface: what training, sampling, evaluation and run folders use of a model, whatever its family."""

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
    """Raise a UserError if a model trained with labels gets none.  cond: (count,) or None."""
    if labels and (cond is None or len(cond) != count):
        raise UserError(f"the model was trained with {labels} labels and needs one per sample")


class FamilySettings(ConfigSection):
    """The table [family] of config.toml: the family's name and its own options."""

    name: str

    @model_validator(mode="before")
    @classmethod
    def _wrap_single_values(cls, values: Any) -> Any:
        """Wrap a single value in a list where the field is a list."""
        if not isinstance(values, Mapping):
            return values
        types = {name: info.annotation for name, info in cls.model_fields.items()}
        return {key: as_list(types.get(key), value) for key, value in values.items()}

    @classmethod
    def read(cls, table: Mapping[str, Any]) -> Self:
        """Return the settings stored in a run folder; families fill in values that older versions did not record."""
        return cls.model_validate(table)


@dataclass(frozen=True)
class SamplingInputs:
    """Inputs of one sampling call.

    seeds: (B,) int64.  cond: (B,) labels, (B, K) for compositions of K labels, or None.  weights: of the composed labels.
    options: see `Family.options`.  classifier, weak, mean_error: return the run's noise-aware classifier, an earlier
    checkpoint, and the error curve of the estimates, or raise a UserError.
    """

    seeds: Tensor
    cond: Tensor | None = None
    weights: tuple[float, ...] = (1.0,)
    options: Mapping[str, Any] = field(default_factory=dict)
    classifier: Callable[[], Classifier] | None = None
    weak: Callable[[], Model] | None = None
    mean_error: Callable[[], ErrorCurve] | None = None


def check_one_label(inputs: SamplingInputs) -> None:
    """Raise a UserError for compositions of labels, which need guidance."""
    if inputs.weights != (1.0,) or (inputs.cond is not None and inputs.cond.ndim > 1):
        raise UserError("compositions of labels need guidance, which this family does not have; give one label")


class Model(nn.Module, ABC):
    """A generative model.  `encode` maps user units, [0, 1] for images, to model units."""

    shape: tuple[int, ...]  # of one datum, in user units

    def encode(self, x: Tensor) -> Tensor:
        """Return data in model units.  x: (B, ...) in user units."""
        return x

    def decode(self, z: Tensor) -> Tensor:
        """Return data in user units."""
        return z

    @property
    def device(self) -> torch.device:
        """The device of the parameters."""
        return device_of(self)

    @property
    def lossy(self) -> bool:
        """Whether decode(encode(x)) only approximates x."""
        return False

    @property
    def units(self) -> Units:
        """The units of displayed samples: model units, or image units for models of autoencoder codes."""
        return self

    def picture(self, z: Tensor) -> Tensor:
        """Return samples in the units of `units`."""
        return z

    @abstractmethod
    def frames(self, inputs: SamplingInputs) -> Iterator[Frame]:
        """Sample one datum per seed and yield intermediate states in model units; the last frame's x0 is the sample."""

    @abstractmethod
    def held_out_metrics(self, data: Dataset, seed: int) -> dict[str, Any]:
        """Return metrics on held-out data: `held_out`, lower is better, and further values to record."""

    def final_metrics(self, train: Dataset, seed: int) -> dict[str, Any]:
        """Return metrics that are computed once, at the end of training."""
        return {}

    def facts(self) -> dict[str, Any]:
        """Return values for `reverie inspect`."""
        return {"parameters": sum(t.numel() for t in self.state_dict().values())}

    def summary_line(self) -> str:
        """Return the size of the model as one line."""
        count = sum(t.numel() for t in self.state_dict().values())
        return f"model: {count:,} parameters"

    def warn(self) -> None:
        """Warn about settings that may give bad samples."""
        return

    @abstractmethod
    def log_prob(self, x: Tensor, cond: Tensor | None, seeds: Tensor) -> LogProb:
        """Return the log-probability of data in user units, in nats: exact or a bound, see `Family.likelihood`."""


class CompletionModel(ABC):
    """A model that samples unknown values given known ones, without a denoiser to guide."""

    @abstractmethod
    def completes_exactly(self, seen: Tensor) -> bool:
        """Return whether completions are exact samples of a conditional distribution.  seen: mask of one datum, bool."""

    @abstractmethod
    def completes_in_own_order(self, seen: Tensor) -> bool:
        """Return whether completions follow the joint of `log_prob`, not that of another order.  seen: mask, bool."""

    @abstractmethod
    def complete(
        self, inputs: SamplingInputs, truth: Tensor, seen: Tensor, log_prior: Tensor | None, note: Callable[[float], None]
    ) -> Iterator[Frame]:
        """Sample the unknown values, one datum per seed, and yield frames in model units.

        truth, seen: of one datum, in user units.  log_prior: (L,), of labels; labels are sampled too where `inputs` has none.
        note: called with the effective share of the particles, 1 for exact samples.
        """


class TrainedModel(Model):
    """A model trained by gradient descent on a loss."""

    def initialize(self, data: Dataset, deadline: Deadline | None = None) -> None:
        """Initialize weights that depend on the training data.  deadline: ends optional work."""
        return

    def set_progress(self, fraction: float) -> None:
        """Set the completed fraction of the training, 0 to 1, before each step."""
        return

    def finalize(self, data: Dataset) -> None:
        """Compute what depends on the trained weights and the training data, before the model is used."""
        return

    @abstractmethod
    def loss(self, x: Tensor, cond: Tensor | None, seed: int) -> Tensor:
        """Return the training loss of each datum, (B,): a function of data, labels and seed only."""


class FittedModel(Model):
    """A model fitted in closed form or by a few passes over all data."""

    @abstractmethod
    def fit(self, data: Dataset, seed: int) -> Iterator[float]:
        """Fit, and yield the mean negative log-likelihood after each pass, in nats per dimension."""


@dataclass(frozen=True)
class PlanRequest:
    """Inputs of a family's plan: data, budget and requested options.

    requested: options of the family; training: further fields of the table [training]; device: "cpu", "cuda" or "mps";
    progress: called during long work.
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
    """Settings for a training, with reasons.  training: fields of the table [training]."""

    settings: Settings
    training: Mapping[str, Any]
    reasons: tuple[str, ...]


class Family(ABC, Generic[Settings]):
    """A type of model: how to plan, build and use it.

    kinds: kinds of data it takes; default_for: kinds for which it is the default family; capabilities: names that
    commands require; options: of sampling, with defaults; likelihood: what `log_prob` returns.
    """

    name: ClassVar[str]
    summary: ClassVar[str]
    kinds: ClassVar[tuple[Kind, ...]] = ("points", "images")
    default_for: ClassVar[frozenset[Kind]] = frozenset()
    capabilities: ClassVar[frozenset[str]] = frozenset()
    options: ClassVar[Mapping[str, Any]] = {}
    likelihood: ClassVar[Likelihood] = "none"
    dequantises: ClassVar[bool] = True  # whether the exact likelihood of images is that of dequantised levels
    settings: type[Settings]
    learns_by_steps: ClassVar[bool] = True  # False: fitted at once, and cannot be trained longer
    set_by_training: ClassVar[frozenset[str]] = frozenset()  # settings that users cannot give

    @property
    def option_names(self) -> tuple[str, ...]:
        """The names of the settings that users can give."""
        return tuple(name for name in self.settings.model_fields if name != "name" and name not in self.set_by_training)

    @property
    def graph(self) -> GraphicalModel:
        """The dependencies between the variables of a datum."""
        return GRAPHICAL[self.name]

    def held_out_measure(self, settings: Settings) -> str:
        """Return what `held_out` measures if it has no unit; only values of equal measures are comparable."""
        return f"loss of {self.name}"

    @abstractmethod
    def plan(self, request: PlanRequest) -> FamilyPlan[Settings]:
        """Choose settings for data and budget; raise a UserError for impossible requests."""

    @abstractmethod
    def build(self, settings: Settings, shape: tuple[int, ...], labels: int, seed: int) -> Model:
        """Build the model with weights initialized from the seed; raise a UserError for incompatible settings."""

    def tensor_specs(self, settings: Settings, shape: tuple[int, ...], labels: int) -> dict[str, TensorSpec]:
        """Return dtype and shape of every tensor of the model without allocating any."""
        with torch.device("meta"):
            return tensor_specs(self.build(settings, shape, labels, 0).state_dict())

    def check(self, requested: Mapping[str, Any]) -> None:
        """Raise a UserError for options that are invalid for all data, before data are read."""
        if unknown := [key for key in requested if key not in self.option_names]:
            candidates = [name for name, other in FAMILIES.items() if unknown[0] in other.option_names]
            families = f"; families with this option: {', '.join(candidates)}" if candidates else ""
            raise UserError(f"the family {self.name} has no option {unknown[0]!r}{families}")

    def network(self, form: Dataset, minutes: float | None, steps: int | None, requested: Mapping[str, Any]) -> Spec | None:
        """Return the network for data of this form, to estimate memory; None for models without one."""
        return None

    def levels(self, form: Dataset, requested: Mapping[str, Any]) -> int:
        """Return the largest number of output levels per value for data of this form, 0 for continuous outputs."""
        return 0

    def batch(self, form: Dataset) -> int:
        """Return the default batch size."""
        return 64

    def matches(self, settings: Settings, key: str, value: Any, shape: tuple[int, ...], labels: int) -> bool:
        """Return whether a requested option equals the setting."""
        return bool(getattr(settings, key) == value)


FAMILIES: dict[str, Family[Any]] = {}  # filled by `reverie.families`
