"""Tokenizers learned from texts, by name."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence

from reverie.base.errors import UserError
from reverie.base.spec import Spec, build
from reverie.text.merges import BYTE_SYMBOLS, CHUNK_SIZE, ByteBPETokenizer, CharacterBPETokenizer, learned_merges
from reverie.text.tokenizer import (
    MAX_ALPHABET,
    MAX_VOCABULARY,
    NIBBLES,
    SURROGATES,
    ByteTokenizer,
    CharacterTokenizer,
    Tokenizer,
)


def common_alphabet(texts: Iterable[str], max_size: int = MAX_ALPHABET) -> str:
    """Return the characters of texts sorted by code point, at most the `max_size` most frequent ones."""
    counts: Counter[str] = Counter()
    for text in texts:
        counts.update(text)
    return "".join(sorted(c for c, _ in counts.most_common(max_size) if ord(c) not in SURROGATES))


def _chunks(texts: Iterable[str]) -> Iterator[str]:
    """Yield texts in chunks, without lone surrogates."""
    for text in texts:
        for k in range(0, len(text), CHUNK_SIZE):
            yield text[k : k + CHUNK_SIZE].encode("utf-8", "ignore").decode()


class Characters:
    """One token per character of the training text (arXiv:1308.0850)."""

    def __call__(self, texts: Sequence[str]) -> Tokenizer:
        """Return the tokenizer of texts."""
        return CharacterTokenizer(common_alphabet(texts))


class Bytes:
    """One token per byte of UTF-8 (arXiv:2105.13626)."""

    def __call__(self, texts: Sequence[str]) -> Tokenizer:
        """Return the tokenizer, which does not depend on the texts."""
        return ByteTokenizer()


class CharacterBPE:
    """Byte-pair encoding that starts from characters (arXiv:1508.07909).  size: maximum size of the vocabulary."""

    def __init__(self, size: int = 1024) -> None:
        self.size = _check_size(size, 2 + NIBBLES)

    def __call__(self, texts: Sequence[str]) -> Tokenizer:
        """Learn the merges of texts."""
        alphabet = common_alphabet(texts)
        merge_count = self.size - 1 - NIBBLES - len(alphabet)
        return CharacterBPETokenizer(alphabet, learned_merges(_chunks(texts), alphabet, max(0, merge_count), on_bytes=False))


class ByteBPE:
    """Byte-pair encoding that starts from bytes (Radford et al. 2019).  size: maximum size of the vocabulary."""

    def __init__(self, size: int = 1024) -> None:
        self.size = _check_size(size, 257)

    def __call__(self, texts: Sequence[str]) -> Tokenizer:
        """Learn the merges of texts."""
        return ByteBPETokenizer(learned_merges(_chunks(texts), BYTE_SYMBOLS, self.size - 257, on_bytes=True))


def _check_size(size: int, min_size: int) -> int:
    if not min_size <= size <= MAX_VOCABULARY:
        raise UserError(f"the vocabulary size of this tokenizer must be from {min_size:,} to {MAX_VOCABULARY:,}, got {size:,}")
    return size


TOKENIZERS: dict[str, Callable[..., Callable[[Sequence[str]], Tokenizer]]] = {
    "characters": Characters,
    "bytes": Bytes,
    "bpe": CharacterBPE,
    "byte-bpe": ByteBPE,
}


def learn_tokenizer(texts: Sequence[str], spec: str | Spec = "characters") -> Tokenizer:
    """Return the tokenizer of a spec, learned from texts: `learn_tokenizer([text], "bpe:size=2000")`."""
    return build(TOKENIZERS, spec, "tokenizer")(texts)
