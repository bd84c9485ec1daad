"""Sinusoidal embeddings: coordinates, heat map, distances."""

from __future__ import annotations

from pathlib import Path

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from reverie.base.files import check_folder
from reverie.draw.picture import CYCLE, figure, save
from reverie.nets.embedding import SinusoidalEmbedding


def _embed(positions: int, dim: int) -> Tensor:
    embedded: Tensor = SinusoidalEmbedding(dim)(torch.arange(positions, dtype=torch.float64))
    return embedded


def _image(fig: Figure, axes: Axes, values: Tensor, colours: str, label: str) -> None:
    image = axes.imshow(values.numpy(), aspect="auto", cmap=colours, interpolation="nearest")
    fig.colorbar(image, ax=axes, label=label)


def curves() -> Figure:
    """Draw the four coordinates of an embedding of dimension 4: each is periodic, with growing periods."""
    fig = figure(9, 4)
    axes = fig.subplots()
    for k, column in enumerate(_embed(100, 4).T):
        period = SinusoidalEmbedding(4).period(k)
        axes.plot(column.numpy(), color=CYCLE[k], label=f"coordinate {k}: {'cos' if k % 2 else 'sin'}, period {period:.1f}")
    axes.set(xlabel="position", ylabel="value", title="coordinates of the sinusoidal embedding, d = 4")
    axes.legend(fontsize=8, loc="upper left", bbox_to_anchor=(1.01, 1), frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
    return fig


def heatmap() -> Figure:
    """Draw all coordinates of 100 positions; no two rows are equal."""
    fig = figure(9, 4.5)
    axes = fig.subplots()
    _image(fig, axes, _embed(100, 128), "RdBu", "value")
    axes.set(xlabel="coordinate", ylabel="position", title="the sinusoidal embedding, d = 128")
    return fig


def distance_map() -> Figure:
    """Draw the distances between 1,000 positions; they are constant along diagonals."""
    fig = figure(6.5, 5.5)
    axes = fig.subplots()
    embedded = _embed(1000, 1000)
    _image(fig, axes, torch.cdist(embedded, embedded), "viridis", "distance")
    axes.set(xlabel="position", ylabel="position", title="distance between embeddings, d = 1000")
    return fig


def relative_distances() -> Figure:
    """Draw |SE(pos + k) - SE(pos)| for 64 positions and offsets; it depends on k only, so all rows are equal."""
    fig = figure(6.5, 5.5)
    axes = fig.subplots()
    embedded = _embed(128, 128)
    rows = torch.stack([(embedded[pos : pos + 64] - embedded[pos]).norm(dim=-1) for pos in range(64)])
    _image(fig, axes, rows, "viridis", "distance")
    difference = float((rows - rows[0]).abs().max())
    axes.set(xlabel="offset k", ylabel="position", title=f"distance from pos to pos + k: rows differ by {difference:.0e}")
    return fig


PICTURES = {"curves": curves, "heatmap": heatmap, "distances": distance_map, "relative": relative_distances}


def draw(out: Path) -> list[Path]:
    """Draw all four figures into a folder and return the files."""
    check_folder(out)
    files = [out / f"{name}.png" for name in PICTURES]
    for path, make in zip(files, PICTURES.values(), strict=True):
        save(make(), path)
    return files
