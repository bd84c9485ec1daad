"""Plots of losses over training steps, of noise schedules, and of the terms of the ELBO."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from reverie.draw.picture import ACCENT, CYCLE, INK, SOFT, WARM, figure, matplotlib_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MARGINS = {"left": 0.08, "right": 0.99, "bottom": 0.135, "top": 0.92, "wspace": 0.18}  # of the loss curves
MAX_LOG_SNR = 15.0  # plotted range: schedules may end at infinite log-SNR
NOISE_NAMES = ("least noise", "less", "more", "most noise")


def label_axes(axes: Axes, title: str, x: str, y: str) -> None:
    """Set the title and axis labels, and hide the top and right spines."""
    axes.set_title(title, fontsize=10, color=INK)
    axes.set(xlabel=x, ylabel=y)
    axes.spines[["top", "right"]].set_visible(False)


def loss_curve(rows: Sequence[Mapping[str, Any]]) -> Figure:
    """Draw training and held-out loss over steps, or the bound on the NLL in its unit, and the held-out loss by noise level.

    If the held-out rows have a unit, the training curve uses the bound on training data from the same rows.
    """
    from matplotlib.ticker import LogFormatter

    fig = figure(8, 3.6, MARGINS)
    left, right = fig.subplots(1, 2)
    held_out = [row for row in rows if "held_out" in row]
    unit = held_out[-1].get("unit") if held_out else None
    held_out = [row for row in held_out if row.get("unit") == unit]
    training_rows, key = ([row for row in held_out if "train_loss" in row], "train_loss") if unit else (rows, "loss")
    left.plot([r["i"] for r in training_rows], [r[key] for r in training_rows], color=SOFT, lw=1, label="training")
    left.plot(
        [r["i"] for r in held_out],
        [r["held_out"] for r in held_out],
        color=ACCENT,
        marker=".",
        label="held out (average weights)",
    )
    for k, name in enumerate(NOISE_NAMES):
        rows_k = [r for r in held_out if len(r.get("held_out_levels", ())) == len(NOISE_NAMES)]
        right.plot([r["i"] for r in rows_k], [r["held_out_levels"][k] for r in rows_k], color=CYCLE[k], marker=".", label=name)
    for axes, title in ((left, f"bound, {unit}" if unit else "loss"), (right, "held-out loss by noise level")):
        axes.set(title=title, xlabel="step")
        if not (unit and axes is left):  # an NLL may be negative
            axes.set_yscale("log")
            axes.yaxis.set_major_formatter(LogFormatter())
            axes.yaxis.set_minor_formatter(LogFormatter(minor_thresholds=(1.5, 0.6)))
        axes.legend(fontsize=8, frameon=False)
        axes.spines[["top", "right"]].set_visible(False)
    return fig


def log_snr_axes(axes: Axes, title: str) -> Axes:
    """Prepare axes for curves of the log-SNR by t."""
    axes.set_ylim(-MAX_LOG_SNR, MAX_LOG_SNR)
    axes.axhline(0, color=SOFT, lw=0.6, ls=":")
    label_axes(axes, title, "t, from data to noise", "log-SNR")
    return axes


def learned_curve(axes: Axes, name: str, t: np.ndarray, before: np.ndarray, after: np.ndarray) -> None:
    """Draw the log-SNR of a learned schedule at initialization and after training.  t, before, after: (n,)."""
    log_snr_axes(axes, matplotlib_text(name))
    axes.plot(t, before, color=SOFT, lw=1.4, ls="--", label=f"initial, {before[0]:.2f} to {before[-1]:.2f}")
    axes.plot(t, after, color=ACCENT, lw=1.8, label=f"learned, {after[0]:.2f} to {after[-1]:.2f}")
    axes.legend(fontsize=8, frameon=False)


def bound_bars(parts: Sequence[tuple[str, float, float]], unit: str) -> Figure:
    """Draw the terms of the ELBO and their sum as bars.  parts: (name, value, standard error) of each term."""
    fig = figure(9, 3.6)
    axes = fig.subplots()
    names, costs, errors = zip(*parts, strict=True)
    total = sum(costs)
    colours = [SOFT if "to" not in name.split() else ACCENT for name in names]
    positions = np.arange(len(parts))
    axes.bar(positions, costs, yerr=2 * np.array(errors), color=colours, width=0.75, error_kw={"lw": 1, "capsize": 2})
    axes.bar(len(parts) + 0.3, total, color=WARM, width=0.75)
    for x, cost, error in zip((*positions, len(parts) + 0.3), (*costs, total), (*errors, 0.0), strict=True):
        up = cost >= 0
        axes.annotate(f"{cost:.3f}", (x, cost + (2 * error if up else -2 * error)), (0, 2 if up else -2), ha="center",
                      va="bottom" if up else "top", textcoords="offset points", fontsize=8, color=INK)  # fmt: skip
    axes.axhline(0, color=SOFT, lw=0.6)
    axes.margins(y=0.12)
    axes.set_xticks(
        [*positions, len(parts) + 0.3], [name.replace(" to ", "\nto ") for name in (*names, "the bound")], fontsize=8
    )
    label_axes(axes, "The terms of the bound", "prior, denoising by log-SNR from much noise to little, reconstruction", unit)
    return fig
