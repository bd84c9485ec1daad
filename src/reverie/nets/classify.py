"""Noise-aware classifiers: small networks that classify noisy data given the noise level."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional

from reverie.nets.embedding import LEVEL_SCALE, SinusoidalEmbedding
from reverie.nets.unet import ResidualBlock, group_norm

EMBEDDING = 64
MIN_SIDE = 8  # the feature map is downsampled until its sides are at most this
GROUPS = 8
FREQUENCIES = (2.0, 4.0, 8.0)  # w, for data with a standard deviation of about 1


class ConvClassifier(nn.Module):
    """A convolutional classifier: residual blocks on feature maps downsampled to sides of at most 8, then a linear layer.

    x: (B, C, H, W) -> (B, classes); level: (B,).
    """

    def __init__(self, shape: tuple[int, int, int], classes: int, width: int = 32) -> None:
        super().__init__()
        channels, height, columns = shape
        self.embed = SinusoidalEmbedding(EMBEDDING)
        self.tell = nn.Sequential(nn.Linear(EMBEDDING, EMBEDDING), nn.SiLU(), nn.Linear(EMBEDDING, EMBEDDING), nn.SiLU())
        self.shrink, self.blocks = nn.ModuleList(), nn.ModuleList()
        outputs = width
        while True:
            self.shrink.append(nn.Conv2d(channels, outputs, 3, stride=2, padding=1))
            self.blocks.append(ResidualBlock(outputs, outputs, EMBEDDING, GROUPS, "scale-shift"))
            height, columns, channels = -(-height // 2), -(-columns // 2), outputs
            if max(height, columns) <= MIN_SIDE:
                break
            outputs = min(2 * outputs, 4 * width)
        self.norm = group_norm(channels, GROUPS)
        self.out = nn.Linear(channels * height * columns, classes)

    def forward(self, x: Tensor, level: Tensor) -> Tensor:
        """Return the logits, (B, classes)."""
        e = self.tell(self.embed(level * LEVEL_SCALE))
        for shrink, block in zip(self.shrink, self.blocks, strict=True):
            x = block(shrink(x), e)
        scores: Tensor = self.out(functional.silu(self.norm(x)).flatten(1))
        return scores


class MLPClassifier(nn.Module):
    """An MLP with three layers on x and its Fourier features sin(w x), cos(w x), conditioned on the noise level.

    x: (B, D) -> (B, classes); level: (B,).
    """

    def __init__(self, shape: tuple[int], classes: int, width: int = 96) -> None:
        super().__init__()
        self.embed = SinusoidalEmbedding(EMBEDDING)
        sizes = (shape[0] * (1 + 2 * len(FREQUENCIES)), width, width, width)
        self.layers = nn.ModuleList(nn.Linear(i, o) for i, o in pairwise(sizes))
        self.tell = nn.ModuleList(nn.Linear(EMBEDDING, width) for _ in self.layers)
        self.out = nn.Linear(width, classes)

    def forward(self, x: Tensor, level: Tensor) -> Tensor:
        """Return the logits, (B, classes)."""
        e = self.embed(level * LEVEL_SCALE)
        x = torch.cat([x, *((w * x).sin() for w in FREQUENCIES), *((w * x).cos() for w in FREQUENCIES)], dim=1)
        for layer, condition in zip(self.layers, self.tell, strict=True):
            x = functional.silu(layer(x) + condition(e))
        scores: Tensor = self.out(x)
        return scores


def network_for(shape: tuple[int, ...], classes: int, seed: int) -> nn.Module:
    """Return the classifier for data of this shape, with weights initialized from the seed."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        if len(shape) == 1:
            return MLPClassifier((shape[0],), classes)
        return ConvClassifier((shape[0], shape[1], shape[2]), classes)
