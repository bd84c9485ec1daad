"""Kernels: Gram matrices, principal components, a feature map that separates circles, and string kernels."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from torch import Tensor

from reverie.base.files import check_folder
from reverie.base.noise import check_seed
from reverie.data import load_data
from reverie.draw.picture import ACCENT, INK, SOFT, WARM, axis_limits, figure, save, square_axes
from reverie.kernels import (
    BagOfWords,
    Gaussian,
    InverseMultiquadric,
    Kernel,
    Laplace,
    Linear,
    Normalized,
    Polynomial,
    RationalQuadratic,
    Spectrum,
    gram,
    kernel_pca,
)

POINTS = 300
AMINO_ACIDS, SUBSTRING = "ACDEFGHIKLMNPQRSTVWY", 4  # amino acids, and length of substrings
FAMILIES, PER_FAMILY = 5, 20  # of proteins
SENTENCES = [
    "the cat sat on the mat", "the dog sat on the mat", "a cat and a dog", "the dog chased the cat", "noise becomes data",
    "data become noise", "noise is added to data",
]  # fmt: skip
BOUNDARY = 0.68  # radius between the two circles


def _circles(seed: int) -> tuple[Tensor, Tensor]:
    """Return points of both circles, the inner first, sorted by angle, and a mask of the inner ones."""
    x, _ = load_data("circles", POINTS, seed).batch(torch.arange(POINTS))
    inner, angle = x.norm(dim=1) < BOUNDARY, torch.atan2(x[:, 1], x[:, 0])
    order = torch.argsort(angle + torch.where(inner, -10.0, 0.0))
    return x[order].double(), inner[order]


def _colours(inner: Tensor) -> list[str]:
    return [WARM if inside else ACCENT for inside in inner.tolist()]


def gram_matrices(seed: int) -> Figure:
    """Draw the Gram matrices of six kernels on the circles, ordered by circle and angle."""
    x, inner = _circles(seed)
    kernels: dict[str, Kernel] = {
        "linear": Linear(), "polynomial, degree 2": Polynomial(2), "Gaussian, width 0.25": Gaussian(0.25),
        "Laplace, width 0.25": Laplace(0.25), "rational quadratic": RationalQuadratic(0.25),
        "inverse multiquadric": InverseMultiquadric(0.25),
    }  # fmt: skip
    fig = figure(12, 7.6)
    for axes, (name, kernel) in zip(fig.subplots(2, 3).flat, kernels.items(), strict=True):
        k = gram(kernel, x)
        top = float(k.abs().max())
        bottom, colours = (-top, "RdBu_r") if float(k.min()) < -1e-9 else (0.0, "magma_r")
        image = axes.imshow(k.numpy(), cmap=colours, vmin=bottom, vmax=top)
        fig.colorbar(image, ax=axes, shrink=0.8)
        edge = int(inner.sum()) - 0.5
        axes.axhline(edge, color=INK, lw=0.6)
        axes.axvline(edge, color=INK, lw=0.6)
        axes.set(xticks=[edge / 2, (edge + POINTS) / 2], yticks=[edge / 2, (edge + POINTS) / 2])
        axes.set_xticklabels(["inner", "outer"])
        axes.set_yticklabels(["inner", "outer"], rotation=90, va="center")
        axes.tick_params(length=0)
        axes.set_title(name, fontsize=10, color=INK)
    return fig


def components(seed: int) -> Figure:
    """Draw the circles, their linear principal components, and those with a Gaussian kernel."""
    x, inner = _circles(seed)
    fig = figure(13, 4.4)
    panels: dict[str, Tensor] = {
        "the data": x,
        "linear principal components": kernel_pca(Linear(), x).coordinates,
        "kernel principal components, Gaussian, width 0.25": kernel_pca(Gaussian(0.25), x).coordinates,
    }
    for k, (axes, (title, points)) in enumerate(zip(fig.subplots(1, 3), panels.items(), strict=True)):
        square_axes(axes, axis_limits(points.numpy()), title)
        axes.scatter(points[:, 0], points[:, 1], c=_colours(inner), s=12, alpha=0.8, linewidths=0)
        axes.set(xlabel="first" if k else "", ylabel="second" if k else "")
    return fig


def feature_map(seed: int) -> Figure:
    """Draw the circles and their image under the polynomial feature map, where a plane separates them."""
    x, inner = _circles(seed)
    features = Polynomial(2).features(x)  # x1², sqrt(2) x1 x2, x2²
    fig = figure(11, 5)
    flat = square_axes(fig.add_subplot(1, 2, 1), axis_limits(x.numpy()), "no line separates them")
    flat.scatter(x[:, 0], x[:, 1], c=_colours(inner), s=14, alpha=0.8, linewidths=0)
    angle = np.linspace(0, 2 * np.pi, 200)
    flat.plot(BOUNDARY * np.cos(angle), BOUNDARY * np.sin(angle), color=SOFT, lw=1, ls="--")
    solid: Any = fig.add_subplot(1, 2, 2, projection="3d")
    solid.scatter(features[:, 0], features[:, 2], features[:, 1], c=_colours(inner), s=14, alpha=0.9, linewidths=0)
    side = np.linspace(0, BOUNDARY**2, 2)
    first, height = np.meshgrid(side, np.array([-0.75, 0.75]))
    solid.plot_surface(first, BOUNDARY**2 - first, height, color=SOFT, alpha=0.35, linewidth=0)
    solid.set(xlabel="x1²", ylabel="x2²", zlabel="√2 x1 x2")
    solid.set_title("a plane does, after the feature map", fontsize=10, color=INK)
    solid.view_init(elev=18, azim=-32)
    solid.set_box_aspect(None, zoom=0.85)  # leaves room for the label of the third axis
    for axis in (solid.xaxis, solid.yaxis, solid.zaxis):
        axis.pane.fill = False
        axis.set_major_locator(MaxNLocator(4))
    return fig


def texts(seed: int) -> Figure:
    """Draw cosine similarities of sentences by word counts, and of proteins by substrings."""
    fig = figure(12.5, 5.2)
    left, right = fig.subplots(1, 2, width_ratios=(1.15, 1))
    k = gram(Normalized(BagOfWords()), SENTENCES)
    left.imshow(k.numpy(), cmap="magma_r", vmin=0, vmax=1)
    for i, j in np.ndindex(*k.shape):
        value = float(k[i, j])
        colour = "white" if value > 0.5 else INK
        left.text(j, i, f"{value:.2f}" if value else "0", ha="center", va="center", fontsize=8, color=colour)
    left.set_yticks(range(len(SENTENCES)), SENTENCES, fontsize=9)
    left.set_xticks([])
    left.set_title("cosine similarity of word counts", fontsize=10, color=INK)
    proteins, kernel = _proteins(seed), Spectrum(SUBSTRING)
    right.imshow(gram(Normalized(kernel), proteins).numpy(), cmap="magma_r", vmin=0, vmax=1)
    right.set(xticks=[], yticks=[])
    features, count = len(AMINO_ACIDS) ** SUBSTRING, len(proteins)
    right.set_title(f"{count} proteins of {FAMILIES} families by substrings of length {SUBSTRING}", fontsize=10, color=INK)
    stored = f"feature vectors {count} x {features:,} = {count * features:,} values, Gram matrix {count**2:,}"
    right.set_xlabel(stored, fontsize=9)
    return fig


def _proteins(seed: int) -> list[str]:
    """Return strings of amino acids: families of random mutations, each of one ancestor."""
    generator, proteins = np.random.default_rng(seed), []
    for _ in range(FAMILIES):
        ancestor = generator.choice(list(AMINO_ACIDS), 60)
        for _ in range(PER_FAMILY):
            mutated = generator.random(60) < 0.15
            proteins.append("".join(np.where(mutated, generator.choice(list(AMINO_ACIDS), 60), ancestor)))
    return proteins


def draw(out: Path, seed: int = 0) -> list[Path]:
    """Draw all figures into a folder and return the files."""
    check_seed(seed)
    check_folder(out)
    pictures = {"gram": gram_matrices, "components": components, "features": feature_map, "texts": texts}
    for name, picture in pictures.items():
        save(picture(seed), out / f"{name}.png")
    return [out / f"{name}.png" for name in pictures]
