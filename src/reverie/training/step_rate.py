"""Batches of large images that are small enough for a training to make some steps in its minutes."""

from __future__ import annotations

import math
import time
from collections.abc import Collection

import torch

from reverie.base.budget import Budget, Clock
from reverie.base.busy import BUSY
from reverie.base.units import format_speed
from reverie.data import Dataset
from reverie.diffusion.plan import counted, looks
from reverie.families.diffusion.settings import DiffusionSettings
from reverie.families.model import Model, TrainedModel
from reverie.runs.config import Config, TrainingConfig
from reverie.runs.step import Step
from reverie.training.gradient import micro_batches
from reverie.training.loop import LEAST

JUDGED = 5.0  # seconds of training after which it is known whether the machine is busy
CORES = 2  # that the expectation is for
LARGE = 3 * 128**2  # numbers in a datum up to which a whole batch takes no more than seconds, and nothing is measured
FEWEST_STEPS = 24  # that a training is to make
TRIED = 2  # steps that are timed, as the first one also reads what it needs


def seconds_each(model: TrainedModel, data: Dataset, training: TrainingConfig, clock: Clock) -> float:
    """Return how long a step takes for one datum, by making it and forgetting its gradient."""
    x, labels = data.batch(torch.zeros(1, dtype=torch.int64))
    device, took = model.device, math.inf
    cond = labels.to(device) if labels is not None else None
    for _ in range(TRIED):
        began = clock()
        with torch.autocast(device.type, torch.bfloat16, enabled=training.precision == "bf16"):
            model.loss(x.to(device), cond, 0).mean().backward()
        took = min(took, clock() - began)
    for p in model.parameters():
        p.grad = None
    return max(took, 1e-6)


def in_time(
    model: Model, data: Dataset, training: TrainingConfig, asked: Collection[str], budget: Budget
) -> tuple[TrainingConfig, str | None]:
    """Return settings whose batches are small enough for some steps in the time that is left, and a line about it.

    asked: names of settings that were given, and stay.
    """
    if training.minutes is None or not isinstance(model, TrainedModel) or math.prod(data.shape) <= LARGE:
        return training, None
    each, limit = seconds_each(model, data, training, budget.clock), max(budget.free, LEAST * budget.seconds)
    whole = training.batch * training.accumulate
    fitting = max(1, min(whole, int(limit / (FEWEST_STEPS * each))))
    said, length = f"a step takes {each:.2g} s for each image", counted(training.minutes)
    made = limit / (each * fitting)
    few = f"{said}, so about {max(1, round(made))} are made in {length}; for more give more --minutes or a smaller --size"
    too_few = few if made < FEWEST_STEPS else None
    if fitting == whole or {"batch", "accumulate", "micro_batches", "exact"} & set(asked):
        return training, too_few
    batch = min(fitting, training.batch)
    smaller = training.model_copy(update={"batch": batch, "accumulate": max(1, fitting // batch)})
    micro = micro_batches(False, 1, smaller.model_dump(), data)
    note = too_few or f"batches of {batch} in place of {whole}: {said}, and {length} are to hold some steps"
    return smaller.model_copy(update={"micro_batches": micro}), note


class Expectation:
    """What a training was expected to give, and its correction, once, where other programs take the processor."""

    def __init__(self, config: Config, budget: Budget) -> None:
        self.config, self.budget = config, budget
        self.wall, self.processor = time.monotonic(), time.process_time()
        self.before: float | None = None
        self.judged = self.waited = 0.0
        self.open = True

    def correction(self, step: Step) -> str:
        """Return a line when the real speed is known and the machine is busy, otherwise nothing."""
        if step.loss is None or not self.open:
            return ""
        passed = max(0.0, step.seconds - (step.seconds if self.before is None else self.before))
        self.before = step.seconds
        self.judged, self.waited = self.judged + passed, self.waited + (step.waited or 0.0) * passed
        if self.judged <= JUDGED or self.waited <= BUSY * self.judged:
            return ""
        self.open = False
        used = (time.process_time() - self.processor) / max(1e-9, CORES * (time.monotonic() - self.wall))
        return self._line(step, self.waited / self.judged, min(1.0, used))

    def _line(self, step: Step, waited: float, used: float) -> str:
        """Say how many steps fit, and what they give.  used: how much of two cores this process had."""
        line = f"the machine is busy: training waits for a processor {waited:.0%} of the time"
        minutes, shape = self.config.training.minutes, self.config.data.shape
        if minutes is None or self.budget.clock_name != "wall":
            return line
        left = step.seconds_left - step.finishing
        line += f"; at {format_speed(step.per_second)} about {step.i + round(left * step.per_second):,} steps fit into the time"
        if self.config.data.kind != "images" or not isinstance(self.config.family, DiffusionSettings):
            return line
        equal = used * (step.seconds + left) / 60
        return f"{line}, as in {counted(float(f'{equal:.1g}'))} on two free cores: {looks(shape, equal)[0]}"
