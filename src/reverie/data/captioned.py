"""Captions of digits, generated from measurements of stroke thickness, slant and size."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from reverie.data.conditions import Attribute, make_conditions
from reverie.data.dataset import Dataset

DIGITS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
THICKNESS, SLANT, SIZE = ("thin", "medium", "thick"), ("backward", "upright", "slanted"), ("small", "", "large")
ATTRIBUTES = (Attribute("digit", DIGITS), Attribute("slant", SLANT), Attribute("thickness", THICKNESS))
# Thresholds between the three words of each, so that each applies to about a third of MNIST's digits: pixels, dx / dy, pixels.
BOUNDS = {"thickness": (2.13, 2.61), "slant": (-0.01, 0.235), "size": (6.38, 7.06)}
CHUNK = 4096


def measure_digits(x: Tensor) -> dict[str, Tensor]:
    """Return thickness, slant and size of white digits on black, (N,) each.  x: (N, 1, H, W) uint8.

    A stroke of width w and length l has the area w l and an edge of about 2 l, so w = 2 area / edge, where the edge is the sum
    of gradient norms.  The slant is the horizontal shift per row upwards, -m11 / m02 of the second moments; the size is the
    root-mean-square distance from the centre.
    """
    parts = [_measure(part.float()[:, 0] / 255) for part in x.split(CHUNK)]
    return {name: torch.cat([part[k] for part in parts]) for k, name in enumerate(BOUNDS)}


def _measure(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    area = x.sum((1, 2)).clamp_min(1e-6)
    across, down = x[:, 1:, 1:] - x[:, 1:, :-1], x[:, 1:, 1:] - x[:, :-1, 1:]
    edge = (across.square() + down.square()).sqrt().sum((1, 2)).clamp_min(1e-6)
    share = x / area[:, None, None]
    v = torch.arange(x.shape[1], dtype=x.dtype)[:, None] * torch.ones(x.shape[2])
    h = torch.arange(x.shape[2], dtype=x.dtype) * torch.ones(x.shape[1])[:, None]
    v = v - (share * v).sum((1, 2), keepdim=True)
    h = h - (share * h).sum((1, 2), keepdim=True)
    m02, m11, m20 = ((share * product).sum((1, 2)) for product in (v * v, v * h, h * h))
    return 2 * area / edge, -m11 / m02.clamp_min(1e-6), (m02 + m20).sqrt()


def left_out_combination(words: dict[str, Tensor], digits: Tensor) -> Tensor:
    """Return which combinations of digit, thickness and slant are left out: (N,) bool.

    Those of the 90 whose indices sum to a multiple of 3: every pair of words occurs with all but one value of the third.
    """
    return (digits + words["thickness"] + words["slant"]) % 3 == 0


def caption_digits(data: Dataset) -> Dataset:
    """Return digits with captions such as "a thick upright three" instead of labels, without the left-out combinations.

    Their captions are stored in `unseen`, with repetitions.  data: white digits on black, with labels 0 to 9 in order.
    """
    assert isinstance(data.x, Tensor) and data.labels is not None
    word_indices = {
        name: torch.bucketize(values, torch.tensor(BOUNDS[name])) for name, values in measure_digits(data.x).items()
    }
    words = zip(*(word_indices[name].tolist() for name in BOUNDS), data.labels.tolist(), strict=True)
    captions = [
        " ".join(word for word in ("a", SIZE[size], THICKNESS[thick], SLANT[slant], DIGITS[digit]) if word)
        for thick, slant, size, digit in words
    ]
    left_out = left_out_combination(word_indices, data.labels)
    unseen = tuple(captions[int(k)] for k in left_out.nonzero()[:, 0])
    kept = [int(k) for k in (~left_out).nonzero()[:, 0]]
    conditions = make_conditions(
        [captions[k] for k in kept], attributes=ATTRIBUTES, unseen=unseen, unseen_images=data.x[left_out]
    )
    note = f"{len(unseen):,} digits of 30 of the 90 combinations of digit, thickness and slant are left out"
    report = {**data.report, "count": len(kept), "classes": {}, "labels_by": "captions"}
    return replace(
        data.take(~left_out), labels=None, label_names=(), notes=(*data.notes, note), report=report, conditions=conditions
    )
