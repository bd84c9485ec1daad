"""The sections that need the model: loss by noise level, likelihood, and quality by number of function evaluations."""

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
from reverie.evaluation.flow_speed import NAME as FLOW_SPEED
from reverie.evaluation.flow_speed import TITLE as FLOW_SPEED_TITLE
from reverie.evaluation.flow_speed import flow_speed_section
from reverie.evaluation.likelihood import NAME as LIKELIHOOD
from reverie.evaluation.likelihood import PATHS, likelihood_section, passes
from reverie.evaluation.likelihood import TITLE as LIKELIHOOD_TITLE
from reverie.evaluation.nfe_quality import NAME as NFE
from reverie.evaluation.nfe_quality import SAMPLERS_SHOWN, nfe_section
from reverie.evaluation.nfe_quality import TITLE as NFE_TITLE
from reverie.evaluation.noise_level_loss import NAME as LEVELS
from reverie.evaluation.noise_level_loss import TITLE as LEVELS_TITLE
from reverie.evaluation.noise_level_loss import noise_levels_section
from reverie.evaluation.quality import distance_by_kernel, kid_floor
from reverie.evaluation.report_section import ReportSection
from reverie.evaluation.section_plan import PlannedSection
from reverie.families.diffusion.noise_levels import HELD_OUT_DRAWS
from reverie.runs.run import Run
from reverie.runs.samples import Samples
from reverie.runs.sampling_options import Options
from reverie.transport import sliced_wasserstein

TIMED = 32  # samples for timing the network
CHUNKS = 4  # parts of a set of points, whose standard deviation gives the error of the distance


def _quality(m: EvaluationData) -> tuple[str, Callable[[Samples], tuple[float, float | None]], tuple[float, float]]:
    """Return a distance of samples to data, lower is better: its name, the function, and its floor ± error."""
    if m.kind == "images":
        floor = kid_floor(m, m.limits.nfe_samples)
        return "KID", lambda s: distance_by_kernel(m, m.features.of(samples_tensor(s.x))), floor
    data = m.subset(m.held)
    count = min(m.limits.nfe_samples, len(data) // 2)
    if not count:
        raise UserError(f"this needs 2 held-out points, got {len(data)}")
    floor_points, reference = data[:count], data[count:]  # disjoint, so that the floor is not measured against itself

    def sliced(points: torch.Tensor) -> tuple[float, float]:
        parts = [float(sliced_wasserstein(part, reference, p=1)) for part in points.chunk(CHUNKS)]
        distance = float(sliced_wasserstein(points, reference, p=1))
        return distance, float(torch.tensor(parts).std()) / len(parts) ** 0.5

    return "sliced Wasserstein distance", lambda s: sliced(torch.from_numpy(s.x)), sliced(floor_points)


def _evaluated_samples(m: EvaluationData, count: int) -> Samples | None:
    """Return the first evaluated samples in the layout of a sampler, or None if there are too few."""
    if len(m.samples) < count:
        return None
    x = m.samples[:count]
    return Samples(channels_last(x.numpy()), None)


def _seconds_of_network(run: Run, clock: Callable[[], float]) -> float:
    """Return the seconds of one network evaluation per datum, measured on a few samples of two steps."""
    options: Options = {"steps": 2}
    sampler, grid = run.sampling(options)
    passes = (sampler.evaluations(grid) or 2 * len(grid)) * (1 if run.autoguidance == 1 else 2)
    count, start = min(TIMED, run.batch_size()), clock()
    run.sample(count, **options)
    return (clock() - start) / (count * passes)


def model_plan(
    run: Run, m: EvaluationData | None, quick: bool, seed: int, on_progress: PacedProgress, options: Options | None = None, *,
    steered: bool = False, why: str = "",
) -> list[PlannedSection]:  # fmt: skip
    """Return the planned sections: loss by noise level, likelihood, and, without guidance or labels, quality by NFE.

    Families other than diffusion have only a likelihood.  options: of sampling; why: the reason if there are no data.
    """
    if "sampler" not in run.config.model_family.capabilities:
        return _density_plan(run, m, seed, why)
    network = cache(lambda: _seconds_of_network(run, on_progress.deadline.clock))
    levels = PlannedSection(
        LEVELS, LEVELS_TITLE, lambda: noise_levels_section(run, m.train if m else None, m.held if m else None, seed=seed),
        lambda: network() * 2 * HELD_OUT_DRAWS[run.kind] if m else 0.0,
    )  # fmt: skip
    likelihood = PlannedSection(LIKELIHOOD, LIKELIHOOD_TITLE, lambda: None)
    evaluations = PlannedSection(NFE, NFE_TITLE, lambda: None)
    if m is None:
        return [levels, *(_omitted(part, why) for part in (likelihood, evaluations))]
    bound_count, flow_count = m.limits.bounded, m.limits.flow

    def measure_likelihood() -> ReportSection:
        x, labels = m.held.batch(torch.arange(min(bound_count, len(m.held))))
        return likelihood_section(
            run, x, labels, train=m.train, n=bound_count, flow_n=flow_count, seed=seed, paths=0 if quick else PATHS,
            on_progress=lambda i, of: on_progress("likelihood", i, of),
        )  # fmt: skip

    likelihood = replace(
        likelihood, measure=measure_likelihood, seconds=lambda: network() * passes(run, bound_count, flow_count)
    )
    if steered:
        return [levels, likelihood, _omitted(evaluations, "it is measured only without a label and without guidance")]
    nfe = m.limits.nfe_samples * sum(m.limits.budgets) * len(SAMPLERS_SHOWN)
    evaluations = replace(
        evaluations, measure=lambda: _evaluations(run, m, seed, on_progress, options or {}), seconds=lambda: network() * nfe
    )
    return [levels, likelihood, evaluations]


def _omitted(part: PlannedSection, why: str) -> PlannedSection:
    return replace(part, measure=lambda: part.left_out(why))


def _density_plan(run: Run, m: EvaluationData | None, seed: int, why: str) -> list[PlannedSection]:
    likelihood = PlannedSection(LIKELIHOOD, LIKELIHOOD_TITLE, lambda: None)
    if m is None:
        return [_omitted(likelihood, why)]
    speed = PlannedSection(FLOW_SPEED, FLOW_SPEED_TITLE, lambda: flow_speed_section(run))
    if run.config.model_family.likelihood == "none":
        return [speed]
    return [replace(likelihood, measure=lambda: density_section(run, *held_out_of(m.held), seed)), speed]


def _evaluations(run: Run, m: EvaluationData, seed: int, on_progress: OnProgress, options: Options) -> ReportSection | None:
    try:
        what, quality, floor = _quality(m)
    except UserError:
        return None  # there are no features; the section that needed them first reports the reason
    samples = _evaluated_samples(m, m.limits.nfe_samples)
    return nfe_section(
        run, quality, what=what, n=m.limits.nfe_samples, seed=seed, counts=m.limits.budgets, floor=floor,
        evaluated=(options, samples) if samples else None,
        on_progress=lambda i, of: on_progress("quality by function evaluations", i, of),
    )  # fmt: skip
