"""Autoregressive models as families: what is planned for data and a budget, and what they can do."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar, TypeVar

from reverie.base.spec import Spec
from reverie.data.kind import Kind
from reverie.families.autoregressive.model import Autoregressive
from reverie.families.autoregressive.settings import (
    AutoregressiveSettings,
    FVSBNSettings,
    LSTMSettings,
    NADESettings,
    RNNSettings,
    SequenceSettings,
    TransformerSettings,
    build_autoregressive,
)
from reverie.families.model import Likelihood, PlanRequest
from reverie.families.planned import PlannedFamily, decoder_for, few_data, rate_for_few

FARTHEST = 1.5  # learning rate times steps, at most, where data are few

Settings = TypeVar("Settings", bound=AutoregressiveSettings)
Sequential = TypeVar("Sequential", bound=SequenceSettings)


class AutoregressiveFamily(PlannedFamily[Settings]):
    """A family whose models write a datum number by number."""

    can: ClassVar[frozenset[str]] = frozenset({"labels", "inpaint"})
    kinds: ClassVar[tuple[Kind, ...]] = ("images",)
    likelihood: ClassVar[Likelihood] = "exact"
    dequantises: ClassVar[bool] = False

    def chosen(self, request: PlanRequest, codec: Spec) -> dict[str, Any]:
        """Return units, and the distribution of each number for them."""
        return {"codec": codec, "decoder": decoder_for(codec)}

    def build(self, settings: Settings, shape: tuple[int, ...], labels: int, seed: int) -> Autoregressive:
        """Make the model."""
        return build_autoregressive(settings, shape, labels, seed)


class FVSBNFamily(AutoregressiveFamily[FVSBNSettings]):
    """Fully visible sigmoid belief networks."""

    name = "fvsbn"
    summary = "A fully visible sigmoid belief network: logistic regression of each pixel on all before it; exact likelihood."
    settings = FVSBNSettings
    usual: ClassVar[Mapping[str, Any]] = {"batch": 100, "learning_rate": 1e-3}

    def reason(self, settings: FVSBNSettings) -> str:
        """Say in one line what was chosen."""
        return f"{self.name}: {settings.decoder} regression of each number on all before it"


class NADEFamily(AutoregressiveFamily[NADESettings]):
    """Neural autoregressive distribution estimators."""

    name = "nade"
    summary = "NADE (arXiv:1605.02226): hidden units with shared weights before each pixel; exact likelihood, any or one order."
    settings = NADESettings
    usual: ClassVar[Mapping[str, Any]] = {"batch": 50, "learning_rate": 3e-3}

    def chosen(self, request: PlanRequest, codec: Spec) -> dict[str, Any]:
        """Hide half of the hidden units, and tell of a level by few numbers, where data would else be learned by heart."""
        return {**super().chosen(request, codec), **({"dropout": 0.5, "features": 6} if few_data(request) else {})}

    def training(self, request: PlanRequest, settings: NADESettings) -> Mapping[str, Any]:
        """Learn slowly where data are few."""
        few = {"learning_rate": rate_for_few(request, 1e-3, FARTHEST)} if few_data(request) else {}
        return {**self.usual, **few}

    def reason(self, settings: NADESettings) -> str:
        """Say in one line what was chosen."""
        order = "any order" if settings.orderless else "one order"
        return f"{self.name}: {settings.hidden} hidden units, {settings.decoder} numbers, {order}"


class SequenceFamily(AutoregressiveFamily[Sequential]):
    """A family whose models are sequence networks."""

    kinds: ClassVar[tuple[Kind, ...]] = ("series", "images")

    def chosen(self, request: PlanRequest, codec: Spec) -> dict[str, Any]:
        """Hide some numbers where data are few, which would else be learned by heart."""
        return {**super().chosen(request, codec), "dropout": 0.15 if few_data(request) else 0.0}

    def reason(self, settings: Sequential) -> str:
        """Say in one line what was chosen."""
        return f"{self.name}: {settings.layers} layers of width {settings.dim}, {settings.decoder} numbers"


class RNNFamily(SequenceFamily[RNNSettings]):
    """Recurrent networks."""

    name = "rnn"
    summary = "A recurrent network over pixels, a number at a time; its gradients vanish over time, see `gallery gradients`."
    settings = RNNSettings


class LSTMFamily(SequenceFamily[LSTMSettings]):
    """Recurrent networks with gates."""

    name = "lstm"
    summary = "A long short-term memory over pixels (Hochreiter and Schmidhuber 1997): gates let gradients last."
    settings = LSTMSettings


class TransformerFamily(SequenceFamily[TransformerSettings]):
    """Decoder-only transformers."""

    name = "transformer"
    summary = "A decoder-only transformer over pixels (arXiv:1706.03762), with cached keys when it draws; exact likelihood."
    settings = TransformerSettings

    def chosen(self, request: PlanRequest, codec: Spec) -> dict[str, Any]:
        """Return units and a network that fits the length of the sequences."""
        small = math.prod(request.train.shape) <= 256
        return {**super().chosen(request, codec), **({"dim": 64, "layers": 3} if small else {"dim": 128, "layers": 4})}
