"""Captions of digits, made from what is measured of each: how thick, how slanted and how large it is drawn."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from reverie.data.conditions import Attribute, make_conditions
from reverie.data.dataset import Dataset

DIGITS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
THICKNESS, SLANT, SIZE = ("thin", "medium", "thick"), ("backward", "upright", "slanted"), ("small", "", "large")
ATTRIBUTES = (Attribute("digit", DIGITS), Attribute("slant", SLANT), Attribute("thickness", THICKNESS))
# Between the three words of each, so that each is said of about a third of MNIST's digits: pixels, dx / dy, pixels.
BOUNDS = {"thickness": (2.13, 2.61), "slant": (-0.01, 0.235), "size": (6.38, 7.06)}
AT_ONCE = 4096


def measure_digits(x: Tensor) -> dict[str, Tensor]:
    """Return thickness, slant and size of white digits on black, (N,) each.  x: (N, 1, H, W) uint8.

    A stroke of width w and length l has the area w l and about 2 l of edge, so w = 2 area / edge, the edge being the sum of
    the lengths of gradients.  The slant is how far rows must be shifted for each row up, -m11 / m02 of the second moments; the
    size is the root mean square distance from the centre.
    """
    found = [_measure(part.float()[:, 0] / 255) for part in x.split(AT_ONCE)]
    return {name: torch.cat([part[k] for part in found]) for k, name in enumerate(BOUNDS)}


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


def combination(words: dict[str, Tensor], digits: Tensor) -> Tensor:
    """Return which combinations of a digit, a thickness and a slant are left out: (N,) bool.

    Of the 90, those whose numbers sum to a multiple of 3: every pair of words is seen with all that the third can be, but one.
    """
    return (digits + words["thickness"] + words["slant"]) % 3 == 0


def caption_digits(data: Dataset) -> Dataset:
    """Return digits with captions such as "a thick upright three" in place of labels, without the combinations left out.

    Their captions are told as `unseen`, as often as they occur.  data: white digits on black, with labels 0 to 9 in order.
    """
    assert isinstance(data.x, Tensor) and data.labels is not None
    found = {name: torch.bucketize(values, torch.tensor(BOUNDS[name])) for name, values in measure_digits(data.x).items()}
    rows = zip(*(found[name].tolist() for name in BOUNDS), data.labels.tolist(), strict=True)
    captions = [
        " ".join(word for word in ("a", SIZE[size], THICKNESS[thick], SLANT[slant], DIGITS[digit]) if word)
        for thick, slant, size, digit in rows
    ]
    left_out = combination(found, data.labels)
    unseen = tuple(captions[int(k)] for k in left_out.nonzero()[:, 0])
    kept = [int(k) for k in (~left_out).nonzero()[:, 0]]
    told = make_conditions([captions[k] for k in kept], attributes=ATTRIBUTES, unseen=unseen, unseen_images=data.x[left_out])
    note = f"{len(unseen):,} digits of 30 of the 90 combinations of digit, thickness and slant are left out"
    report = {**data.report, "count": len(kept), "classes": {}, "labels_by": "captions"}
    return replace(data.take(~left_out), labels=None, label_names=(), notes=(*data.notes, note), report=report, conditions=told)
