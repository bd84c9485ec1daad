"""Parsing of labels: one label, or a weighted sum of labels such as `6:1.5,8:-1`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from reverie.base.errors import UserError, unknown
from reverie.diffusion.guidance import check_scale

MAX_PARTS = 64
NUMBER = r"\s*([+-]?(?:\d+\.?\d*|\.\d+)(?:e[+-]?\d+)?)\s*(?:,\s*|$)"
WEIGHT = re.compile(NUMBER, re.IGNORECASE)
PART = re.compile(rf"(.+?):{NUMBER}", re.IGNORECASE | re.DOTALL)


@dataclass(frozen=True)
class Composition:
    """Indices of labels and their weights."""

    labels: tuple[int, ...]
    weights: tuple[float, ...]


def read_label(label: str | int, names: Sequence[str]) -> Composition:
    """Parse a label or a weighted sum; an existing label is never split, whatever characters it contains."""
    label = str(label)
    if label in names:
        return Composition((names.index(label),), (1.0,))
    parts, rest = [], label
    while rest:
        prefix = next((name for name in sorted(names, key=len, reverse=True) if rest.startswith(f"{name}:")), None)
        match = WEIGHT.match(rest, len(prefix) + 1) if prefix is not None else PART.match(rest)
        if match is None:
            raise unknown(label, (*names, "all"), "label")
        parts.append((prefix if prefix is not None else match[1].strip(), float(match[match.lastindex or 1])))
        rest = rest[match.end() :]
    if not parts:
        raise unknown(label, (*names, "all"), "label")
    if wrong := [name for name, _ in parts if name not in names]:
        raise unknown(wrong[0], names, "label")
    if len(parts) > MAX_PARTS:
        raise UserError(f"at most {MAX_PARTS} labels can be composed, got {len(parts)}")
    weights = tuple(check_scale(weight, f"the weight of {name!r}") for name, weight in parts)
    return Composition(tuple(names.index(name) for name, _ in parts), weights)


def read_labels(text: str | Sequence[str], names: Sequence[str]) -> tuple[int, ...]:
    """Return the indices of comma-separated labels such as `6,9`; labels may contain commas."""
    if not isinstance(text, str):
        words, max_words = [str(word) for word in text], 1
    else:
        words, max_words = text.split(","), len(text)
    indices: list[int] = []
    while words:
        counts = range(min(max_words, len(words)), 0, -1)
        count = next((k for k in counts if ",".join(words[:k]).strip() in names), None)
        if count is None:
            raise unknown(words[0].strip(), names, "label")
        indices.append(list(names).index(",".join(words[:count]).strip()))
        words = words[count:]
    return tuple(indices)
