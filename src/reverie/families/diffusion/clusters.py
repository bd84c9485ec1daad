"""Clusters of images: what a model is told beside the label, so that it need not find out from noise what kind of image it is.

A network that is told nothing draws mixtures of kinds, strokes of two digits in one.  Images of a kind are near each other
already when they are made small, so k-means finds kinds without any label.  In training the network is told the cluster of each
image; a sample is told one that is drawn as often as it occurs with the sample's label (arXiv:2210.06462, section 3, has the
same with features of another network).  Where it is not told, in steering, the model is the one without clusters.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

from reverie.base.deadline import Deadline
from reverie.base.distances import nearest
from reverie.base.noise import Noise
from reverie.base.scalar import Time
from reverie.data import Dataset
from reverie.data.dataset import chunk_size, evenly_spaced_indices
from reverie.diffusion.condition import NULL
from reverie.diffusion.denoiser import Denoiser, NetDenoiser
from reverie.diffusion.pair import Pair
from reverie.families.em import k_means_plus_plus

MOST_CLUSTERS = 1024
USUAL_CLUSTERS, EACH, FEWEST = 300, 40, 300  # of clusters, of images in each, and below which there are none
SIDE = 16  # places, at most, along the side of the small images that are compared
FITTED, COUNTED = 10_000, 60_000  # images that centres are fitted to, and by which it is told how often a cluster occurs
READ = 4096  # of data that are not in memory, for both
ROUNDS = 30  # of k-means, at most
CLUSTER_DRAW = 2**30 + 1  # the number of the draw, of each image's own stream, that decides its cluster


def default_cluster_count(count: int) -> int:
    """Return into how many clusters so many images are taken apart."""
    return min(USUAL_CLUSTERS, count // EACH) if count >= FEWEST else 0


def cluster_names(count: int) -> tuple[str, ...]:
    """Return the names of the numbers that a network is told of clusters."""
    return tuple(f"cluster {k}" for k in range(count))


def downscale(x: Tensor) -> Tensor:
    """Return images made small, as rows: (B, C, H, W) -> (B, D)."""
    by = math.ceil(max(x.shape[2:]) / SIDE)
    return (functional.avg_pool2d(x, by, ceil_mode=True) if by > 1 else x).flatten(1)


def k_means(x: Tensor, count: int, seed: int = 0, deadline: Deadline | None = None) -> Tensor:
    """Return centres of clusters by Lloyd's rule from k-means++ starts: (count, D).  x: (N, D).

    Each centre is the mean of the data that it is the nearest to; one that no datum is near to stays where it is.  Where fewer
    than `count` data differ, the last centre stands for those that are missing.  deadline: after which there is no other round.
    """
    x, deadline = x.double(), deadline or Deadline()
    centres = k_means_plus_plus(x, count, torch.Generator().manual_seed(seed), deadline)[0]
    for _ in range(ROUNDS):
        of = nearest(x, [centres])[1]
        sums = torch.zeros_like(centres).index_add_(0, of, x)
        counts = torch.bincount(of, minlength=len(centres))[:, None]
        moved = torch.where(counts > 0, sums / counts.clamp_min(1), centres)
        if torch.equal(moved, centres):
            break
        centres = moved
        if deadline.left <= 0:
            break
    return torch.cat([centres, centres[-1:].expand(count - len(centres), -1)])


class Clusters(nn.Module):
    """Centres of clusters of small images, and how often each label is in each cluster.

    shape: of an image; labels: how many there are.  centres: (K, D); counts: (max(1, labels), K).
    """

    def __init__(self, count: int, shape: tuple[int, ...], labels: int) -> None:
        super().__init__()
        self.centres = nn.Buffer(torch.zeros(count, downscale(torch.zeros(1, *shape)).shape[1]))
        self.counts = nn.Buffer(torch.zeros(max(1, labels), count))

    def __len__(self) -> int:
        return len(self.centres)

    def fit(self, data: Dataset, deadline: Deadline | None = None) -> None:
        """Find the clusters of training images and count them; the same for the same data, where no deadline ends it."""

        def find(rows: Tensor) -> None:
            self.centres.copy_(k_means(rows[evenly_spaced_indices(len(rows), FITTED)], len(self), deadline=deadline))

        self.count(data, find)

    def count(self, data: Dataset, find: Callable[[Tensor], object] = lambda rows: None) -> None:
        """Count how often each label is in each cluster, after `find` was shown the small images, (N, D)."""
        most = COUNTED if isinstance(data.x, Tensor) else READ
        found = [
            (downscale(x), labels)
            for x, labels in map(data.batch, evenly_spaced_indices(len(data), most).split(chunk_size(data.shape, 1024)))
        ]
        rows = torch.cat([x for x, _ in found])
        find(rows)
        of = nearest(rows.to(self.centres), [self.centres])[1].cpu()
        labels = torch.cat([torch.zeros(len(x), dtype=torch.int64) if label is None else label for x, label in found])
        places = labels * len(self) + of
        self.counts.copy_(torch.bincount(places, minlength=self.counts.numel()).reshape(self.counts.shape))

    def assign(self, x: Tensor) -> Tensor:
        """Return which cluster each image belongs to: (B,) int64.  x: (B, C, H, W) in [0, 1]."""
        with torch.autocast(x.device.type, enabled=False):
            return nearest(downscale(x).to(self.centres), [self.centres])[1]

    def sample(self, seeds: Tensor, cond: Tensor | None) -> Tensor:
        """Return clusters, each as often as it occurs with the label: (B,) int64.  seeds: (B,); cond: (B,) labels or None."""
        shares = self.counts.double().cpu().cumsum(1)
        own = shares[torch.zeros_like(seeds) if cond is None else cond.cpu().clamp_min(0)]
        u = Noise(seeds, draws=CLUSTER_DRAW).uniform(1)[0].cpu() * own[:, -1:]
        return (own <= u).sum(1).clamp_max(len(self) - 1)

    def one_hot(self, which: Tensor, before: int) -> Tensor:
        """Return what a network is told of clusters: (B, before + K), zero in the entries before.  which: (B,)."""
        one = functional.one_hot(which.to(self.centres.device), len(self)).to(self.centres.dtype)
        return functional.pad(one, (before, 0))


class WithClusters(Denoiser):
    """A network that is told the cluster of each image that it draws, but not where it is to go by no label either.

    told: (B, K); batches that hold the same images several times are taken.
    """

    def __init__(self, inner: NetDenoiser, told: Tensor) -> None:
        super().__init__()
        self.inner, self.schedule, self.has_variance = inner, inner.schedule, inner.has_variance
        self.told = told

    def forward(self, x: Tensor, t: Time, cond: Tensor | None = None) -> Pair:
        """Return the estimate.  x: (B n, ...); cond: (B n,) or None."""
        told = self.told.repeat(len(x) // len(self.told), 1)
        return self.inner.estimate(x, t, cond, told if cond is None else told * (cond != NULL)[:, None])
