"""Distillation: a student that draws in a few evaluations, taught by how far its batches are from others in features.

The student is the teacher's own network, asked for a sample where it gave a mean: f(x_t, t) is to be distributed as the data,
whatever t is.  What tells two batches apart is the energy distance (Székely and Rizzo 2013),

    2 E|a - b| - E|a - a'| - E|b - b'|,

in features of them.  Where a small classifier tells the labels of images well these are its layers, else what the frozen
teacher sees them by, the outputs of all its normalisations; and the data themselves.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional

from reverie.base.distances import root, squared
from reverie.base.noise import mix_seed
from reverie.base.section import Section
from reverie.data import Dataset
from reverie.diffusion.condition import NULL
from reverie.diffusion.denoiser import NetDenoiser
from reverie.diffusion.guidance import MOST_GUIDANCE
from reverie.diffusion.pair import Pair
from reverie.nets.lenet import LeNet

PURE = 0.5  # of the batches begin at pure noise, which is the whole way; the others at times that later evaluations begin at
EARLIEST, LATEST = 0.4, 0.95
SEEN_AT = 0.05  # the time that the teacher is told for data without noise: nearly none
ANY = 0.1  # weight of two data of different labels, beside 1 of the same: of these a batch has few
WIDEST, WIDEST_DATA = 8, 16  # places along a map of features, and along the data, which are averaged down to this
CHECKED = 512  # held-out data that the distance is told of


class Distilled(Section):
    """The table [family.distilled] of config.toml: what a student learned from.

    guidance: of the teacher whose samples were the data, 1 where these were the teacher's own data; samples: how many;
    features: by whose features it was taught.
    """

    guidance: Annotated[float, Field(ge=-MOST_GUIDANCE, le=MOST_GUIDANCE)] = 1.0
    samples: Annotated[int, Field(ge=0, le=10**7)] = 0
    features: Literal["teacher", "classifier"] = "teacher"


Features = Callable[[Tensor], list[Tensor]]  # (B, ...) in model units to rows (B, D)


class ClassifierFeatures:
    """What a classifier sees in images: (B, C, H, W) in model units to rows (B, D), those of the images themselves first."""

    def __init__(self, net: LeNet) -> None:
        self.net = net.eval().requires_grad_(False)

    def __call__(self, z: Tensor) -> list[Tensor]:
        """Return the features of each layer, after it was pooled or cut off at zero."""
        found, h = [_rows(z, WIDEST_DATA)], (z + 1) / 2  # not cut off at 0 and 1, where nothing could be learned
        for layer in self.net.maps:
            h = layer(h)
            if isinstance(layer, nn.MaxPool2d):
                found.append(h.flatten(1))
        for layer in self.net.features:
            h = layer(h)
            if isinstance(layer, nn.ReLU):
                found.append(h)
        return found


class TeacherFeatures:
    """What a network sees in data: (B, ...) in model units to rows (B, D), those of the data themselves first."""

    def __init__(self, teacher: NetDenoiser) -> None:
        self.teacher = teacher.eval().requires_grad_(False)
        self.norms = [m for m in teacher.net.modules() if isinstance(m, nn.GroupNorm | nn.LayerNorm)]

    def __call__(self, z: Tensor) -> list[Tensor]:
        """Return the features of each normalisation."""
        found = [_rows(z, WIDEST_DATA)]
        handles = [norm.register_forward_hook(lambda _, __, out: found.append(_rows(out, WIDEST))) for norm in self.norms]
        try:
            if handles:
                self.teacher(z, SEEN_AT)
        finally:
            for handle in handles:
                handle.remove()
        return found


def _rows(h: Tensor, widest: int) -> Tensor:
    """Return (B, D), of maps averaged down to so many places along a side."""
    if h.ndim == 4 and (side := max(h.shape[2:])) > widest:
        h = functional.avg_pool2d(h, math.ceil(side / widest))
    return h.flatten(1)


def energy_rows(a: Tensor, b: Tensor, weights: Tensor) -> Tensor:
    """Return the share of each row in the energy distance of a from b, whose mean is the distance: (B,).  a, b: (B, D).

    weights: (B, B) of the pairs.  A row is not compared with itself, but with the row of its number in the other set: what was
    made of a datum is to be near it as well.  Distances are for each root of the dimensions and in units of b's deviation, so
    that features of all sizes count alike.
    """
    unit = math.sqrt(a.shape[1]) * b.std(0).mean().clamp_min(1e-6)
    others = weights - weights.diag().diag()
    across, within = (len(a) * w / w.sum().clamp_min(1e-12) for w in (weights, others))

    apart, mine, theirs = (root(squared(x, y).clamp_min(0)) for x, y in ((a, b), (a, a), (b, b)))
    between = across * apart
    return (between.sum(1) + between.sum(0) - (within * (mine + theirs)).sum(1)) / unit


@dataclass(frozen=True)
class Lesson:
    """What a student is taught by: the loss of a batch, as features tell it from data."""

    features: Features
    label_dropout: float

    def __deepcopy__(self, _: dict[int, Any]) -> Lesson:
        return self  # nothing in it changes, so that copies of the student share it

    def loss(self, student: NetDenoiser, z: Tensor, cond: Tensor | None, seed: int) -> Tensor:
        """Return the loss of each datum, (B,): a function of data, labels and seed alone.  z: (B, ...) in model units."""
        random = torch.Generator().manual_seed(seed)
        pure, u = torch.rand(2, generator=random, dtype=torch.float64).tolist()
        t = 1.0 if pure < PURE else EARLIEST + (LATEST - EARLIEST) * u
        if cond is not None and self.label_dropout:
            hidden = torch.rand(len(z), generator=random) < self.label_dropout
            cond = cond.masked_fill(hidden.to(cond.device), NULL)
        return self.distance_at(student, z, cond, t, mix_seed(seed, 1))

    def distance_at(self, student: NetDenoiser, z: Tensor, cond: Tensor | None, t: float, seed: int) -> Tensor:
        """Return the share of each datum in the distance of what is made of these, noised to one time t, from them: (B,)."""
        other = torch.Generator(z.device).manual_seed(seed)
        eps = torch.randn(z.shape, generator=other, device=z.device, dtype=z.dtype)
        made = student(Pair(z, eps).mix(*student.schedule(t)), t, cond).x0
        with torch.no_grad():
            theirs = self.features(z)
        same = torch.ones(len(z), len(z), device=z.device)
        if cond is not None:
            same = (cond[:, None] == cond).float() * (1 - ANY) + ANY
        mine = self.features(made)
        with torch.autocast(z.device.type, enabled=False):  # in bfloat16, squares would not leave anything of their difference
            return torch.stack([energy_rows(a.float(), b.float(), same) for a, b in zip(mine, theirs, strict=True)]).mean(0)

    @torch.no_grad()
    def held_out(
        self, student: NetDenoiser, data: Dataset, encode: Callable[[Tensor], Tensor], seed: int, batch: int = 128
    ) -> float:
        """Return the mean distance of one evaluation, from pure noise, from data that were not trained on."""
        device, found = next(student.parameters()).device, []
        for part in torch.arange(min(CHECKED, len(data))).split(batch):
            if len(part) < 2:
                continue
            x, labels = data.batch(part)
            z, cond = encode(x.to(device)), labels.to(device) if labels is not None else None
            found.append(float(self.distance_at(student, z, cond, 1.0, mix_seed(seed, int(part[0]))).mean()))
        return math.fsum(found) / max(1, len(found))
