"""What the doctor looks at, and what is found."""

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

ENOUGH = 30  # steps below which nothing can be said of how a network learns: its last layers move before its first
FEW = 10  # training data below which there is nothing to learn but to copy them
EXTENDED = 0.8  # of all steps, at most, that the run before an extension had, for what the extension gave to be told
SETTLED = 0.25  # the share of a run after which previews should show something


@dataclass(frozen=True)
class NetworkSizes:
    """Other networks of the same design as --network takes them: the next smaller and larger, and one that folds less."""

    smaller: str | None = None
    larger: str | None = None
    unfolded: str | None = None


@dataclass(frozen=True)
class NetworkInfo:
    """What is known of a diffusion model's network without training it.

    linear: what the best linear filter loses on the data; entry: the first map of the network; others: finds those like it.
    """

    schedule: Schedule | None = None
    linear: Filter | None = None
    entry: FirstMap | None = None
    others: Callable[[], NetworkSizes] = NetworkSizes

    @cached_property
    def sizes(self) -> NetworkSizes:
        """Other networks like it, which are built to be counted only when something is wrong."""
        return self.others()


@dataclass
class Diagnosis:
    """What the checks look at.

    rows: the reports so far; preview, truth: the newest preview, and the data seen in the same way; previewed: the step of
    that preview, the newest one if nothing is said; count: of training data;
    requested: the settings that a person chose.
    """

    rows: Sequence[Row]
    model: Model
    data: Tensor
    kind: Kind
    movement: Mapping[str, float] = field(default_factory=dict)
    preview: AppearanceStats | None = None
    truth: AppearanceStats | None = None
    count: int = FEW
    requested: Mapping[str, Any] = field(default_factory=dict)
    network: NetworkInfo = NetworkInfo()
    previewed: int | None = None

    @property
    def now(self) -> Row:
        """The newest report."""
        return self.rows[-1]

    @property
    def unit(self) -> str | None:
        """The unit of the held-out figure, None where it is a loss."""
        unit: str | None = self.now.get("unit")
        return unit

    def checked(self) -> list[Row]:
        """Return the reports that hold a check on held-out data."""
        return [row for row in self.rows if "held_out" in row]

    def share(self, row: Row) -> float:
        """Return how far in the run a report was; its own fraction may be that of a shorter run, before an extension."""
        return float(self.now["fraction"] * row["i"] / max(1, self.now["i"]))

    def shows(self) -> bool:
        """Tell whether there is a preview, taken when the run was old enough for it to show something."""
        at = self.now["i"] if self.previewed is None else self.previewed
        return self.preview is not None and self.truth is not None and self.share({"i": at}) >= SETTLED


Check = Callable[[Diagnosis], Finding | None]


def gain(before: float, after: float, unit: str | None) -> float:
    """Return by how much a figure fell: as a share of what it was, or in its unit, because a cost may be negative.

    A distance of samples and data that is right on average is as often below 0 as above once they are alike: of that, nothing.
    """
    if unit:
        return before - after
    return 1 - after / before if before > 0 else 0.0


def metric_name(unit: str | None) -> str:
    """Say what the held-out figure is."""
    if unit in EXACT:
        return "held-out cost"
    return "held-out bound" if unit else "held-out loss"


def held_out_decrease(rows: Sequence[Row]) -> tuple[int, float] | None:
    """Return since which step the held-out figure is compared, and by what it fell, see `gain`.

    rows: reports with a check.  Compared is the end of the run before it was extended, whose learning rate had fallen like
    that of the end now, or else the middle of the steps; not fractions, which an extension changes.  None where all checks
    before were of a network that was hardly trained.
    """
    last = rows[-1]["i"]
    trained = [row for row in rows[:-1] if row["i"] >= max(2, last / 10)]
    ends = [row for row in trained if row["fraction"] == 1 and row["i"] <= EXTENDED * last] if rows[-1]["fraction"] == 1 else []
    before = ends or [row for row in trained if row["i"] <= last / 2]
    if not before:
        return None
    last_row, old = rows[-1], before[-1]
    return int(old["i"]), gain(float(old["held_out"]), float(last_row["held_out"]), last_row.get("unit"))
