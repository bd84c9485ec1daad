"""A tokenizer as a table of config.toml."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from reverie.base.section import Section
from reverie.text.merges import LONGEST, BytePairTokenizer, PairTokenizer
from reverie.text.tokenizer import MOST_ALPHABET, MOST_SIZE, ByteTokenizer, CharacterTokenizer, Tokenizer


class TokenizerTable(Section):
    """A tokenizer as it is stored, in a table of config.toml.  merges: first and second of each pair, one after another."""

    name: Literal["characters", "bytes", "bpe", "byte-bpe"]
    alphabet: Annotated[str, Field(max_length=MOST_ALPHABET)] = ""
    merges: Annotated[tuple[Annotated[str, Field(min_length=1, max_length=LONGEST)], ...], Field(max_length=2 * MOST_SIZE)] = ()

    @model_validator(mode="after")
    def _whole(self) -> TokenizerTable:
        if self.merges and not self.name.endswith("bpe"):
            raise ValueError(f"a tokenizer of {self.name} merges nothing")
        if self.alphabet and self.name.startswith("byte"):
            raise ValueError(f"a tokenizer of {self.name} has no alphabet of its own")
        if len(self.merges) % 2:
            raise ValueError("the merges of a tokenizer come in pairs")
        return self

    @classmethod
    def of(cls, tokenizer: Tokenizer) -> TokenizerTable:
        """Return what a tokenizer is made of."""
        pairs = tuple(part for pair in tokenizer.merges for part in pair)
        return cls.model_validate({"name": tokenizer.name, "alphabet": tokenizer.alphabet, "merges": pairs})

    def build(self) -> Tokenizer:
        """Make the tokenizer; refuse one that cannot be."""
        pairs = tuple(zip(self.merges[::2], self.merges[1::2], strict=True))
        match self.name:
            case "characters":
                return CharacterTokenizer(self.alphabet)
            case "bytes":
                return ByteTokenizer()
            case "bpe":
                return PairTokenizer(self.alphabet, pairs)
            case "byte-bpe":
                return BytePairTokenizer(pairs)
