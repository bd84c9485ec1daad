"""The EM algorithm for mixtures of Gaussians (Dempster, Laird and Rubin 1977), in blocks of data."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from reverie.base.deadline import Deadline
from reverie.base.distances import row_blocks
from reverie.families.normals import Normals, maximize, start

EMPTY = 0.5  # expected number of data below which a component counts as empty and restarts
START_TILE = 2**16  # numbers in a block of distances to a start: 0.5 MB, which stays in the cache of a CPU core


@dataclass(frozen=True, eq=False)
class Mixture:
    """sum_k w_k N(x; mean_k, C_k), fitted to N data.  weights: (K,); nats: the mean log-density."""

    normals: Normals
    weights: Tensor
    nats: float
    count: int

    @property
    def bic(self) -> float:
        """-2 log p(data) + parameters log N (Schwarz 1978)."""
        parameters = self.normals.parameters + len(self.weights) - 1
        return -2 * self.count * self.nats + parameters * math.log(self.count)


@dataclass(frozen=True, eq=False)
class Sums:
    """Sums over the data, weighted by responsibilities r_k = w_k N_k(x) / p(x); x is relative to `centre`.

    count: sum r, (K,); first: sum r x, (K, D); square: sum r x², (K, D); second: sum r x x^T B, (K, D, q), with B = C^-1 W, or
    the identity for full covariances; log_density: sum log p(x); outlier: the datum of lowest density, (D,).
    """

    centre: Tensor
    probe: Tensor
    count: Tensor
    first: Tensor
    square: Tensor
    second: Tensor
    log_density: float
    outlier: Tensor


def expectation(x: Tensor, normals: Normals, weights: Tensor, noise_variance: float) -> Sums:
    """Return the sums of the E-step in one pass.  x: (N, D); noise_variance: see `Normals.log_density`."""
    components, size, rank = normals.loadings.shape
    probe = torch.eye(size).double().expand(components, -1, -1) if normals.full else normals.solved
    centre = normals.mean.mean(0)
    count, first, square = (torch.zeros(*s).double() for s in ((components,), (components, size), (components, size)))
    columns = probe.transpose(0, 1).flatten(1)  # of all components, for one matrix product: (D, K q)
    second = torch.zeros_like(columns)
    total, lowest, outlier = 0.0, torch.inf, centre
    for part in row_blocks(len(x), size):
        rows = x[part].double()
        joint = normals.log_density(rows, noise_variance) + weights.log()
        density = joint.logsumexp(1)
        responsibility = (joint - density[:, None]).exp()
        total += float(density.sum())
        if density.min() < lowest:
            lowest, outlier = float(density.min()), rows[density.argmin()]
        rows = rows - centre
        count += responsibility.sum(0)
        first += responsibility.T @ rows
        square += responsibility.T @ rows.square()
        second += rows.T @ (responsibility[..., None] * (rows @ columns).unflatten(1, (components, rank))).flatten(1)
    second = second.unflatten(1, (components, rank)).transpose(0, 1)
    return Sums(centre, probe, count, first, square, second, total, outlier)


def maximisation(current: Normals, sums: Sums, floor: Tensor, noise_variance: float) -> tuple[Normals, Tensor]:
    """Return the M-step's Gaussians and weights, (K,); an empty component restarts at the outlier.

    Moments of component k: mean = sum r x / sum r, S B = sum r x x^T B / sum r - mean mean^T B + noise_variance B.
    """
    total = sums.count.sum()
    is_used = sums.count >= EMPTY
    count = sums.count.clamp_min(EMPTY)[:, None]
    mean = sums.first / count
    variance = sums.square / count - mean.square() + noise_variance
    product = sums.second / count[..., None] - mean[..., None] * (mean[:, None] @ sums.probe) + noise_variance * sums.probe
    normals = maximize(current, mean + sums.centre, variance.clamp_min(0), product, floor)
    if is_used.all():
        return normals, sums.count / total
    is_empty = ~is_used[:, None]
    normals = Normals(
        torch.where(is_empty, current.mean, normals.mean), torch.where(is_empty[..., None], current.loadings, normals.loadings),
        torch.where(is_empty, current.noise, normals.noise),
    )  # fmt: skip
    weights = torch.where(is_used, sums.count, 0.0)
    restarted, largest = int(is_used.int().argmin()), int(sums.count.argmax())
    normals.mean[restarted] = sums.outlier
    normals.loadings[restarted], normals.noise[restarted] = normals.loadings[largest], normals.noise[largest]
    weights[restarted] = 1.0
    return normals, weights / weights.sum()


def em(
    x: Tensor, normals: Normals, weights: Tensor, floor: Tensor, noise_variance: float, tolerance: float, iterations: int
) -> Iterator[Mixture]:
    """Yield the initial mixture and that after each iteration, until the log-density converges.

    x: (N, D); floor: (D,), the smallest variance.  tolerance: change of the mean log-density relative to 1 + its absolute
    value. The log-density never decreases, except when an empty component restarts.
    """
    before = -torch.inf
    for _ in range(iterations + 1):
        sums = expectation(x, normals, weights, noise_variance)
        nats = sums.log_density / len(x)
        yield Mixture(normals, weights, nats, len(x))
        if abs(nats - before) <= tolerance * (1 + abs(nats)):
            return
        before = nats
        normals, weights = maximisation(normals, sums, floor, noise_variance)


def k_means_plus_plus(
    x: Tensor, components: int, random: torch.Generator, deadline: Deadline | None = None
) -> tuple[Tensor, float]:
    """Return data points as initial components, (k, D), and the mean squared distance of the data to the nearest of them.

    k-means++: each is sampled with probability proportional to the squared distance to the nearest one before it (Arthur and
    Vassilvitskii 2007).  Fewer than `components` are returned if fewer data differ.  x: (N, D) float64.  deadline: after it,
    the remaining components are sampled uniformly from the data that differ from the chosen ones.
    """
    deadline = deadline or Deadline()
    difference = x.new_empty(min(len(x), max(1, START_TILE // max(1, x.shape[1]))), x.shape[1])

    def squares(centre: Tensor) -> Tensor:
        """Return the squared distance of each datum to a centre, in blocks that fit into the CPU cache: (N,)."""
        distances = x.new_empty(len(x))
        for rows in row_blocks(len(x), x.shape[1], START_TILE):
            block = difference[: rows.stop - rows.start]
            torch.sub(x[rows], centre, out=block)
            torch.sum(block.square_(), 1, out=distances[rows])
        return distances

    chosen = [x[int(torch.randint(len(x), (), generator=random))]]
    nearest = squares(chosen[0])
    while len(chosen) < components and nearest.any():
        if deadline.left <= 0:
            others = torch.randperm(len(x), generator=random)
            others = others[nearest[others] > 0][: components - len(chosen)]
            chosen.extend(x[others])
            break
        chosen.append(x[int(torch.multinomial(nearest, 1, generator=random))])
        nearest = nearest.minimum(squares(chosen[-1]))
    return torch.stack(chosen), float(nearest.mean())


def initial_components(x: Tensor, components: int, rank: int, unit: Tensor, floor: Tensor, seed: int) -> Normals:
    """Return Gaussians at k-means++ starts, with the data's variance around them.  x: (N, D); unit: (D,), squared."""
    scale = unit.sqrt()
    centres, squares = k_means_plus_plus(x.double() / scale, components, torch.Generator().manual_seed(seed))
    variance = (unit * squares / len(unit)).maximum(floor).expand_as(centres)
    return start(centres * scale, variance, rank, seed)
