"""The normal distribution: samples of the package's noise against their density, and Bayes' rule."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import torch
from matplotlib.axes import Axes

from reverie.base.noise import Noise, image_seeds
from reverie.diffusion.process import gaussian_posterior
from reverie.draw.picture import ACCENT, INK, SOFT, WARM, check_picture, figure, save

MEAN, STD = 1.5, 0.7
COUNTS = (1000, 100_000)
BINS = 50
SHOWN_STDS = 4.0  # standard deviations shown on each side


def density(x: np.ndarray, mean: float, std: float) -> np.ndarray:
    """Return exp(-(x - mean)² / (2 std²)) / (std sqrt(2 pi))."""
    return np.asarray(np.exp(-0.5 * ((x - mean) / std) ** 2) / (std * math.sqrt(2 * math.pi)))


def simulate(n: int, seed: int) -> np.ndarray:
    """Return n samples of N(1.5, 0.7²), one from each of n streams of noise: (n,) float64."""
    return MEAN + STD * Noise(image_seeds(seed, n)).like(torch.empty(n, 1, dtype=torch.float64)).numpy()[:, 0]


def _histogram(axes: Axes, n: int, seed: int) -> None:
    x = simulate(n, seed)
    limits = (MEAN - SHOWN_STDS * STD, MEAN + SHOWN_STDS * STD)
    heights, edges = np.histogram(x, BINS, limits)
    heights = heights / (n * np.diff(edges))  # a density; samples outside the figure count too
    centres = (edges[1:] + edges[:-1]) / 2
    axes.bar(centres, heights, np.diff(edges), color=ACCENT, alpha=0.45, label=f"{n:,} samples, seed {seed}")
    grid = np.linspace(*limits, 300)
    axes.plot(grid, density(grid, MEAN, STD), color=WARM, lw=2, label=f"density of N({MEAN}, {STD}²)")
    axes.set_title(f"mean {x.mean():.4f}, standard deviation {x.std():.4f}", fontsize=10, color=INK)
    axes.set(xlabel="x", ylabel="probability density")


def _rule(axes: Axes) -> None:
    scale, std, mean, prior_std, x = 1.0, 0.6, 0.0, 1.0, 1.4
    posterior_mean, variance = gaussian_posterior(
        torch.tensor([[x]], dtype=torch.float64), scale, std, torch.tensor([[mean]]).double(), prior_std
    )
    y = np.linspace(-3, 3.5, 400)
    axes.plot(y, density(y, mean, prior_std), color=SOFT, lw=2, label=f"before: y ~ N({mean:g}, {prior_std:g}²)")
    axes.plot(y, density(x - scale * y, 0.0, std), color=ACCENT, lw=2, label=f"x = {x:g} seen, x | y ~ N(y, {std:g}²)")
    posterior = float(posterior_mean), math.sqrt(float(variance))
    axes.plot(y, density(y, *posterior), color=WARM, lw=2, label=f"after: y | x ~ N({posterior[0]:.3f}, {posterior[1]:.3f}²)")
    axes.set_title("Bayes' rule for normal distributions", fontsize=10, color=INK)
    axes.set(xlabel="y", ylabel="probability density")


def draw(out: Path, *, seed: int = 0) -> list[Path]:
    """Draw the figure and return its file."""
    check_picture(out)
    fig = figure(15, 4)
    *histograms, rule = fig.subplots(1, len(COUNTS) + 1)
    for axes, n in zip(histograms, COUNTS, strict=True):
        _histogram(axes, n, seed)
    _rule(rule)
    for axes in (*histograms, rule):
        axes.set_ylim(top=1.45 * axes.get_ylim()[1])  # room for the legend
        axes.legend(fontsize=8, frameon=False, loc="upper left")
        axes.spines[["top", "right"]].set_visible(False)
    save(fig, out)
    return [out]
