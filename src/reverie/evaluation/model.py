"""The sections that need the model itself: its loss, its likelihood, and what fewer evaluations cost."""

from __future__ import annotations

from collections.abc import Callable

import torch

from reverie.base.errors import UserError
from reverie.base.progress import Tell
from reverie.draw.picture import channels_last
from reverie.evaluation.density import density_section, held_out_of
from reverie.evaluation.directions import directions_section
from reverie.evaluation.effort import NAME as EFFORT
from reverie.evaluation.effort import TITLE as EFFORT_TITLE
from reverie.evaluation.effort import evaluations_section
from reverie.evaluation.levels import noise_levels_section
from reverie.evaluation.likelihood import NAME as LIKELIHOOD
from reverie.evaluation.likelihood import PATHS, likelihood_section
from reverie.evaluation.likelihood import TITLE as LIKELIHOOD_TITLE
from reverie.evaluation.material import FULL, QUICK, Material, as_images
from reverie.evaluation.quality import distance_by_kernel, kid_floor
from reverie.evaluation.section import Section
from reverie.runs.options import Options
from reverie.runs.run import Run
from reverie.runs.samples import Samples
from reverie.transport import sliced_wasserstein

HALVES = 4  # parts of a set of points, whose spread gives the error of the distance


def _quality(m: Material) -> tuple[str, Callable[[Samples], tuple[float, float | None]], tuple[float, float]]:
    """Return a measure of samples, the less the better: its name, the function, and what real data have ± its error."""
    if m.kind == "images":
        floor = kid_floor(m, m.effort.drawn)
        return "KID", lambda s: distance_by_kernel(m, m.features.of(as_images(s.x))), floor
    data = m.some(m.held)
    count = min(m.effort.drawn, len(data) // 2)
    if not count:
        raise UserError(f"it needs 2 held-out points, got {len(data)}")
    mine, reference = data[:count], data[count:]  # the floor must not be measured against itself

    def sliced(points: torch.Tensor) -> tuple[float, float]:
        parts = [float(sliced_wasserstein(part, reference, p=1)) for part in points.chunk(HALVES)]
        whole = float(sliced_wasserstein(points, reference, p=1))
        return whole, float(torch.tensor(parts).std()) / len(parts) ** 0.5

    return "sliced Wasserstein distance", lambda s: sliced(torch.from_numpy(s.x)), sliced(mine)


def _drawn_before(m: Material, many: int) -> Samples | None:
    """Return the first of the samples that were evaluated, if there are as many, in the form a sampler gives them."""
    if len(m.samples) < many:
        return None
    x = m.samples[:many]
    return Samples(channels_last(x.numpy()), None)


def model_sections(
    run: Run, m: Material | None, quick: bool, seed: int, tell: Tell, options: Options | None = None, *, steered: bool = False,
    why: str = "",
) -> list[Section]:  # fmt: skip
    """Measure loss by noise level, likelihood, and, unless a label or guidance steers it, quality against evaluations.

    Families other than diffusion have a likelihood only.  options: those that the samples were drawn with; why: the data
    cannot be had, if they cannot.
    """
    if "sampler" not in run.config.model_family.can:
        if m is None:
            return [Section(LIKELIHOOD, LIKELIHOOD_TITLE, figures={"not_computable": why})]
        known = run.config.model_family.likelihood != "none"
        ways = directions_section(run)
        return [*([density_section(run, *held_out_of(m.held), seed)] if known else []), *([ways] if ways is not None else [])]
    effort = QUICK if quick else FULL
    tell("loss at each noise level", 0, 1)
    sections = [noise_levels_section(run, m.train if m else None, m.held if m else None, seed=seed)]
    tell("loss at each noise level", 1, 1)
    if m is None:
        lost = {"not_computable": why}
        return [*sections, Section(LIKELIHOOD, LIKELIHOOD_TITLE, figures=lost), Section(EFFORT, EFFORT_TITLE, figures=lost)]
    few, flow = effort.bounded, effort.followed
    x, labels = m.held.batch(torch.arange(min(few, len(m.held))))
    sections.append(
        likelihood_section(
            run, x, labels, train=m.train, n=few, flow_n=flow, seed=seed, paths=0 if quick else PATHS,
            on_progress=lambda i, of: tell("likelihood", i, of),
        )
    )  # fmt: skip
    if steered:
        why = "samples of one label or under guidance are not drawn again for it"
        return [*sections, Section(EFFORT, EFFORT_TITLE, figures={"not_computable": why})]
    try:
        what, quality, floor = _quality(m)
    except UserError:
        return sections  # the features cannot be had, which was said where they were first needed
    sections.append(
        evaluations_section(
            run, quality, what=what, n=effort.drawn, seed=seed, counts=effort.budgets, floor=floor,
            evaluated=(options or {}, samples) if (samples := _drawn_before(m, effort.drawn)) else None,
            on_progress=lambda i, of: tell("quality against evaluations", i, of),
        )
    )  # fmt: skip
    return sections
