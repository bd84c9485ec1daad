"""Clusters of images as an additional condition of a network.

Without them a small network mixes image types, such as strokes of two digits in one sample.  k-means on downscaled images finds
the clusters without labels.  In training the network is conditioned on the cluster of each image.  Sampling draws a cluster by
its frequency given the label (arXiv:2210.06462, section 3, with features of another network).  Image editing and restoration
use the network without cluster conditioning.
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

MAX_CLUSTERS = 1024
MAX_DEFAULT, IMAGES_PER_CLUSTER, MIN_IMAGES = 300, 40, 300  # default number of clusters; below MIN_IMAGES, none
SIDE = 16  # maximum side of the downscaled images in pixels
MAX_FIT_IMAGES, MAX_COUNT_IMAGES = 10_000, 60_000  # for k-means, and for the frequencies of clusters
MAX_READ = 4096  # images for fitting and counting if data are not in memory
ROUNDS = 30  # maximum iterations of k-means
CLUSTER_DRAW = 2**30 + 1  # position of the cluster in each sample's random stream


def default_cluster_count(count: int) -> int:
    """Return the default number of clusters for a number of images."""
    return min(MAX_DEFAULT, count // IMAGES_PER_CLUSTER) if count >= MIN_IMAGES else 0


def cluster_names(count: int) -> tuple[str, ...]:
    """Return the names of the entries of one-hot clusters."""
    return tuple(f"cluster {k}" for k in range(count))


def downscale(x: Tensor) -> Tensor:
    """Return downscaled images as vectors: (B, C, H, W) -> (B, D)."""
    factor = math.ceil(max(x.shape[2:]) / SIDE)
    return (functional.avg_pool2d(x, factor, ceil_mode=True) if factor > 1 else x).flatten(1)


def k_means(x: Tensor, count: int, seed: int = 0, deadline: Deadline | None = None) -> Tensor:
    """Return cluster centres by Lloyd's algorithm from k-means++ starts: (count, D).  x: (N, D).

    An empty cluster keeps its centre.  With fewer than `count` distinct data points, the last centre is repeated.  No
    iteration starts after the deadline.
    """
    x, deadline = x.double(), deadline or Deadline()
    centres = k_means_plus_plus(x, count, torch.Generator().manual_seed(seed), deadline)[0]
    for _ in range(ROUNDS):
        assigned = nearest(x, [centres])[1]
        sums = torch.zeros_like(centres).index_add_(0, assigned, x)
        counts = torch.bincount(assigned, minlength=len(centres))[:, None]
        moved = torch.where(counts > 0, sums / counts.clamp_min(1), centres)
        if torch.equal(moved, centres):
            break
        centres = moved
        if deadline.left <= 0:
            break
    return torch.cat([centres, centres[-1:].expand(count - len(centres), -1)])


class Clusters(nn.Module):
    """Centres of clusters of downscaled images, and the frequency of each cluster given the label.

    shape: of an image; labels: number of labels.  centres: (K, D); counts: (max(1, labels), K).
    """

    def __init__(self, count: int, shape: tuple[int, ...], labels: int) -> None:
        super().__init__()
        self.centres = nn.Buffer(torch.zeros(count, downscale(torch.zeros(1, *shape)).shape[1]))
        self.counts = nn.Buffer(torch.zeros(max(1, labels), count))

    def __len__(self) -> int:
        return len(self.centres)

    def fit(self, data: Dataset, deadline: Deadline | None = None) -> None:
        """Fit the centres to training images and count the clusters; deterministic unless the deadline stops it early."""

        def fit_centres(vectors: Tensor) -> None:
            self.centres.copy_(
                k_means(vectors[evenly_spaced_indices(len(vectors), MAX_FIT_IMAGES)], len(self), deadline=deadline)
            )

        self.count(data, fit_centres)

    def count(self, data: Dataset, fit: Callable[[Tensor], object] = lambda vectors: None) -> None:
        """Call `fit` with the downscaled images, (N, D), and count labels in each cluster."""
        max_images = MAX_COUNT_IMAGES if isinstance(data.x, Tensor) else MAX_READ
        batches = map(data.batch, evenly_spaced_indices(len(data), max_images).split(chunk_size(data.shape, 1024)))
        parts = [(downscale(x), labels) for x, labels in batches]
        vectors = torch.cat([x for x, _ in parts])
        fit(vectors)
        cluster = nearest(vectors.to(self.centres), [self.centres])[1].cpu()
        labels = torch.cat([torch.zeros(len(x), dtype=torch.int64) if label is None else label for x, label in parts])
        joint = labels * len(self) + cluster
        self.counts.copy_(torch.bincount(joint, minlength=self.counts.numel()).reshape(self.counts.shape))

    def assign(self, x: Tensor) -> Tensor:
        """Return the cluster of each image: (B,) int64.  x: (B, C, H, W) in [0, 1]."""
        with torch.autocast(x.device.type, enabled=False):
            return nearest(downscale(x).to(self.centres), [self.centres])[1]

    def sample(self, seeds: Tensor, cond: Tensor | None) -> Tensor:
        """Sample clusters by their frequency given the label: (B,) int64.  seeds: (B,); cond: (B,) labels or None."""
        cumulative = self.counts.double().cpu().cumsum(1)
        given_label = cumulative[torch.zeros_like(seeds) if cond is None else cond.cpu().clamp_min(0)]
        u = Noise(seeds, draws=CLUSTER_DRAW).uniform(1)[0].cpu() * given_label[:, -1:]
        return (given_label <= u).sum(1).clamp_max(len(self) - 1)

    def one_hot(self, clusters: Tensor, before: int) -> Tensor:
        """Return one-hot clusters after `before` zeros: (B, before + K).  clusters: (B,)."""
        encoded = functional.one_hot(clusters.to(self.centres.device), len(self)).to(self.centres.dtype)
        return functional.pad(encoded, (before, 0))


class WithClusters(Denoiser):
    """A network conditioned on the cluster of each sample, and unconditional if the condition is null.

    clusters: (B, K), one-hot; batches may repeat the samples several times.
    """

    def __init__(self, inner: NetDenoiser, clusters: Tensor) -> None:
        super().__init__()
        self.inner, self.schedule, self.has_variance = inner, inner.schedule, inner.has_variance
        self.clusters = clusters

    def forward(self, x: Tensor, t: Time, cond: Tensor | None = None) -> Pair:
        """Return the estimate.  x: (B n, ...); cond: (B n,) or None."""
        clusters = self.clusters.repeat(len(x) // len(self.clusters), 1)
        return self.inner.estimate(x, t, cond, clusters if cond is None else clusters * (cond != NULL)[:, None])
