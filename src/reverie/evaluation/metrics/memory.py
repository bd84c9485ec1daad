"""Memorisation: whether samples are copies of training data."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from reverie.base.distances import nearest

COPY = 0.5  # a copy is this much closer to a training datum than that one is to its own neighbour
SAME = 1 / 510  # half a step of 8-bit pixels: closer than this is the same image


@dataclass(frozen=True)
class Neighbours:
    """What lies nearest to some data, (n,) each.

    distance: root mean square to the nearest training datum; index: its number; ratio: the distance as a share of that from
    there to the next training datum.
    """

    distance: np.ndarray
    index: np.ndarray
    ratio: np.ndarray
    same: float

    @property
    def copies(self) -> np.ndarray:
        """Which data are copies, (n,) bool."""
        return (self.distance <= self.same) | (self.ratio < COPY)

    @property
    def share(self) -> float:
        """The share of copies."""
        return float(self.copies.mean())

    @property
    def standard_error(self) -> float:
        """Of the share, with one copy more and one less, so that it is never 0."""
        n = len(self.ratio)
        share = (self.copies.sum() + 1) / (n + 2)
        return float(np.sqrt(share * (1 - share) / n))

    def worst(self, many: int) -> np.ndarray:
        """Return the numbers of the data that look most like copies, the worst first."""
        return np.lexsort((self.distance, np.minimum(self.ratio, 1e6)))[:many]


def left_out(x: Tensor, same: float = SAME) -> Neighbours:
    """Find for each training datum what `neighbours` would, had it been left out: the floor where few data are held out.

    x: (n, ...), all at once, so a few hundred; one datum alone has no neighbour, at an infinite distance.
    """
    flat = x.flatten(1)
    apart = torch.cdist(flat, flat, compute_mode="donot_use_mm_for_euclid_dist") / flat.shape[1] ** 0.5
    apart.fill_diagonal_(torch.inf)
    distance, index = apart.min(1)
    others = apart[index].scatter(1, torch.arange(len(x), device=x.device)[:, None], torch.inf)  # without the one left out
    around = others.masked_fill(others <= same, torch.inf).amin(1)
    ratio = torch.where(around.isinf(), torch.inf, distance / around)
    return Neighbours(distance.cpu().numpy(), index.cpu().numpy(), ratio.cpu().numpy(), same)


def neighbours(
    x: Tensor, blocks: Callable[[], Iterable[Tensor]], take: Callable[[Tensor], Tensor], same: float = SAME
) -> Neighbours:
    """Find the nearest training datum of each x, and how near that one's own neighbour is.

    blocks: begins a pass over the training data; take: training data by number.  Plain data have near neighbours and odd ones
    far; the ratio judges each by its own surroundings.  Doubles within the training data are not neighbours.
    """
    distance, index = nearest(x, blocks())
    around, _ = nearest(take(index.cpu()), blocks(), beyond=same)
    ratio = torch.where(around.isinf(), torch.inf, distance / around)  # a lone training datum has no surroundings to judge by
    return Neighbours(distance.cpu().numpy(), index.cpu().numpy(), ratio.cpu().numpy(), same)
