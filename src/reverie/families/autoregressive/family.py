"""Autoregressive models as families: what is planned for data and a budget, and what they can do."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar, TypeVar

from reverie.base.errors import UserError
from reverie.base.spec import Spec
from reverie.data import Dataset
from reverie.data.kind import Kind
from reverie.families.autoregressive.settings import (
    AutoregressiveSettings,
    FVSBNSettings,
    LSTMSettings,
    NADESettings,
    RNNSettings,
    SequenceSettings,
    TransformerSettings,
    build_autoregressive,
    build_language,
)
from reverie.families.language.settings import describe_tokenizer, same_tokenizer, train_tokenizer
from reverie.families.language.token_sampling import OPTIONS
from reverie.families.model import Likelihood, Model, PlanRequest
from reverie.families.planned import PlannedFamily, decoder_for, is_small_dataset, small_data_learning_rate

FARTHEST = 1.5  # learning rate times steps, at most, where data are few

Settings = TypeVar("Settings", bound=AutoregressiveSettings)
Sequential = TypeVar("Sequential", bound=SequenceSettings)


class AutoregressiveFamily(PlannedFamily[Settings]):
    """A family whose models write a datum number by number."""

    can: ClassVar[frozenset[str]] = frozenset({"labels", "inpaint"})
    kinds: ClassVar[tuple[Kind, ...]] = ("images",)
    likelihood: ClassVar[Likelihood] = "exact"
    dequantises: ClassVar[bool] = False

    def default_settings(self, request: PlanRequest, codec: Spec) -> dict[str, Any]:
        """Return units, and the distribution of each number for them."""
        return {"codec": codec, "decoder": decoder_for(codec)}

    def build(self, settings: Settings, shape: tuple[int, ...], labels: int, seed: int) -> Model:
        """Make the model."""
        return build_autoregressive(settings, shape, labels, seed)


class FVSBNFamily(AutoregressiveFamily[FVSBNSettings]):
    """Fully visible sigmoid belief networks."""

    name = "fvsbn"
    summary = "A fully visible sigmoid belief network: logistic regression of each pixel on all before it; exact likelihood."
    settings = FVSBNSettings
    training_defaults: ClassVar[Mapping[str, Any]] = {"batch": 100, "learning_rate": 1e-3}

    def describe_settings(self, settings: FVSBNSettings) -> str:
        """Say in one line what was chosen."""
        return f"{self.name}: {settings.decoder} regression of each number on all before it"


class NADEFamily(AutoregressiveFamily[NADESettings]):
    """Neural autoregressive distribution estimators."""

    name = "nade"
    summary = "NADE (arXiv:1605.02226): hidden units with shared weights before each pixel; exact likelihood, any or one order."
    settings = NADESettings
    training_defaults: ClassVar[Mapping[str, Any]] = {"batch": 50, "learning_rate": 3e-3}

    def default_settings(self, request: PlanRequest, codec: Spec) -> dict[str, Any]:
        """Hide half of the hidden units, and tell of a level by few numbers, where data would else be learned by heart."""
        return {
            **super().default_settings(request, codec),
            **({"dropout": 0.5, "features": 6} if is_small_dataset(request) else {}),
        }

    def training(self, request: PlanRequest, settings: NADESettings) -> Mapping[str, Any]:
        """Learn slowly where data are few."""
        few = {"learning_rate": small_data_learning_rate(request, 1e-3, FARTHEST)} if is_small_dataset(request) else {}
        return {**self.training_defaults, **few}

    def describe_settings(self, settings: NADESettings) -> str:
        """Say in one line what was chosen."""
        order = "any order" if settings.orderless else "one order"
        return f"{self.name}: {settings.hidden} hidden units, {settings.decoder} numbers, {order}"


class SequenceFamily(AutoregressiveFamily[Sequential]):
    """A family whose models are sequence networks: of numbers, or of the tokens of a text.

    of_text, text_training: settings and fields of the table [training] for texts, by measurement (docs/benchmarks.md).
    """

    kinds: ClassVar[tuple[Kind, ...]] = ("series", "images", "text")
    options: ClassVar[Mapping[str, Any]] = OPTIONS
    data_dependent: ClassVar[frozenset[str]] = frozenset({"tokenizer"})
    of_text: ClassVar[Mapping[str, Any]]
    text_training: ClassVar[Mapping[str, Any]]

    def default_settings(self, request: PlanRequest, codec: Spec) -> dict[str, Any]:
        """Hide some numbers where data are few, which would else be learned by heart; of text, learn the tokens."""
        asked = request.requested.get("tokenizer")
        if request.train.kind == "text":
            return {**self.of_text, **train_tokenizer(request, asked)[1]}
        if asked is not None:
            raise UserError(f"{request.train.name} holds {request.train.kind}, and --tokenizer is for text; leave it out")
        return {**super().default_settings(request, codec), "dropout": 0.15 if is_small_dataset(request) else 0.0}

    def training(self, request: PlanRequest, settings: Sequential) -> Mapping[str, Any]:
        """Return fields of the table [training] for data, where nothing else is asked for."""
        return self.text_training if settings.of_text else self.training_defaults

    def batch(self, form: Dataset) -> int:
        """Return how many data a step takes when nothing is said."""
        return int((self.text_training if form.kind == "text" else self.training_defaults)["batch"])

    def build(self, settings: Sequential, shape: tuple[int, ...], labels: int, seed: int) -> Model:
        """Make the model."""
        return build_language(settings, shape, seed) if settings.of_text else super().build(settings, shape, labels, seed)

    def matches(self, settings: Sequential, key: str, value: Any, shape: tuple[int, ...], labels: int) -> bool:
        """Tell whether an option, as it was given, is what settings have already."""
        if key == "tokenizer":
            return settings.tokenizer is not None and same_tokenizer(settings.tokenizer, value)
        return super().matches(settings, key, value, shape, labels)

    def describe_settings(self, settings: Sequential) -> str:
        """Say in one line what was chosen."""
        network = f"{self.name}: {settings.layers} layers of width {settings.dim}"
        if settings.tokenizer is not None:
            return f"{network}, {describe_tokenizer(settings.tokenizer.build())}"
        return f"{network}, {settings.decoder} outputs"


class RNNFamily(SequenceFamily[RNNSettings]):
    """Recurrent networks."""

    name = "rnn"
    summary = "A recurrent network over pixels or text, one at a time; its gradients vanish over time, see `gallery gradients`."
    settings = RNNSettings
    of_text: ClassVar[Mapping[str, Any]] = {"dim": 256}
    text_training: ClassVar[Mapping[str, Any]] = {"batch": 16, "learning_rate": 3e-3, "optimizer": "muon"}


class LSTMFamily(SequenceFamily[LSTMSettings]):
    """Recurrent networks with gates."""

    name = "lstm"
    summary = "A long short-term memory over pixels or text (Hochreiter and Schmidhuber 1997): gates let gradients last."
    settings = LSTMSettings
    of_text: ClassVar[Mapping[str, Any]] = {"dim": 256}
    text_training: ClassVar[Mapping[str, Any]] = {"batch": 16, "learning_rate": 1e-2, "optimizer": "muon"}


class TransformerFamily(SequenceFamily[TransformerSettings]):
    """Decoder-only transformers."""

    name = "transformer"
    default_for: ClassVar[frozenset[Kind]] = frozenset({"text"})
    summary = (
        "A decoder-only transformer over pixels or text (arXiv:1706.03762), with cached keys when it draws; exact likelihood."
    )
    settings = TransformerSettings
    of_text: ClassVar[Mapping[str, Any]] = {"dim": 128, "layers": 4, "positions": "rotary"}
    text_training: ClassVar[Mapping[str, Any]] = {"batch": 8, "learning_rate": 1e-2, "optimizer": "muon"}

    def default_settings(self, request: PlanRequest, codec: Spec) -> dict[str, Any]:
        """Return units and a network that fits the length of the sequences."""
        if request.train.kind == "text":
            return {**super().default_settings(request, codec), "context": request.train.shape[0]}
        small = math.prod(request.train.shape) <= 256
        return {
            **super().default_settings(request, codec),
            **({"dim": 64, "layers": 3} if small else {"dim": 128, "layers": 4}),
        }
