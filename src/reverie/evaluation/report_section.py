"""A section of a report: figures, verdict, notes and pictures."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class ReportSection:
    """One measured aspect of a run.

    name: its key in JSON; verdict: conclusions, the most important first; notes: how to read the figures; figures: plain
    values with counts, seeds and units, or {"not_computable": reason}; pictures: PNG files by caption.
    """

    name: str
    title: str
    verdict: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    figures: dict[str, Any] = field(default_factory=dict)
    pictures: dict[str, bytes] = field(default_factory=dict)
