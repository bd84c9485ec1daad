"""The speed of a training: smaller batches of large images, and a forecast on busy machines."""

from __future__ import annotations

import math
import time
from collections.abc import Collection

import torch

from reverie.base.budget import Budget, Clock
from reverie.base.busy import BUSY
from reverie.base.units import format_speed
from reverie.data import Dataset
from reverie.diffusion.plan import counted, expected_quality
from reverie.families.diffusion.settings import DiffusionSettings
from reverie.families.model import Model, TrainedModel
from reverie.runs.config import Config, TrainingConfig
from reverie.runs.step import Step
from reverie.training.gradient import micro_batches
from reverie.training.loop import MIN_STEP_SHARE

ASSESSED_AFTER = 5.0  # seconds of training after which the machine can be called busy
CORES = 2  # number of cores that the forecast assumes
LARGE = 3 * 128**2  # size of a datum above which steps are timed
MIN_STEPS = 24  # minimum number of steps of a training
TIMED_STEPS = 2  # timed steps, as the first is slower


def seconds_each(model: TrainedModel, data: Dataset, training: TrainingConfig, clock: Clock) -> float:
    """Return the seconds of a step per datum, by executing a step and discarding its gradient."""
    x, labels = data.batch(torch.zeros(1, dtype=torch.int64))
    device, duration = model.device, math.inf
    cond = labels.to(device) if labels is not None else None
    for _ in range(TIMED_STEPS):
        start = clock()
        with torch.autocast(device.type, torch.bfloat16, enabled=training.precision == "bf16"):
            model.loss(x.to(device), cond, 0).mean().backward()
        duration = min(duration, clock() - start)
    for p in model.parameters():
        p.grad = None
    return max(duration, 1e-6)


def in_time(
    model: Model, data: Dataset, training: TrainingConfig, given: Collection[str], budget: Budget
) -> tuple[TrainingConfig, str | None]:
    """Return settings with batches small enough for MIN_STEPS in the remaining time, and a note about them.

    given: names of settings that the user gave; they are not changed.
    """
    if training.minutes is None or not isinstance(model, TrainedModel) or math.prod(data.shape) <= LARGE:
        return training, None
    step_seconds, limit = seconds_each(model, data, training, budget.clock), max(budget.free, MIN_STEP_SHARE * budget.seconds)
    full_batch = training.batch * training.accumulate
    fitting = max(1, min(full_batch, int(limit / (MIN_STEPS * step_seconds))))
    rate, length = f"a step takes {step_seconds:.2g} s per image", counted(training.minutes)
    step_count = limit / (step_seconds * fitting)
    speed_note = (
        f"{rate}, so {length} are about {max(1, round(step_count))} steps; for more use more --minutes or a smaller --size"
    )
    warning = speed_note if step_count < MIN_STEPS else None
    if fitting == full_batch or {"batch", "accumulate", "micro_batches", "exact"} & set(given):
        return training, warning
    batch = min(fitting, training.batch)
    smaller = training.model_copy(update={"batch": batch, "accumulate": max(1, fitting // batch)})
    micro = micro_batches(False, 1, smaller.model_dump(), data)
    note = warning or f"batch size {batch} instead of {full_batch}: {rate}, and the training has {length}"
    return smaller.model_copy(update={"micro_batches": micro}), note


class Forecast:
    """A forecast of the training, corrected once if other programs use the processor."""

    def __init__(self, config: Config, budget: Budget) -> None:
        self.config, self.budget = config, budget
        self.wall, self.processor = time.monotonic(), time.process_time()
        self.before: float | None = None
        self.assessed = self.waited = 0.0
        self.open = True

    def correction(self, step: Step) -> str:
        """Return a line when the real speed is known and the machine is busy, otherwise an empty string."""
        if step.loss is None or not self.open:
            return ""
        passed = max(0.0, step.seconds - (step.seconds if self.before is None else self.before))
        self.before = step.seconds
        self.assessed, self.waited = self.assessed + passed, self.waited + (step.waited or 0.0) * passed
        if self.assessed <= ASSESSED_AFTER or self.waited <= BUSY * self.assessed:
            return ""
        self.open = False
        used = (time.process_time() - self.processor) / max(1e-9, CORES * (time.monotonic() - self.wall))
        return self._line(step, self.waited / self.assessed, min(1.0, used))

    def _line(self, step: Step, waited: float, used: float) -> str:
        """Describe how many steps fit and their result.  used: share of two cores that this process used."""
        line = f"the machine is busy: the training waits for a processor {waited:.0%} of the time"
        minutes, shape = self.config.training.minutes, self.config.data.shape
        if minutes is None or self.budget.clock_name != "wall":
            return line
        left = step.seconds_left - step.finishing
        line += f"; at {format_speed(step.per_second)} about {step.i + round(left * step.per_second):,} steps fit into the time"
        family = self.config.family
        if self.config.data.kind != "images" or not isinstance(family, DiffusionSettings) or family.distilled is not None:
            return line
        equal = used * (step.seconds + left) / 60
        return f"{line}, as in {counted(float(f'{equal:.1g}'))} on two free cores: {expected_quality(shape, equal)[0]}"
