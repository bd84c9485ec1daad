"""Tokenizers: text to numbers and back, without loss for any string.

Token 0 is the end of a text.  What a tokenizer has no token for is written byte by byte: by tokens of bytes, or, where these
would be most of a small vocabulary, by two tokens of half a byte each.
"""

from __future__ import annotations

import itertools
import json
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

import numpy as np
from pydantic import Field, model_validator

from reverie.base.errors import UserError
from reverie.base.section import Section
from reverie.base.spec import Spec, build

if TYPE_CHECKING:
    import tokenizers

END = 0  # the token that ends a text, and that comes before its first
HALVES = 16  # tokens 1 to 16 are halves of bytes where the alphabet is not that of bytes
MOST_SIZE = 2**16  # tokens of a vocabulary
MOST_ALPHABET = 2**15  # characters that have a token of their own, the most common ones
LONGEST = 64  # characters of a token that merges make
AT_ONCE = 2**20  # characters that are split together
# Words with the space before them, numbers, signs, and runs of spaces.
WORDS = r" ?\p{L}[\p{L}\p{M}]*| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+"
SURROGATES = range(0xD800, 0xE000)  # no characters: what Python keeps of bytes that are no text
Ids = np.ndarray  # (T,) int32


def utf8(text: str) -> bytes:
    """Return any string as bytes, halves of surrogate pairs among them."""
    return text.encode("utf-8", "surrogatepass")


def from_utf8(data: bytes) -> str:
    """Return the string of bytes that `utf8` gave; what is no text in others is shown as U+FFFD."""
    try:
        return data.decode("utf-8", "surrogatepass")
    except UnicodeDecodeError:
        return data.decode("utf-8", "replace")


def _codes(text: str) -> np.ndarray:
    """Return the code of each character: (T,) uint32."""
    return np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.uint32)


class Tokenizer(ABC):
    """A vocabulary of `size` tokens, each of which spells some bytes (`pieces`).

    alphabet, merges: what makes it, and so what is stored: characters with a token of their own, and pairs of tokens that are
    made one, in order.
    """

    name: ClassVar[str]
    alphabet: str = ""
    merges: tuple[tuple[str, str], ...] = ()
    pieces: tuple[bytes, ...]

    @property
    def size(self) -> int:
        """How many tokens there are, that of the end among them."""
        return len(self.pieces)

    @abstractmethod
    def encode(self, text: str) -> Ids:
        """Return the tokens of a text, without one for its end: (T,) int32."""

    def decode(self, ids: Iterable[int]) -> str:
        """Return the text that tokens spell; ends spell nothing."""
        pieces = self.pieces
        return from_utf8(b"".join(pieces[k] for k in ids))

    def spelled(self, token: int) -> str:
        """Return what one token spells, for people."""
        return "the end" if token == END else from_utf8(self.pieces[token])

    def table(self) -> TokenizerTable:
        """Return what it is made of, to be stored."""
        pairs = tuple(part for pair in self.merges for part in pair)
        return TokenizerTable.model_validate({"name": self.name, "alphabet": self.alphabet, "merges": pairs})


class ByteTokenizer(Tokenizer):
    """Every byte of UTF-8 is a token."""

    name = "bytes"

    def __init__(self) -> None:
        self.pieces = (b"", *(bytes([k]) for k in range(256)))

    def encode(self, text: str) -> Ids:
        """Return the bytes of a text."""
        return np.frombuffer(utf8(text), np.uint8).astype(np.int32) + 1


class CharacterTokenizer(Tokenizer):
    """Every character of an alphabet is a token; others are written as halves of their bytes."""

    name = "characters"

    def __init__(self, alphabet: str) -> None:
        if list(alphabet) != sorted(set(alphabet)) or any(ord(c) in SURROGATES for c in alphabet):
            raise UserError("the alphabet of a tokenizer must be of different characters, in order of their codes")
        self.alphabet = alphabet
        self.known = _codes(alphabet)
        self.pieces = (b"", *(b"" for _ in range(HALVES)), *map(utf8, alphabet))

    def _found(self, text: str) -> tuple[np.ndarray, np.ndarray]:
        """Return the place of each character in the alphabet, and whether it is there at all."""
        codes = _codes(text)
        if not len(self.known):
            return np.zeros(len(codes), np.int64), np.zeros(len(codes), bool)
        place = np.searchsorted(self.known, codes).clip(max=len(self.known) - 1)
        return place, self.known[place] == codes

    def encode(self, text: str) -> Ids:
        """Return the characters of a text."""
        place, known = self._found(text)
        ids = (place + 1 + HALVES).astype(np.int32)
        if known.all():
            return ids
        return _joined(_halves(text[k]) if not known[k] else ids[k : k + 1] for k in range(len(text)))

    def decode(self, ids: Iterable[int]) -> str:
        """Return the text that tokens spell; half a byte without the other half is no text."""
        spelled, half = bytearray(), None
        for k in ids:
            if 0 < k <= HALVES:
                if half is not None:
                    spelled.append(half * 16 + k - 1)
                half = k - 1 if half is None else None
                continue
            if half is not None:
                spelled.append(0xFF)
                half = None
            spelled += self.pieces[k]
        return from_utf8(bytes(spelled) + (b"\xff" if half is not None else b""))

    def spelled(self, token: int) -> str:
        """Return what one token spells, for people."""
        return f"half a byte, {token - 1:x}" if 0 < token <= HALVES else super().spelled(token)


def _halves(text: str) -> Ids:
    """Return the bytes of a text as tokens of half a byte, the higher half first."""
    data = np.frombuffer(utf8(text), np.uint8)
    return (np.stack([data >> 4, data & 15], 1).reshape(-1) + 1).astype(np.int32)


def _joined(parts: Iterable[Ids]) -> Ids:
    found = list(parts)
    return np.concatenate(found) if found else np.empty(0, np.int32)


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
        return _joined(
            _split(self.splitter, text[a:b]) if known[a] else _halves(text[a:b]) for a, b in itertools.pairwise(bounds) if b > a
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
        codes = _codes(text)
        odd = (codes >= SURROGATES.start) & (codes < SURROGATES.stop)  # which the library refuses
        bounds = [0, *(np.flatnonzero(np.diff(odd)) + 1).tolist(), len(text)]
        return _joined(
            self.of_byte[np.frombuffer(utf8(text[a:b]), np.uint8)] if odd[a] else _split(self.splitter, text[a:b])
            for a, b in itertools.pairwise(bounds)
            if b > a
        )


def _signs() -> dict[int, str]:
    """Return a printable sign for every byte, as the library has them: its own, or one from U+0100 on."""
    own = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = (k for k in range(256) if k not in own)
    return {**{k: chr(k) for k in own}, **{k: chr(0x100 + n) for n, k in enumerate(others)}}


SIGN_OF = _signs()
BYTE_OF = {sign: byte for byte, sign in SIGN_OF.items()}
SIGNS = "".join(sorted(BYTE_OF))


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
    return _joined(np.array(splitter.encode(part).ids, np.int32) for part in parts)


def _learned(texts: Iterable[str], alphabet: str, tokens: int, on_bytes: bool) -> tuple[tuple[str, str], ...]:
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
        return PairTokenizer(alphabet, _learned(_pieces_of(texts), alphabet, max(0, room), on_bytes=False))


class BytePairs:
    """Byte-pair encoding that begins with bytes.  size: of the vocabulary, at most."""

    def __init__(self, size: int = 1024) -> None:
        self.size = _checked(size, 257)

    def __call__(self, texts: Sequence[str]) -> Tokenizer:
        """Learn the merges of texts."""
        return BytePairTokenizer(_learned(_pieces_of(texts), SIGNS, self.size - 257, on_bytes=True))


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
