"""A convolutional flow of images from coarse to fine: each pixel given known neighbours."""

from __future__ import annotations

import math
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from reverie.base.distances import finest_dtype
from reverie.base.errors import UserError
from reverie.families.flow.histogram import Histogram
from reverie.families.flow.transforms import FlowTransform, activation, without_masks, zuko
from reverie.nets.embedding import LabelEmbedding

CORNERS = ((0, 0), (1, 1), (0, 1), (1, 0))  # pixels of a 2x2 square; the first belongs to the coarser image
STEPS = ((1,), (2, 3))  # corners in generation order; those of one step are diagonal neighbours
COARSEST = 49  # values up to which an image is modelled value by value instead of halved
COARSEST_MOST = 512


def scales_of(shape: tuple[int, ...]) -> list[tuple[int, ...]]:
    """Return the shapes from the image down to the coarsest; raise a UserError if it is too large."""
    shapes = [shape]
    while math.prod(shapes[-1]) > COARSEST and all(side % 2 == 0 for side in shapes[-1][1:]):
        channels, height, width = shapes[-1]
        shapes.append((channels, height // 2, width // 2))
    if math.prod(shapes[-1]) > COARSEST_MOST:
        raise UserError(
            f"images of {shape[1]}x{shape[2]} cannot be halved often enough for a multiscale flow; give --size {_even(shape)}"
        )
    return shapes


def _even(shape: tuple[int, ...]) -> int:
    """Return a similar size of images that can be halved often: a multiple of 16."""
    return max(16, round(max(shape[1:]) / 16) * 16)


def squeeze(x: Tensor) -> Tensor:
    """Return the pixels of 2x2 squares as channels: (B, C, H, W) -> (B, 4 C, H / 2, W / 2)."""
    return torch.cat([x[:, :, i::2, j::2] for i, j in CORNERS], 1)


def unsqueeze(y: Tensor) -> Tensor:
    """Invert `squeeze`."""
    parts = y.chunk(4, 1)
    x = y.new_empty(len(y), parts[0].shape[1], 2 * y.shape[2], 2 * y.shape[3])
    for (i, j), part in zip(CORNERS, parts, strict=True):
        x[:, :, i::2, j::2] = part
    return x


class ConvResidual(nn.Module):
    """x + conv(silu(conv(silu(x)))); the last convolution is initialized to zero."""

    def __init__(self, width: int, dropout: float) -> None:
        super().__init__()
        self.first, self.last = (nn.Conv2d(width, width, 3, padding=1) for _ in range(2))
        nn.init.zeros_(self.last.weight)
        self.hide = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        """Return the sum."""
        out: Tensor = x + self.last(self.hide(F.silu(self.first(F.silu(x)))))
        return out


class Coupling(nn.Module):
    """Predicts histogram logits of some channels from known ones: (B, T, h, w, K).

    place, bias: per-pixel parameters that do not depend on the neighbourhood.
    """

    def __init__(
        self, known: int, outputs: int, size: tuple[int, ...], bins: int, width: int, blocks: int, labels: int, dropout: float
    ) -> None:
        super().__init__()
        self.first = nn.Conv2d(known, width, 3, padding=1)
        self.place = nn.Parameter(torch.zeros(width, *size))
        self.label = LabelEmbedding(labels, width) if labels else None
        self.blocks = nn.Sequential(*(ConvResidual(width, dropout) for _ in range(blocks)))
        self.last = nn.Conv2d(width, outputs * bins, 1)
        nn.init.zeros_(self.last.weight)
        self.bias = nn.Parameter(torch.zeros(outputs, *size, bins))

    def forward(self, known: Tensor, cond: Tensor | None) -> Tensor:
        """Return the logits.  known: (B, channels, h, w), from -1 to 1."""
        x = self.first(known) + self.place
        if self.label is not None:
            x = x + self.label(cond)[:, :, None, None]
        outputs, bins = self.bias.shape[0], self.bias.shape[-1]
        logits: Tensor = self.last(F.silu(self.blocks(x))).unflatten(1, (outputs, bins))
        return logits.permute(0, 1, 3, 4, 2) + self.bias


class Coarsest(nn.Module):
    """Histogram logits of each value of the coarsest image given those before it, by a masked MLP: (B, D, K)."""

    def __init__(self, size: int, bins: int, hidden: int, labels: int, dropout: float) -> None:
        super().__init__()
        self.size, self.labels = size, labels
        before = torch.arange(size)[:, None] > torch.arange(size)
        mask = torch.cat([before, torch.ones(size, labels, dtype=torch.bool)], 1).repeat_interleave(bins, 0)
        self.net = (
            None
            if size == 1 and not labels
            else without_masks(zuko().nn.MaskedMLP(mask, (hidden, hidden), activation=activation(dropout)))
        )
        self.bias = nn.Parameter(torch.zeros(size, bins))

    def forward(self, known: Tensor, cond: Tensor | None) -> Tensor:
        """Return the logits.  known: (B, D), from -1 to 1."""
        if self.labels and cond is not None:
            known = torch.cat([known, F.one_hot(cond, self.labels).to(known)], 1)
        if self.net is None:  # a single value
            return self.bias.expand(len(known), -1, -1)
        logits: Tensor = self.net(known).unflatten(1, self.bias.shape) + self.bias
        return logits


class Multiscale(FlowTransform):
    """x -> u in the unit cube: the coarsest image value by value, then finer ones by couplings (arXiv:1703.03664).

    In a 2x2 square, one pixel belongs to the coarser image.  A convolutional network predicts the histogram of the diagonal
    pixel from all known pixels, then those of the other two, channel by channel.  The inputs of the networks are levels, so
    the density is constant within a level, and uniform dequantisation is exact.
    """

    uniform = True

    def __init__(
        self, shape: tuple[int, ...], labels: int, knots: tuple[int, ...], widths: tuple[int, ...], blocks: int, hidden: int,
        dropout: float,
    ) -> None:  # fmt: skip
        super().__init__()
        self.histogram, self.dropout = Histogram(knots), dropout
        self.shapes = scales_of(shape)
        bins, channels = self.histogram.bins, shape[0]
        self.steps = [([c + channels * corner for corner in step]) for step in STEPS for c in range(channels)]
        self.couplings = nn.ModuleList()  # by scale, the finest first
        for k, (_, coarser) in enumerate(pairwise(self.shapes)):
            known, width = channels, widths[min(k, len(widths) - 1)]
            for step in self.steps:
                self.couplings.append(Coupling(known, len(step), coarser[1:], bins, width, blocks, labels, dropout))
                known += len(step)
        self.coarsest = Coarsest(math.prod(self.shapes[-1]), bins, hidden, labels, dropout)

    def _level_inputs(self, v: Tensor) -> Tensor:
        """Return levels as network inputs, from -1 to 1."""
        return self.histogram.rank(v).to(v.dtype) * (2 / (self.histogram.levels - 1)) - 1

    def _scales(self) -> list[list[tuple[list[int], list[int], Coupling]]]:
        """Return the steps of each scale, the finest first: known channels, output channels, and the coupling."""
        scales = []
        for k in range(len(self.shapes) - 1):
            couplings = self.couplings[k * len(self.steps) : (k + 1) * len(self.steps)]
            steps = []
            for j, (outputs, coupling) in enumerate(zip(self.steps, couplings, strict=True)):
                assert isinstance(coupling, Coupling)
                steps.append((self._known(j), outputs, coupling))
            scales.append(steps)
        return scales

    def _known(self, step: int) -> list[int]:
        """Return the channels of squares that are known before a step."""
        return [*range(self.shapes[0][0]), *(c for done in self.steps[:step] for c in done)]

    @torch.no_grad()
    def initialize(self, x: Tensor) -> None:
        """Initialize with the histogram of each pixel."""
        for steps in self._scales():
            y = squeeze(x)
            for _, step, coupling in steps:
                coupling.bias.copy_(self.histogram.starting_logits(y[:, step]))
            x = y[:, : self.shapes[0][0]]
        self.coarsest.bias.copy_(self.histogram.starting_logits(x.flatten(1)))

    def log_density(self, x: Tensor, cond: Tensor | None) -> Tensor:
        """Return the sum of the log-densities of all values: (B,)."""
        total = x.new_zeros(len(x))
        for steps in self._scales():
            y = squeeze(x)
            inputs = self._level_inputs(y)
            for known, step, coupling in steps:
                logits = coupling(inputs[:, known], cond)
                total = total + self.histogram.log_density(logits, y[:, step]).flatten(1).sum(1)
            x = y[:, : self.shapes[0][0]]
        rest = x.flatten(1)
        return total + self.histogram.log_density(self.coarsest(self._level_inputs(rest), cond), rest).sum(1)

    def forward(self, x: Tensor, cond: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return u and the log-density."""
        volume, scales = self.log_density(x, cond), []
        for steps in self._scales():
            y = squeeze(x)
            inputs, u = self._level_inputs(y), y.to(finest_dtype(y))
            for known, step, coupling in steps:
                u[:, step] = self.histogram(coupling(inputs[:, known], cond), y[:, step]).to(u)
            scales.append(u)
            x = y[:, : self.shapes[0][0]]
        rest = x.flatten(1)
        u = self.histogram(self.coarsest(self._level_inputs(rest), cond), rest).reshape(x.shape)
        for finer in reversed(scales):
            u = unsqueeze(torch.cat([u, finer[:, self.shapes[0][0] :]], 1))
        return u, volume

    def inverse(self, z: Tensor, cond: Tensor | None) -> Tensor:
        """Return x, from coarse to fine."""
        squares = []
        for _ in self.shapes[1:]:
            y = squeeze(z)
            squares.append(y)
            z = y[:, : self.shapes[0][0]]
        u = z.flatten(1)
        x = torch.zeros(u.shape, device=u.device)
        for i in range(u.shape[1]):
            x[:, i] = self.histogram.inverse(self.coarsest(self._level_inputs(x), cond)[:, i], u[:, i])
        x = x.reshape(z.shape)
        for steps, fine in zip(reversed(self._scales()), reversed(squares), strict=True):
            y = torch.cat([x, x.new_zeros(len(x), 3 * x.shape[1], *x.shape[2:])], 1)
            for known, step, coupling in steps:
                y[:, step] = self.histogram.inverse(coupling(self._level_inputs(y)[:, known], cond), fine[:, step])
            x = unsqueeze(y)
        return x
