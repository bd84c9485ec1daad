"""Measuring sections in the order of their worth, as many as the time allows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from reverie.base.deadline import Deadline, OutOfTime, PacedProgress
from reverie.base.errors import UserError
from reverie.evaluation.report_section import ReportSection

WORTH = (
    "samples", "answers", "quality", "points", "passages", "memory", "variety", "two_sample", "labels", "captions",
    "likelihood", "directions", "noise_levels", "distances", "network_evaluations",
)  # fmt: skip
INTERRUPTED = "interrupted"


@dataclass(frozen=True)
class Planned:
    """A section to be measured.  seconds: an estimate of the time it takes; measure returns None where it does not apply."""

    name: str
    title: str
    measure: Callable[[], ReportSection | None]
    seconds: Callable[[], float] = lambda: 0.0

    def left_out(self, why: str) -> ReportSection:
        """Return the section that says why it holds nothing."""
        return ReportSection(self.name, self.title, figures={"not_computable": why})


def planned(section: ReportSection) -> Planned:
    """Return a section that is there already as one of a plan."""
    return Planned(section.name, section.title, lambda: section)


def late(deadline: Deadline) -> str:
    """Say why a section was left out."""
    return f"no time was left of the {deadline.seconds:.0f} s of --quick; leave --quick out to measure it"


def _measured(part: Planned, deadline: Deadline) -> ReportSection | None:
    try:
        if deadline.limited:
            deadline.check(part.seconds())
        return part.measure()
    except OutOfTime:
        return part.left_out(late(deadline))
    except UserError as error:
        return part.left_out(str(error))


def measure_planned(plan: Sequence[Planned], deadline: Deadline, tell: PacedProgress) -> tuple[list[ReportSection], bool]:
    """Measure the sections, the most worthwhile first; return them in the order of the plan, and whether all were gone through.

    One that does not fit into the time says so; after Ctrl-C those that are missing say that.
    """
    found: dict[str, ReportSection | None] = {}
    whole = True
    for part in sorted(plan, key=lambda part: WORTH.index(part.name)):
        about = part.title[0].lower() + part.title[1:]
        try:
            tell.begin()
            tell(about, 0, 1)
            found[part.name] = _measured(part, deadline)
            tell(about, 1, 1)
        except KeyboardInterrupt:
            whole = False
            break
    sections = [found[part.name] if part.name in found else part.left_out(INTERRUPTED) for part in plan]
    return [section for section in sections if section is not None], whole
