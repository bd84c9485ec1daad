"""Conditions other than labels: captions, numbers and images, encoded as one real vector.

A condition vector contains the tokens of the caption, then the standardized numbers, then the pixels of the image in [0, 1].
NaN marks missing values, so a vector of NaN is the null condition.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from importlib.util import find_spec
from typing import TYPE_CHECKING, Annotated

import numpy as np
import torch
from pydantic import Field, model_validator
from torch import Tensor

from reverie.base.config_section import ConfigSection
from reverie.base.errors import UserError, unknown
from reverie.text.learn import learn_tokenizer
from reverie.text.tokenizer import Tokenizer
from reverie.text.tokenizer_table import TokenizerTable

if TYPE_CHECKING:
    from reverie.data.lazy import LazyImages

MAX_CAPTION_LENGTH = 10_000  # characters of a caption or prompt
MAX_TOKENS = 96  # of a caption
MIN_TOKENS = 8  # so that a prompt may be longer than the training captions
MAX_TOKENIZER_CAPTIONS = 50_000  # captions that a tokenizer is trained on
MAX_CACHED_NUMBERS = 2**25  # numbers of condition vectors kept in memory
VOCABULARY = "bpe:size=2048"  # of captions: with a few hundred distinct ones every common word is one token
Side = Annotated[int, Field(ge=1, le=1024)]
NAME = r"^[^\x00-\x1f,=]{1,200}$"


class NumberColumn(ConfigSection):
    """A number to condition on: the name of its column, its mean and its standard deviation in the training data."""

    name: Annotated[str, Field(pattern=NAME)]
    mean: float
    std: Annotated[float, Field(gt=0)]


class ConditionForm(ConfigSection):
    """The layout of a condition vector.  length: tokens of a caption; image: channels, height and width of an image."""

    tokenizer: TokenizerTable | None = None
    length: Annotated[int, Field(ge=0, le=MAX_TOKENS)] = 0
    numbers: Annotated[tuple[NumberColumn, ...], Field(max_length=64)] = ()
    image: tuple[Annotated[int, Field(ge=1, le=4)], Side, Side] | None = None

    @model_validator(mode="after")
    def _check_content(self) -> ConditionForm:
        if (self.tokenizer is None) != (self.length == 0):
            raise ValueError("captions need a tokenizer and a length")
        if not self.width:
            raise ValueError("a condition needs a caption, a number or an image")
        return self

    @property
    def width(self) -> int:
        """The length of a condition vector."""
        return self.length + len(self.numbers) + (math.prod(self.image) if self.image else 0)

    @cached_property
    def caption_tokenizer(self) -> Tokenizer:
        """The tokenizer of captions."""
        if self.tokenizer is None:
            raise UserError("the model was trained without captions; leave --prompt out")
        return self.tokenizer.build()

    def tokens(self, text: str) -> tuple[np.ndarray, bool]:
        """Return the tokens of a caption, NaN after the end, (length,) float32, and whether all of them fit."""
        ids = self.caption_tokenizer.encode(normalize_caption(text))
        row = np.full(self.length, np.nan, np.float32)
        row[: len(ids)] = ids[: self.length]
        return row, len(ids) <= self.length

    def unknown_words(self, text: str) -> list[str]:
        """Return the words of a text that no training caption contained, as far as the tokenizer shows.

        A tokenizer with unused vocabulary has a token for every word that occurs twice; with a full vocabulary, only words that
        are split into single letters count as unknown.
        """
        if not self.length:
            return []
        has_unused = self.caption_tokenizer.size < int(VOCABULARY.rpartition("=")[2])
        words = {word: len(self.caption_tokenizer.encode(normalize_caption(word))) for word in normalize_caption(text).split()}
        return [word for word, tokens in words.items() if tokens > (1 if has_unused else max(3, len(word)))]

    def caption(self, row: Tensor) -> str:
        """Return the caption of a vector (width,); empty without one."""
        tokens = row[: self.length]
        return self.caption_tokenizer.decode(int(k) for k in tokens[~tokens.isnan()]).strip()

    def describe_vector(self, row: Tensor) -> str:
        """Describe a vector in words: the caption, then numbers as name=value."""
        parts = [self.caption(row)] if self.length else []
        values = row[self.length : self.length + len(self.numbers)].tolist()
        for number, value in zip(self.numbers, values, strict=True):
            if not math.isnan(value):
                parts.append(f"{number.name}={number.mean + number.std * value:.3g}")
        return ", ".join(part for part in parts if part)

    def describe(self) -> str:
        """Describe the layout."""
        parts = [f"captions of at most {self.length} of {self.caption_tokenizer.size:,} tokens"] if self.length else []
        parts.extend(f"{n.name} {n.mean:.3g} ± {n.std:.2g}" for n in self.numbers)
        parts.extend([f"an image of {self.image[0]} channel{'s' * (self.image[0] > 1)}"] if self.image else [])
        return "; ".join(parts)

    def vector(self, text: str = "", numbers: Mapping[str, float] | None = None, image: Tensor | None = None) -> Tensor:
        """Return the vector of a prompt, numbers by name and an image (C, H, W) in [0, 1]: (width,) float32."""
        parts = [torch.from_numpy(self.tokens(text)[0])] if self.length else []
        columns = dict(numbers or {})
        number_columns = [(columns.pop(n.name) - n.mean) / n.std if n.name in columns else math.nan for n in self.numbers]
        if columns:
            if not self.numbers:
                raise UserError("the model was trained without numbers as conditions; leave --condition out")
            raise unknown(next(iter(columns)), [n.name for n in self.numbers], "number that the model is conditioned on")
        parts.append(torch.tensor(number_columns, dtype=torch.float32))
        if self.image is not None:
            parts.append((torch.full(self.image, math.nan) if image is None else image).reshape(-1).float())
        return torch.cat(parts)


def normalize_caption(text: str) -> str:
    """Return a caption in lower case, with one space before each word."""
    return "".join(f" {word}" for word in text[:MAX_CAPTION_LENGTH].casefold().split())


@dataclass(frozen=True)
class Attribute:
    """Mutually exclusive caption words, such as thin, medium and thick, which a classifier of images can learn."""

    name: str
    words: tuple[str, ...]

    def of(self, captions: Sequence[str]) -> Tensor:
        """Return the index of the word in each caption, -1 for none: (N,) int64."""
        position = {word: k for k, word in enumerate(self.words)}
        matches = ([position[word] for word in normalize_caption(caption).split() if word in position] for caption in captions)
        return torch.tensor([words[0] if words else -1 for words in matches], dtype=torch.int64)


@dataclass(frozen=True)
class Conditions:
    """The conditions of a dataset.

    captions: one per datum, if any; numbers: (N, F) in their own units, NaN if missing; images: (N, C, H, W) uint8; attributes:
    groups of mutually exclusive words; unseen: captions of combinations left out of the dataset, and unseen_images, (M, C, H,
    W) uint8, their images.
    """

    form: ConditionForm
    captions: tuple[str, ...] = ()
    numbers: Tensor | None = None
    images: Tensor | LazyImages | None = None
    attributes: tuple[Attribute, ...] = ()
    unseen: tuple[str, ...] = ()
    unseen_images: Tensor | None = field(default=None, repr=False, compare=False)
    _vectors: Tensor | None = field(default=None, repr=False, compare=False)

    @cached_property
    def vectors(self) -> Tensor:
        """The condition vectors of all data, without images: (N, length + F) float32."""
        return self._vectors if self._vectors is not None else self._encode(self.captions, self.numbers, len(self))

    def _encode(self, captions: Sequence[str], numbers: Tensor | None, count: int) -> Tensor:
        """Encode captions and numbers; count: their number if there are neither."""
        parts = []
        if self.form.length:
            tokens = {text: self.form.tokens(text)[0] for text in set(captions)}
            parts.append(torch.from_numpy(np.stack([tokens[text] for text in captions])))
        if numbers is not None:
            mean, std = torch.tensor([(n.mean, n.std) for n in self.form.numbers]).T
            parts.append((numbers - mean) / std)
        assert parts or self.images is not None
        return torch.cat(parts, 1) if parts else torch.empty(count, 0)

    def __len__(self) -> int:
        values = self.captions or (self.numbers if self.numbers is not None else self.images)
        return len(values) if values is not None else 0

    def conditions_at(self, index: Tensor) -> Tensor:
        """Return the condition vectors of the chosen data, without images; of large datasets they are encoded on demand."""
        if self._vectors is not None or len(self) * (self.form.length + len(self.form.numbers)) <= MAX_CACHED_NUMBERS:
            return self.vectors[index]
        chosen = torch.arange(len(self))[index].reshape(-1)
        captions = [self.captions[k] for k in chosen.tolist()] if self.captions else []
        return self._encode(captions, self.numbers[chosen] if self.numbers is not None else None, len(chosen))

    def describe(self) -> str:
        """Describe the conditions of the dataset."""
        distinct = len(set(self.captions))
        return f"{distinct:,} different {self.form.describe()}" if distinct > 1 else self.form.describe()

    def batch(self, index: Tensor) -> Tensor:
        """Return the condition vectors of the chosen data, (B, width) float32."""
        if self.images is None:
            return self.conditions_at(index)
        images = self.images[index] if isinstance(self.images, Tensor) else self.images.take(index)
        return torch.cat([self.conditions_at(index), images.flatten(1).float().div_(255)], 1)

    def take(self, index: Tensor) -> Conditions:
        """Return the conditions of the chosen data."""
        chosen = torch.arange(len(self))[index].tolist()
        is_large = self._vectors is None and len(self) * (self.form.length + len(self.form.numbers)) > MAX_CACHED_NUMBERS
        images = self.images
        return replace(
            self, captions=tuple(self.captions[k] for k in chosen) if self.captions else (),
            numbers=self.numbers[index] if self.numbers is not None else None,
            images=images[index] if isinstance(images, Tensor) else images.subset(index) if images is not None else None,
            _vectors=None if is_large else self.vectors[index],
        )  # fmt: skip

    def with_form(self, form: ConditionForm) -> Conditions:
        """Return the same conditions in another layout, such as that of a run."""
        return replace(self, form=form, _vectors=None)

    def content(self) -> bytes:
        """Return bytes that identify these conditions, for a fingerprint."""
        digest = hashlib.sha256(repr(self.captions).encode("utf-8", "surrogatepass"))
        digest.update(repr([number.name for number in self.form.numbers]).encode())
        for part in (self.numbers, self.images):
            if isinstance(part, Tensor):
                digest.update(part.contiguous().numpy().data)
            elif part is not None:
                digest.update(part.content())
        return digest.digest()


def make_conditions(
    captions: Sequence[str] = (), numbers: Mapping[str, Sequence[float]] | None = None,
    images: Tensor | LazyImages | None = None, attributes: tuple[Attribute, ...] = (), unseen: tuple[str, ...] = (),
    unseen_images: Tensor | None = None,
) -> Conditions:  # fmt: skip
    """Return conditions with a suitable layout; the tokenizer is trained on the captions, or on a sample of very many."""
    columns = {name: torch.tensor(values, dtype=torch.float32) for name, values in (numbers or {}).items()}
    table, length = None, 0
    if captions:
        step = -(-len(captions) // MAX_TOKENIZER_CAPTIONS)  # 1 unless there are very many
        sample = captions[::step]
        distinct = sorted({normalize_caption(caption) for caption in sample})
        spec = VOCABULARY if find_spec("tokenizers") else "characters"  # needs no library, and gives longer vectors
        tokenizer = learn_tokenizer(distinct * 2, spec)  # twice, so that a word of a single caption can become a token
        longest = max(len(tokenizer.encode(caption)) for caption in distinct)
        table, length = TokenizerTable.of(tokenizer), min(MAX_TOKENS, max(MIN_TOKENS, longest))
    number_columns = []
    for name, values in columns.items():
        present = values[~values.isnan()]
        if len(present) < 2 or not bool(present.isfinite().all()):
            raise UserError(f"the column {name!r} has {len(present)} finite numbers; at least 2 are needed")
        number_columns.append(NumberColumn(name=name, mean=float(present.mean()), std=max(float(present.std()), 1e-6)))
    shape = tuple(images.shape[1:]) if images is not None else None
    form = ConditionForm.model_validate({"tokenizer": table, "length": length, "numbers": number_columns, "image": shape})
    stacked = torch.stack(list(columns.values()), 1) if columns else None
    return Conditions(form, tuple(captions), stacked, images, attributes, unseen, unseen_images)
