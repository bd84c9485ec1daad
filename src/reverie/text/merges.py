"""Byte-pair encoding with the package `tokenizers`: tokenizers and the learning of their merges."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from reverie.base.errors import UserError
from reverie.text.tokenizer import NIBBLES, SURROGATES, CharacterTokenizer, Ids, Tokenizer, codes_of, concatenate, nibbles, utf8

if TYPE_CHECKING:
    import tokenizers

MAX_TOKEN_LENGTH = 64  # characters of a merged token
CHUNK_SIZE = 2**20  # characters that are tokenized at once
# words, numbers and punctuation with the space before them, and runs of spaces
WORD_PATTERN = r" ?\p{L}[\p{L}\p{M}]*| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+"


def _byte_symbols() -> dict[int, str]:
    """Return a printable character for every byte, as `tokenizers` does: the byte itself, or a character from U+0100 on."""
    own = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = (k for k in range(256) if k not in own)
    return {**{k: chr(k) for k in own}, **{k: chr(0x100 + n) for n, k in enumerate(others)}}


SYMBOL_OF_BYTE = _byte_symbols()
BYTE_OF_SYMBOL = {symbol: byte for byte, symbol in SYMBOL_OF_BYTE.items()}
BYTE_SYMBOLS = "".join(sorted(BYTE_OF_SYMBOL))


class CharacterBPETokenizer(CharacterTokenizer):
    """Byte-pair encoding of characters (arXiv:1508.07909)."""

    name = "bpe"

    def __init__(self, alphabet: str, merges: Sequence[tuple[str, str]]) -> None:
        super().__init__(alphabet)
        vocabulary = _vocabulary(self.alphabet, merges, 1 + NIBBLES)
        self.merges = tuple(merges)
        self.pieces = (*self.pieces[: 1 + NIBBLES], *map(utf8, vocabulary))
        self.splitter = _splitter(vocabulary, self.merges, on_bytes=False)

    def encode(self, text: str) -> Ids:
        """Return the tokens of a text."""
        in_alphabet = self._lookup(text)[1]
        ends = np.flatnonzero(np.diff(in_alphabet)) + 1
        bounds = [0, *ends.tolist(), len(text)]
        return concatenate(
            _split(self.splitter, text[a:b]) if in_alphabet[a] else nibbles(text[a:b])
            for a, b in itertools.pairwise(bounds)
            if b > a
        )

    def words(self, text: str) -> list[str]:
        """Return the words of a text; no merge crosses a word boundary."""
        words = self.splitter.pre_tokenizer
        assert words is not None
        return [word for word, _ in words.pre_tokenize_str(text)]


class ByteBPETokenizer(Tokenizer):
    """Byte-pair encoding of bytes: every string can be encoded (Radford et al. 2019)."""

    name = "byte-bpe"

    def __init__(self, merges: Sequence[tuple[str, str]]) -> None:
        vocabulary = _vocabulary(BYTE_SYMBOLS, merges, 1)
        self.merges = tuple(merges)
        self.pieces = (b"", *(bytes(BYTE_OF_SYMBOL[symbol] for symbol in piece) for piece in vocabulary))
        self.splitter = _splitter(vocabulary, self.merges, on_bytes=True)
        self.of_byte = np.array([vocabulary[SYMBOL_OF_BYTE[k]] for k in range(256)], np.int32)

    def encode(self, text: str) -> Ids:
        """Return the tokens of a text."""
        codes = codes_of(text)
        is_surrogate = (codes >= SURROGATES.start) & (codes < SURROGATES.stop)  # lone surrogates, which `tokenizers` refuses
        bounds = [0, *(np.flatnonzero(np.diff(is_surrogate)) + 1).tolist(), len(text)]
        return concatenate(
            self.of_byte[np.frombuffer(utf8(text[a:b]), np.uint8)] if is_surrogate[a] else _split(self.splitter, text[a:b])
            for a, b in itertools.pairwise(bounds)
            if b > a
        )


def _vocabulary(alphabet: str, merges: Iterable[tuple[str, str]], first: int) -> dict[str, int]:
    """Return the token of each string: the alphabet first, then the result of each merge."""
    tokens = {symbol: first + k for k, symbol in enumerate(alphabet)}
    for a, b in merges:
        if a not in tokens or b not in tokens:
            raise UserError(f"a tokenizer merges {a!r} and {b!r}, which are not both tokens before that merge")
        tokens.setdefault(a + b, first + len(tokens))
    return tokens


def _import_tokenizers() -> Any:
    try:
        import tokenizers
    except ImportError:
        raise UserError(
            "byte-pair encoding needs the package `tokenizers`; install it with: pip install 'reverie[text]'"
        ) from None
    return tokenizers


def _splitter(vocabulary: dict[str, int], merges: Sequence[tuple[str, str]], on_bytes: bool) -> tokenizers.Tokenizer:
    library = _import_tokenizers()
    splitter: tokenizers.Tokenizer = library.Tokenizer(library.models.BPE(vocab=vocabulary, merges=list(merges)))
    words = library.pre_tokenizers.Split(library.Regex(WORD_PATTERN), "isolated")
    byte_level = library.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    splitter.pre_tokenizer = library.pre_tokenizers.Sequence([words, byte_level]) if on_bytes else words
    return splitter


def _split(splitter: tokenizers.Tokenizer, text: str) -> Ids:
    parts = (text[k : k + CHUNK_SIZE] for k in range(0, len(text), CHUNK_SIZE))
    return concatenate(np.array(splitter.encode(part).ids, np.int32) for part in parts)


def learned_merges(texts: Iterable[str], alphabet: str, tokens: int, on_bytes: bool) -> tuple[tuple[str, str], ...]:
    """Return the merges that `tokenizers` learns from texts, at most `tokens` of them."""
    library = _import_tokenizers()
    splitter = _splitter({}, (), on_bytes)
    trainer = library.trainers.BpeTrainer(
        vocab_size=len(alphabet) + tokens,
        initial_alphabet=list(alphabet),
        min_frequency=2,
        max_token_length=MAX_TOKEN_LENGTH,
        show_progress=False,
    )
    alphabet_set = set(alphabet)
    splitter.train_from_iterator(texts if on_bytes else (_only_alphabet(text, alphabet_set) for text in texts), trainer)
    pairs = json.loads(splitter.to_str())["model"]["merges"]
    return tuple((str(a), str(b)) for a, b in pairs)


def _only_alphabet(text: str, alphabet_set: set[str]) -> str:
    """Return a text without the characters that are not in the alphabet."""
    return text if alphabet_set.issuperset(text) else "".join(c for c in text if c in alphabet_set)
