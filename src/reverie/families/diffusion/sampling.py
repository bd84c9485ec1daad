"""Sampler, time grid and guidance of a diffusion model from sampling options."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal

from torch import Tensor

from reverie.base.errors import UserError, pick
from reverie.base.spec import build
from reverie.data.kind import Kind, kind_of
from reverie.diffusion.classifier import Classifier
from reverie.diffusion.denoiser import Denoiser, LowPrecision, Steer
from reverie.diffusion.guidance import AutoGuided, ClassifierFree, ClassifierGuided, check_scale, read_interval
from reverie.diffusion.samplers import GRIDS, SAMPLERS, Sampler
from reverie.diffusion.schedule import Schedule

MAX_STEPS = 100_000
PRECISIONS = {"fp32": False, "bf16": True}  # whether the network computes in low precision
SamplerChoice = tuple[str, int, str]  # sampler, steps and grid
# Defaults where training has not selected a sampler; docs/developers/experiments/sampling.md has the measurements.  Stochastic
# samplers correct earlier errors, which deterministic ones keep; dpm++sde needs the fewest evaluations of them.
DEFAULTS: dict[str, SamplerChoice] = {
    "points": ("dpm++2m", 20, "uniform"),
    "grey": ("dpm++sde", 12, "uniform"),
    "colour": ("dpm++sde", 20, "uniform"),  # matches 40 evaluations of ddpm on emoji and photos; 12 are worse
    "codes": ("dpm++sde", 20, "uniform"),
}
# Defaults for steered sampling, which needs more steps, and step counts for samplers other than the default.
STEERED: dict[Kind, SamplerChoice] = {"points": ("ddim", 50, "uniform"), "images": ("ddpm", 40, "uniform")}
STUDENT = ("ddpm", 4, "trailing:last=0.5")  # of a distilled model
QUICK_STUDENT = ("ddpm", 2, "trailing:last=0.5")  # of a model distilled with classifier features; 4 steps do not improve MNIST
# What a network generates: data or codes in many steps, or data in a few (students).
SamplingProfile = Literal["data", "codes", "student", "quick student"]
STUDENTS: dict[SamplingProfile, SamplerChoice] = {"student": STUDENT, "quick student": QUICK_STUDENT}
STEERING = ("steer", "origin", "times")  # options that only the steering package sets
# Sampling options with defaults.  steer, origin and times are internal to the steering package: a wrapper of the guided
# denoiser, data to start from, and a grid that replaces the requested one.
OPTIONS: Mapping[str, Any] = {
    "guidance": 1.0, "guidance_interval": None, "guidance_rescale": 0.0, "classifier_guidance": 0.0,
    "autoguidance": None, "sampler": None, "steps": None, "grid": None, "precision": None,
    "steer": None, "origin": None, "times": None,
}  # fmt: skip


def data_of(shape: tuple[int, ...], profile: SamplingProfile = "data") -> str:
    """Return the key of `DEFAULTS` for data of a shape."""
    if profile == "codes":
        return "codes"
    return "points" if kind_of(shape) != "images" else "colour" if shape[0] > 1 else "grey"


def default_sampling(shape: tuple[int, ...], profile: SamplingProfile = "data") -> SamplerChoice:
    """Return the default sampler of data of a shape, without steering."""
    return STUDENTS[profile] if profile in STUDENTS else DEFAULTS[data_of(shape, profile)]


def chosen_sampling(
    shape: tuple[int, ...], options: Mapping[str, Any], profile: SamplingProfile = "data", recorded: SamplerChoice | None = None
) -> SamplerChoice:
    """Return sampler, number of steps and grid: as requested, recorded, or by default.

    shape: of one datum, in user units.
    """
    requested = {key: options[key] for key in ("sampler", "steps", "grid") if options.get(key) is not None}
    sampler, steps, grid = recorded or default_sampling(shape, profile)
    overridden = requested.get("sampler", sampler) != sampler or any(options.get(key) is not None for key in STEERING)
    if overridden:
        sampler, steps, grid = STUDENT if profile in STUDENTS else STEERED[kind_of(shape)]
    return requested.get("sampler", sampler), requested.get("steps", steps), requested.get("grid", grid)


def build_sampling(
    shape: tuple[int, ...], schedule: Schedule, options: Mapping[str, Any], profile: SamplingProfile = "data"
) -> tuple[Sampler, Tensor]:
    """Build sampler and time grid from options; raise a UserError for incompatible ones."""
    sampler_name, steps, grid_name = chosen_sampling(shape, options, profile)
    if not 1 <= steps <= MAX_STEPS:
        raise UserError(f"--steps must be between 1 and {MAX_STEPS:,}, got {steps}")
    sampler, grid = build(SAMPLERS, sampler_name, "sampler"), build(GRIDS, grid_name, "grid")(schedule, steps)
    sampler.check(schedule, grid)
    return sampler, grid


def build_guidance(
    kind: Kind, conditional: bool, options: Mapping[str, Any], weights: tuple[float, ...],
    classifier: Callable[[], Classifier] | None = None, weak: Callable[[], Denoiser] | None = None,
) -> Steer:  # fmt: skip
    """Return a wrapper that guides the model's denoiser; raise a UserError for options without effect.

    classifier, weak: return the noise-aware classifier and the weak model; called only when needed.
    """
    scale = check_scale(options.get("guidance", 1.0), "the guidance scale")
    gamma = check_scale(options.get("classifier_guidance", 0.0), "the classifier guidance scale")
    limits, rescale = options.get("guidance_interval"), options.get("guidance_rescale", 0.0)
    if not conditional and (scale != 1 or gamma or limits is not None or rescale):
        raise UserError("the model was trained without labels or captions, which guidance needs; leave --guidance out")
    interval = read_interval(limits)
    if scale == 1 and (limits is not None or rescale):
        raise UserError("guidance intervals and rescaling need guidance; give --guidance other than 1")
    if rescale and kind == "points":
        raise UserError("guidance rescaling needs images, and this is a model of points; leave --guidance-rescale out")
    weak_scale = options.get("autoguidance")
    weak_scale = check_scale(1.0 if weak_scale is None else weak_scale, "the autoguidance scale")
    weak_model = weak() if weak_scale != 1 and weak is not None else None
    noisy_classifier = classifier() if gamma and classifier is not None else None
    low_precision = pick(PRECISIONS, options.get("precision") or "fp32", "precision")

    def classifier_free(denoiser: Denoiser) -> Denoiser:
        return ClassifierFree(LowPrecision(denoiser) if low_precision else denoiser, scale, interval, rescale, weights)

    def guide(denoiser: Denoiser) -> Denoiser:
        guided = classifier_free(denoiser)
        if weak_model is not None:
            guided = AutoGuided(guided, classifier_free(weak_model), weak_scale)
        return guided if noisy_classifier is None else ClassifierGuided(guided, noisy_classifier.log_prob, gamma, weights)

    return guide
