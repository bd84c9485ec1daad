"""Precision, recall, density and coverage of two sets of features."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from reverie.base.distances import euclidean, row_blocks
from reverie.base.errors import UserError
from reverie.base.validation import check_points, tensor

# Groups of samples for the jackknife; with fewer than 8 the errors are rough, which causes false alarms.
MIN_GROUPS, GROUPS = 8, 24
NAMES = ("precision", "recall", "density", "coverage")


@dataclass(frozen=True)
class Manifold:
    """The four figures and their standard errors over new samples."""

    values: dict[str, float]
    errors: dict[str, float]
    k: int


def _distances(x: Tensor, y: Tensor) -> Tensor:
    return torch.cat([euclidean(x[rows], y) for rows in row_blocks(len(x), len(y))])


def _neighbour_distance(distances: Tensor, k: int) -> Tensor:
    """Return the distance to the k-th neighbour, (N,), from (N, M) distances that include each point itself."""
    return distances.topk(k + 1, 1, largest=False).values[:, -1]


def _figures(distances: Tensor, radii: Tensor, own_distances: Tensor, k: int, count: int) -> Tensor:
    """Return the four figures of all samples, and without each of `count` groups in turn: (1 + count, 4).

    distances: (M, N) from real data to samples; radii: (M,) of the real data; own_distances: (N, N) between
    samples.
    """
    groups = torch.arange(len(own_distances), device=own_distances.device) % max(1, count)
    searched = k + 1 + (-(-len(own_distances) // count) if count else 0)
    # enough neighbours to contain the k-th one if any group is left out
    near, index = own_distances.topk(min(searched, len(own_distances)), 1, largest=False)
    inside = distances < radii[:, None]
    is_inside, balls = inside.any(0), inside.sum(0)
    closest = torch.stack([distances[:, groups == g].amin(1) for g in range(max(1, count))])
    rows = []
    for g in range(-1, count):  # -1: all samples
        included = groups != g
        k_th = (included[index].cumsum(1) > k).byte().argmax(1, keepdim=True)  # the point itself comes first
        own_radii = near.gather(1, k_th)[:, 0].where(included, -torch.inf)
        covered = closest[torch.arange(len(closest)) != g].amin(0) < radii
        rows.append([
            is_inside[included].double().mean(), (distances < own_radii).any(1).double().mean(),
            balls[included].double().mean() / k, covered.double().mean(),
        ])  # fmt: skip
    return torch.tensor(rows, dtype=torch.float64)


def manifold(samples: Any, real: Any, k: int = 5) -> Manifold:
    """Return precision, recall, density and coverage of samples (N, D) relative to real data (M, D).

    A ball around each point reaches its k-th neighbour in its own set.  precision: share of samples in balls of real data;
    recall: share of real data in balls of samples (arXiv:1904.06991); density: mean number of real balls that contain a
    sample, divided by k; coverage: share of real balls that contain a sample (arXiv:2002.09797).
    """
    samples, real = tensor(samples).float(), tensor(real).float()
    for name, points in (("samples", samples), ("real data", real)):
        check_points(points, name)
        if len(points) <= k:
            raise UserError(f"neighbourhoods of {k} neighbours need at least {k + 1} {name}, got {len(points)}")
    distances, own = _distances(real, samples), _distances(samples, samples)
    radii = torch.cat([_neighbour_distance(euclidean(real[rows], real), k) for rows in row_blocks(len(real), len(real))])
    count = min(GROUPS, len(samples) // 2)
    if count < MIN_GROUPS or len(samples) - len(samples) // count <= k + 1:
        count = 0
    values, *without = _figures(distances, radii, own, k, count)
    errors = torch.full((4,), torch.nan)
    if count:
        replicates = torch.stack(without)
        errors = ((count - 1) / count * (replicates - replicates.mean(0)).square().sum(0)).sqrt()
        errors = errors.clamp_min(1 / len(samples))  # the weight of one sample: no figure is certain
    by_name = [dict(zip(NAMES, map(float, row), strict=True)) for row in (values, errors)]
    return Manifold(by_name[0], by_name[1], k)
