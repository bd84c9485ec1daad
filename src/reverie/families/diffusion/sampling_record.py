"""The default sampling of a run as config.toml records it, and that of versions that did not record it."""

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
    MAX_STEPS,
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
Steps = Annotated[int, Field(ge=1, le=MAX_STEPS)]


class Candidate(ConfigSection):
    """A sampler compared at the end of a training, with its metrics on held-out data.

    distance, error: kernel distance of features, and the standard error of its difference from the smallest; octaves: ratio of
    the power spectra of samples and data in each octave, the finest first.
    """

    sampler: SamplerName
    steps: Steps
    grid: GridName
    autoguidance: Annotated[float, Field(ge=1, le=10)] = 1.0
    distance: float
    error: Annotated[float, Field(ge=0)]
    octaves: Annotated[tuple[Annotated[float, Field(ge=0)], ...], Field(max_length=16)] = ()


class SamplingRecord(ConfigSection):
    """The default sampling of a run: the table [family.sampling] of config.toml.

    source: "default", of the version that trained the run; "version", the same for a version that did not record it;
    "selected", the best of `candidates`, each measured with this number of samples.  precision: None selects by device.
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
    """Return the record of the current defaults.  shape: of one datum, or of its code."""
    sampler, steps, grid = default_sampling(shape, profile)
    return SamplingRecord(sampler=sampler, steps=steps, grid=grid)


# Defaults of versions that did not record them, oldest first.  A version is recognized by a key that its tables [family] lack;
# if the defaults of a version changed, the last are used.
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
    """Return the defaults of the version that wrote a table [family] without a record.  shape: as in `default_record`."""
    choices, precision = next((choices, precision) for key, choices, precision in EARLIER if key not in table)
    sampler, steps, grid = EARLIER_STUDENTS.get(profile) or choices[data_of(shape, profile)]
    return SamplingRecord(sampler=sampler, steps=steps, grid=grid, precision=precision, source="version")


def format_choice(choice: SamplerChoice) -> str:
    """Describe sampler, steps and grid."""
    sampler, steps, grid = choice
    return f"{sampler} in {steps} step{'s' * (steps != 1)} on the {grid} grid"


def explain_sampling(
    shape: tuple[int, ...], options: Mapping[str, Any], profile: SamplingProfile = "data", record: SamplingRecord | None = None
) -> str:
    """Describe the sampling and the reason for it.  shape: of one datum."""
    default = default_sampling(shape, profile)
    chosen = chosen_sampling(shape, options, profile, record.choice if record is not None else None)
    text = f"sampled by {format_choice(chosen)}: "
    if record is not None and chosen == record.choice and (record.source == "selected" or chosen != default):
        return text + _explain_record(record)
    if profile in STUDENTS and chosen == default:
        fewer = "1 is faster, and 4 do not improve MNIST (docs/developers/experiments/sampling.md)"
        return f"{text}the default of students; {'2 and 1 are faster and worse' if profile == 'student' else fewer}"
    if chosen != default:
        return text + ("the default of this sampler" if options.get("steps") is None else "as requested")
    if kind_of(shape) != "images":
        return f"{text}matches 50 steps of ddim on three sets of points (docs/developers/experiments/sampling.md)"
    measured = "MNIST" if data_of(shape, profile) == "grey" else "emoji and photos"
    return f"{text}matches 40 steps of ddpm on {measured} (docs/developers/experiments/sampling.md)"


def _explain_record(record: SamplingRecord) -> str:
    if record.source != "selected":
        return "the default of the version that trained the run"
    if not record.candidates:
        return "selected at the end of training"
    best = record.candidates[0]
    return (
        f"the best of {len(record.candidates)} at the end of training, measured with {record.samples} samples each: distance"
        f" {best.distance:.3g} from held-out data"
    )


def suggest_sampling(recorded: SamplerChoice, default: SamplerChoice) -> str:
    """Suggest the current defaults instead of those of an earlier version."""
    sampler, steps, grid = default
    return (
        f"sampled by {format_choice(recorded)}, the default of the version that trained this run; the current default may be"
        f" better: --sampler {sampler} --steps {steps} --grid {grid}"
    )
