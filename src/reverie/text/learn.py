"""Tokenizers learned from texts, by name."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence

from reverie.base.errors import UserError
from reverie.base.spec import Spec, build
from reverie.text.merges import AT_ONCE, SIGNS, BytePairTokenizer, PairTokenizer, learned_merges
from reverie.text.tokenizer import HALVES, MOST_ALPHABET, MOST_SIZE, SURROGATES, ByteTokenizer, CharacterTokenizer, Tokenizer


def common_alphabet(texts: Iterable[str], most: int = MOST_ALPHABET) -> str:
    """Return the characters of texts in order of their codes, the most common ones where there are too many."""
    counts: Counter[str] = Counter()
    for text in texts:
        counts.update(text)
    return "".join(sorted(c for c, _ in counts.most_common(most) if ord(c) not in SURROGATES))


def _pieces_of(texts: Iterable[str]) -> Iterator[str]:
    """Yield texts in parts that are split together, without what is no character."""
    for text in texts:
        for k in range(0, len(text), AT_ONCE):
            yield text[k : k + AT_ONCE].encode("utf-8", "ignore").decode()


class Characters:
    """One token for each character that the training text has."""

    def __call__(self, texts: Sequence[str]) -> Tokenizer:
        """Return the tokenizer of texts."""
        return CharacterTokenizer(common_alphabet(texts))


class Bytes:
    """One token for each byte of UTF-8."""

    def __call__(self, texts: Sequence[str]) -> Tokenizer:
        """Return the tokenizer, which is the same for all texts."""
        return ByteTokenizer()


class Pairs:
    """Byte-pair encoding that begins with characters.  size: of the vocabulary, at most."""

    def __init__(self, size: int = 1024) -> None:
        self.size = _checked(size, 2 + HALVES)

    def __call__(self, texts: Sequence[str]) -> Tokenizer:
        """Learn the merges of texts."""
        alphabet = common_alphabet(texts)
        room = self.size - 1 - HALVES - len(alphabet)
        return PairTokenizer(alphabet, learned_merges(_pieces_of(texts), alphabet, max(0, room), on_bytes=False))


class BytePairs:
    """Byte-pair encoding that begins with bytes.  size: of the vocabulary, at most."""

    def __init__(self, size: int = 1024) -> None:
        self.size = _checked(size, 257)

    def __call__(self, texts: Sequence[str]) -> Tokenizer:
        """Learn the merges of texts."""
        return BytePairTokenizer(learned_merges(_pieces_of(texts), SIGNS, self.size - 257, on_bytes=True))


def _checked(size: int, least: int) -> int:
    if not least <= size <= MOST_SIZE:
        raise UserError(f"the vocabulary of this tokenizer has from {least:,} up to {MOST_SIZE:,} tokens, got {size:,}")
    return size


TOKENIZERS: dict[str, Callable[..., Callable[[Sequence[str]], Tokenizer]]] = {
    "characters": Characters,
    "bytes": Bytes,
    "bpe": Pairs,
    "byte-bpe": BytePairs,
}


def learn_tokenizer(texts: Sequence[str], spec: str | Spec = "characters") -> Tokenizer:
    """Return the tokenizer that a spec names, learned from texts: `learn_tokenizer([text], "bpe:size=2000")`."""
    return build(TOKENIZERS, spec, "tokenizer")(texts)
