"""A flow of images by convolutions, from coarse to fine: each quarter of the pixels goes by what is known around them."""

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

CORNERS = ((0, 0), (1, 1), (0, 1), (1, 0))  # the pixels of a square of four: the first makes the coarser image
STEPS = ((1,), (2, 3))  # of them are told in turn; those of one step lie diagonally, with all neighbours known
COARSEST = 49  # numbers up to which an image is not halved, but told number by number
COARSEST_MOST = 512


def scales_of(shape: tuple[int, ...]) -> list[tuple[int, ...]]:
    """Return the shapes from the image down to the coarsest, or say why there are none."""
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
    """Return a size near that of images that can be halved often: a multiple of 16."""
    return max(16, round(max(shape[1:]) / 16) * 16)


def squeeze(x: Tensor) -> Tensor:
    """Return the pixels of squares of four as channels: (B, C, H, W) -> (B, 4 C, H / 2, W / 2)."""
    return torch.cat([x[:, :, i::2, j::2] for i, j in CORNERS], 1)


def unsqueeze(y: Tensor) -> Tensor:
    """Return the image whose squares of four were channels."""
    parts = y.chunk(4, 1)
    x = y.new_empty(len(y), parts[0].shape[1], 2 * y.shape[2], 2 * y.shape[3])
    for (i, j), part in zip(CORNERS, parts, strict=True):
        x[:, :, i::2, j::2] = part
    return x


class ConvResidual(nn.Module):
    """x + conv(silu(conv(silu(x)))), of which the last begins at zero."""

    def __init__(self, width: int, dropout: float) -> None:
        super().__init__()
        self.first, self.last = (nn.Conv2d(width, width, 3, padding=1) for _ in range(2))
        nn.init.zeros_(self.last.weight)
        self.hide = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        """Return the sum."""
        told: Tensor = x + self.last(self.hide(F.silu(self.first(F.silu(x)))))
        return told


class Coupling(nn.Module):
    """The logits of histograms for some channels, from those that are known: (B, T, h, w, K).

    place, bias: what is true of each pixel whatever is around it.
    """

    def __init__(
        self, known: int, told: int, size: tuple[int, ...], bins: int, width: int, blocks: int, labels: int, dropout: float
    ) -> None:
        super().__init__()
        self.first = nn.Conv2d(known, width, 3, padding=1)
        self.place = nn.Parameter(torch.zeros(width, *size))
        self.label = LabelEmbedding(labels, width) if labels else None
        self.blocks = nn.Sequential(*(ConvResidual(width, dropout) for _ in range(blocks)))
        self.last = nn.Conv2d(width, told * bins, 1)
        nn.init.zeros_(self.last.weight)
        self.bias = nn.Parameter(torch.zeros(told, *size, bins))

    def forward(self, known: Tensor, cond: Tensor | None) -> Tensor:
        """Return the logits.  known: (B, channels, h, w), from -1 to 1."""
        x = self.first(known) + self.place
        if self.label is not None:
            x = x + self.label(cond)[:, :, None, None]
        told, bins = self.bias.shape[0], self.bias.shape[-1]
        logits: Tensor = self.last(F.silu(self.blocks(x))).unflatten(1, (told, bins))
        return logits.permute(0, 1, 3, 4, 2) + self.bias


class Coarsest(nn.Module):
    """The logits of each number of the coarsest image from those before it, by a masked network: (B, D, K)."""

    def __init__(self, size: int, bins: int, hidden: int, labels: int, dropout: float) -> None:
        super().__init__()
        self.size, self.labels = size, labels
        before = torch.arange(size)[:, None] > torch.arange(size)
        told = torch.cat([before, torch.ones(size, labels, dtype=torch.bool)], 1).repeat_interleave(bins, 0)
        self.net = (
            None
            if size == 1 and not labels
            else without_masks(zuko().nn.MaskedMLP(told, (hidden, hidden), activation=activation(dropout)))
        )
        self.bias = nn.Parameter(torch.zeros(size, bins))

    def forward(self, known: Tensor, cond: Tensor | None) -> Tensor:
        """Return the logits.  known: (B, D), from -1 to 1."""
        if self.labels and cond is not None:
            known = torch.cat([known, F.one_hot(cond, self.labels).to(known)], 1)
        if self.net is None:  # one number, with nothing before it
            return self.bias.expand(len(known), -1, -1)
        logits: Tensor = self.net(known).unflatten(1, self.bias.shape) + self.bias
        return logits


class Multiscale(FlowTransform):
    """x -> u of the unit cube: the coarsest image number by number, then each finer one by couplings (arXiv:1703.03664).

    A square of four pixels has one from the coarser image.  The one across is told by a histogram whose masses a network of
    convolutions gives from all that are known, then the two others, and channel after channel.  What networks see are levels,
    so that all of a level has one density, and uniform dequantisation loses nothing.
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
        self.couplings = nn.ModuleList()  # scale after scale, the finest first
        for k, (_, coarser) in enumerate(pairwise(self.shapes)):
            known, width = channels, widths[min(k, len(widths) - 1)]
            for step in self.steps:
                self.couplings.append(Coupling(known, len(step), coarser[1:], bins, width, blocks, labels, dropout))
                known += len(step)
        self.coarsest = Coarsest(math.prod(self.shapes[-1]), bins, hidden, labels, dropout)

    def _seen(self, v: Tensor) -> Tensor:
        """Return levels as networks see them, from -1 to 1."""
        return self.histogram.rank(v).to(v.dtype) * (2 / (self.histogram.levels - 1)) - 1

    def _scales(self) -> list[list[tuple[list[int], list[int], Coupling]]]:
        """Return for each scale, the finest first, its steps: the channels that are known, those that are told, and by what."""
        found = []
        for k in range(len(self.shapes) - 1):
            own = self.couplings[k * len(self.steps) : (k + 1) * len(self.steps)]
            rows = []
            for j, (told, coupling) in enumerate(zip(self.steps, own, strict=True)):
                assert isinstance(coupling, Coupling)
                rows.append((self._known(j), told, coupling))
            found.append(rows)
        return found

    def _known(self, step: int) -> list[int]:
        """Return the channels of squares that are known before a step."""
        return [*range(self.shapes[0][0]), *(c for done in self.steps[:step] for c in done)]

    @torch.no_grad()
    def initialize(self, x: Tensor) -> None:
        """Begin with what is true of each pixel by itself."""
        for steps in self._scales():
            y = squeeze(x)
            for _, step, coupling in steps:
                coupling.bias.copy_(self.histogram.starting_logits(y[:, step]))
            x = y[:, : self.shapes[0][0]]
        self.coarsest.bias.copy_(self.histogram.starting_logits(x.flatten(1)))

    def log_density(self, x: Tensor, cond: Tensor | None) -> Tensor:
        """Return the sum of the log-densities of all numbers: (B,)."""
        total = x.new_zeros(len(x))
        for steps in self._scales():
            y = squeeze(x)
            seen = self._seen(y)
            for known, step, coupling in steps:
                logits = coupling(seen[:, known], cond)
                total = total + self.histogram.log_density(logits, y[:, step]).flatten(1).sum(1)
            x = y[:, : self.shapes[0][0]]
        rest = x.flatten(1)
        return total + self.histogram.log_density(self.coarsest(self._seen(rest), cond), rest).sum(1)

    def forward(self, x: Tensor, cond: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return u and the log-density."""
        volume, kept = self.log_density(x, cond), []
        for steps in self._scales():
            y = squeeze(x)
            seen, u = self._seen(y), y.to(finest_dtype(y))
            for known, step, coupling in steps:
                u[:, step] = self.histogram(coupling(seen[:, known], cond), y[:, step]).to(u)
            kept.append(u)
            x = y[:, : self.shapes[0][0]]
        rest = x.flatten(1)
        u = self.histogram(self.coarsest(self._seen(rest), cond), rest).reshape(x.shape)
        for above in reversed(kept):
            u = unsqueeze(torch.cat([u, above[:, self.shapes[0][0] :]], 1))
        return u, volume

    def inverse(self, z: Tensor, cond: Tensor | None) -> Tensor:
        """Return x, from coarse to fine."""
        given = []
        for _ in self.shapes[1:]:
            y = squeeze(z)
            given.append(y)
            z = y[:, : self.shapes[0][0]]
        u = z.flatten(1)
        x = torch.zeros(u.shape, device=u.device)
        for i in range(u.shape[1]):
            x[:, i] = self.histogram.inverse(self.coarsest(self._seen(x), cond)[:, i], u[:, i])
        x = x.reshape(z.shape)
        for steps, fine in zip(reversed(self._scales()), reversed(given), strict=True):
            y = torch.cat([x, x.new_zeros(len(x), 3 * x.shape[1], *x.shape[2:])], 1)
            for known, step, coupling in steps:
                y[:, step] = self.histogram.inverse(coupling(self._seen(y)[:, known], cond), fine[:, step])
            x = unsqueeze(y)
        return x
