"""Nearest training data of samples, and which samples are copies (memorization)."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from reverie.base.distances import nearest

COPY = 0.5  # a copy is nearer to its training datum than this times that datum's distance to its nearest neighbour
SAME = 1 / 510  # half a step of 8-bit pixels: images at a smaller distance are identical


@dataclass(frozen=True)
class Neighbours:
    """The nearest training datum of each of n data, (n,) arrays.

    distance: root mean square to it; index: its index in the training data; ratio: the distance divided by that datum's
    distance to its own nearest neighbour.
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
        """The standard error of the share, with one copy and one other datum added, so that it is never 0."""
        n = len(self.ratio)
        share = (self.copies.sum() + 1) / (n + 2)
        return float(np.sqrt(share * (1 - share) / n))

    def worst(self, count: int) -> np.ndarray:
        """Return the indices of the data most similar to training data, the worst first."""
        return np.lexsort((self.distance, np.minimum(self.ratio, 1e6)))[:count]


def leave_one_out(x: Tensor, same: float = SAME) -> Neighbours:
    """Return `neighbours` of each training datum among the others: the floor if few data are held out.

    x: (n, ...), a few hundred, because all pairwise distances are in memory; a single datum has an infinite distance.
    """
    flat = x.flatten(1)
    distances = torch.cdist(flat, flat, compute_mode="donot_use_mm_for_euclid_dist") / flat.shape[1] ** 0.5
    distances.fill_diagonal_(torch.inf)
    distance, index = distances.min(1)
    others = distances[index].scatter(1, torch.arange(len(x), device=x.device)[:, None], torch.inf)  # without the datum itself
    neighbour_distance = others.masked_fill(others <= same, torch.inf).amin(1)
    ratio = torch.where(neighbour_distance.isinf(), torch.inf, distance / neighbour_distance)
    return Neighbours(distance.cpu().numpy(), index.cpu().numpy(), ratio.cpu().numpy(), same)


def neighbours(
    x: Tensor, blocks: Callable[[], Iterable[Tensor]], take: Callable[[Tensor], Tensor], same: float = SAME
) -> Neighbours:
    """Return the nearest training datum of each x, and the ratio to that datum's own nearest neighbour.

    blocks: starts a pass over the training data; take: returns training data by index.  The ratio adapts to the local density
    of the data.  Duplicates within the training data do not count as neighbours.
    """
    distance, index = nearest(x, blocks())
    neighbour_distance, _ = nearest(take(index.cpu()), blocks(), beyond=same)
    # A single training datum has no neighbour.
    ratio = torch.where(neighbour_distance.isinf(), torch.inf, distance / neighbour_distance)
    return Neighbours(distance.cpu().numpy(), index.cpu().numpy(), ratio.cpu().numpy(), same)
