"""A part of an evaluation: figures, what they mean in words, and pictures."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class ReportSection:
    """One measured aspect of a run.

    name: its key in JSON; verdict: conclusions in plain words, the most important first; words: how to read the figures;
    figures: plain values with counts, seeds and units beside them, or {"not_computable": why}; pictures: PNG files by
    caption.
    """

    name: str
    title: str
    verdict: tuple[str, ...] = ()
    words: tuple[str, ...] = ()
    figures: dict[str, Any] = field(default_factory=dict)
    pictures: dict[str, bytes] = field(default_factory=dict)
