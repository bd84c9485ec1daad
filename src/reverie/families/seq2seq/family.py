"""Sequence-to-sequence models as families: default settings for pairs of texts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, TypeVar

from reverie.base.errors import UserError
from reverie.base.spec import Spec
from reverie.data.kind import Kind
from reverie.data.text_pairs import TextPairs
from reverie.families.language.settings import describe_tokenizer, same_tokenizer
from reverie.families.language.token_sampling import PAIR_OPTIONS
from reverie.families.model import Likelihood, Model, PlanRequest
from reverie.families.planned import PlannedFamily
from reverie.families.seq2seq.settings import (
    PairSettings,
    RecurrentPairSettings,
    TransformerPairSettings,
    build_pair_model,
)
from reverie.text.learn import learn_tokenizer
from reverie.text.tokenizer_table import TokenizerTable

EXAMPLES = 64  # stored sources of the training data
DROPOUT_PAIRS = 5_000  # training pairs below which dropout is used

Settings = TypeVar("Settings", bound=PairSettings)


class PairFamily(PlannedFamily[Settings]):
    """Families of text pairs."""

    kinds: ClassVar[tuple[Kind, ...]] = ("pairs",)
    likelihood: ClassVar[Likelihood] = "exact"
    dequantises: ClassVar[bool] = False
    options: ClassVar[Mapping[str, Any]] = PAIR_OPTIONS
    data_dependent: ClassVar[frozenset[str]] = frozenset({"tokenizer"})
    set_by_training: ClassVar[frozenset[str]] = frozenset({"examples"})
    training_defaults: ClassVar[Mapping[str, Any]] = {"batch": 64, "learning_rate": 1e-2, "optimizer": "muon"}

    def default_settings(self, request: PlanRequest, codec: Spec) -> dict[str, Any]:
        """Train the tokenizer; use dropout for few pairs, which would otherwise be memorized."""
        x = request.train.x
        if not isinstance(x, TextPairs):
            raise UserError(f"the family {self.name} needs pairs of texts, and {request.train.name} has {request.train.kind}")
        request.progress("training tokenizer", 0, 1)
        tokenizer = learn_tokenizer(
            [text for pair in x.pairs() for text in pair], request.requested.get("tokenizer") or "characters"
        )
        request.progress("training tokenizer", 1, 1)
        dropout = 0.1 if len(x) < DROPOUT_PAIRS else 0.0
        return {"tokenizer": TokenizerTable.of(tokenizer).model_dump(), "examples": min(EXAMPLES, len(x)), "dropout": dropout}

    def describe_settings(self, settings: Settings) -> str:
        """Return the settings as one line."""
        attention = f", {settings.attention} attention" if isinstance(settings, RecurrentPairSettings) else ""
        layers = f"{settings.layers} layer{'s' * (settings.layers != 1)}"
        return f"{self.name}: {layers} of width {settings.dim}{attention}, {describe_tokenizer(settings.tokenizer.build())}"

    def build(self, settings: Settings, shape: tuple[int, ...], labels: int, seed: int) -> Model:
        """Build the model."""
        return build_pair_model(settings, shape, seed)

    def matches(self, settings: Settings, key: str, value: Any, shape: tuple[int, ...], labels: int) -> bool:
        """Return whether a requested option equals the setting."""
        if key == "tokenizer":
            return same_tokenizer(settings.tokenizer, value)
        return super().matches(settings, key, value, shape, labels)


class RecurrentPairFamily(PairFamily[RecurrentPairSettings]):
    """LSTM encoders and decoders."""

    name = "seq2seq"
    default_for: ClassVar[frozenset[Kind]] = frozenset({"pairs"})
    summary = "An LSTM encoder and decoder (arXiv:1409.3215) with attention; exact likelihood."
    settings = RecurrentPairSettings


class TransformerPairFamily(PairFamily[TransformerPairSettings]):
    """Encoder-decoder transformers."""

    name = "transformer-seq2seq"
    summary = "An encoder-decoder transformer with cross-attention (arXiv:1706.03762); exact likelihood."
    settings = TransformerPairSettings
