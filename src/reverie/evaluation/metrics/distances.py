"""Distances between two sets of features by name; each entry of DISTANCES is measured, printed, compared and tested."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from reverie.base.distances import energy_distance


@dataclass(frozen=True)
class Distance:
    """A squared distance of two sets, (N, D) and (M, D), and its title.

    It is called with at most 1,000 data per set, also for the floor and for permuted sets.
    """

    of: Callable[[Tensor, Tensor], float]
    title: str


DISTANCES: dict[str, Distance] = {"energy": Distance(energy_distance, "energy distance")}
