"""Autoregressive models as families: default settings and capabilities."""

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

MAX_RATE_TIMES_STEPS = 1.5  # learning rate times steps, at most, for small datasets

Settings = TypeVar("Settings", bound=AutoregressiveSettings)
Sequential = TypeVar("Sequential", bound=SequenceSettings)


class AutoregressiveFamily(PlannedFamily[Settings]):
    """A family of models that generate a datum value by value."""

    capabilities: ClassVar[frozenset[str]] = frozenset({"labels", "inpaint"})
    kinds: ClassVar[tuple[Kind, ...]] = ("images",)
    likelihood: ClassVar[Likelihood] = "exact"
    dequantises: ClassVar[bool] = False

    def default_settings(self, request: PlanRequest, codec: Spec) -> dict[str, Any]:
        """Return codec and distribution of the values."""
        return {"codec": codec, "decoder": decoder_for(codec)}

    def build(self, settings: Settings, shape: tuple[int, ...], labels: int, seed: int) -> Model:
        """Build the model."""
        return build_autoregressive(settings, shape, labels, seed)


class FVSBNFamily(AutoregressiveFamily[FVSBNSettings]):
    """Fully visible sigmoid belief networks."""

    name = "fvsbn"
    summary = (
        "A fully visible sigmoid belief network (Frey 1998): logistic regression of pixels on earlier ones; exact likelihood."
    )
    settings = FVSBNSettings
    training_defaults: ClassVar[Mapping[str, Any]] = {"batch": 100, "learning_rate": 1e-3}

    def describe_settings(self, settings: FVSBNSettings) -> str:
        """Return the settings as one line."""
        return f"{self.name}: {settings.decoder} regression of each value on all before it"


class NADEFamily(AutoregressiveFamily[NADESettings]):
    """Neural autoregressive distribution estimators."""

    name = "nade"
    summary = "NADE (arXiv:1605.02226): hidden units with shared weights for each pixel; exact likelihood, in one or any order."
    settings = NADESettings
    training_defaults: ClassVar[Mapping[str, Any]] = {"batch": 50, "learning_rate": 3e-3}

    def default_settings(self, request: PlanRequest, codec: Spec) -> dict[str, Any]:
        """Use dropout and few input features for small datasets, which would otherwise be memorized."""
        return {
            **super().default_settings(request, codec),
            **({"dropout": 0.5, "features": 6} if is_small_dataset(request) else {}),
        }

    def training(self, request: PlanRequest, settings: NADESettings) -> Mapping[str, Any]:
        """Lower the learning rate for small datasets."""
        small = (
            {"learning_rate": small_data_learning_rate(request, 1e-3, MAX_RATE_TIMES_STEPS)}
            if is_small_dataset(request)
            else {}
        )
        return {**self.training_defaults, **small}

    def describe_settings(self, settings: NADESettings) -> str:
        """Return the settings as one line."""
        order = "any order" if settings.orderless else "one order"
        return f"{self.name}: {settings.hidden} hidden units, {settings.decoder} outputs, {order}"


class SequenceFamily(AutoregressiveFamily[Sequential]):
    """A family of sequence networks over values or text tokens.

    text_settings, text_training: settings and fields of the table [training] for text, from measurements (docs/benchmarks.md).
    """

    kinds: ClassVar[tuple[Kind, ...]] = ("series", "images", "text")
    options: ClassVar[Mapping[str, Any]] = OPTIONS
    data_dependent: ClassVar[frozenset[str]] = frozenset({"tokenizer"})
    text_settings: ClassVar[Mapping[str, Any]]
    text_training: ClassVar[Mapping[str, Any]]

    def default_settings(self, request: PlanRequest, codec: Spec) -> dict[str, Any]:
        """Use dropout for small datasets, which would otherwise be memorized; for text, train the tokenizer."""
        tokenizer = request.requested.get("tokenizer")
        if request.train.kind == "text":
            return {**self.text_settings, **train_tokenizer(request, tokenizer)[1]}
        if tokenizer is not None:
            raise UserError(f"--tokenizer needs text, and {request.train.name} has {request.train.kind}; leave it out")
        return {**super().default_settings(request, codec), "dropout": 0.15 if is_small_dataset(request) else 0.0}

    def training(self, request: PlanRequest, settings: Sequential) -> Mapping[str, Any]:
        """Return default fields of the table [training] for the data."""
        return self.text_training if settings.is_text else self.training_defaults

    def batch(self, form: Dataset) -> int:
        """Return the default batch size."""
        return int((self.text_training if form.kind == "text" else self.training_defaults)["batch"])

    def build(self, settings: Sequential, shape: tuple[int, ...], labels: int, seed: int) -> Model:
        """Build the model."""
        return build_language(settings, shape, seed) if settings.is_text else super().build(settings, shape, labels, seed)

    def matches(self, settings: Sequential, key: str, value: Any, shape: tuple[int, ...], labels: int) -> bool:
        """Return whether a requested option equals the setting."""
        if key == "tokenizer":
            return settings.tokenizer is not None and same_tokenizer(settings.tokenizer, value)
        return super().matches(settings, key, value, shape, labels)

    def describe_settings(self, settings: Sequential) -> str:
        """Return the settings as one line."""
        network = f"{self.name}: {settings.layers} layers of width {settings.dim}"
        if settings.tokenizer is not None:
            return f"{network}, {describe_tokenizer(settings.tokenizer.build())}"
        return f"{network}, {settings.decoder} outputs"


class RNNFamily(SequenceFamily[RNNSettings]):
    """Recurrent networks."""

    name = "rnn"
    summary = "A recurrent network over pixels or text (Elman 1990); its gradients vanish over time, see `gallery gradients`."
    settings = RNNSettings
    text_settings: ClassVar[Mapping[str, Any]] = {"dim": 256}
    text_training: ClassVar[Mapping[str, Any]] = {"batch": 16, "learning_rate": 3e-3, "optimizer": "muon"}


class LSTMFamily(SequenceFamily[LSTMSettings]):
    """Long short-term memory networks."""

    name = "lstm"
    summary = "A long short-term memory over pixels or text (Hochreiter and Schmidhuber 1997); its gates preserve gradients."
    settings = LSTMSettings
    text_settings: ClassVar[Mapping[str, Any]] = {"dim": 256}
    text_training: ClassVar[Mapping[str, Any]] = {"batch": 16, "learning_rate": 1e-2, "optimizer": "muon"}


class TransformerFamily(SequenceFamily[TransformerSettings]):
    """Decoder-only transformers."""

    name = "transformer"
    default_for: ClassVar[frozenset[Kind]] = frozenset({"text"})
    summary = "A decoder-only transformer over pixels or text (arXiv:1706.03762) with a key-value cache; exact likelihood."
    settings = TransformerSettings
    text_settings: ClassVar[Mapping[str, Any]] = {"dim": 128, "layers": 4, "positions": "rotary"}
    text_training: ClassVar[Mapping[str, Any]] = {"batch": 8, "learning_rate": 1e-2, "optimizer": "muon"}

    def default_settings(self, request: PlanRequest, codec: Spec) -> dict[str, Any]:
        """Return codec and a network for the length of the sequences."""
        if request.train.kind == "text":
            return {**super().default_settings(request, codec), "context": request.train.shape[0]}
        small = math.prod(request.train.shape) <= 256
        return {
            **super().default_settings(request, codec),
            **({"dim": 64, "layers": 3} if small else {"dim": 128, "layers": 4}),
        }
