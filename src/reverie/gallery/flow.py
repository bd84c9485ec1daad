"""Speed of flows in both directions: time per datum of density evaluation and of sampling, by size."""

from __future__ import annotations

from pathlib import Path

import torch
from matplotlib.figure import Figure

from reverie.base.files import check_folder
from reverie.draw.picture import CYCLE, figure, save
from reverie.families.flow.settings import FlowSettings, build_flow

POINTS = (2, 8, 32, 128)  # values in a datum
SIDES = (8, 16)  # of images, for the multiscale flow
HIDDEN, LAYERS = 64, 3
TIMES = {"there": "to noise, with its density", "back": "from noise: a sample"}


def timed(seed: int = 0) -> list[dict[str, float | str]]:
    """Return the seconds of each flow in each direction, untrained, on one thread."""
    rows: list[dict[str, float | str]] = []
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        for transform in ("realnvp", "maf", "spline", "multiscale"):
            for size in POINTS if transform != "multiscale" else SIDES:
                shape: tuple[int, ...] = (size,)
                codec: dict[str, object] = {"name": "standard", "mean": [0.0] * size, "std": [1.0] * size}
                if transform == "multiscale":
                    shape, codec = (1, size, size), {"name": "levels", "values": list(range(0, 256, 17))}
                settings = FlowSettings(transform=transform, hidden=HIDDEN, layers=LAYERS, codec=codec)
                flow = build_flow(settings, shape, 0, seed).eval()
                there, back = flow.seconds_per_direction()
                rows.append({"transform": transform, "numbers": flow.size, "there": there, "back": back})
    finally:
        torch.set_num_threads(threads)
    return rows


def speeds(seed: int = 0) -> Figure:
    """Draw the time in each direction by size: an autoregressive flow is fast in one direction only."""
    rows, fig = timed(seed), figure(9, 3.8)
    for axes, (direction, title) in zip(fig.subplots(1, 2, sharey=True), TIMES.items(), strict=True):
        for k, name in enumerate(dict.fromkeys(row["transform"] for row in rows)):
            curve = [row for row in rows if row["transform"] == name]
            axes.loglog([float(row["numbers"]) for row in curve], [1e3 * float(row[direction]) for row in curve],
                        color=CYCLE[k % len(CYCLE)], marker="o", ms=4, lw=1.5, label=str(name))  # fmt: skip
        axes.set(xlabel="values in a datum", title=title)
        axes.spines[["top", "right"]].set_visible(False)
    fig.axes[0].set_ylabel("milliseconds per datum, batch of 64")
    fig.axes[0].legend(fontsize=8, frameon=False)
    return fig


def draw(out: Path, seed: int = 0) -> list[Path]:
    """Draw the figure into a folder and return its file."""
    check_folder(out)
    path = out / "speeds.png"
    save(speeds(seed), path)
    return [path]
