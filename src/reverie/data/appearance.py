"""What samples look like beside data: the figures by which previews are judged."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class AppearanceStats:
    """What a preview shows, to be set beside the same figures of the data; in model units.

    contrast, variance and outside: median deviation within a sample, mean variance between samples, and share of values beyond
    the data's range by a quarter of it; nearest: median distance to the closest training datum, as a share of that one's
    distance to its own neighbour; grain: see `grain`.
    """

    mean: float
    contrast: float
    variance: float
    outside: float
    nearest: float
    grain: float = 0.0

    def noise(self, truth: AppearanceStats) -> float:
        """Return the variance of white noise that would explain the grain beyond the data's, as a share of their variance."""
        return max(0.0, self.grain - truth.grain) / max(truth.contrast**2, 1e-12)

    def relative_to(self, truth: AppearanceStats) -> dict[str, float]:
        """Return what a verdict needs: fine detail, spread and nearest as multiples of the data's, and the share of noise."""

        def times(mine: float, theirs: float) -> float:
            return round(mine / theirs, 4) if theirs > 0 else 1.0

        return {
            "detail": times(self.grain**0.5, truth.grain**0.5), "std": times(self.variance**0.5, truth.variance**0.5),
            "nearest_neighbor": times(self.nearest, truth.nearest), "noise": round(self.noise(truth), 4),
        }  # fmt: skip


def detail(images: Tensor) -> Tensor:
    """Return how much neighbouring pixels differ, for each image: (N,) mean squares."""
    down, right = images.diff(dim=-2).square(), images.diff(dim=-1).square()
    parts = [d.flatten(1) for d in (down, right) if d.numel()]
    return torch.cat(parts, 1).mean(1).double()


def grain(z: Tensor) -> Tensor:
    """Return the mean square of (a - b - c + d) / 2 over all squares of 2 x 2 pixels of each image, (n,).

    White noise of variance v has the grain v, and what is smooth or has straight edges has little: the finest diagonal
    band of a Haar transform, by which noise in photographs is estimated (Donoho and Johnstone 1994).  z: (n, C, H, W).
    """
    if z.ndim < 4 or min(z.shape[-2:]) < 2:
        return z.new_zeros(len(z))
    rows = z[..., 1:, :] - z[..., :-1, :]
    return ((rows[..., 1:] - rows[..., :-1]) / 2).square().flatten(1).mean(1)


def appearance_stats(z: Tensor, nearness: Tensor, low: float, high: float) -> AppearanceStats:
    """Return what data or samples look like.  z: (n, ...) in model units; nearness: (n,), see `Look.nearest`."""
    flat = z.flatten(1)
    margin = (high - low) / 4
    outside = ((flat < low - margin) | (flat > high + margin)).float().mean()
    spread = flat.var(0).mean() if len(flat) > 1 else flat.new_zeros(())
    return AppearanceStats(
        float(flat.mean()), float(flat.std(1).median()), float(spread), float(outside), float(nearness.median()),
        float(grain(z.clamp(low, high)).median()),
    )  # fmt: skip


def octave_powers(images: Tensor) -> Tensor:
    """Return the power of each image in each octave of its spectrum, the finest first: (N, O).

    An octave holds the spatial frequencies from half of its highest up to that, which is 1/2 along a side in the finest;
    the last holds all that are lower than one period in a quarter of the shorter side.  images: (N, C, H, W).
    """
    height, width = images.shape[-2:]
    power = torch.fft.fft2(images.double()).abs().square().sum(1)
    down, across = torch.fft.fftfreq(height)[:, None], torch.fft.fftfreq(width)[None]
    octave = (-torch.log2((2 * (down.square() + across.square()).sqrt()).clamp(1e-9, 1))).floor()
    last = max(0, math.ceil(math.log2(max(2, min(height, width)))) - 2)
    octave = octave.clamp(0, last).to(power.device)
    octave[0, 0] = -1  # the mean
    return torch.stack([power[:, octave == k].sum(1) for k in range(last + 1)], 1)
