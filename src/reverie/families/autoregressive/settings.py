"""Settings of autoregressive models: the table [family] of config.toml."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import torch
from pydantic import Field, model_validator

from reverie.base.spec import Spec, build, spec_of
from reverie.data.codec import CODECS
from reverie.families.autoregressive.dense import FVSBN, NADE
from reverie.families.autoregressive.model import Autoregressive
from reverie.families.autoregressive.sequence import SequenceModel
from reverie.families.language.neural import NeuralLanguageModel
from reverie.families.model import FamilySettings
from reverie.families.vae.observation import OBSERVATIONS
from reverie.nets.sequence import LSTM, RNN, Decoder, SequenceNet
from reverie.text.tokenizer_table import TokenizerTable

Size = Annotated[int, Field(ge=1, le=8192)]
Layers = Annotated[int, Field(ge=1, le=64)]


class AutoregressiveSettings(FamilySettings):
    """Codec of the data, and decoder: the distribution of each value, see `reverie.families.vae.observation`."""

    codec: Annotated[Spec, spec_of(CODECS, "codec")] | None = None
    decoder: Literal["bernoulli", "categorical", "logistic", "gaussian"] | None = None

    @property
    def is_text(self) -> bool:
        """Whether the data are texts."""
        return False

    @model_validator(mode="after")
    def _check_codec(self) -> AutoregressiveSettings:
        if (self.codec is None) != self.is_text or (self.decoder is None) != self.is_text:
            raise ValueError("numeric data need codec and decoder, text needs a tokenizer and neither of them")
        return self


class FVSBNSettings(AutoregressiveSettings):
    """A fully visible sigmoid belief network."""

    name: Literal["fvsbn"] = "fvsbn"


class NADESettings(AutoregressiveSettings):
    """See `reverie.families.autoregressive.dense`; features: inputs per level, 0 for one-hot up to 64 levels."""

    name: Literal["nade"] = "nade"
    hidden: Size = 500
    orderless: bool = False
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.0
    features: Annotated[int, Field(ge=0, le=256)] = 0


class SequenceSettings(AutoregressiveSettings):
    """Size of a sequence network; dropout: share of values dropped in training.

    For text: tokenizer, begins: see `reverie.families.language.settings`; tied: whether input and output embeddings are shared.
    """

    dim: Size = 128
    layers: Layers = 1
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.0
    tokenizer: TokenizerTable | None = None
    begins: bool = False
    tied: bool = False

    @property
    def is_text(self) -> bool:
        """Whether the data are texts."""
        return self.tokenizer is not None


class RecurrentSettings(SequenceSettings):
    """Settings of a recurrent network.  truncate: length of truncated backpropagation in values, 0 for no truncation."""

    truncate: Annotated[int, Field(ge=0, le=2**20)] = 0


class RNNSettings(RecurrentSettings):
    """A recurrent network."""

    name: Literal["rnn"] = "rnn"


class LSTMSettings(RecurrentSettings):
    """A long short-term memory network."""

    name: Literal["lstm"] = "lstm"


class TransformerSettings(SequenceSettings):
    """See `reverie.nets.sequence.Decoder`; context: length of the attention window for text, in tokens."""

    name: Literal["transformer"] = "transformer"
    layers: Layers = 4
    heads: Annotated[int, Field(ge=1, le=64)] = 4
    positions: Literal["learned", "rotary", "sinusoidal", "none"] = "learned"
    norm: Literal["pre", "post"] = "pre"
    context: Annotated[int, Field(ge=2, le=2**20)] = 1024


def sequence_net(settings: SequenceSettings, length: int) -> SequenceNet:
    """Build the network for sequences of a length."""
    size = settings.dim, settings.layers
    if isinstance(settings, TransformerSettings):
        return Decoder(*size, settings.heads, settings.positions, length, settings.norm, settings.dropout)
    return (RNN if isinstance(settings, RNNSettings) else LSTM)(*size, settings.dropout)


def build_autoregressive(settings: AutoregressiveSettings, shape: tuple[int, ...], labels: int, seed: int) -> Autoregressive:
    """Build the model with weights initialized from the seed."""
    assert settings.codec is not None and settings.decoder is not None
    codec = build(CODECS, settings.codec, "codec")
    observation = OBSERVATIONS[settings.decoder](codec.levels)
    options: dict[str, Any] = {"observation": observation, "codec": codec, "shape": shape, "labels": labels}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        if isinstance(settings, NADESettings):
            return NADE(settings.hidden, settings.orderless, settings.dropout, settings.features, **options)
        if isinstance(settings, SequenceSettings):
            truncate = settings.truncate if isinstance(settings, RecurrentSettings) else 0
            return SequenceModel(sequence_net(settings, torch.Size(shape).numel()), truncate, **options)
        return FVSBN(**options)


def build_language(settings: SequenceSettings, shape: tuple[int, ...], seed: int) -> NeuralLanguageModel:
    """Build the language model with weights initialized from the seed."""
    assert settings.tokenizer is not None
    limit = settings.context if isinstance(settings, TransformerSettings) else None
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        net = sequence_net(settings, limit or 1)
        return NeuralLanguageModel(net, settings.tied, settings.tokenizer.build(), shape, limit, settings.begins)
