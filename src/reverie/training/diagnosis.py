"""The input of the doctor's checks, and the held-out improvement that they share."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from torch import Tensor

from reverie.base.units import EXACT
from reverie.data.appearance import AppearanceStats
from reverie.data.kind import Kind
from reverie.diffusion.schedule import Schedule
from reverie.families.model import Model
from reverie.runs.finding import Finding

if TYPE_CHECKING:
    from reverie.training.linear import Filter, FirstMap

Row = Mapping[str, Any]

ENOUGH = 30  # steps from which learning can be assessed: the last layers change before the first
MIN_DATA = 10  # training data from which a model can generalize
EXTENDED = 0.8  # an extension can be assessed if at most this share of the steps was made before it
SETTLED = 0.25  # share of a run from which previews can be assessed


@dataclass(frozen=True)
class NetworkSizes:
    """Networks of the same design, as values of --network: smaller, larger, and with a smaller stem (less pixel folding)."""

    smaller: str | None = None
    larger: str | None = None
    unfolded: str | None = None


@dataclass(frozen=True)
class NetworkInfo:
    """Properties of a diffusion model's network that need no training.

    linear: the loss of the best linear filter on the data; entry: the network's first layer; others: finds similar networks.
    """

    schedule: Schedule | None = None
    linear: Filter | None = None
    entry: FirstMap | None = None
    others: Callable[[], NetworkSizes] = NetworkSizes

    @cached_property
    def sizes(self) -> NetworkSizes:
        """Similar networks; computed when first needed, as their parameters are counted."""
        return self.others()


@dataclass
class Diagnosis:
    """The state of a training that the checks examine.

    rows: the reports so far; movement: relative change of each parameter; preview, truth: statistics of the newest preview and
    of the data; previewed: the step of that preview, the newest step if None; count: of training data; requested: the options
    given by the user.
    """

    rows: Sequence[Row]
    model: Model
    data: Tensor
    kind: Kind
    movement: Mapping[str, float] = field(default_factory=dict)
    preview: AppearanceStats | None = None
    truth: AppearanceStats | None = None
    count: int = MIN_DATA
    requested: Mapping[str, Any] = field(default_factory=dict)
    network: NetworkInfo = NetworkInfo()
    previewed: int | None = None

    @property
    def now(self) -> Row:
        """The newest report."""
        return self.rows[-1]

    @property
    def unit(self) -> str | None:
        """The unit of the held-out metric; None for a loss."""
        unit: str | None = self.now.get("unit")
        return unit

    def checked(self) -> list[Row]:
        """Return the reports with a check on held-out data."""
        return [row for row in self.rows if "held_out" in row]

    def fraction_at(self, row: Row) -> float:
        """Return the fraction of the run at a report; its stored fraction may be of the run before an extension."""
        return float(self.now["fraction"] * row["i"] / max(1, self.now["i"]))

    def has_preview(self) -> bool:
        """Return whether there is a preview of a step after the fraction SETTLED of the run."""
        at = self.now["i"] if self.previewed is None else self.previewed
        return self.preview is not None and self.truth is not None and self.fraction_at({"i": at}) >= SETTLED


Check = Callable[[Diagnosis], Finding | None]


def gain(before: float, after: float, unit: str | None) -> float:
    """Return the improvement of a metric: relative for a loss, in its unit for a likelihood, which may be negative.

    An unbiased distance that is not positive counts as 0: it fluctuates around 0 when both sets have the same distribution.
    """
    if unit:
        return before - after
    return 1 - after / before if before > 0 else 0.0


def metric_name(unit: str | None) -> str:
    """Return the name of the held-out metric."""
    if unit in EXACT:
        return "held-out NLL"
    return "held-out NLL bound" if unit else "held-out loss"


def held_out_decrease(rows: Sequence[Row]) -> tuple[int, float] | None:
    """Return the reference step and the improvement of the held-out metric since then, see `gain`.

    rows: reports with a check.  The reference is the end of the run before its extension, where the learning rate had decayed
    as well, or else the middle of the steps.  None if no earlier check is of a network trained for a tenth of the steps.
    """
    last = rows[-1]["i"]
    trained = [row for row in rows[:-1] if row["i"] >= max(2, last / 10)]
    ends = [row for row in trained if row["fraction"] == 1 and row["i"] <= EXTENDED * last] if rows[-1]["fraction"] == 1 else []
    earlier = ends or [row for row in trained if row["i"] <= last / 2]
    if not earlier:
        return None
    last_row, reference = rows[-1], earlier[-1]
    return int(reference["i"]), gain(float(reference["held_out"]), float(last_row["held_out"]), last_row.get("unit"))
