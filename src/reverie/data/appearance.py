"""Appearance statistics of samples and data, used to assess previews."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class AppearanceStats:
    """Appearance statistics of samples or data, in model units.

    contrast: median std within a sample; variance: mean variance between samples; outside: share of values outside the
    data range widened by a quarter of its length on each side; nearest: median distance to the nearest training datum, divided
    by that datum's distance to its own nearest neighbour; grain: see `grain`.
    """

    mean: float
    contrast: float
    variance: float
    outside: float
    nearest: float
    grain: float = 0.0

    def noise(self, data: AppearanceStats) -> float:
        """Return the variance of white noise that explains the grain in excess of the data's, divided by their variance."""
        return max(0.0, self.grain - data.grain) / max(data.contrast**2, 1e-12)

    def relative_to(self, data: AppearanceStats) -> dict[str, float]:
        """Return detail, std and nearest-neighbour distance relative to those of the data, and the noise."""

        def times(sample: float, reference: float) -> float:
            return round(sample / reference, 4) if reference > 0 else 1.0

        return {
            "detail": times(self.grain**0.5, data.grain**0.5), "std": times(self.variance**0.5, data.variance**0.5),
            "nearest_neighbor": times(self.nearest, data.nearest), "noise": round(self.noise(data), 4),
        }  # fmt: skip


def detail(images: Tensor) -> Tensor:
    """Return the mean squared difference of neighbouring pixels of each image: (N,)."""
    down, right = images.diff(dim=-2).square(), images.diff(dim=-1).square()
    parts = [d.flatten(1) for d in (down, right) if d.numel()]
    return torch.cat(parts, 1).mean(1).double()


def grain(z: Tensor) -> Tensor:
    """Return the mean square of (a - b - c + d) / 2 over all 2 x 2 squares of pixels of each image, (n,).

    White noise of variance v has grain v; smooth areas and straight edges have little: it is the finest diagonal band of a Haar
    transform, which estimates the noise of photographs (Donoho and Johnstone 1994).  z: (n, C, H, W).
    """
    if z.ndim < 4 or min(z.shape[-2:]) < 2:
        return z.new_zeros(len(z))
    rows = z[..., 1:, :] - z[..., :-1, :]
    return ((rows[..., 1:] - rows[..., :-1]) / 2).square().flatten(1).mean(1)


def appearance_stats(z: Tensor, nearness: Tensor, low: float, high: float) -> AppearanceStats:
    """Return the statistics.  z: (n, ...) in model units; nearness: (n,), see `AppearanceStats.nearest`."""
    flat = z.flatten(1)
    margin = (high - low) / 4
    outside = ((flat < low - margin) | (flat > high + margin)).float().mean()
    variance = flat.var(0).mean() if len(flat) > 1 else flat.new_zeros(())
    return AppearanceStats(
        float(flat.mean()), float(flat.std(1).median()), float(variance), float(outside), float(nearness.median()),
        float(grain(z.clamp(low, high)).median()),
    )  # fmt: skip


def octave_powers(images: Tensor) -> Tensor:
    """Return the spectral power of each image by octave, the finest first: (N, O).

    An octave contains the spatial frequencies from half its highest to its highest, which is 1/2 cycle per pixel in the finest;
    the last contains all frequencies below one period per quarter of the shorter side.  images: (N, C, H, W).
    """
    height, width = images.shape[-2:]
    power = torch.fft.fft2(images.double()).abs().square().sum(1)
    down, across = torch.fft.fftfreq(height)[:, None], torch.fft.fftfreq(width)[None]
    octave = (-torch.log2((2 * (down.square() + across.square()).sqrt()).clamp(1e-9, 1))).floor()
    last = max(0, math.ceil(math.log2(max(2, min(height, width)))) - 2)
    octave = octave.clamp(0, last).to(power.device)
    octave[0, 0] = -1  # the mean
    return torch.stack([power[:, octave == k].sum(1) for k in range(last + 1)], 1)
