"""How strongly a run's samples are to be led away from its early state: so much that they have the detail of the data."""

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

EARLY = 1 / 8  # of a training, after which its state is kept to be led away from
DRAWN, DATA = 32, 2048  # samples, if the length is in steps, and data that they are compared with
A_MINUTE, FEWEST_DRAWN, MOST_DRAWN = 6.4, 16, 64  # samples for each minute of a training, at least and at most
SMALL, MANY_DRAWN = 1024, 128  # numbers of images that are drawn in milliseconds, and how many: the mean of few varies by 6 %
SHARP = 0.95  # times the data's detail from which samples need no guidance
TRIED = (2.0, 2.5, 3.0)  # scales that are tried in turn until samples have the detail of the data; the last is the largest
# Least autoguidance scale, whatever the detail, as measured on MNIST (experiments/sampling.md): a little where a
# training ended while its held-out loss still fell, by so much in its second half; and farther where no label, caption or
# cluster tells what is drawn, so that a model mixes kinds.
UNFINISHED, LED, UNTOLD = 0.045, 1.2, 2.0
GUIDED = 2.0  # times the evaluations of samples that are not guided
MOST_TIME = 0.1  # of a training in minutes, after which no further scale is tried
ROUGH = 1.2  # times the data's detail from which samples are too sharp already
EDGE, OTHER = 0.01, 0.1  # values that are black or white, and how far colours may differ, as a share of their range
FEWEST = 200  # steps below which the early state has learned nothing that could be compared


def keeps_early(model: Model) -> bool:
    """Tell whether the early state of a model is of use: not of a student, nor where the schedule was another then."""
    if not isinstance(model, Diffusion) or model.kind != "images":
        return False
    return not (model.distilled or isinstance(model.denoiser.schedule, Learned))


def has_color_shift(samples: Tensor, plain: Tensor, data: Tensor) -> bool:
    """Tell whether guided samples have other colours than data: more black and white, other means or spreads.

    Led away from a state that knew next to nothing, samples become flat and glaring, however little detail they have.  Means
    are compared with those of samples from the same noise that are not guided, plain, as the means of so few vary by chance.
    """

    def extreme(x: Tensor) -> float:
        return float(((x <= EDGE) | (x >= 1 - EDGE)).float().mean())

    brightness = (samples.mean((0, 2, 3)) - plain.mean((0, 2, 3))).abs().max()
    return bool(extreme(samples) > extreme(data) + OTHER or brightness > OTHER or samples.std() > (1 + OTHER) * data.std())


def minimum_guidance(run: Run) -> float:
    """Return the scale that samples are led by at least; 1 is not at all."""
    if not run.conditional and run.diffusion.clusters is None:
        return UNTOLD
    rows = [row for row in folder.read_metrics(run.path) if row.get("held_out") is not None]
    fall = held_out_decrease(rows) if rows else None
    return LED if fall is not None and rows[-1].get("unit") is None and fall[1] > UNFINISHED else 1.0


def choose_autoguidance(run: Run, train: Dataset, steps: int, stage: Deadline | None = None) -> float:
    """Return the scale at which samples have as much detail as data, taken to grow evenly between those tried; 1 is none.

    It is at least `minimum_guidance`.  The detail of an image is how much its neighbouring pixels differ.  Where guided
    samples have a color shift, and for runs trained for the likelihood, the scale is 1.  stage: the part of the budget for
    trying scales.
    """
    early, settings = (run.path / folder.EARLY_FILE).is_file(), run.config.family
    if run.kind != "images" or not isinstance(settings, DiffusionSettings) or not early or steps < FEWEST:
        return 1.0
    if settings.purpose == "likelihood":
        return 1.0
    x, labels = train.batch(torch.arange(min(DATA, len(train))))
    minutes = run.config.training.minutes
    drawn = DRAWN if minutes is None else min(MOST_DRAWN, max(FEWEST_DRAWN, round(A_MINUTE * minutes)))
    if minutes is not None and math.prod(train.shape) <= SMALL:
        drawn = MANY_DRAWN
    fine, asked = detail(x), run.labels(None, drawn, 0)
    if labels is not None and asked is not None:  # labels differ in their detail, so data are taken as often as samples
        each = [fine[labels == k] for k in asked.tolist()]
        fine = torch.stack([of.mean() if len(of) else fine.mean() for of in each])
    wanted = float(fine.mean())

    def draw(scale: float) -> tuple[Tensor, float]:
        *_, last = run.frames(drawn, autoguidance=scale)
        images = run.model.decode(last.x0).cpu()
        return images, float(detail(images).mean()) / max(wanted, 1e-12)

    stage = stage or Deadline()
    longest = math.inf if minutes is None else MOST_TIME * 60 * minutes
    plain, sharp = draw(1.0)
    price = GUIDED * stage.elapsed

    def late() -> bool:
        return stage.left < price or stage.elapsed > longest

    scale = _scale_by_detail(draw, plain, sharp, x, late) if sharp < SHARP else 1.0
    least = minimum_guidance(run) if sharp <= ROUGH else 1.0
    if late():
        return scale
    return scale if least <= scale or has_color_shift(draw(least)[0], plain, x) else least


def _scale_by_detail(
    draw: Callable[[float], tuple[Tensor, float]], plain: Tensor, sharp: float, data: Tensor,
    late: Callable[[], bool],
) -> float:  # fmt: skip
    """Return the scale at which samples have the detail of data; the largest at which they do not stray, where none does.

    late: tells when no time is left to try more.
    """
    found = [(1.0, sharp)]
    for scale in TRIED:
        if late():
            break
        guided, sharpened = draw(scale)
        if sharpened <= found[-1][1] or has_color_shift(guided, plain, data):
            break
        found.append((scale, sharpened))
        if sharpened >= 1:
            (low, less), (high, more) = found[-2:]
            return round(low + (high - low) * (1 - less) / (more - less), 2)
    return found[-1][0]
