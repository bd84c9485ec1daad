"""How a diffusion model is sampled: sampler, grid and guidance, as the options ask."""

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

MOST_STEPS = 100_000
PRECISIONS = {"fp32": False, "bf16": True}  # whether numbers are rounded within the network
SamplerChoice = tuple[str, int, str]  # sampler, steps and grid
# Defaults where a training has not selected a sampler; experiments/sampling.md has the measurements.
# Samplers that draw fresh noise let the model correct what it did wrong before, which deterministic ones keep; of them dpm++sde
# needs the fewest evaluations.
DEFAULTS: dict[str, SamplerChoice] = {
    "points": ("dpm++2m", 20, "uniform"),
    "grey": ("dpm++sde", 12, "uniform"),
    "colour": ("dpm++sde", 20, "uniform"),  # of emoji and photos as good as 40 of ddpm, and 12 are worse
    "codes": ("dpm++sde", 20, "uniform"),
}
# The same where something steers the way, which takes more steps to be followed, and where another sampler is asked for.
STEERED: dict[Kind, SamplerChoice] = {"points": ("ddim", 50, "uniform"), "images": ("ddpm", 40, "uniform")}
STUDENT = ("ddpm", 4, "trailing:last=0.5")  # of a distilled model, each of whose evaluations gives data
QUICK_STUDENT = ("ddpm", 2, "trailing:last=0.5")  # the same where classifiers taught it: on MNIST 4 evaluations gain nothing
# What a network makes: data or codes step by step, or data at once, which are better in more evaluations or soon good enough.
SamplingProfile = Literal["data", "codes", "student", "quick student"]
STUDENTS: dict[SamplingProfile, SamplerChoice] = {"student": STUDENT, "quick student": QUICK_STUDENT}
STEERING = ("steer", "origin", "times")  # options that only steering has
# The options, and what each is when it is not given.  steer, origin and times are not for users but for steering: a wrapper
# of the guided denoiser, data to start from, and a grid in place of the one that the options ask for.
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
    """Return what data of a shape are drawn with when nothing is said and nothing steers."""
    return STUDENTS[profile] if profile in STUDENTS else DEFAULTS[data_of(shape, profile)]


def chosen_sampling(
    shape: tuple[int, ...], options: Mapping[str, Any], profile: SamplingProfile = "data", recorded: SamplerChoice | None = None
) -> SamplerChoice:
    """Return the names of sampler and grid and the number of steps: those asked for, those recorded, or else the defaults.

    shape: of one datum, in user units.
    """
    asked = {key: options[key] for key in ("sampler", "steps", "grid") if options.get(key) is not None}
    sampler, steps, grid = recorded or default_sampling(shape, profile)
    other = asked.get("sampler", sampler) != sampler or any(options.get(key) is not None for key in STEERING)
    if other:
        sampler, steps, grid = STUDENT if profile in STUDENTS else STEERED[kind_of(shape)]
    return asked.get("sampler", sampler), asked.get("steps", steps), asked.get("grid", grid)


def build_sampling(
    shape: tuple[int, ...], schedule: Schedule, options: Mapping[str, Any], profile: SamplingProfile = "data"
) -> tuple[Sampler, Tensor]:
    """Build the sampler and the times that the options ask for, and refuse what does not go together."""
    named, steps, spaced = chosen_sampling(shape, options, profile)
    if not 1 <= steps <= MOST_STEPS:
        raise UserError(f"the number of sampling steps must lie between 1 and {MOST_STEPS:,}, got {steps}")
    sampler, grid = build(SAMPLERS, named, "sampler"), build(GRIDS, spaced, "grid")(schedule, steps)
    sampler.check(schedule, grid)
    return sampler, grid


def build_guidance(
    kind: Kind, conditional: bool, options: Mapping[str, Any], weights: tuple[float, ...],
    classifier: Callable[[], Classifier] | None = None, weak: Callable[[], Denoiser] | None = None,
) -> Steer:  # fmt: skip
    """Return the wrapper that guides the model's denoiser as the options ask, and refuse what has no meaning.

    classifier, weak: give the classifier of noised data, and the worse version of the model, when they are needed.
    """
    scale = check_scale(options.get("guidance", 1.0), "the guidance scale")
    gamma = check_scale(options.get("classifier_guidance", 0.0), "the classifier guidance scale")
    limits, rescale = options.get("guidance_interval"), options.get("guidance_rescale", 0.0)
    if not conditional and (scale != 1 or gamma or limits is not None or rescale):
        raise UserError("the model was trained without labels or captions, so guidance has nothing to steer by")
    interval = read_interval(limits)
    if scale == 1 and (limits is not None or rescale):
        raise UserError("an interval and a rescaling of guidance mean something only with --guidance other than 1")
    if rescale and kind == "points":
        raise UserError("this is a model of points, whose coordinates have no common spread to rescale to")
    asked = options.get("autoguidance")
    away = check_scale(1.0 if asked is None else asked, "the autoguidance scale")
    worse = weak() if away != 1 and weak is not None else None
    judge = classifier() if gamma and classifier is not None else None
    lowered = pick(PRECISIONS, options.get("precision") or "fp32", "precision")

    def by_labels(denoiser: Denoiser) -> Denoiser:
        return ClassifierFree(LowPrecision(denoiser) if lowered else denoiser, scale, interval, rescale, weights)

    def guide(denoiser: Denoiser) -> Denoiser:
        guided = by_labels(denoiser)
        if worse is not None:
            guided = AutoGuided(guided, by_labels(worse), away)
        return guided if judge is None else ClassifierGuided(guided, judge.log_prob, gamma, weights)

    return guide
