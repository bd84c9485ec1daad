"""Planned sections, measured by priority until the deadline."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from reverie.base.deadline import Deadline, OutOfTime, PacedProgress
from reverie.base.errors import UserError
from reverie.evaluation.report_section import ReportSection

PRIORITY = (
    "samples", "answers", "quality", "points", "passages", "memorization", "precision_recall", "two_sample", "labels",
    "captions", "likelihood", "flow_speed", "noise_levels", "distances", "network_evaluations",
)  # fmt: skip
INTERRUPTED = "interrupted"


@dataclass(frozen=True)
class PlannedSection:
    """A section to compute.  seconds: its estimated time; measure returns None if the section does not apply."""

    name: str
    title: str
    measure: Callable[[], ReportSection | None]
    seconds: Callable[[], float] = lambda: 0.0

    def left_out(self, why: str) -> ReportSection:
        """Return the section with the reason why it is empty."""
        return ReportSection(self.name, self.title, figures={"not_computable": why})


def ready_section(section: ReportSection) -> PlannedSection:
    """Return a computed section as a planned one."""
    return PlannedSection(section.name, section.title, lambda: section)


def out_of_time_message(deadline: Deadline) -> str:
    """Return the reason why a section was left out."""
    return f"it does not fit into the {deadline.seconds:.0f} s of --quick; leave out --quick"


def _measure(part: PlannedSection, deadline: Deadline) -> ReportSection | None:
    try:
        if deadline.limited:
            deadline.check(part.seconds())
        return part.measure()
    except OutOfTime:
        return part.left_out(out_of_time_message(deadline))
    except UserError as error:
        return part.left_out(str(error))


def measure_planned(
    plan: Sequence[PlannedSection], deadline: Deadline, on_progress: PacedProgress
) -> tuple[list[ReportSection], bool]:
    """Compute the sections by priority; return them in the order of the plan, and whether all were reached.

    A section that does not fit into the time, or is missing after Ctrl-C, contains the reason.
    """
    measured: dict[str, ReportSection | None] = {}
    finished = True
    for part in sorted(plan, key=lambda part: PRIORITY.index(part.name)):
        title = part.title[0].lower() + part.title[1:]
        try:
            on_progress.begin()
            on_progress(title, 0, 1)
            measured[part.name] = _measure(part, deadline)
            on_progress(title, 1, 1)
        except KeyboardInterrupt:
            finished = False
            break
    sections = [measured[part.name] if part.name in measured else part.left_out(INTERRUPTED) for part in plan]
    return [section for section in sections if section is not None], finished
