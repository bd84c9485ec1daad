"""Models of answers as families: what is planned for pairs of texts, and what they can do."""

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

EXAMPLES = 64  # sources of the training data that a model keeps
FEW = 5_000  # training pairs, below which some numbers are hidden

Settings = TypeVar("Settings", bound=PairSettings)


class PairFamily(PlannedFamily[Settings]):
    """What families of pairs share."""

    kinds: ClassVar[tuple[Kind, ...]] = ("pairs",)
    likelihood: ClassVar[Likelihood] = "exact"
    dequantises: ClassVar[bool] = False
    options: ClassVar[Mapping[str, Any]] = PAIR_OPTIONS
    data_dependent: ClassVar[frozenset[str]] = frozenset({"tokenizer"})
    set_by_training: ClassVar[frozenset[str]] = frozenset({"examples"})
    training_defaults: ClassVar[Mapping[str, Any]] = {"batch": 64, "learning_rate": 1e-2, "optimizer": "muon"}

    def default_settings(self, request: PlanRequest, codec: Spec) -> dict[str, Any]:
        """Learn the tokens, and hide some numbers where pairs are few, which would else be learned by heart."""
        x = request.train.x
        if not isinstance(x, TextPairs):
            raise UserError(f"{request.train.name} holds {request.train.kind}, and the family {self.name} takes pairs of texts")
        request.progress("learning tokens", 0, 1)
        tokenizer = learn_tokenizer(
            [text for pair in x.pairs() for text in pair], request.requested.get("tokenizer") or "characters"
        )
        request.progress("learning tokens", 1, 1)
        dropout = 0.1 if len(x) < FEW else 0.0
        return {"tokenizer": TokenizerTable.of(tokenizer).model_dump(), "examples": min(EXAMPLES, len(x)), "dropout": dropout}

    def describe_settings(self, settings: Settings) -> str:
        """Say in one line what was chosen."""
        seen = f", {settings.attention} attention" if isinstance(settings, RecurrentPairSettings) else ""
        layers = f"{settings.layers} layer{'s' * (settings.layers != 1)}"
        return f"{self.name}: {layers} of width {settings.dim}{seen}, {describe_tokenizer(settings.tokenizer.build())}"

    def build(self, settings: Settings, shape: tuple[int, ...], labels: int, seed: int) -> Model:
        """Make the model."""
        return build_pair_model(settings, shape, seed)

    def matches(self, settings: Settings, key: str, value: Any, shape: tuple[int, ...], labels: int) -> bool:
        """Tell whether an option, as it was given, is what settings have already."""
        if key == "tokenizer":
            return same_tokenizer(settings.tokenizer, value)
        return super().matches(settings, key, value, shape, labels)


class RecurrentPairFamily(PairFamily[RecurrentPairSettings]):
    """LSTM encoders and decoders."""

    name = "seq2seq"
    default_for: ClassVar[frozenset[Kind]] = frozenset({"pairs"})
    summary = "An LSTM that reads a source and one that writes its target (arXiv:1409.3215), with attention; exact likelihood."
    settings = RecurrentPairSettings


class TransformerPairFamily(PairFamily[TransformerPairSettings]):
    """Transformers with an encoder and a decoder."""

    name = "transformer-seq2seq"
    summary = "A transformer that reads a source and writes its target by cross-attention (arXiv:1706.03762); exact likelihood."
    settings = TransformerPairSettings
