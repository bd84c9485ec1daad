"""The speed of a flow in both directions: to noise, for the density, and from noise, for sampling."""

from __future__ import annotations

from reverie.evaluation.report_section import ReportSection
from reverie.families.flow.model import TIMED, Flow
from reverie.runs.run import Run

NAME, TITLE = "flow_speed", "Speed of the flow"
SLOWER = 3.0  # ratio of the times above which sampling is reported as slower


def flow_speed_section(run: Run) -> ReportSection | None:
    """Time both directions of a flow on a batch of 64; None for other families."""
    if not isinstance(run.model, Flow):
        return None
    to_noise, from_noise = (1e3 * seconds for seconds in run.model.seconds_per_direction())
    verdict = f"The density of a datum takes {to_noise:.2g} ms (data to noise), a sample {from_noise:.2g} ms (noise to data)."
    notes = ["Both directions take one or a few passes through the networks."]
    if from_noise > SLOWER * to_noise:
        notes = ["An autoregressive flow computes a density in one pass, and a sample in one pass per number."]
    figures = {"milliseconds_to_noise": to_noise, "milliseconds_from_noise": from_noise, "batch_size": TIMED}
    return ReportSection(NAME, TITLE, (verdict,), tuple(notes), figures)
