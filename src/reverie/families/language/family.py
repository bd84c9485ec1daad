"""Small language models as families: a bigram table, and an MLP over the last few tokens."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import torch

from reverie.base.errors import UserError
from reverie.data.kind import Kind
from reverie.families.language.bigram import Bigram
from reverie.families.language.neural import NeuralLanguageModel
from reverie.families.language.settings import (
    MAX_TABLE,
    BigramSettings,
    FixedContextSettings,
    describe_tokenizer,
    same_tokenizer,
    train_tokenizer,
)
from reverie.families.language.token_sampling import OPTIONS
from reverie.families.model import Family, FamilyPlan, Likelihood, Model, PlanRequest
from reverie.families.planned import PlannedFamily
from reverie.nets.sequence import FixedContext


class LanguageFamily(Family[Any]):
    """Families of text only."""

    kinds: ClassVar[tuple[Kind, ...]] = ("text",)
    likelihood: ClassVar[Likelihood] = "exact"
    dequantises: ClassVar[bool] = False
    options: ClassVar[Mapping[str, Any]] = OPTIONS
    capabilities: ClassVar[frozenset[str]] = frozenset()

    def matches(self, settings: Any, key: str, value: Any, shape: tuple[int, ...], labels: int) -> bool:
        """Return whether a requested option equals the setting."""
        if key == "tokenizer":
            return same_tokenizer(settings.tokenizer, value)
        return super().matches(settings, key, value, shape, labels)


class BigramFamily(LanguageFamily):
    """Bigram tables."""

    name = "bigram"
    summary = "A bigram table (Shannon 1948), the simplest baseline for text; exact likelihood."
    settings = BigramSettings
    learns_by_steps: ClassVar[bool] = False

    def plan(self, request: PlanRequest) -> FamilyPlan[BigramSettings]:
        """Train the tokenizer."""
        tokenizer, settings_table = train_tokenizer(request, request.requested.get("tokenizer"))
        if tokenizer.size > MAX_TABLE:
            raise UserError(
                f"too many tokens for a table of pairs: {tokenizer.size:,}, limit {MAX_TABLE:,}; give a smaller --tokenizer"
            )
        settings = BigramSettings.model_validate(settings_table)
        training = {key: value for key, value in request.training.items() if key not in ("minutes", "steps")}
        reason = f"{self.name}: table of pairs of {describe_tokenizer(tokenizer)}"
        return FamilyPlan(settings, {**training, "steps": 1, "batch": min(len(request.train), 10**6)}, (reason,))

    def build(self, settings: BigramSettings, shape: tuple[int, ...], labels: int, seed: int) -> Model:
        """Build the model."""
        return Bigram(settings.tokenizer.build(), shape, settings.begins)


class FixedContextFamily(LanguageFamily, PlannedFamily[FixedContextSettings]):
    """MLPs over the last few tokens."""

    name = "mlp-lm"
    summary = "An MLP over the embeddings of the last few tokens of a text (Bengio et al. 2003); exact likelihood."
    settings = FixedContextSettings
    data_dependent: ClassVar[frozenset[str]] = frozenset({"tokenizer"})
    training_defaults: ClassVar[Mapping[str, Any]] = {"batch": 16, "learning_rate": 3e-3}

    def default_settings(self, request: PlanRequest, codec: Mapping[str, Any]) -> dict[str, Any]:
        """Train the tokenizer."""
        return train_tokenizer(request, request.requested.get("tokenizer"))[1]

    def describe_settings(self, settings: FixedContextSettings) -> str:
        """Return the settings as one line."""
        tokens = describe_tokenizer(settings.tokenizer.build())
        context = f"context {settings.context} of {tokens}"
        return f"{self.name}: {settings.hidden} hidden units, {context}, embedding width {settings.dim}"

    def build(self, settings: FixedContextSettings, shape: tuple[int, ...], labels: int, seed: int) -> Model:
        """Build the model with weights initialized from the seed."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            net = FixedContext(settings.dim, settings.context, settings.hidden, settings.dropout)
            return NeuralLanguageModel(net, settings.tied, settings.tokenizer.build(), shape, None, settings.begins)
