"""Distillation: a student that samples in a few evaluations, trained by the drift of its samples in feature space.

The student is the teacher's network, trained so that f(x_t, t) is a sample of the data for every t, not a mean.  Nearby data
attract every sample, and other nearby samples repel it (arXiv:2602.04770), in feature space; see `drift`.  The features are
the data themselves and either layers of small classifiers, if these predict the labels well, or the outputs of all
normalisation layers of the frozen teacher.  The energy distance (Székely and Rizzo 2013), 2 E|a - b| - E|a - a'| -
E|b - b'|, measures the result.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional

from reverie.base.config_section import ConfigSection
from reverie.base.distances import root, squared
from reverie.base.noise import mix_seed
from reverie.data import Dataset
from reverie.diffusion.denoiser import NetDenoiser
from reverie.diffusion.guidance import MAX_GUIDANCE
from reverie.diffusion.pair import Pair
from reverie.families.diffusion.sampling import SamplingProfile
from reverie.nets.lenet import LeNet

PURE_NOISE_SHARE = 0.5  # share of batches at t = 1; the others are at times between MIN_TIME and MAX_TIME
MIN_TIME, MAX_TIME = 0.4, 0.95
MAX_LABELS = 3  # labels in a batch, so that enough samples of each repel each other
OWN_WEIGHT = 0.1  # of the distance to the sample's own datum
KERNEL_WIDTHS = (0.02, 0.05, 0.2)  # in units of the mean distance of two data
OTHER_LABEL_DISTANCE, SELF_DISTANCE = 3.0, 1e3  # added distance between different labels, and of a sample to itself
PEERS, COMPARED = 256, 4  # data that attract a batch; the energy distance uses every COMPARED-th
MAX_POOL_BYTES = 2**29  # of data and features
FEATURE_TIME = 0.05  # time input of the teacher for clean data
MAX_MAP_SIDE, MAX_DATA_SIDE = 8, 16  # largest side of feature maps, and of data, after average pooling
EDGE_GRIDS = (4, 1)  # grid sizes at which edge strengths are averaged
MAX_HELD_OUT = 512  # held-out data for the loss


class Distilled(ConfigSection):
    """The table [family.distilled] of config.toml: how a student was trained.

    guidance: scale of the teacher's samples, 1 for the teacher's own training data; samples: their number; features: source of
    the features; clipped: whether samples are clamped to [-1, 1], in training and sampling.
    """

    guidance: Annotated[float, Field(ge=-MAX_GUIDANCE, le=MAX_GUIDANCE)] = 1.0
    samples: Annotated[int, Field(ge=0, le=10**7)] = 0
    features: Literal["teacher", "classifier"] = "teacher"
    clipped: bool = False


def profile_of(distilled: Distilled | None, codes: bool) -> SamplingProfile:
    """Return the sampling profile of a network.  codes: whether it generates autoencoder codes."""
    if distilled is None:
        return "codes" if codes else "data"
    return "quick student" if distilled.clipped and distilled.features == "classifier" else "student"


Features = Callable[[Tensor], list[Tensor]]  # (B, ...) in model units -> list of (B, D)


class ClassifierFeatures:
    """Features of classifiers: (B, C, H, W) in model units to a list of (B, D), the image itself first."""

    def __init__(self, nets: Sequence[LeNet]) -> None:
        self.nets = [net.eval().requires_grad_(False) for net in nets]

    def __call__(self, z: Tensor) -> list[Tensor]:
        """Return downscaled images, their `edges`, and each classifier's pooled or ReLU layers."""
        features = [_flatten(z, MAX_DATA_SIDE), *edges(z)]
        for net in self.nets:
            h = (z + 1) / 2
            for layer in net.maps:
                h = layer(h)
                if isinstance(layer, nn.MaxPool2d):
                    features.append(h.flatten(1))
            for layer in net.features:
                h = layer(h)
                if isinstance(layer, nn.ReLU):
                    features.append(h)
        return features


class TeacherFeatures:
    """Features of a network: (B, ...) in model units to a list of (B, D), the data themselves first."""

    def __init__(self, teacher: NetDenoiser) -> None:
        self.teacher = teacher.eval().requires_grad_(False)
        self.norms = [m for m in teacher.net.modules() if isinstance(m, nn.GroupNorm | nn.LayerNorm)]

    def __call__(self, z: Tensor) -> list[Tensor]:
        """Return the data, the `edges` of images, and the output of each normalisation."""
        features = [_flatten(z, MAX_DATA_SIDE), *(edges(z) if z.ndim == 4 else ())]
        handles = [m.register_forward_hook(lambda _, __, out: features.append(_flatten(out, MAX_MAP_SIDE))) for m in self.norms]
        try:
            if handles:
                self.teacher(z, FEATURE_TIME)
        finally:
            for handle in handles:
                handle.remove()
        return features


def _flatten(h: Tensor, max_side: int) -> Tensor:
    """Return (B, D); maps are average-pooled to at most `max_side` pixels a side."""
    if h.ndim == 4 and (side := max(h.shape[2:])) > max_side:
        h = functional.avg_pool2d(h, math.ceil(side / max_side))
    return h.flatten(1)


def edges(z: Tensor) -> list[Tensor]:
    """Return differences of neighbouring pixels, signed, and their strength averaged over parts of the image: list of (B, D).

    Signed differences hardly distinguish blurred samples, which are near the mean of nearby data; edge strengths do.
    """
    along = [z.diff(dim=dim) for dim in (-2, -1)]
    strength = torch.cat([functional.pad(along[0].abs(), (0, 0, 0, 1)), functional.pad(along[1].abs(), (0, 1))], 1)
    return [*(each.flatten(1) for each in along), *(_flatten(strength, side) for side in (MAX_DATA_SIDE, *EDGE_GRIDS))]


def pairwise_distances(a: Tensor, b: Tensor) -> Tensor:
    """Return the distances of all rows of a from all rows of b: (A, B)."""
    return root(squared(a, b).clamp_min(0))


def energy_rows(a: Tensor, b: Tensor, label_a: Tensor, label_b: Tensor) -> Tensor:
    """Return the contribution of each row to the energy distance of a from b, whose mean is the distance: (A,).

    The distance is the mean of the distances within labels and over all rows.  No row is compared with itself.  Distances are
    divided by sqrt(D) and b's standard deviation, so that all features have equal weight.  a: (A, D); b: (B, D).
    """
    unit = math.sqrt(a.shape[1]) * b.std(0).mean().clamp_min(1e-6)

    def row_sums(x: Tensor, y: Tensor, label_x: Tensor, label_y: Tensor) -> Tensor:
        included = torch.ones(len(x), len(y), dtype=torch.bool, device=x.device)
        if x is y:
            included = ~included.diag().diag()
        distance, masks = pairwise_distances(x, y), (included & (label_x[:, None] == label_y), included)
        return torch.stack([(distance * mask).sum(1) * len(x) / mask.sum().clamp_min(1) for mask in masks]).mean(0)

    return (
        2 * row_sums(a, b, label_a, label_b) - row_sums(a, a, label_a, label_a) - row_sums(b, b, label_b, label_b).mean()
    ) / unit


def drift(a: Tensor, b: Tensor, label_a: Tensor, label_b: Tensor) -> Tensor:
    """Return the drift of samples a given data b: (A, D).  a: (A, D), b: (B, D), in units of the data's mean distance.

    V(x) = sum over b and a' of A(x, b) A(x, a') (b - a') for each width h in KERNEL_WIDTHS.  The similarities exp(-|x - y| /
    h) are normalised over all y and over all x, and A is the geometric mean of both (arXiv:2602.04770, algorithm 2).  The
    expected drift is zero if samples and data have the same distribution.  Each width has equal weight.
    """
    to_data, to_samples = (
        pairwise_distances(a, y) + OTHER_LABEL_DISTANCE * (label_a[:, None] != label)
        for y, label in ((b, label_b), (a, label_a))
    )
    distance = torch.cat([to_data, to_samples + SELF_DISTANCE * torch.eye(len(a), device=a.device)], 1)
    total = torch.zeros_like(a)
    for width in KERNEL_WIDTHS:
        similarity = ((-distance / width).softmax(1) * (-distance / width).softmax(0)).sqrt()
        attraction, repulsion = similarity[:, : len(b)], similarity[:, len(b) :]
        step = repulsion.sum(1, keepdim=True) * (attraction @ b) - attraction.sum(1, keepdim=True) * (repulsion @ a)
        total += step / step.square().sum(1).mean().sqrt().clamp_min(1e-8)
    return total / len(KERNEL_WIDTHS)


class Pool:
    """Data in model units with features and labels: the source of batches and of the data that attract samples; deterministic.

    units: mean distance of two data for each feature, by which features are divided.  conditioning: maps data, (B, ...) in user
    units, to the network's conditioning other than labels, (B, K) or None.
    """

    def __init__(
        self,
        features: Features,
        data: Dataset,
        encode: Callable[[Tensor], Tensor],
        device: torch.device,
        conditioning: Callable[[Tensor], Tensor | None] = lambda x: None,
    ) -> None:
        order = torch.randperm(len(data), generator=torch.Generator().manual_seed(0))
        parts: list[list[Tensor]] = []
        labels: list[Tensor] = []
        vectors: list[Tensor] = []
        self.conditioning_of, max_count = conditioning, len(order)
        for index in order.split(PEERS):
            if sum(map(len, labels)) >= max_count:
                break
            x, label = data.batch(index)
            x = x.to(device)
            with torch.no_grad():
                z = encode(x)
                parts.append([z, *(each.float() for each in features(z))])
            labels.append(torch.zeros(len(index), dtype=torch.int64) if label is None else label.cpu())
            vectors += [vector] if (vector := conditioning(x)) is not None else []
            max_count = min(max_count, MAX_POOL_BYTES // (4 * sum(part[0].numel() for part in parts[0])))
        self.units = [float(pairwise_distances(each, each).mean().clamp_min(1e-6)) for each in parts[0][1:]]
        self.z, *layers = (torch.cat(layer) for layer in zip(*parts, strict=True))
        self.features = [layer / unit for layer, unit in zip(layers, self.units, strict=True)]
        self.labels = torch.cat(labels).to(device)
        self.conditioning = torch.cat(vectors) if vectors else None
        self.joint_labels = self.labels
        if self.conditioning is not None:
            self.joint_labels = self.labels * self.conditioning.shape[1] + self.conditioning.argmax(1)
        self.indices = {int(k): (self.joint_labels == k).nonzero()[:, 0].cpu() for k in self.joint_labels.unique()}

    def sample_indices(self, labels: list[int] | None, count: int, random: torch.Generator) -> Tensor:
        """Sample indices of data, the same number of each joint label, or of any data for None: (count,)."""
        groups = [self.indices[k] for k in labels or () if k in self.indices] or [torch.arange(len(self.labels))]
        each = math.ceil(count / len(groups))
        return torch.cat([rows[torch.randint(len(rows), (each,), generator=random)] for rows in groups])[:count]


@dataclass(frozen=True)
class DistillationTarget:
    """The objective of a student: the drift of its samples in feature space."""

    features: Features
    label_dropout: float
    pool: Pool
    clipped: bool = False

    def __deepcopy__(self, _: dict[int, Any]) -> DistillationTarget:
        return self  # immutable, so copies of the student share it

    def loss(self, student: NetDenoiser, z: Tensor, cond: Tensor | None, seed: int) -> Tensor:
        """Return the loss of len(z) samples, (B,): a function of labels and seed only.  z: (B, ...) in model units.

        Its value is each sample's contribution to the energy distance.  Its gradient with respect to features is the negative
        drift -V, plus for t < 1 an attraction to the sample's own datum.  A batch has at most MAX_LABELS joint labels: enough
        samples of each repel each other; labels are dropped for whole batches, which are then compared with data of all
        labels.
        """
        random = torch.Generator().manual_seed(seed)
        pure, u, drop = torch.rand(3, generator=random, dtype=torch.float64).tolist()
        t = 1.0 if pure < PURE_NOISE_SHARE else MIN_TIME + (MAX_TIME - MIN_TIME) * u
        pool, batch_labels = self.pool, None
        if drop >= self.label_dropout and (cond is not None or pool.conditioning is not None):
            candidates = pool.joint_labels if pool.conditioning is not None or cond is None else cond
            batch_labels = candidates[torch.randint(len(candidates), (MAX_LABELS,), generator=random)].unique().tolist()
        index, peers = (pool.sample_indices(batch_labels, count, random) for count in (len(z), PEERS))
        label = None if batch_labels is None or cond is None else pool.labels[index]
        conditioning = None if batch_labels is None or pool.conditioning is None else pool.conditioning[index]
        samples = self.clamp(student_samples(student, pool.z[index], label, conditioning, t, mix_seed(seed, 1)))
        own_label, peer_label = (
            (torch.zeros_like(index).to(z.device), torch.zeros_like(peers).to(z.device))
            if batch_labels is None
            else (pool.joint_labels[index], pool.joint_labels[peers])
        )
        peer_features, own_features = ([layer[rows] for layer in pool.features] for rows in (peers, index))
        loss, sample_features = torch.zeros(len(z), device=z.device), self.features(samples)
        with torch.autocast(z.device.type, enabled=False):  # differences of squares cancel in bfloat16
            for a, b, own, unit in zip(sample_features, peer_features, own_features, pool.units, strict=True):
                a = a.float() / unit
                with torch.no_grad():
                    move = drift(a, b, own_label, peer_label)
                    value = energy_rows(a, b[::COMPARED], own_label, peer_label[::COMPARED])
                surrogate = -(a * move).sum(1)
                if t < 1:
                    surrogate = surrogate + OWN_WEIGHT * (a - own).square().sum(1).add(1e-6).sqrt()
                loss = loss + value + surrogate - surrogate.detach()
        return loss / len(peer_features)

    def clamp(self, samples: Tensor) -> Tensor:
        """Return samples clamped to [-1, 1] with the gradient of the unclamped ones (straight-through).

        A network whose output may exceed the range of pixels generates steeper edges.
        """
        return samples + (samples.clamp(-1, 1) - samples).detach() if self.clipped else samples

    @torch.no_grad()
    def held_out(
        self, student: NetDenoiser, data: Dataset, encode: Callable[[Tensor], Tensor], seed: int, batch: int = 128
    ) -> float:
        """Return the mean energy distance of one-evaluation samples from held-out data."""
        device, distances = next(student.parameters()).device, []
        for part in torch.arange(min(MAX_HELD_OUT, len(data))).split(batch):
            if len(part) < 2:
                continue
            x, labels = data.batch(part)
            x = x.to(device)
            z, cond = encode(x), labels.to(device) if labels is not None else None
            conditioning = self.pool.conditioning_of(x)
            samples = self.clamp(student_samples(student, z, cond, conditioning, 1.0, mix_seed(seed, int(part[0]))))
            label = torch.zeros(len(z), device=device) if cond is None else cond
            pairs = zip(self.features(samples), self.features(z), strict=True)
            means = [float(energy_rows(a.float(), b.float(), label, label).mean()) for a, b in pairs]
            distances.append(math.fsum(means) / len(means))
        return math.fsum(distances) / max(1, len(distances))


def student_samples(
    student: NetDenoiser, z: Tensor, cond: Tensor | None, conditioning: Tensor | None, t: float, seed: int
) -> Tensor:
    """Return the student's samples for data noised to time t, for pure noise at t = 1: (B, ...)."""
    random = torch.Generator(z.device).manual_seed(seed)
    eps = torch.randn(z.shape, generator=random, device=z.device, dtype=z.dtype)
    data = torch.zeros_like(z) if t == 1.0 else z
    return student.estimate(Pair(data, eps).mix(*student.schedule(t)), t, cond, conditioning).x0
