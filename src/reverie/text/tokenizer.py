"""Tokenizers: lossless maps between text and integers.

Token 0 is the end of text.  A character without a token is encoded by its UTF-8 bytes: one token per byte, or, in vocabularies
of characters, two tokens per byte (nibbles), so that few tokens are needed.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import ClassVar

import numpy as np

from reverie.base.errors import UserError

END = 0  # end of text; also precedes the first token
NIBBLES = 16  # tokens 1 to 16 encode half a byte each, in vocabularies of characters
MAX_VOCABULARY = 2**16  # tokens
MAX_ALPHABET = 2**15  # characters with a token of their own
SURROGATES = range(0xD800, 0xE000)  # not characters: Python uses them for undecodable bytes
Ids = np.ndarray  # (T,) int32


def utf8(text: str) -> bytes:
    """Return a string as UTF-8 bytes, including lone surrogates."""
    return text.encode("utf-8", "surrogatepass")


def from_utf8(data: bytes) -> str:
    """Return the string of bytes that `utf8` returned; other invalid bytes become U+FFFD."""
    try:
        return data.decode("utf-8", "surrogatepass")
    except UnicodeDecodeError:
        return data.decode("utf-8", "replace")


def codes_of(text: str) -> np.ndarray:
    """Return the code point of each character: (T,) uint32."""
    return np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.uint32)


class Tokenizer(ABC):
    """A vocabulary of `size` tokens; `pieces` are the bytes of each token.

    alphabet, merges: the parameters, which are stored: the characters with a token of their own, and the pairs of tokens to
    merge, in order.
    """

    name: ClassVar[str]
    alphabet: str = ""
    merges: tuple[tuple[str, str], ...] = ()
    pieces: tuple[bytes, ...]

    @property
    def size(self) -> int:
        """Number of tokens, including the end of text."""
        return len(self.pieces)

    @abstractmethod
    def encode(self, text: str) -> Ids:
        """Return the tokens of a text, without the end of text: (T,) int32."""

    def decode(self, ids: Iterable[int]) -> str:
        """Return the text of tokens; the end of text has none."""
        pieces = self.pieces
        return from_utf8(b"".join(pieces[k] for k in ids))

    def spelled(self, token: int) -> str:
        """Return the text of one token for display."""
        return "the end" if token == END else from_utf8(self.pieces[token])


class ByteTokenizer(Tokenizer):
    """One token per byte of UTF-8."""

    name = "bytes"

    def __init__(self) -> None:
        self.pieces = (b"", *(bytes([k]) for k in range(256)))

    def encode(self, text: str) -> Ids:
        """Return one token per byte."""
        return np.frombuffer(utf8(text), np.uint8).astype(np.int32) + 1


class CharacterTokenizer(Tokenizer):
    """One token per character of an alphabet; other characters are encoded as nibbles of UTF-8."""

    name = "characters"

    def __init__(self, alphabet: str) -> None:
        if list(alphabet) != sorted(set(alphabet)) or any(ord(c) in SURROGATES for c in alphabet):
            raise UserError("the alphabet of a tokenizer must contain distinct characters sorted by code point")
        self.alphabet = alphabet
        self.alphabet_codes = codes_of(alphabet)
        self.pieces = (b"", *(b"" for _ in range(NIBBLES)), *map(utf8, alphabet))

    def _lookup(self, text: str) -> tuple[np.ndarray, np.ndarray]:
        """Return the index of each character in the alphabet, and whether the alphabet contains it."""
        codes = codes_of(text)
        if not len(self.alphabet_codes):
            return np.zeros(len(codes), np.int64), np.zeros(len(codes), bool)
        index = np.searchsorted(self.alphabet_codes, codes).clip(max=len(self.alphabet_codes) - 1)
        return index, self.alphabet_codes[index] == codes

    def encode(self, text: str) -> Ids:
        """Return the tokens of a text."""
        index, in_alphabet = self._lookup(text)
        ids = (index + 1 + NIBBLES).astype(np.int32)
        if in_alphabet.all():
            return ids
        return concatenate(nibbles(text[k]) if not in_alphabet[k] else ids[k : k + 1] for k in range(len(text)))

    def decode(self, ids: Iterable[int]) -> str:
        """Return the text of tokens; an unpaired nibble becomes U+FFFD."""
        data, high_nibble = bytearray(), None
        for k in ids:
            if 0 < k <= NIBBLES:
                if high_nibble is not None:
                    data.append(high_nibble * 16 + k - 1)
                high_nibble = k - 1 if high_nibble is None else None
                continue
            if high_nibble is not None:
                data.append(0xFF)
                high_nibble = None
            data += self.pieces[k]
        return from_utf8(bytes(data) + (b"\xff" if high_nibble is not None else b""))

    def spelled(self, token: int) -> str:
        """Return the text of one token for display."""
        return f"half a byte, {token - 1:x}" if 0 < token <= NIBBLES else super().spelled(token)


def nibbles(text: str) -> Ids:
    """Return the UTF-8 bytes of a text as nibble tokens, the higher nibble first."""
    data = np.frombuffer(utf8(text), np.uint8)
    return (np.stack([data >> 4, data & 15], 1).reshape(-1) + 1).astype(np.int32)


def concatenate(parts: Iterable[Ids]) -> Ids:
    """Return all tokens in one array, which may be empty."""
    arrays = list(parts)
    return np.concatenate(arrays) if arrays else np.empty(0, np.int32)
