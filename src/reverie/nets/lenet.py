"""LeNet: a small classifier of clean images, trained in seconds, whose features tell what is in them."""

from __future__ import annotations

import copy
import math
import statistics
import time
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

from reverie.base.noise import check_seed

BATCH = 128
FEWEST_STEPS, MOST_STEPS, EPOCHS = 500, 4000, 8
TRIED, MARGIN = 6, 0.8  # steps that are timed where the time is limited, and the share of it that is planned for
SMALL, LARGE = 12, 40  # sides below which the second convolution is padded, and above which there is a third one


class LeNet(nn.Module):
    """LeNet-5 with ReLU (LeCun et al. 1998) for any size from 4 x 4 on.  x: (B, C, H, W) in [0, 1].

    At 28 x 28 it is the original.  Larger images pass a third convolution, so that the dense layer stays small.
    """

    def __init__(self, shape: tuple[int, ...], classes: int) -> None:
        super().__init__()
        channels, height, width = shape
        side = min(height, width)
        stages: list[nn.Module] = [nn.Conv2d(channels, 6, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2)]
        stages += [nn.Conv2d(6, 16, 5, padding=2 if side < SMALL else 0), nn.ReLU(), nn.MaxPool2d(2)]
        if side > LARGE:
            stages += [nn.Conv2d(16, 32, 5), nn.ReLU(), nn.MaxPool2d(2)]
        self.maps = nn.Sequential(*stages, nn.Flatten())
        flat = self.maps(torch.zeros(1, *shape)).shape[1]
        self.features = nn.Sequential(nn.Linear(flat, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU())
        self.out = nn.Linear(84, classes)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return features (B, 84) and class scores (B, classes)."""
        features = self.features(self.maps(x))
        return features, self.out(features)


Batches = Callable[[Tensor], tuple[Tensor, Tensor | None]]  # as Dataset.batch


def make(shape: tuple[int, ...], classes: int, seed: int = 0) -> LeNet:
    """Return a network with weights drawn from the seed."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(check_seed(seed))
        return LeNet(shape, classes)


def usual_steps(count: int) -> int:
    """Return how many steps a classifier of so many images is trained for where time is not limited."""
    return min(max(FEWEST_STEPS, EPOCHS * (count // min(BATCH, count))), MOST_STEPS)


def _step(net: LeNet, optimizer: torch.optim.Optimizer, x: Tensor, labels: Tensor | None) -> None:
    assert labels is not None
    optimizer.zero_grad()
    functional.cross_entropy(net(x)[1], labels).backward()
    optimizer.step()


def _affordable(net: LeNet, batch: Batches, size: int, seconds: float, clock: Callable[[], float]) -> int:
    """Return how many steps fit into the time, by the time that a few steps of a copy take."""
    tried, taken = copy.deepcopy(net), []
    optimizer = torch.optim.Adam(tried.parameters(), fused=True)
    for _ in range(TRIED):
        begun = clock()
        _step(tried, optimizer, *batch(torch.arange(size)))
        taken.append(clock() - begun)
    return max(TRIED, int(MARGIN * seconds / max(statistics.median(taken), 1e-9)))


def train_classifier(
    batch: Batches,
    count: int,
    shape: tuple[int, ...],
    classes: int,
    *,
    seed: int = 0,
    seconds: float = math.inf,
    clock: Callable[[], float] = time.perf_counter,
    on_progress: Callable[[int, int], None] | None = None,
) -> LeNet:
    """Train on clean images: eight epochs, but at least 500 steps and at most 4,000 (99 % on the MNIST test set).

    batch: the images (B, C, H, W) in [0, 1] and labels (B,) of numbers below `count`; seconds: the time limit, for which the
    training is planned shorter where it must be.
    """
    begun, net = clock(), make(shape, classes, seed)
    optimizer = torch.optim.Adam(net.parameters(), lr=2e-3, fused=True)
    random = torch.Generator().manual_seed(seed)
    size = min(BATCH, count)
    steps = usual_steps(count)
    if math.isfinite(seconds):
        steps = min(steps, _affordable(net, batch, size, seconds, clock))
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 4e-3, total_steps=steps)
    order = torch.empty(0, dtype=torch.int64)
    done = 0
    while done < steps and (done < TRIED or clock() - begun < seconds):
        if len(order) < size:
            order = torch.randperm(count, generator=random)
        index, order = order[:size], order[size:]
        _step(net, optimizer, *batch(index))
        schedule.step()
        done += 1
        if on_progress:
            on_progress(done, steps)
    return net.eval()


@torch.no_grad()
def answers(net: LeNet, images: Tensor) -> tuple[Tensor, Tensor]:
    """Return the features (N, 84) and the most probable classes (N,) of images (N, C, H, W)."""
    parts = [net(part) for part in images.split(1000)]
    return torch.cat([f for f, _ in parts]), torch.cat([scores.argmax(1) for _, scores in parts])


def accuracy(net: LeNet, images: Tensor, labels: Tensor) -> float:
    """Return the share of right answers."""
    return float((answers(net, images)[1] == labels).double().mean())
