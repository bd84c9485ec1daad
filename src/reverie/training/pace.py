"""Batches of large images that are small enough for a training to make some steps in its minutes."""

from __future__ import annotations

import math
from collections.abc import Collection

import torch

from reverie.data import Dataset
from reverie.diffusion.plan import counted
from reverie.families.model import Model, TrainedModel
from reverie.runs.config import TrainingConfig
from reverie.training.gradient import micro_batches
from reverie.training.loop import clock_of

LARGE = 3 * 128**2  # numbers in a datum up to which a whole batch takes no more than seconds, and nothing is measured
FEWEST_STEPS = 24  # that a training is to make
TRIED = 2  # steps that are timed, as the first one also reads what it needs


def seconds_each(model: TrainedModel, data: Dataset, training: TrainingConfig) -> float:
    """Return how long a step takes for one datum, by making it and forgetting its gradient."""
    x, labels = data.batch(torch.zeros(1, dtype=torch.int64))
    device, took = model.device, math.inf
    clock = clock_of(training, device)
    cond = labels.to(device) if labels is not None else None
    for _ in range(TRIED):
        began = clock()
        with torch.autocast(device.type, torch.bfloat16, enabled=training.precision == "bf16"):
            model.loss(x.to(device), cond, 0).mean().backward()
        took = min(took, clock() - began)
    for p in model.parameters():
        p.grad = None
    return max(took, 1e-6)


def in_time(model: Model, data: Dataset, training: TrainingConfig, asked: Collection[str]) -> tuple[TrainingConfig, str | None]:
    """Return settings whose batches are small enough for some steps in the minutes that were asked for, and a line about it.

    asked: names of settings that were given, and stay.
    """
    if training.minutes is None or not isinstance(model, TrainedModel) or math.prod(data.shape) <= LARGE:
        return training, None
    each, limit = seconds_each(model, data, training), 60 * training.minutes
    whole = training.batch * training.accumulate
    fitting = max(1, min(whole, int(limit / (FEWEST_STEPS * each))))
    said, length = f"a step takes {each:.2g} s for each image", counted(training.minutes)
    made = limit / (each * fitting)
    few = f"{said}, so about {max(1, round(made))} are made in {length}; for more give more --minutes or a smaller --size"
    too_few = few if made < FEWEST_STEPS else None
    if fitting == whole or {"batch", "accumulate", "micro", "exact"} & set(asked):
        return training, too_few
    batch = min(fitting, training.batch)
    smaller = training.model_copy(update={"batch": batch, "accumulate": max(1, fitting // batch)})
    micro = micro_batches(False, 1, smaller.model_dump(), data)
    note = too_few or f"batches of {batch} in place of {whole}: {said}, and {length} are to hold some steps"
    return smaller.model_copy(update={"micro": micro}), note
