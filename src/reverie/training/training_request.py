"""What is asked of a training: checked as far as it can be before data are read, and the rest when their form is known."""

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

MEMORY_SHARE = 0.9  # of the memory that can be had
SMALLER = (7 / 8, 3 / 4, 5 / 8, 1 / 2, 3 / 8, 1 / 4, 3 / 16, 1 / 8, 1 / 16)  # shares of the size that are tried
GIGABYTE = 10**9
SMALL_IMAGE = 3 * 128**2  # numbers of an image up to which an autoencoder takes half a gigabyte at most, and is not looked at


@dataclass
class TrainingRequest:
    """What was given for a training; None, and settings that are not there, are chosen by the family.

    codec: tells the codec for data of a form where they are coded by an autoencoder, None where they are not; channels: of
    images that have not been looked at, of which one is always allowed but where an autoencoder has its own number.
    Once `check_memory` has seen the form of the data, smaller holds the settings that make their batches fit into memory, and
    codec_smaller those of the autoencoder if trains_codec, one that is trained first; notes are the lines about it.
    """

    family: Family[Any]
    minutes: float | None
    steps: int | None
    wished: Mapping[str, Any]
    settings: Mapping[str, Any]
    device: torch.device
    codec: Callable[[Dataset], Spec | None] = lambda form: None
    channels: int = 1
    trains_codec: bool = False
    smaller: dict[str, int] = field(default_factory=dict)
    codec_smaller: dict[str, int] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def check(self, data: DataSource, size: str | None) -> None:
        """Refuse what no data could make possible."""
        try:
            TrainingConfig(**{"steps": 1, **self.settings})
        except ValidationError as error:
            raise UserError(f"cannot train like this: {first_problem(error)}") from None
        self.family.check(self.wished)
        if size is None or is_in_memory(data):
            return
        path = Path(str(data))
        if str(data) not in DATASETS and (path.is_dir() or path.suffix.lower() == ".zip"):
            self.footprint_of(_form(self.channels, *parse_size(size), name=path.name))

    def footprint_of(self, form: Dataset) -> NetworkMemory | None:
        """Return what the network for data of a form takes; it refuses a shape that it cannot take."""
        codec = self.codec(form)
        wished = self.wished if codec is None else {**self.wished, "codec": codec}
        network = self.family.network(form, self.minutes, self.steps, wished)
        return network_memory(network, shape_of(network), self.family.levels(form, wished)) if network is not None else None

    def check_memory(self, form: Dataset) -> None:
        """Look at the form of data that have not been read: refuse what cannot be, or choose smaller batches."""
        footprint = self.footprint_of(form)
        free = available(self.device)
        if free is None or footprint is None:
            return
        self.smaller, self.codec_smaller, self.notes = {}, {}, ()
        self._foresee_codec(form, free)
        batch = min(self.settings.get("batch") or self.family.batch(form), len(form))
        room = MEMORY_SHARE * free
        needed = memory(footprint, form, batch)
        if needed <= room:
            return
        largest = _fitting(footprint, form, batch, room)
        if largest is None or self.settings.keys() & {"batch", "accumulate"}:
            raise self._too_large(form, batch, needed, free, largest)
        parts = -(-batch // largest)
        self.smaller = {"batch": largest, "accumulate": parts}
        self._say("each step", batch, parts, largest, needed, free)

    def _say(self, what: str, batch: int, parts: int, largest: int, needed: int, free: int) -> None:
        why = f"{batch} at once would need about {_gigabytes(needed)} of memory, and {_gigabytes(free)} are free"
        self.notes += (f"{what} takes {parts} batches of {largest} one after another: {why}",)

    def _foresee_codec(self, form: Dataset, free: int) -> None:
        """Do the same for the autoencoder that is trained first, if there is one and images are large."""
        codec = self.codec(form) if self.trains_codec else None
        if codec is None or math.prod(form.shape) <= SMALL_IMAGE:
            return
        whole = batch = min(CODEC_BATCH, len(form))
        needed, room = codec_step_memory(codec, batch), MEMORY_SHARE * free
        while batch > 1 and codec_step_memory(codec, batch) > room:
            batch = -(-batch // 2)
        if codec_step_memory(codec, batch) > room:
            raise self._too_large(form, whole, needed, free, None)
        if batch < whole:
            parts = -(-whole // batch)
            self.codec_smaller = {"batch": batch, "accumulate": parts}
            self._say("each step of the autoencoder", whole, parts, batch, needed, free)

    def _too_large(self, form: Dataset, batch: int, needed: int, free: int, largest: int | None) -> UserError:
        """Return the refusal, with what would fit: smaller batches, or smaller images."""
        channels, height, width = form.shape
        ways = [f"--batch {largest} --accumulate {-(-batch // largest)}"] if largest is not None else []
        for share in SMALLER if not ways else ():
            size = divisible_side(round(share * height) // 8 * 8), divisible_side(round(share * width) // 8 * 8)
            smaller = _form(channels, *size, count=len(form), labels=form.label_names)
            with suppress(UserError):  # the network cannot take that size
                if self._fits(smaller, batch if "batch" in self.settings else 1, MEMORY_SHARE * free):
                    ways.append(f"--size {format_size(size)}")
                    break
        what = f"training on {height}x{width} images in batches of {batch}"
        return UserError(
            f"{what} would need about {_gigabytes(needed)} of memory, and {_gigabytes(free)} are free;"
            f" {ways[0] if ways else 'a smaller --network'} would fit"
        )

    def _fits(self, form: Dataset, batch: int, room: float) -> bool:
        """Tell whether a training on data of a form, in batches of so many, and of its autoencoder has room."""
        footprint, codec = self.footprint_of(form), self.codec(form) if self.trains_codec else None
        if footprint is None or memory(footprint, form, batch) > room:
            return False
        return codec is None or codec_step_memory(codec, 1) <= room


def _fitting(footprint: NetworkMemory, form: Dataset, batch: int, room: float) -> int | None:
    """Return the largest of the halves, quarters, ... of a batch that a training has room for."""
    if memory(footprint, form, 1) > room:
        return None
    while memory(footprint, form, batch) > room:
        batch = -(-batch // 2)
    return batch


def memory(network: NetworkMemory, form: Dataset, batch: int) -> int:
    """Return the bytes that a training will take: weights, data, and the larger of a step and a check of held-out data."""
    numbers = form.x.shape.numel() if isinstance(form.x, torch.Tensor) else 0
    held = 2 * numbers if numbers <= MEMORY_LIMIT else 0  # as read, and once more as split into two parts
    exact = 4 * BYTES * numbers if numbers <= OPTIMUM_MOST else 0  # at the end all of them are compared with the model
    look = network.look(evaluation_batch_size(form.shape, EVALUATION_BATCH))
    return network.weights + held + max(network.step(batch), look, exact)


def _form(
    channels: int, height: int, width: int, count: int = 1, labels: tuple[str, ...] = (), name: str = "images"
) -> Dataset:  # fmt: skip
    x = torch.empty(count, channels, height, width, dtype=torch.uint8, device="meta")
    return Dataset(name, x, None, labels)


def _gigabytes(count: int) -> str:
    return f"{count / GIGABYTE:.1f} GB" if count < 10 * GIGABYTE else f"{count / GIGABYTE:,.0f} GB"
