"""Findings of the doctor, as metrics.jsonl stores them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, field_validator

from reverie.base.config_section import OptionName
from reverie.base.deprecations import current_options

RESCUE = "rescue"  # the check of a finding that reports a rollback


@dataclass(frozen=True)
class Finding:
    """A problem (what), the step at which it began (since), its probable cause (may be empty), and advice.

    change: options of `reverie train` that the advice changes, None to omit one; "length" is relative to the present one.
    """

    check: str
    what: str
    since: int
    cause: str
    advice: str
    change: Mapping[str, str | None] = field(default_factory=dict)

    def __str__(self) -> str:
        since = f" (since step {self.since:,})" if self.since else ""
        return f"{self.what}{since}{': probably ' if self.cause else ''}{self.cause}; {self.advice}"

    def as_row(self, i: int) -> dict[str, Any]:
        """Return the finding as a row of metrics.jsonl."""
        return {"i": i, "finding": asdict(self)}


Sentence = Annotated[str, Field(max_length=2000)]


class FindingTable(BaseModel):
    """The schema of a finding in a row; see `Finding`."""

    model_config = ConfigDict(extra="forbid", strict=True)

    check: Annotated[str, Field(min_length=1, max_length=100)]
    what: Sentence
    since: int = Field(ge=0, lt=2**63)
    cause: Sentence
    advice: Sentence
    change: dict[OptionName, Annotated[str, Field(max_length=1000)] | None] = Field(default_factory=dict, max_length=64)

    @field_validator("change")
    @classmethod
    def _length_is_a_share(cls, change: dict[str, str | None]) -> dict[str, str | None]:
        if (length := change.get("length")) is not None and not 0 < float(length) < math.inf:
            raise ValueError("the length is relative to the present one and must be above 0")
        return change


class FindingRow(BaseModel):
    """A row of metrics.jsonl with a finding."""

    model_config = ConfigDict(extra="forbid", strict=True)

    i: int = Field(ge=0, lt=2**63)
    finding: FindingTable

    def to_finding(self) -> Finding:
        """Return the finding, with the present names of options."""
        table = self.finding.model_dump()
        return Finding(**{**table, "change": current_options(table["change"])})
