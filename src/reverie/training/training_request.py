"""The request for a training: checked before data are read, and again when their shape is known."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from pydantic import ValidationError

from reverie.base.errors import UserError
from reverie.base.spec import Spec, first_problem
from reverie.data import DATASETS, Dataset, evaluation_batch_size
from reverie.data.fitting import divisible_side, format_size
from reverie.data.in_memory import DataSource, is_in_memory
from reverie.data.memory_limits import MEMORY_LIMIT
from reverie.data.pixels import parse_size
from reverie.families.diffusion.family import shape_of
from reverie.families.diffusion.noise_levels import EVALUATION_BATCH, OPTIMUM_MOST
from reverie.families.model import Family
from reverie.runs.config import TrainingConfig
from reverie.training.codec_training import BATCH as CODEC_BATCH
from reverie.training.memory_use import BYTES, NetworkMemory, available, codec_step_memory, network_memory

MEMORY_SHARE = 0.9  # usable share of the free memory
SMALLER = (7 / 8, 3 / 4, 5 / 8, 1 / 2, 3 / 8, 1 / 4, 3 / 16, 1 / 8, 1 / 16)  # tried sizes, relative to the given one
GIGABYTE = 10**9
SMALL_IMAGE = 3 * 128**2  # image size up to which an autoencoder takes half a gigabyte at most and is not checked


@dataclass
class TrainingRequest:
    """The options of a training; the family chooses those that are None or absent.

    codec: returns the codec for data of a shape, None without an autoencoder; channels: of images not yet read; options: of the
    family; settings: fields of TrainingConfig.  Once `check_memory` knows the shape of the data, `smaller` holds settings that
    make batches fit into memory, `codec_smaller` those of an autoencoder that is trained first (trains_codec), and notes are
    lines about them.
    """

    family: Family[Any]
    minutes: float | None
    steps: int | None
    options: Mapping[str, Any]
    settings: Mapping[str, Any]
    device: torch.device
    codec: Callable[[Dataset], Spec | None] = lambda form: None
    channels: int = 1
    trains_codec: bool = False
    smaller: dict[str, int] = field(default_factory=dict)
    codec_smaller: dict[str, int] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def check(self, data: DataSource, size: str | None) -> None:
        """Refuse options that are invalid for any data."""
        try:
            TrainingConfig(**{"steps": 1, **self.settings})
        except ValidationError as error:
            raise UserError(f"cannot train with these settings: {first_problem(error)}") from None
        self.family.check(self.options)
        if size is None or is_in_memory(data):
            return
        path = Path(str(data))
        if str(data) not in DATASETS and (path.is_dir() or path.suffix.lower() == ".zip"):
            self.network_memory_for(_form(self.channels, *parse_size(size), name=path.name))

    def network_memory_for(self, form: Dataset) -> NetworkMemory | None:
        """Return the memory of the network for data of a shape; the network refuses invalid shapes."""
        codec = self.codec(form)
        options = self.options if codec is None else {**self.options, "codec": codec}
        network = self.family.network(form, self.minutes, self.steps, options)
        return network_memory(network, shape_of(network), self.family.levels(form, options)) if network is not None else None

    def check_memory(self, form: Dataset) -> None:
        """Check the memory for data of a shape: choose smaller batches, or refuse them."""
        network = self.network_memory_for(form)
        free = available(self.device)
        if free is None or network is None:
            return
        self.smaller, self.codec_smaller, self.notes = {}, {}, ()
        self._check_codec_memory(form, free)
        batch = min(self.settings.get("batch") or self.family.batch(form), len(form))
        limit = MEMORY_SHARE * free
        needed = total_memory(network, form, batch)
        if needed <= limit:
            return
        largest = _largest_fitting(network, form, batch, limit)
        if largest is None or self.settings.keys() & {"batch", "accumulate"}:
            raise self._too_large(form, batch, needed, free, largest)
        parts = -(-batch // largest)
        self.smaller = {"batch": largest, "accumulate": parts}
        self._add_note("each step", batch, parts, largest, needed, free)

    def _add_note(self, what: str, batch: int, parts: int, largest: int, needed: int, free: int) -> None:
        why = f"{batch} at once need about {_gigabytes(needed)} of memory, {_gigabytes(free)} are free"
        self.notes += (f"{what} accumulates {parts} batches of {largest}: {why}",)

    def _check_codec_memory(self, form: Dataset, free: int) -> None:
        """Check the memory of the autoencoder that is trained first, if images are large."""
        codec = self.codec(form) if self.trains_codec else None
        if codec is None or math.prod(form.shape) <= SMALL_IMAGE:
            return
        full_batch = batch = min(CODEC_BATCH, len(form))
        needed, limit = codec_step_memory(codec, batch), MEMORY_SHARE * free
        while batch > 1 and codec_step_memory(codec, batch) > limit:
            batch = -(-batch // 2)
        if codec_step_memory(codec, batch) > limit:
            raise self._too_large(form, full_batch, needed, free, None)
        if batch < full_batch:
            parts = -(-full_batch // batch)
            self.codec_smaller = {"batch": batch, "accumulate": parts}
            self._add_note("each step of the autoencoder", full_batch, parts, batch, needed, free)

    def _too_large(self, form: Dataset, batch: int, needed: int, free: int, largest: int | None) -> UserError:
        """Return the error with a suggestion: smaller batches or smaller images."""
        channels, height, width = form.shape
        suggestions = [f"--batch {largest} --accumulate {-(-batch // largest)}"] if largest is not None else []
        for share in SMALLER if not suggestions else ():
            size = divisible_side(round(share * height) // 8 * 8), divisible_side(round(share * width) // 8 * 8)
            smaller = _form(channels, *size, count=len(form), labels=form.label_names)
            with suppress(UserError):  # the network does not support that size
                if self._fits(smaller, batch if "batch" in self.settings else 1, MEMORY_SHARE * free):
                    suggestions.append(f"--size {format_size(size)}")
                    break
        what = f"training on {height}x{width} images in batches of {batch}"
        return UserError(
            f"not enough memory: {what} needs about {_gigabytes(needed)}, and {_gigabytes(free)} are free;"
            f" use {suggestions[0] if suggestions else 'a smaller --network'}"
        )

    def _fits(self, form: Dataset, batch: int, limit: float) -> bool:
        """Return whether a training on data of a shape, and that of its autoencoder, fit into memory."""
        network, codec = self.network_memory_for(form), self.codec(form) if self.trains_codec else None
        if network is None or total_memory(network, form, batch) > limit:
            return False
        return codec is None or codec_step_memory(codec, 1) <= limit


def _largest_fitting(network: NetworkMemory, form: Dataset, batch: int, limit: float) -> int | None:
    """Return the largest of the halves, quarters, ... of a batch that fits into memory."""
    if total_memory(network, form, 1) > limit:
        return None
    while total_memory(network, form, batch) > limit:
        batch = -(-batch // 2)
    return batch


def total_memory(network: NetworkMemory, form: Dataset, batch: int) -> int:
    """Return the bytes that a training needs: weights, data, and the larger of a step and a check of held-out data."""
    numbers = form.x.shape.numel() if isinstance(form.x, torch.Tensor) else 0
    data_bytes = 2 * numbers if numbers <= MEMORY_LIMIT else 0  # as read, and as split into two parts
    optimum_bytes = 4 * BYTES * numbers if numbers <= OPTIMUM_MOST else 0  # for the least possible loss
    evaluation = network.evaluation(evaluation_batch_size(form.shape, EVALUATION_BATCH))
    return network.weights + data_bytes + max(network.step(batch), evaluation, optimum_bytes)


def _form(
    channels: int, height: int, width: int, count: int = 1, labels: tuple[str, ...] = (), name: str = "images"
) -> Dataset:  # fmt: skip
    x = torch.empty(count, channels, height, width, dtype=torch.uint8, device="meta")
    return Dataset(name, x, None, labels)


def _gigabytes(count: int) -> str:
    return f"{count / GIGABYTE:.1f} GB" if count < 10 * GIGABYTE else f"{count / GIGABYTE:,.0f} GB"
