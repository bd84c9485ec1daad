"""Settings of sequence-to-sequence models: the table [family] of config.toml."""

from __future__ import annotations

from typing import Annotated, Literal

import torch
from pydantic import Field

from reverie.families.model import FamilySettings
from reverie.families.seq2seq.model import SPARE, PairModel
from reverie.nets.attention import ScoreFunction
from reverie.nets.seq2seq import EncoderDecoder, RecurrentPair, TransformerPair
from reverie.text.tokenizer_table import TokenizerTable


class PairSettings(FamilySettings):
    """Size of the network, and a tokenizer trained on the training pairs.

    dropout: share of values dropped in training; tied: whether input and output embeddings are shared; examples: number of
    stored sources.
    """

    tokenizer: TokenizerTable
    dim: Annotated[int, Field(ge=4, le=8192)] = 128
    layers: Annotated[int, Field(ge=1, le=64)] = 1
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.0
    tied: bool = False
    examples: Annotated[int, Field(ge=1, le=4096)] = 1


class RecurrentPairSettings(PairSettings):
    """attention: score function of the decoder's attention, see `reverie.nets.attention.Alignment`; none: only final states."""

    name: Literal["seq2seq"] = "seq2seq"
    attention: ScoreFunction = "dot"


class TransformerPairSettings(PairSettings):
    """heads: of each attention; layers: of encoder and decoder each."""

    name: Literal["transformer-seq2seq"] = "transformer-seq2seq"
    dim: Annotated[int, Field(ge=4, le=8192)] = 64
    layers: Annotated[int, Field(ge=1, le=64)] = 2
    heads: Annotated[int, Field(ge=1, le=64)] = 4


def build_pair_model(settings: PairSettings, shape: tuple[int, ...], seed: int) -> PairModel:
    """Build the model with weights initialized from the seed."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        net: EncoderDecoder
        if isinstance(settings, TransformerPairSettings):
            net = TransformerPair(settings.dim, settings.layers, settings.heads, settings.dropout, 2 * shape[1] + SPARE)
        else:
            assert isinstance(settings, RecurrentPairSettings)
            net = RecurrentPair(settings.dim, settings.layers, settings.attention, settings.dropout)
        return PairModel(net, settings.tied, settings.tokenizer.build(), shape, settings.examples)
