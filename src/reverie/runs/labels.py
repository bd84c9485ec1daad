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
    """Parse a label or a weighted sum; a label of the run is always itself, whatever characters it has."""
    label = str(label)
    if label in names:
        return Composition((names.index(label),), (1.0,))
    parts, rest = [], label
    while rest:
        known = next((name for name in sorted(names, key=len, reverse=True) if rest.startswith(f"{name}:")), None)
        found = WEIGHT.match(rest, len(known) + 1) if known is not None else PART.match(rest)
        if found is None:
            raise unknown(label, (*names, "all"), "label")
        parts.append((known if known is not None else found[1].strip(), float(found[found.lastindex or 1])))
        rest = rest[found.end() :]
    if not parts:
        raise unknown(label, (*names, "all"), "label")
    if wrong := [name for name, _ in parts if name not in names]:
        raise unknown(wrong[0], names, "label")
    if len(parts) > MAX_PARTS:
        raise UserError(f"at most {MAX_PARTS} labels can be composed, got {len(parts)}")
    weights = tuple(check_scale(weight, f"the weight of {name!r}") for name, weight in parts)
    return Composition(tuple(names.index(name) for name, _ in parts), weights)


def read_labels(text: str | Sequence[str], names: Sequence[str]) -> tuple[int, ...]:
    """Parse comma-separated labels, `6,9`, to indices; labels may contain commas."""
    if not isinstance(text, str):
        words, joint = [str(word) for word in text], 1
    else:
        words, joint = text.split(","), len(text)
    found: list[int] = []
    while words:
        counts = range(min(joint, len(words)), 0, -1)
        fitting = next((k for k in counts if ",".join(words[:k]).strip() in names), None)
        if fitting is None:
            raise unknown(words[0].strip(), names, "label")
        found.append(list(names).index(",".join(words[:fitting]).strip()))
        words = words[fitting:]
    return tuple(found)
