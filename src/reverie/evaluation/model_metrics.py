"""The sections that need the model itself: its loss, its likelihood, and what fewer evaluations cost."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache

import torch

from reverie.base.deadline import PacedProgress
from reverie.base.errors import UserError
from reverie.base.progress import OnProgress
from reverie.draw.picture import channels_last
from reverie.evaluation.density import density_section, held_out_of
from reverie.evaluation.evaluation_data import EvaluationData, samples_tensor
from reverie.evaluation.flow_speed import NAME as DIRECTIONS
from reverie.evaluation.flow_speed import TITLE as DIRECTIONS_TITLE
from reverie.evaluation.flow_speed import directions_section
from reverie.evaluation.likelihood import NAME as LIKELIHOOD
from reverie.evaluation.likelihood import PATHS, likelihood_section, passes
from reverie.evaluation.likelihood import TITLE as LIKELIHOOD_TITLE
from reverie.evaluation.nfe_quality import NAME as EFFORT
from reverie.evaluation.nfe_quality import SAMPLERS_SHOWN, evaluations_section
from reverie.evaluation.nfe_quality import TITLE as EFFORT_TITLE
from reverie.evaluation.noise_level_loss import NAME as LEVELS
from reverie.evaluation.noise_level_loss import TITLE as LEVELS_TITLE
from reverie.evaluation.noise_level_loss import noise_levels_section
from reverie.evaluation.quality import distance_by_kernel, kid_floor
from reverie.evaluation.report_section import ReportSection
from reverie.evaluation.section_plan import Planned
from reverie.families.diffusion.noise_levels import HELD_OUT_DRAWS
from reverie.runs.run import Run
from reverie.runs.samples import Samples
from reverie.runs.sampling_options import Options
from reverie.transport import sliced_wasserstein

TRIED = 32  # samples by which the speed of the network is known
HALVES = 4  # parts of a set of points, whose spread gives the error of the distance


def _quality(m: EvaluationData) -> tuple[str, Callable[[Samples], tuple[float, float | None]], tuple[float, float]]:
    """Return a measure of samples, the less the better: its name, the function, and what real data have ± its error."""
    if m.kind == "images":
        floor = kid_floor(m, m.effort.drawn)
        return "KID", lambda s: distance_by_kernel(m, m.features.of(samples_tensor(s.x))), floor
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


def _drawn_before(m: EvaluationData, many: int) -> Samples | None:
    """Return the first of the samples that were evaluated, if there are as many, in the form a sampler gives them."""
    if len(m.samples) < many:
        return None
    x = m.samples[:many]
    return Samples(channels_last(x.numpy()), None)


def _seconds_of_network(run: Run, clock: Callable[[], float]) -> float:
    """Return how long one evaluation of the network takes for one datum, by a few samples in two steps."""
    short: Options = {"steps": 2}
    sampler, grid = run.sampling(short)
    passes = (sampler.evaluations(grid) or 2 * len(grid)) * (1 if run.autoguidance == 1 else 2)
    count, begun = min(TRIED, run.batch_size()), clock()
    run.sample(count, **short)
    return (clock() - begun) / (count * passes)


def model_plan(
    run: Run, m: EvaluationData | None, quick: bool, seed: int, tell: PacedProgress, options: Options | None = None, *,
    steered: bool = False, why: str = "",
) -> list[Planned]:  # fmt: skip
    """Return the sections on loss by noise level, likelihood, and quality against effort unless it is steered.

    Families other than diffusion have a likelihood only.  options: those that the samples were drawn with; why: the data
    cannot be had, if they cannot.
    """
    if "sampler" not in run.config.model_family.can:
        return _density_plan(run, m, seed, why)
    network = cache(lambda: _seconds_of_network(run, tell.deadline.clock))
    levels = Planned(
        LEVELS, LEVELS_TITLE, lambda: noise_levels_section(run, m.train if m else None, m.held if m else None, seed=seed),
        lambda: network() * 2 * HELD_OUT_DRAWS[run.kind] if m else 0.0,
    )  # fmt: skip
    likelihood = Planned(LIKELIHOOD, LIKELIHOOD_TITLE, lambda: None)
    evaluations = Planned(EFFORT, EFFORT_TITLE, lambda: None)
    if m is None:
        return [levels, *(_refused(part, why) for part in (likelihood, evaluations))]
    few, flow = m.effort.bounded, m.effort.followed

    def bounded() -> ReportSection:
        x, labels = m.held.batch(torch.arange(min(few, len(m.held))))
        return likelihood_section(
            run, x, labels, train=m.train, n=few, flow_n=flow, seed=seed, paths=0 if quick else PATHS,
            on_progress=lambda i, of: tell("likelihood", i, of),
        )  # fmt: skip

    likelihood = replace(likelihood, measure=bounded, seconds=lambda: network() * passes(run, few, flow))
    if steered:
        return [levels, likelihood, _refused(evaluations, "samples of one label or under guidance are not drawn again for it")]
    spent = m.effort.drawn * sum(m.effort.budgets) * len(SAMPLERS_SHOWN)
    evaluations = replace(
        evaluations, measure=lambda: _evaluations(run, m, seed, tell, options or {}), seconds=lambda: network() * spent
    )
    return [levels, likelihood, evaluations]


def _refused(part: Planned, why: str) -> Planned:
    return replace(part, measure=lambda: part.left_out(why))


def _density_plan(run: Run, m: EvaluationData | None, seed: int, why: str) -> list[Planned]:
    likelihood = Planned(LIKELIHOOD, LIKELIHOOD_TITLE, lambda: None)
    if m is None:
        return [_refused(likelihood, why)]
    ways = Planned(DIRECTIONS, DIRECTIONS_TITLE, lambda: directions_section(run))
    if run.config.model_family.likelihood == "none":
        return [ways]
    return [replace(likelihood, measure=lambda: density_section(run, *held_out_of(m.held), seed)), ways]


def _evaluations(run: Run, m: EvaluationData, seed: int, tell: OnProgress, options: Options) -> ReportSection | None:
    try:
        what, quality, floor = _quality(m)
    except UserError:
        return None  # the features cannot be had, which was said where they were first needed
    samples = _drawn_before(m, m.effort.drawn)
    return evaluations_section(
        run, quality, what=what, n=m.effort.drawn, seed=seed, counts=m.effort.budgets, floor=floor,
        evaluated=(options, samples) if samples else None,
        on_progress=lambda i, of: tell("quality against evaluations", i, of),
    )  # fmt: skip
