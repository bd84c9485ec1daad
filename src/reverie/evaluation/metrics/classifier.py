"""A small classifier of the data's own labels: its features carry the distances, its answers the label accuracy."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import torch
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter
from torch import Tensor, nn
from torch.nn import functional

from reverie.base.errors import UserError
from reverie.base.noise import check_seed
from reverie.base.tensors import forms_of, read_tensors, write_tensors

BATCH = 128
FEWEST_STEPS, MOST_STEPS, EPOCHS = 500, 4000, 8
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


def train_classifier(
    batch: Batches,
    count: int,
    shape: tuple[int, ...],
    classes: int,
    *,
    seed: int = 0,
    on_progress: Callable[[int, int], None] | None = None,
) -> LeNet:
    """Train on clean images: eight epochs, but at least 500 steps and at most 4,000 (99 % on the MNIST test set).

    batch: the images (B, C, H, W) in [0, 1] and labels (B,) of numbers below `count`.
    """
    net = make(shape, classes, seed)
    optimizer = torch.optim.Adam(net.parameters(), lr=2e-3, fused=True)
    random = torch.Generator().manual_seed(seed)
    size = min(BATCH, count)
    steps = min(max(FEWEST_STEPS, EPOCHS * (count // size)), MOST_STEPS)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 4e-3, total_steps=steps)
    order = torch.empty(0, dtype=torch.int64)
    for i in range(steps):
        if len(order) < size:
            order = torch.randperm(count, generator=random)
        index, order = order[:size], order[size:]
        x, labels = batch(index)
        assert labels is not None
        optimizer.zero_grad()
        functional.cross_entropy(net(x)[1], labels).backward()
        optimizer.step()
        schedule.step()
        if on_progress:
            on_progress(i + 1, steps)
    return net.eval()


@torch.no_grad()
def answers(net: LeNet, images: Tensor) -> tuple[Tensor, Tensor]:
    """Return the features (N, 84) and the most probable classes (N,) of images (N, C, H, W)."""
    parts = [net(part) for part in images.split(1000)]
    return torch.cat([f for f, _ in parts]), torch.cat([scores.argmax(1) for _, scores in parts])


def accuracy(net: LeNet, images: Tensor, labels: Tensor) -> float:
    """Return the share of right answers."""
    return float((answers(net, images)[1] == labels).double().mean())


class Facts(BaseModel):
    """What is kept beside the weights: the share of right answers, and of how many held-out images.

    A change of the network or of its training makes another format, and files of the old one are not used.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)

    format: Literal[1] = 1
    accuracy: float = Field(ge=0, le=1)
    held_out: int = Field(ge=1, lt=2**53)


def remember(net: LeNet, facts: Facts, path: Path) -> None:
    """Write the weights and facts to a file; where that is not possible, go on without."""
    try:
        write_tensors(path, net.state_dict(), facts.model_dump_json())
    except UserError as error:
        logging.getLogger(__name__).info("the classifier is not kept: %s", error)


def recall(path: Path, shape: tuple[int, ...], classes: int) -> tuple[LeNet, Facts] | None:
    """Read a classifier back, or nothing if there is none or the file is not whole and right in every tensor."""
    net = make(shape, classes)
    wanted = forms_of(net.state_dict())
    try:
        state, facts = read_tensors(path, lambda _: wanted, TypeAdapter(Facts), fits="these data")
    except UserError:
        return None
    net.load_state_dict(state)
    return net.eval(), facts
