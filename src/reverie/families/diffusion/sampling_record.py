"""The default sampling of a run as config.toml records it, and that of runs whose version did not record it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field

from reverie.base.config_section import ConfigSection
from reverie.base.precision import Precision
from reverie.base.spec import build
from reverie.data.kind import kind_of
from reverie.diffusion.samplers import GRIDS, SAMPLERS
from reverie.families.diffusion.sampling import (
    MOST_STEPS,
    STEERED,
    STUDENTS,
    SamplerChoice,
    SamplingProfile,
    chosen_sampling,
    data_of,
    default_sampling,
)


def _sampler(name: str) -> str:
    build(SAMPLERS, name, "sampler")
    return name


def _grid(name: str) -> str:
    build(GRIDS, name, "grid")
    return name


SamplerName = Annotated[str, Field(max_length=200), AfterValidator(_sampler)]
GridName = Annotated[str, Field(max_length=200), AfterValidator(_grid)]
Steps = Annotated[int, Field(ge=1, le=MOST_STEPS)]


class Candidate(ConfigSection):
    """A sampling that was compared with others when a training ended, and its figures on held-out data.

    distance, error: kernel distance of features and the standard error of its difference from the least; octaves: power of
    samples over that of data in each octave of the spectrum, the finest first.
    """

    sampler: SamplerName
    steps: Steps
    grid: GridName
    autoguidance: Annotated[float, Field(ge=1, le=10)] = 1.0
    distance: float
    error: Annotated[float, Field(ge=0)]
    octaves: Annotated[tuple[Annotated[float, Field(ge=0)], ...], Field(max_length=16)] = ()


class SamplingRecord(ConfigSection):
    """How a run is sampled when no option says otherwise: the table [family.sampling] of config.toml.

    source: "default", that of the version that made the run; "version", the same of a version that did not record it;
    "selected", the first of `candidates`, by so many samples of each.  precision: None for what is quick where it is sampled.
    """

    sampler: SamplerName
    steps: Steps
    grid: GridName
    precision: Precision | None = None
    source: Literal["default", "version", "selected"] = "default"
    samples: Annotated[int, Field(ge=0, le=10**6)] = 0
    candidates: Annotated[tuple[Candidate, ...], Field(max_length=64)] = ()

    @property
    def choice(self) -> SamplerChoice:
        """Sampler, steps and grid."""
        return self.sampler, self.steps, self.grid


def default_record(shape: tuple[int, ...], profile: SamplingProfile) -> SamplingRecord:
    """Return the record of the present defaults.  shape: of one datum, or of its codes."""
    sampler, steps, grid = default_sampling(shape, profile)
    return SamplingRecord(sampler=sampler, steps=steps, grid=grid)


# The defaults of versions that did not record them, told apart by keys that their tables [family] do not have yet, oldest
# first; of several defaults that a version had in turn, the last.  A student's default is of four or two steps in all of them.
DDPM, SDE, SDE_GREY, POINTS = (
    STEERED["images"],
    ("dpm++sde", 20, "uniform"),
    ("dpm++sde", 12, "uniform"),
    ("dpm++2m", 20, "uniform"),
)
EARLIER: tuple[tuple[str, Mapping[str, SamplerChoice], Precision | None], ...] = (
    ("examples", {"points": STEERED["points"], "grey": DDPM, "colour": DDPM, "codes": DDPM}, "fp32"),
    ("clusters", {"points": POINTS, "grey": SDE_GREY, "colour": DDPM, "codes": SDE}, None),
    ("sampling", {"points": POINTS, "grey": SDE_GREY, "colour": SDE, "codes": SDE}, None),
)
EARLIER_STUDENTS: Mapping[SamplingProfile, SamplerChoice] = {
    "student": ("ddpm", 4, "trailing:last=0.5"),
    "quick student": ("ddpm", 2, "trailing:last=0.5"),
}


def earlier_record(table: Mapping[str, Any], shape: tuple[int, ...], profile: SamplingProfile) -> SamplingRecord:
    """Return the defaults of the version that wrote a table [family] without a record.  shape: as of `default_record`."""
    choices, precision = next((choices, precision) for key, choices, precision in EARLIER if key not in table)
    sampler, steps, grid = EARLIER_STUDENTS.get(profile) or choices[data_of(shape, profile)]
    return SamplingRecord(sampler=sampler, steps=steps, grid=grid, precision=precision, source="version")


def format_choice(choice: SamplerChoice) -> str:
    """Describe a choice in words."""
    sampler, steps, grid = choice
    return f"{sampler} in {steps} step{'s' * (steps != 1)} on the {grid} grid"


def explain_sampling(
    shape: tuple[int, ...], options: Mapping[str, Any], profile: SamplingProfile = "data", record: SamplingRecord | None = None
) -> str:
    """Say what is sampled with, and why.  shape: of one datum."""
    usual = default_sampling(shape, profile)
    chosen = chosen_sampling(shape, options, profile, record.choice if record is not None else None)
    said = f"drawn by {format_choice(chosen)}: "
    if record is not None and chosen == record.choice and (record.source == "selected" or chosen != usual):
        return said + _recorded(record)
    if profile in STUDENTS and chosen == usual:
        few = "1 is quicker, and 4 gain nothing on MNIST (docs/developers/experiments/sampling.md)"
        return f"{said}a student is taught to; {'2 and 1 are quicker and worse' if profile == 'student' else few}"
    if chosen != usual:
        return f"{said}as many as this sampler usually needs" if options.get("steps") is None else f"{said}as asked"
    if kind_of(shape) != "images":
        return f"{said}as good as 50 of ddim on three sets of points (docs/developers/experiments/sampling.md)"
    of = "MNIST" if data_of(shape, profile) == "grey" else "emoji and photos"
    return f"{said}as good as 40 of ddpm on {of} (docs/developers/experiments/sampling.md)"


def _recorded(record: SamplingRecord) -> str:
    if record.source != "selected":
        return "the default of the version that made the run"
    if not record.candidates:
        return "selected when the training ended"
    best = record.candidates[0]
    return (
        f"the best of {len(record.candidates)} when the training ended, by {record.samples} samples of each: a distance of"
        f" {best.distance:.3g} from held-out data"
    )


def suggest_sampling(recorded: SamplerChoice, usual: SamplerChoice) -> str:
    """Offer the present defaults for those of an earlier version."""
    sampler, steps, grid = usual
    return (
        f"drawn by {format_choice(recorded)}, the default of the version that made this run; the present default may be better:"
        f" --sampler {sampler} --steps {steps} --grid {grid}"
    )
