"""Selects the scale of autoguidance with which samples have the detail of the data."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from reverie.base.deadline import Deadline
from reverie.data import Dataset
from reverie.data.appearance import detail
from reverie.diffusion.learned import Learned
from reverie.families.diffusion.model import Diffusion
from reverie.families.diffusion.settings import DiffusionSettings
from reverie.families.model import Model
from reverie.runs import folder
from reverie.runs.run import Run
from reverie.training.diagnosis import held_out_decrease

EARLY = 1 / 8  # fraction of a training at which its weights are stored as the weak model of autoguidance
DRAWN, DATA = 32, 2048  # number of samples if the length is in steps, and of data for comparison
PER_MINUTE, MIN_DRAWN, MAX_DRAWN = 6.4, 16, 64  # samples per minute of training, and their limits
SMALL, MANY_DRAWN = 1024, 128  # image size up to which sampling is fast, and the number of samples then
SHARP = 0.95  # detail of samples, relative to the data, from which they need no guidance
TRIED = (2.0, 2.5, 3.0)  # scales that are tried in turn until samples have the detail of the data
# Minimum scales of autoguidance, measured on MNIST (experiments/sampling.md): MIN_GUIDED where the held-out loss still fell by
# UNFINISHED in the second half of the training, and MIN_UNCONDITIONAL without labels, captions or clusters, where a model
# mixes classes.
UNFINISHED, MIN_GUIDED, MIN_UNCONDITIONAL = 0.045, 1.2, 2.0
GUIDED_COST = 2.0  # evaluations of guided samples, relative to unguided ones
MAX_TIME = 0.1  # share of a training in minutes after which no further scale is tried
ROUGH = 1.2  # detail of samples, relative to the data, from which they are too sharp
EDGE, TOLERANCE = 0.01, 0.1  # distance from 0 or 1 that counts as black or white, and tolerated color difference
MIN_STEPS = 200  # minimum steps of a run for a useful weak model


def keeps_early(model: Model) -> bool:
    """Return whether a model can use autoguidance: one of images, not distilled, without a learned schedule."""
    if not isinstance(model, Diffusion) or model.kind != "images":
        return False
    return not (model.distilled or isinstance(model.denoiser.schedule, Learned))


def has_color_shift(samples: Tensor, plain: Tensor, data: Tensor) -> bool:
    """Return whether guided samples have other colors than data: more black and white, or other means or deviations.

    With a poor weak model, samples become flat and oversaturated.  Means are compared with those of unguided samples from the
    same noise, `plain`, as the means of few samples vary by chance.
    """

    def extreme(x: Tensor) -> float:
        return float(((x <= EDGE) | (x >= 1 - EDGE)).float().mean())

    brightness = (samples.mean((0, 2, 3)) - plain.mean((0, 2, 3))).abs().max()
    return bool(
        extreme(samples) > extreme(data) + TOLERANCE or brightness > TOLERANCE or samples.std() > (1 + TOLERANCE) * data.std()
    )


def minimum_guidance(run: Run) -> float:
    """Return the minimum scale of autoguidance; 1 is none."""
    if not run.conditional and run.diffusion.clusters is None:
        return MIN_UNCONDITIONAL
    rows = [row for row in folder.read_metrics(run.path) if row.get("held_out") is not None]
    fall = held_out_decrease(rows) if rows else None
    return MIN_GUIDED if fall is not None and rows[-1].get("unit") is None and fall[1] > UNFINISHED else 1.0


def choose_autoguidance(run: Run, train: Dataset, steps: int, stage: Deadline | None = None) -> float:
    """Return the scale at which samples have as much detail as data, interpolated between the tried scales; 1 is none.

    The detail of an image is the mean square difference of neighboring pixels.  The scale is at least `minimum_guidance`,
    unless guided samples have a color shift, and 1 for runs trained for the likelihood, whose samples must follow the measured
    density. stage: the part of the budget for trying scales.
    """
    early, settings = (run.path / folder.EARLY_FILE).is_file(), run.config.family
    if run.kind != "images" or not isinstance(settings, DiffusionSettings) or not early or steps < MIN_STEPS:
        return 1.0
    if settings.purpose == "likelihood":
        return 1.0
    x, labels = train.batch(torch.arange(min(DATA, len(train))))
    minutes = run.config.training.minutes
    count = DRAWN if minutes is None else min(MAX_DRAWN, max(MIN_DRAWN, round(PER_MINUTE * minutes)))
    if minutes is not None and math.prod(train.shape) <= SMALL:
        count = MANY_DRAWN
    details, sample_labels = detail(x), run.labels(None, count, 0)
    if labels is not None and sample_labels is not None:  # weigh data by the labels of samples, as labels differ in detail
        label_details = [details[labels == k] for k in sample_labels.tolist()]
        details = torch.stack([values.mean() if len(values) else details.mean() for values in label_details])
    target = float(details.mean())

    def sample(scale: float) -> tuple[Tensor, float]:
        *_, last = run.frames(count, autoguidance=scale)
        images = run.model.decode(last.x0).cpu()
        return images, float(detail(images).mean()) / max(target, 1e-12)

    stage = stage or Deadline()
    time_limit = math.inf if minutes is None else MAX_TIME * 60 * minutes
    plain, sharp = sample(1.0)
    guided_seconds = GUIDED_COST * stage.elapsed

    def is_late() -> bool:
        return stage.left < guided_seconds or stage.elapsed > time_limit

    scale = _scale_by_detail(sample, plain, sharp, x, is_late) if sharp < SHARP else 1.0
    minimum = minimum_guidance(run) if sharp <= ROUGH else 1.0
    if is_late():
        return scale
    return scale if minimum <= scale or has_color_shift(sample(minimum)[0], plain, x) else minimum


def _scale_by_detail(
    sample: Callable[[float], tuple[Tensor, float]], plain: Tensor, sharp: float, data: Tensor,
    is_late: Callable[[], bool],
) -> float:  # fmt: skip
    """Return the scale at which samples have the detail of data, or else the largest tried without a color shift.

    is_late: returns whether the time for trying scales is over.
    """
    tried = [(1.0, sharp)]
    for scale in TRIED:
        if is_late():
            break
        guided, sharpened = sample(scale)
        if sharpened <= tried[-1][1] or has_color_shift(guided, plain, data):
            break
        tried.append((scale, sharpened))
        if sharpened >= 1:
            (low, low_detail), (high, high_detail) = tried[-2:]
            return round(low + (high - low) * (1 - low_detail) / (high_detail - low_detail), 2)
    return tried[-1][0]
