"""Distillation: a student that draws in a few evaluations, taught by where its samples should drift in features.

The student is the teacher's own network, asked for a sample where it gave a mean: f(x_t, t) is to be distributed as the data,
whatever t is.  Every sample is drawn towards data that are near it and pushed away from other samples that are near it
(arXiv:2602.04770), in features of them: see `drift`.  Where small classifiers tell the labels of images well these are their
layers, else what the frozen teacher sees them by, the outputs of all its normalisations; and the data themselves.  How far two
batches are from each other is told by the energy distance (Székely and Rizzo 2013), 2 E|a - b| - E|a - a'| - E|b - b'|.
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

PURE = 0.5  # of the batches begin at pure noise, which is the whole way; the others at times that later evaluations begin at
EARLIEST, LATEST = 0.4, 0.95
FEW = 3  # labels in a batch, at most: of each there are enough samples to push each other away
OWN = 0.1  # how strongly a sample is drawn to the datum that it was made of, beside its drift
NEAR = (0.02, 0.05, 0.2)  # how near is near, in units of the mean distance of two data
OTHER, ITSELF = 3.0, 1e3  # how much farther away what has another label is taken to be, and a sample from itself
PEERS, COMPARED = 256, 4  # data that a batch is drawn to, and every how many of them the energy distance is told of
POOL = 2**29  # bytes of data and their features, at most, from which these are taken
SEEN_AT = 0.05  # the time that the teacher is told for data without noise: nearly none
WIDEST, WIDEST_DATA = 8, 16  # places along a map of features, and along the data, which are averaged down to this
PARTS = (4, 1)  # along a side, of which it is told how much neighbouring pixels differ
CHECKED = 512  # held-out data that the distance is told of


class Distilled(ConfigSection):
    """The table [family.distilled] of config.toml: what a student learned from.

    guidance: of the teacher whose samples were the data, 1 where these were the teacher's own data; samples: how many;
    features: by whose features it was taught; clipped: whether its samples are cut off at -1 and 1, as they were when it was.
    """

    guidance: Annotated[float, Field(ge=-MAX_GUIDANCE, le=MAX_GUIDANCE)] = 1.0
    samples: Annotated[int, Field(ge=0, le=10**7)] = 0
    features: Literal["teacher", "classifier"] = "teacher"
    clipped: bool = False


def profile_of(distilled: Distilled | None, codes: bool) -> SamplingProfile:
    """Return what a network makes, which decides its default sampling.  codes: whether it draws those of an autoencoder."""
    if distilled is None:
        return "codes" if codes else "data"
    return "quick student" if distilled.clipped and distilled.features == "classifier" else "student"


Features = Callable[[Tensor], list[Tensor]]  # (B, ...) in model units to rows (B, D)


class ClassifierFeatures:
    """What classifiers see in images: (B, C, H, W) in model units to rows (B, D), those of the images themselves first."""

    def __init__(self, nets: Sequence[LeNet]) -> None:
        self.nets = [net.eval().requires_grad_(False) for net in nets]

    def __call__(self, z: Tensor) -> list[Tensor]:
        """Return images and their edges, see `edges`, and each classifier's layers, pooled or cut off at zero."""
        found = [_rows(z, WIDEST_DATA), *edges(z)]
        for net in self.nets:
            h = (z + 1) / 2
            for layer in net.maps:
                h = layer(h)
                if isinstance(layer, nn.MaxPool2d):
                    found.append(h.flatten(1))
            for layer in net.features:
                h = layer(h)
                if isinstance(layer, nn.ReLU):
                    found.append(h)
        return found


class TeacherFeatures:
    """What a network sees in data: (B, ...) in model units to rows (B, D), those of the data themselves first."""

    def __init__(self, teacher: NetDenoiser) -> None:
        self.teacher = teacher.eval().requires_grad_(False)
        self.norms = [m for m in teacher.net.modules() if isinstance(m, nn.GroupNorm | nn.LayerNorm)]

    def __call__(self, z: Tensor) -> list[Tensor]:
        """Return images and their edges, see `edges`, or points, and the features of each normalisation."""
        found = [_rows(z, WIDEST_DATA), *(edges(z) if z.ndim == 4 else ())]
        handles = [norm.register_forward_hook(lambda _, __, out: found.append(_rows(out, WIDEST))) for norm in self.norms]
        try:
            if handles:
                self.teacher(z, SEEN_AT)
        finally:
            for handle in handles:
                handle.remove()
        return found


def _rows(h: Tensor, widest: int) -> Tensor:
    """Return (B, D), of maps averaged down to so many places along a side."""
    if h.ndim == 4 and (side := max(h.shape[2:])) > widest:
        h = functional.avg_pool2d(h, math.ceil(side / widest))
    return h.flatten(1)


def edges(z: Tensor) -> list[Tensor]:
    """Return how neighbouring pixels of images differ, as rows (B, D): signed, and how much in parts of the image and in all.

    Samples that are blurred are near the mean of data that are near them, and signed differences do not tell the two apart;
    how much pixels differ does.
    """
    along = [z.diff(dim=dim) for dim in (-2, -1)]
    strength = torch.cat([functional.pad(along[0].abs(), (0, 0, 0, 1)), functional.pad(along[1].abs(), (0, 1))], 1)
    return [*(each.flatten(1) for each in along), *(_rows(strength, places) for places in (WIDEST_DATA, *PARTS))]


def apart(a: Tensor, b: Tensor) -> Tensor:
    """Return the distances of all rows of a from all of b, (A, B)."""
    return root(squared(a, b).clamp_min(0))


def energy_rows(a: Tensor, b: Tensor, label_a: Tensor, label_b: Tensor) -> Tensor:
    """Return the share of each row in the energy distance of a from b, whose mean is the distance: (A,).  a: (A, D); b: (B, D).

    It is the mean of two distances, of each label's rows and of all rows, however few pairs of one label there are.  No row is
    compared with itself.  Distances are for each root of the dimensions and in units of b's deviation, so that features of all
    sizes count alike.
    """
    unit = math.sqrt(a.shape[1]) * b.std(0).mean().clamp_min(1e-6)

    def shares(x: Tensor, y: Tensor, label_x: Tensor, label_y: Tensor) -> Tensor:
        counted = torch.ones(len(x), len(y), dtype=torch.bool, device=x.device)
        if x is y:
            counted = ~counted.diag().diag()
        far, pairs = apart(x, y), (counted & (label_x[:, None] == label_y), counted)
        return torch.stack([(far * some).sum(1) * len(x) / some.sum().clamp_min(1) for some in pairs]).mean(0)

    return (2 * shares(a, b, label_a, label_b) - shares(a, a, label_a, label_a) - shares(b, b, label_b, label_b).mean()) / unit


def drift(a: Tensor, b: Tensor, label_a: Tensor, label_b: Tensor) -> Tensor:
    """Return where samples a should go, given data b: (A, D).  a: (A, D), b: (B, D), in units of the data's mean distance.

    V(x) = sum over b and a' of A(x, b) A(x, a') (b - a'), for each of the distances that count as near; A are similarities
    exp(-|x - y| / near), made to sum to one over all y and over all x, of which the geometric mean is taken
    (arXiv:2602.04770, its algorithm 2).  Where samples and data are of one distribution it vanishes in the mean.  Each
    distance counts alike.
    """
    data, samples = (apart(a, y) + OTHER * (label_a[:, None] != label) for y, label in ((b, label_b), (a, label_a)))
    far = torch.cat([data, samples + ITSELF * torch.eye(len(a), device=a.device)], 1)
    total = torch.zeros_like(a)
    for near in NEAR:
        similar = ((-far / near).softmax(1) * (-far / near).softmax(0)).sqrt()
        to, away = similar[:, : len(b)], similar[:, len(b) :]
        move = away.sum(1, keepdim=True) * (to @ b) - to.sum(1, keepdim=True) * (away @ a)
        total += move / move.square().sum(1).mean().sqrt().clamp_min(1e-8)
    return total / len(NEAR)


class Pool:
    """Data in model units, their features and labels, from which batches and peers are taken: the same for the same data.

    units: the mean distance of two data in each kind of features, which these are divided by; tell: what a network is told of
    data beside their labels, (B, ...) in user units to (B, K), or None.
    """

    def __init__(
        self,
        features: Features,
        data: Dataset,
        encode: Callable[[Tensor], Tensor],
        device: torch.device,
        tell: Callable[[Tensor], Tensor | None] = lambda x: None,
    ) -> None:
        order = torch.randperm(len(data), generator=torch.Generator().manual_seed(0))
        parts: list[list[Tensor]] = []
        labels: list[Tensor] = []
        rows: list[Tensor] = []
        self.tell, most = tell, len(order)
        for index in order.split(PEERS):
            if sum(map(len, labels)) >= most:
                break
            x, label = data.batch(index)
            x = x.to(device)
            with torch.no_grad():
                z = encode(x)
                parts.append([z, *(each.float() for each in features(z))])
            labels.append(torch.zeros(len(index), dtype=torch.int64) if label is None else label.cpu())
            rows += [row] if (row := tell(x)) is not None else []
            most = min(most, POOL // (4 * sum(part[0].numel() for part in parts[0])))
        self.units = [float(apart(each, each).mean().clamp_min(1e-6)) for each in parts[0][1:]]
        self.z, *whole = (torch.cat(layer) for layer in zip(*parts, strict=True))
        self.features = [each / unit for each, unit in zip(whole, self.units, strict=True)]
        self.labels = torch.cat(labels).to(device)
        self.told = torch.cat(rows) if rows else None
        self.kinds = self.labels if self.told is None else self.labels * self.told.shape[1] + self.told.argmax(1)
        self.of = {int(k): (self.kinds == k).nonzero()[:, 0].cpu() for k in self.kinds.unique()}

    def some(self, kinds: list[int] | None, count: int, random: torch.Generator) -> Tensor:
        """Return numbers of data of these kinds, as many of each, or of any: (count,)."""
        of = [self.of[k] for k in kinds or () if k in self.of] or [torch.arange(len(self.labels))]
        each = math.ceil(count / len(of))
        return torch.cat([rows[torch.randint(len(rows), (each,), generator=random)] for rows in of])[:count]


@dataclass(frozen=True)
class DistillationTarget:
    """What a student is taught by: where features of its samples should go."""

    features: Features
    label_dropout: float
    pool: Pool
    clipped: bool = False

    def __deepcopy__(self, _: dict[int, Any]) -> DistillationTarget:
        return self  # nothing in it changes, so that copies of the student share it

    def loss(self, student: NetDenoiser, z: Tensor, cond: Tensor | None, seed: int) -> Tensor:
        """Return the loss of each of as many samples, (B,): a function of labels and seed alone.  z: (B, ...) in model units.

        Its value is the share of each in the energy distance from data.  Its gradient by features is that which follows their
        drift, -V, and draws what is made of a noised datum to that one as well.  Samples are made of data of few kinds of the
        pool, labels or clusters, so that there are enough of each to push each other away; kinds are hidden in whole batches,
        which then are compared with data of any kind.
        """
        random = torch.Generator().manual_seed(seed)
        pure, u, hide = torch.rand(3, generator=random, dtype=torch.float64).tolist()
        t = 1.0 if pure < PURE else EARLIEST + (LATEST - EARLIEST) * u
        pool, few = self.pool, None
        if hide >= self.label_dropout and (cond is not None or pool.told is not None):
            among = pool.kinds if pool.told is not None or cond is None else cond
            few = among[torch.randint(len(among), (FEW,), generator=random)].unique().tolist()
        index, peers = (pool.some(few, count, random) for count in (len(z), PEERS))
        label = None if few is None or cond is None else pool.labels[index]
        told = None if few is None or pool.told is None else pool.told[index]
        made = self.cut(student_samples(student, pool.z[index], label, told, t, mix_seed(seed, 1)))
        kind, kinds = (
            (torch.zeros_like(index).to(z.device), torch.zeros_like(peers).to(z.device))
            if few is None
            else (pool.kinds[index], pool.kinds[peers])
        )
        theirs, own = ([rows[numbers] for rows in pool.features] for numbers in (peers, index))
        loss, mine = torch.zeros(len(z), device=z.device), self.features(made)
        with torch.autocast(z.device.type, enabled=False):  # in bfloat16, squares would not leave anything of their difference
            for a, b, begun, unit in zip(mine, theirs, own, pool.units, strict=True):
                a = a.float() / unit
                with torch.no_grad():
                    move = drift(a, b, kind, kinds)
                    value = energy_rows(a, b[::COMPARED], kind, kinds[::COMPARED])
                follow = -(a * move).sum(1)
                if t < 1:
                    follow = follow + OWN * (a - begun).square().sum(1).add(1e-6).sqrt()
                loss = loss + value + follow - follow.detach()
        return loss / len(theirs)

    def cut(self, made: Tensor) -> Tensor:
        """Return samples cut off where images end, with the gradient of what they were: what lies outside is still moved.

        A stroke is white and the ground is black up to an edge.  A network that need not hit these values exactly, but may go
        beyond them, draws edges as steep as they are.
        """
        return made + (made.clamp(-1, 1) - made).detach() if self.clipped else made

    @torch.no_grad()
    def held_out(
        self, student: NetDenoiser, data: Dataset, encode: Callable[[Tensor], Tensor], seed: int, batch: int = 128
    ) -> float:
        """Return the mean energy distance of one evaluation, from pure noise, from data that were not trained on."""
        device, found = next(student.parameters()).device, []
        for part in torch.arange(min(CHECKED, len(data))).split(batch):
            if len(part) < 2:
                continue
            x, labels = data.batch(part)
            x = x.to(device)
            z, cond = encode(x), labels.to(device) if labels is not None else None
            made = self.cut(student_samples(student, z, cond, self.pool.tell(x), 1.0, mix_seed(seed, int(part[0]))))
            alike = torch.zeros(len(z), device=device) if cond is None else cond
            pairs = zip(self.features(made), self.features(z), strict=True)
            means = [float(energy_rows(mine.float(), theirs.float(), alike, alike).mean()) for mine, theirs in pairs]
            found.append(math.fsum(means) / len(means))
        return math.fsum(found) / max(1, len(found))


def student_samples(student: NetDenoiser, z: Tensor, cond: Tensor | None, told: Tensor | None, t: float, seed: int) -> Tensor:
    """Return what a student makes of data noised to time t, and of noise alone at t = 1: (B, ...)."""
    random = torch.Generator(z.device).manual_seed(seed)
    eps = torch.randn(z.shape, generator=random, device=z.device, dtype=z.dtype)
    data = torch.zeros_like(z) if t == 1.0 else z
    return student.estimate(Pair(data, eps).mix(*student.schedule(t)), t, cond, told).x0
