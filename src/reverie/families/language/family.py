"""The smallest language models as families: pairs of tokens, and a network that sees the last few."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import torch

from reverie.base.errors import UserError
from reverie.data.kind import Kind
from reverie.families.language.bigram import Bigram
from reverie.families.language.neural import NeuralLanguageModel
from reverie.families.language.settings import (
    MOST_TABLE,
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
    """What families of texts alone share."""

    kinds: ClassVar[tuple[Kind, ...]] = ("text",)
    likelihood: ClassVar[Likelihood] = "exact"
    dequantises: ClassVar[bool] = False
    options: ClassVar[Mapping[str, Any]] = OPTIONS
    can: ClassVar[frozenset[str]] = frozenset()

    def matches(self, settings: Any, key: str, value: Any, shape: tuple[int, ...], labels: int) -> bool:
        """Tell whether an option, as it was given, is what settings have already."""
        if key == "tokenizer":
            return same_tokenizer(settings.tokenizer, value)
        return super().matches(settings, key, value, shape, labels)


class BigramFamily(LanguageFamily):
    """Pairs of tokens, counted."""

    name = "bigram"
    summary = "How often each token of a text follows each other one: the least language model to beat; exact likelihood."
    settings = BigramSettings
    learns_by_steps: ClassVar[bool] = False

    def plan(self, request: PlanRequest) -> FamilyPlan[BigramSettings]:
        """Learn the tokens."""
        tokenizer, found = train_tokenizer(request, request.requested.get("tokenizer"))
        if tokenizer.size > MOST_TABLE:
            raise UserError(
                f"the pairs of {tokenizer.size:,} tokens are too many to count; at most {MOST_TABLE:,} are possible"
            )
        settings = BigramSettings.model_validate(found)
        kept = {key: value for key, value in request.training.items() if key not in ("minutes", "steps")}
        said = f"{self.name}: pairs of {describe_tokenizer(tokenizer)}, counted"
        return FamilyPlan(settings, {**kept, "steps": 1, "batch": min(len(request.train), 10**6)}, (said,))

    def build(self, settings: BigramSettings, shape: tuple[int, ...], labels: int, seed: int) -> Model:
        """Make the model."""
        return Bigram(settings.tokenizer.build(), shape, settings.begins)


class FixedContextFamily(LanguageFamily, PlannedFamily[FixedContextSettings]):
    """A network that sees the last few tokens."""

    name = "mlp-lm"
    summary = "A dense network that sees the vectors of the last few tokens of a text (Bengio et al. 2003); exact likelihood."
    settings = FixedContextSettings
    data_dependent: ClassVar[frozenset[str]] = frozenset({"tokenizer"})
    training_defaults: ClassVar[Mapping[str, Any]] = {"batch": 16, "learning_rate": 3e-3}

    def default_settings(self, request: PlanRequest, codec: Mapping[str, Any]) -> dict[str, Any]:
        """Learn the tokens."""
        return train_tokenizer(request, request.requested.get("tokenizer"))[1]

    def describe_settings(self, settings: FixedContextSettings) -> str:
        """Say in one line what was chosen."""
        tokens = describe_tokenizer(settings.tokenizer.build())
        return (
            f"{self.name}: {settings.hidden} units that see {settings.context} of {tokens}, vectors of {settings.dim} numbers"
        )

    def build(self, settings: FixedContextSettings, shape: tuple[int, ...], labels: int, seed: int) -> Model:
        """Make the model, with weights drawn from the seed."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            net = FixedContext(settings.dim, settings.context, settings.hidden, settings.dropout)
            return NeuralLanguageModel(net, settings.tied, settings.tokenizer.build(), shape, None, settings.begins)
