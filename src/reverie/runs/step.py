"""A report of a training, and the schema of its row in metrics.jsonl."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, model_validator

from reverie.base.units import Unit
from reverie.families.diffusion.noise_levels import T_RANGES
from reverie.runs.finding import Finding, FindingRow

MAX_I = 10**12  # upper limit of the steps of a run
Number = Annotated[float, Field(ge=-1e39, le=1e39)]  # the range of float32
Levels = Annotated[list[Number], Field(min_length=T_RANGES, max_length=T_RANGES)]


CHECK_KEYS = frozenset(
    {"unit", "held_out_levels", "train_loss", "train_levels", "raw_held_out", "appearance"}
)  # in addition to held_out


def _finite(value: Any) -> bool:
    """Return whether all numbers in a value are finite."""
    if isinstance(value, Mapping):
        return all(map(_finite, value.values()))
    if isinstance(value, Sequence) and not isinstance(value, str):
        return all(map(_finite, value))
    return not isinstance(value, float) or math.isfinite(value)


@dataclass(frozen=True)
class Step:
    """A report after step i: the mean training loss since the last report, and the metrics of a check if there was one.

    held_out: held-out loss of the EMA weights, or NLL in `unit`, the unit of all figures compared with it; held_out_levels: the
    held-out loss in four equal ranges of t, by increasing noise; noise_error_levels: mean squared error of the predicted
    noise in these ranges; train_loss, train_levels: the same loss as held_out on training data; raw_held_out: held-out loss of
    the raw weights; preview_score: see `reverie.training.previews`; optimum_levels: the minimum training loss of any model;
    linear_levels: the loss of the best linear filter; appearance: previews relative to data, see `reverie.data.appearance`;
    waited: share of the time without a processor, see `reverie.base.busy`; others: further metrics of the family; findings: new
    problems; active: names of the checks with a finding.
    """

    i: int
    fraction: float
    seconds: float
    per_second: float
    loss: float | None
    learning_rate: float
    held_out: float | None = None
    unit: Unit | None = None
    held_out_levels: tuple[float, ...] = ()
    noise_error_levels: tuple[float, ...] = ()
    train_loss: float | None = None
    train_levels: tuple[float, ...] = ()
    raw_held_out: float | None = None
    preview_score: float | None = None
    optimum_levels: tuple[float, ...] = ()
    linear_levels: tuple[float, ...] = ()
    appearance: Mapping[str, float] | None = None
    waited: float | None = None
    others: Mapping[str, Any] = field(default_factory=dict)
    findings: tuple[Finding, ...] = ()
    active: tuple[str, ...] = ()
    finishing: float = 0.0  # estimated seconds of the stages after the last step
    stage: str = ""  # the model that is trained, if there are several

    @property
    def seconds_left(self) -> float:
        """Estimated seconds to the end of all stages."""
        return self.seconds * (1 - self.fraction) / max(self.fraction, 1e-9) + self.finishing

    @property
    def done(self) -> str:
        """A line with steps and seconds."""
        return f"trained {self.i:,} step{'s' if self.i != 1 else ''} in {self.seconds:.0f} s"

    def as_rows(self) -> Iterator[dict[str, Any]]:
        """Yield the rows of metrics.jsonl: the report and each finding."""
        if self.loss is not None:
            values = {key: value for key, value in asdict(self).items() if key not in ("findings", "others", "stage")}
            row = {key: value for key, value in {**self.others, **values}.items() if value not in (None, ()) and _finite(value)}
            if "held_out" not in row:
                row = {key: value for key, value in row.items() if key not in CHECK_KEYS}
            if "held_out_levels" not in row:
                row.pop("train_levels", None)
            if "loss" in row:
                yield row
        for finding in self.findings:
            yield finding.as_row(self.i)


class StepRow(BaseModel):
    """A row of metrics.jsonl with a report, see `Step`.  Unknown values are omitted, never null."""

    model_config = ConfigDict(extra="allow", strict=True, allow_inf_nan=False)

    i: int = Field(ge=0, le=MAX_I)
    fraction: float = Field(ge=0, le=1)
    seconds: float = Field(ge=0, le=1e12)
    loss: Number
    per_second: float = Field(default=0.0, ge=0)
    learning_rate: float = Field(default=0.0, ge=0)
    held_out: Number = 0.0
    unit: Unit = "nats"
    held_out_levels: Levels = []
    noise_error_levels: Levels = []
    train_loss: Number = 0.0
    train_levels: Levels = []
    raw_held_out: Number = 0.0
    preview_score: Number = 0.0
    optimum_levels: Levels = []
    linear_levels: Levels = []
    appearance: dict[str, Number] = {}
    waited: Number = 0.0
    finishing: float = Field(default=0.0, ge=0, le=1e12)
    active: list[str] = []

    @model_validator(mode="after")
    def _whole(self) -> StepRow:
        present = self.model_fields_set
        if present & CHECK_KEYS and "held_out" not in present:
            raise ValueError("metrics of a check without held_out")
        if "train_levels" in present and "held_out_levels" not in present:
            raise ValueError("train_levels without held_out_levels")
        return self


def read_row(row: Any) -> StepRow | FindingRow:
    """Parse a row of metrics.jsonl: a report or a finding; raises ValidationError."""
    return (FindingRow if isinstance(row, dict) and "finding" in row else StepRow).model_validate(row)


def report(
    i: int, fraction: float, seconds: float, per_second: float, loss: float, learning_rate: float, figures: Mapping[str, Any],
    waited: float | None = None, finishing: float = 0.0,
) -> Step:  # fmt: skip
    """Return the report of a step with the metrics of a check, including those of the family."""
    names = {f.name for f in fields(Step)}
    common = {key: value for key, value in figures.items() if key in names}
    others = {key: value for key, value in figures.items() if key not in names}
    return Step(
        i, fraction, seconds, per_second, loss, learning_rate, waited=waited, others=others, finishing=finishing, **common
    )
