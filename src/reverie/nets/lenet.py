"""LeNet: a small classifier of clean images, trained in seconds; its features compare images."""

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
MIN_STEPS, MAX_STEPS, EPOCHS = 500, 4000, 8
TIMED_STEPS, TIME_SHARE = 6, 0.8  # steps that are timed if time is limited, and the share of the time limit to plan for
PADDED_BELOW, THIRD_ABOVE = 12, 40  # image sides below which the second convolution is padded, above which there is a third


class LeNet(nn.Module):
    """LeNet-5 with ReLU (LeCun et al. 1998) for images of at least 4 x 4.  x: (B, C, H, W) in [0, 1].

    At 28 x 28 it is the original.  Larger images have a third convolution, so that the linear layer stays small.
    """

    def __init__(self, shape: tuple[int, ...], classes: int) -> None:
        super().__init__()
        channels, height, width = shape
        side = min(height, width)
        stages: list[nn.Module] = [nn.Conv2d(channels, 6, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2)]
        stages += [nn.Conv2d(6, 16, 5, padding=2 if side < PADDED_BELOW else 0), nn.ReLU(), nn.MaxPool2d(2)]
        if side > THIRD_ABOVE:
            stages += [nn.Conv2d(16, 32, 5), nn.ReLU(), nn.MaxPool2d(2)]
        self.maps = nn.Sequential(*stages, nn.Flatten())
        flat = self.maps(torch.zeros(1, *shape)).shape[1]
        self.features = nn.Sequential(nn.Linear(flat, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU())
        self.out = nn.Linear(84, classes)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return features (B, 84) and logits (B, classes)."""
        features = self.features(self.maps(x))
        return features, self.out(features)


Batches = Callable[[Tensor], tuple[Tensor, Tensor | None]]  # as Dataset.batch


def build(shape: tuple[int, ...], classes: int, seed: int = 0) -> LeNet:
    """Return a network with weights initialized from the seed."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(check_seed(seed))
        return LeNet(shape, classes)


def default_steps(count: int) -> int:
    """Return the default number of training steps for `count` images."""
    return min(max(MIN_STEPS, EPOCHS * (count // min(BATCH, count))), MAX_STEPS)


def _step(net: LeNet, optimizer: torch.optim.Optimizer, x: Tensor, labels: Tensor | None) -> None:
    assert labels is not None
    optimizer.zero_grad()
    functional.cross_entropy(net(x)[1], labels).backward()
    optimizer.step()


def _steps_within(net: LeNet, batch: Batches, size: int, seconds: float, clock: Callable[[], float]) -> int:
    """Return the number of steps that fit into the time limit, estimated from a few steps of a copy."""
    copied, seconds_per_step = copy.deepcopy(net), []
    optimizer = torch.optim.Adam(copied.parameters(), fused=True)
    for _ in range(TIMED_STEPS):
        start = clock()
        _step(copied, optimizer, *batch(torch.arange(size)))
        seconds_per_step.append(clock() - start)
    return max(TIMED_STEPS, int(TIME_SHARE * seconds / max(statistics.median(seconds_per_step), 1e-9)))


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
    """Train on clean images: eight epochs, but 500 to 4,000 steps (99 % accuracy on the MNIST test set).

    batch: returns images (B, C, H, W) in [0, 1] and labels (B,) for indices below `count`; seconds: the time limit, which
    may reduce the number of steps.
    """
    start, net = clock(), build(shape, classes, seed)
    optimizer = torch.optim.Adam(net.parameters(), lr=2e-3, fused=True)
    random = torch.Generator().manual_seed(seed)
    size = min(BATCH, count)
    steps = default_steps(count)
    if math.isfinite(seconds):
        steps = min(steps, _steps_within(net, batch, size, seconds, clock))
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 4e-3, total_steps=steps)
    order = torch.empty(0, dtype=torch.int64)
    done = 0
    while done < steps and (done < TIMED_STEPS or clock() - start < seconds):
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
def features_and_classes(net: LeNet, images: Tensor) -> tuple[Tensor, Tensor]:
    """Return the features (N, 84) and the predicted classes (N,) of images (N, C, H, W)."""
    parts = [net(part) for part in images.split(1000)]
    return torch.cat([f for f, _ in parts]), torch.cat([scores.argmax(1) for _, scores in parts])


def accuracy(net: LeNet, images: Tensor, labels: Tensor) -> float:
    """Return the accuracy on images."""
    return float((features_and_classes(net, images)[1] == labels).double().mean())
