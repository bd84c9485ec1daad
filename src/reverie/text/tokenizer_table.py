"""Tokenizers in config.toml."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from reverie.base.config_section import ConfigSection
from reverie.text.merges import MAX_TOKEN_LENGTH, ByteBPETokenizer, CharacterBPETokenizer
from reverie.text.tokenizer import MAX_ALPHABET, MAX_VOCABULARY, ByteTokenizer, CharacterTokenizer, Tokenizer


class TokenizerTable(ConfigSection):
    """A tokenizer as stored in config.toml.  merges: the first and second token of each pair, flattened."""

    name: Literal["characters", "bytes", "bpe", "byte-bpe"]
    alphabet: Annotated[str, Field(max_length=MAX_ALPHABET)] = ""
    merges: Annotated[
        tuple[Annotated[str, Field(min_length=1, max_length=MAX_TOKEN_LENGTH)], ...], Field(max_length=2 * MAX_VOCABULARY)
    ] = ()

    @model_validator(mode="after")
    def _check(self) -> TokenizerTable:
        if self.merges and not self.name.endswith("bpe"):
            raise ValueError(f"a tokenizer of {self.name} has no merges")
        if self.alphabet and self.name.startswith("byte"):
            raise ValueError(f"a tokenizer of {self.name} has no alphabet of its own")
        if len(self.merges) % 2:
            raise ValueError("the merges of a tokenizer come in pairs")
        return self

    @classmethod
    def of(cls, tokenizer: Tokenizer) -> TokenizerTable:
        """Return the table of a tokenizer."""
        pairs = tuple(part for pair in tokenizer.merges for part in pair)
        return cls.model_validate({"name": tokenizer.name, "alphabet": tokenizer.alphabet, "merges": pairs})

    def build(self) -> Tokenizer:
        """Build the tokenizer; raise an error for invalid merges."""
        pairs = tuple(zip(self.merges[::2], self.merges[1::2], strict=True))
        match self.name:
            case "characters":
                return CharacterTokenizer(self.alphabet)
            case "bytes":
                return ByteTokenizer()
            case "bpe":
                return CharacterBPETokenizer(self.alphabet, pairs)
            case "byte-bpe":
                return ByteBPETokenizer(pairs)
