"""What the doctor finds, as metrics.jsonl keeps it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

RESCUE = "rescue"  # what a finding is called that tells of a rollback


@dataclass(frozen=True)
class Finding:
    """What is wrong, since which step, why probably (nothing where that is plain), and what to do.

    change: the settings that the advice changes, as options of `reverie train`, None for one to be left out; "length" is
    a multiple of the present one.
    """

    check: str
    what: str
    since: int
    cause: str
    advice: str
    change: Mapping[str, str | None] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not isinstance(self.change, dict) or not all(isinstance(v, str | None) for v in self.change.values()):
            raise TypeError("change must map names of settings to words")  # it may come from a file

    def __str__(self) -> str:
        since = f" (since step {self.since:,})" if self.since else ""
        return f"{self.what}{since}{': probably ' if self.cause else ''}{self.cause}; {self.advice}"

    def as_row(self, i: int) -> dict[str, Any]:
        """Return the finding as a row of metrics.jsonl."""
        return {"i": i, "finding": asdict(self)}
