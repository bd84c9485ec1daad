"""Tokenizers: text to numbers and back, without loss for any string.

Token 0 is the end of a text.  What a tokenizer has no token for is written byte by byte: by tokens of bytes, or, where these
would be most of a small vocabulary, by two tokens of half a byte each.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import ClassVar

import numpy as np

from reverie.base.errors import UserError

END = 0  # the token that ends a text, and that comes before its first
HALVES = 16  # tokens 1 to 16 are halves of bytes where the alphabet is not that of bytes
MOST_SIZE = 2**16  # tokens of a vocabulary
MOST_ALPHABET = 2**15  # characters that have a token of their own, the most common ones
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


def codes_of(text: str) -> np.ndarray:
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
        self.known = codes_of(alphabet)
        self.pieces = (b"", *(b"" for _ in range(HALVES)), *map(utf8, alphabet))

    def _found(self, text: str) -> tuple[np.ndarray, np.ndarray]:
        """Return the place of each character in the alphabet, and whether it is there at all."""
        codes = codes_of(text)
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
        return joined(halves(text[k]) if not known[k] else ids[k : k + 1] for k in range(len(text)))

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


def halves(text: str) -> Ids:
    """Return the bytes of a text as tokens of half a byte, the higher half first."""
    data = np.frombuffer(utf8(text), np.uint8)
    return (np.stack([data >> 4, data & 15], 1).reshape(-1) + 1).astype(np.int32)


def joined(parts: Iterable[Ids]) -> Ids:
    """Return the tokens of parts as one; no parts have none."""
    found = list(parts)
    return np.concatenate(found) if found else np.empty(0, np.int32)
