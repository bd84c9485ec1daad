"""How long a flow takes each way: to noise, which tells the density, and from noise, which draws."""

from __future__ import annotations

from reverie.evaluation.report_section import ReportSection
from reverie.families.flow.model import TIMED, Flow
from reverie.runs.run import Run

NAME, TITLE = "directions", "Both ways of the flow"
SLOWER = 3.0  # times, from which one way is called slower


def directions_section(run: Run) -> ReportSection | None:
    """Time both ways of a flow, a batch of 64 at once; nothing of other families."""
    if not isinstance(run.model, Flow):
        return None
    there, back = (1e3 * seconds for seconds in run.model.seconds_each_way())
    verdict = f"A datum takes {there:.2g} ms to noise, which tells its density, and {back:.2g} ms from noise, which draws it."
    words = ["Both take one pass of the networks or a few."]
    if back > SLOWER * there:
        words = ["An autoregressive flow tells all densities in one pass, and draws number by number, a pass for each."]
    figures = {"milliseconds_to_noise": there, "milliseconds_from_noise": back, "at_once": TIMED}
    return ReportSection(NAME, TITLE, (verdict,), tuple(words), figures)
