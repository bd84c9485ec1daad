"""Byte-pair encoding: tokenizers whose merges make tokens one, by the package `tokenizers`, and how merges are learned."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from reverie.base.errors import UserError
from reverie.text.tokenizer import HALVES, SURROGATES, CharacterTokenizer, Ids, Tokenizer, codes_of, halves, joined, utf8

if TYPE_CHECKING:
    import tokenizers

LONGEST = 64  # characters of a token that merges make
AT_ONCE = 2**20  # characters that are split together
# Words with the space before them, numbers, signs, and runs of spaces.
WORDS = r" ?\p{L}[\p{L}\p{M}]*| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+"


def _signs() -> dict[int, str]:
    """Return a printable sign for every byte, as the library has them: its own, or one from U+0100 on."""
    own = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = (k for k in range(256) if k not in own)
    return {**{k: chr(k) for k in own}, **{k: chr(0x100 + n) for n, k in enumerate(others)}}


SIGN_OF = _signs()
BYTE_OF = {sign: byte for byte, sign in SIGN_OF.items()}
SIGNS = "".join(sorted(BYTE_OF))


class PairTokenizer(CharacterTokenizer):
    """Byte-pair encoding of characters: pairs of tokens that stand together most are made one (arXiv:1508.07909)."""

    name = "bpe"

    def __init__(self, alphabet: str, merges: Sequence[tuple[str, str]]) -> None:
        super().__init__(alphabet)
        vocabulary = _vocabulary(self.alphabet, merges, 1 + HALVES)
        self.merges = tuple(merges)
        self.pieces = (*self.pieces[: 1 + HALVES], *map(utf8, vocabulary))
        self.splitter = _splitter(vocabulary, self.merges, on_bytes=False)

    def encode(self, text: str) -> Ids:
        """Return the tokens of a text by its merges."""
        known = self._found(text)[1]
        ends = np.flatnonzero(np.diff(known)) + 1
        bounds = [0, *ends.tolist(), len(text)]
        return joined(
            _split(self.splitter, text[a:b]) if known[a] else halves(text[a:b]) for a, b in itertools.pairwise(bounds) if b > a
        )

    def words(self, text: str) -> list[str]:
        """Return the words of a text, within which pairs are merged."""
        words = self.splitter.pre_tokenizer
        assert words is not None
        return [word for word, _ in words.pre_tokenize_str(text)]


class BytePairTokenizer(Tokenizer):
    """Byte-pair encoding of bytes: every string has tokens, and 256 of them spell one byte each (Radford et al. 2019)."""

    name = "byte-bpe"

    def __init__(self, merges: Sequence[tuple[str, str]]) -> None:
        vocabulary = _vocabulary(SIGNS, merges, 1)
        self.merges = tuple(merges)
        self.pieces = (b"", *(bytes(BYTE_OF[sign] for sign in piece) for piece in vocabulary))
        self.splitter = _splitter(vocabulary, self.merges, on_bytes=True)
        self.of_byte = np.array([vocabulary[SIGN_OF[k]] for k in range(256)], np.int32)

    def encode(self, text: str) -> Ids:
        """Return the tokens of a text by its merges."""
        codes = codes_of(text)
        odd = (codes >= SURROGATES.start) & (codes < SURROGATES.stop)  # which the library refuses
        bounds = [0, *(np.flatnonzero(np.diff(odd)) + 1).tolist(), len(text)]
        return joined(
            self.of_byte[np.frombuffer(utf8(text[a:b]), np.uint8)] if odd[a] else _split(self.splitter, text[a:b])
            for a, b in itertools.pairwise(bounds)
            if b > a
        )


def _vocabulary(alphabet: str, merges: Iterable[tuple[str, str]], first: int) -> dict[str, int]:
    """Return the token of each string: the alphabet's, then what each merge makes, in order."""
    found = {sign: first + k for k, sign in enumerate(alphabet)}
    for a, b in merges:
        if a not in found or b not in found:
            raise UserError(f"a tokenizer merges {a!r} and {b!r}, of which it has not made one before")
        found.setdefault(a + b, first + len(found))
    return found


def _library() -> Any:
    try:
        import tokenizers
    except ImportError:
        raise UserError(
            "byte-pair encoding needs the package `tokenizers`; install it with: pip install 'reverie[text]'"
        ) from None
    return tokenizers


def _splitter(vocabulary: dict[str, int], merges: Sequence[tuple[str, str]], on_bytes: bool) -> tokenizers.Tokenizer:
    library = _library()
    found: tokenizers.Tokenizer = library.Tokenizer(library.models.BPE(vocab=vocabulary, merges=list(merges)))
    words = library.pre_tokenizers.Split(library.Regex(WORDS), "isolated")
    signs = library.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    found.pre_tokenizer = library.pre_tokenizers.Sequence([words, signs]) if on_bytes else words
    return found


def _split(splitter: tokenizers.Tokenizer, text: str) -> Ids:
    parts = (text[k : k + AT_ONCE] for k in range(0, len(text), AT_ONCE))
    return joined(np.array(splitter.encode(part).ids, np.int32) for part in parts)


def learned_merges(texts: Iterable[str], alphabet: str, tokens: int, on_bytes: bool) -> tuple[tuple[str, str], ...]:
    """Return the merges that the library learns from texts, until there are so many strings beside the alphabet's."""
    library = _library()
    splitter = _splitter({}, (), on_bytes)
    trainer = library.trainers.BpeTrainer(
        vocab_size=len(alphabet) + tokens,
        initial_alphabet=list(alphabet),
        min_frequency=2,
        max_token_length=LONGEST,
        show_progress=False,
    )
    kept = set(alphabet)
    splitter.train_from_iterator(texts if on_bytes else (_known_words(text, kept) for text in texts), trainer)
    found = json.loads(splitter.to_str())["model"]["merges"]
    return tuple((str(a), str(b)) for a, b in found)


def _known_words(text: str, kept: set[str]) -> str:
    """Return a text without the characters that are too rare for the alphabet."""
    return text if kept.issuperset(text) else "".join(c for c in text if c in kept)
