"""The held-out and training loss by noise level, and the minimum loss on the training set."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from torch import Tensor

from reverie.base.errors import UserError
from reverie.base.spec import format_spec
from reverie.data import Dataset
from reverie.draw.picture import ACCENT, INK, SOFT, WARM, figure, png_bytes
from reverie.evaluation.report_section import ReportSection
from reverie.families.diffusion.noise_levels import HELD_OUT_DRAWS, T_RANGES, level_of, noised_losses, optimum
from reverie.runs.run import Run

NAME, TITLE = "noise_levels", "Loss at each noise level"
SIGNIFICANT = 3.0  # standard errors of a difference between training and held-out loss

Column = list[tuple[float, float | None]]  # the mean loss of each level, with its standard error


def _column(run: Run, t: Tensor, losses: Tensor, levels: int) -> Column:
    bins = level_of(run.diffusion, t, levels)
    rows = [losses[bins == k] for k in range(levels)]
    return [(float(r.mean()), float(r.std() / math.sqrt(len(r))) if len(r) > 1 else None) for r in rows]


def _measure(run: Run, train: Dataset, held_out: Dataset, seed: int, levels: int) -> dict[str, Column]:
    columns = {"held out": _column(run, *noised_losses(run.diffusion, held_out, seed), levels)}
    columns["training"] = _column(run, *noised_losses(run.diffusion, train, seed), levels)
    best = optimum(run.diffusion, train)
    if best is not None:
        optimal = noised_losses(run.diffusion, train, seed, best, by_kind=True)
        columns["optimum of the training set"] = _column(run, *optimal, levels)
    return columns


def _read_stored(run: Run) -> dict[str, Column]:
    """Return the losses by noise level that the training recorded at its end."""
    held = [row for row in run.metrics() if row.get("held_out_levels")]
    if not held:
        raise UserError(f"the data of {run.path} are missing, and its training recorded no held-out loss")
    keys = {"held out": "held_out_levels", "training": "train_levels", "optimum of the training set": "optimum_levels"}
    return {name: [(value, None) for value in held[-1][key]] for name, key in keys.items() if held[-1].get(key)}


def _picture(t: np.ndarray, columns: dict[str, Column], loss: str) -> bytes:
    fig = figure(7, 3.6)
    axes = fig.subplots()
    colours = {"held out": ACCENT, "training": SOFT, "optimum of the training set": WARM}
    lowest = min(value for value, _ in columns["held out"])
    for name, column in columns.items():
        values = np.array([value for value, _ in column])
        errors = np.array([2 * (error or 0) for _, error in column])
        below = np.minimum(errors, 0.9 * values)  # the logarithmic axis has no 0
        axes.errorbar(t, values, yerr=(below, errors), color=colours[name], marker="o", ms=4, lw=1.4, capsize=2, label=name)
    axes.set(yscale="log", xlabel="t, from data to noise", ylabel=loss)
    axes.set_ylim(bottom=lowest / 30)  # the optimum may be nearly 0 at low noise
    axes.set_title("Loss by noise level", fontsize=10, color=INK)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(fontsize=8, frameon=False)
    return png_bytes(fig)


def noise_levels_section(
    run: Run, train: Dataset | None, held_out: Dataset | None, *, seed: int = 0, levels: int = 8
) -> ReportSection:
    """Compare the held-out and the training loss in equal ranges of t with the minimum on the training set.

    The minimum is the loss of the optimal denoiser of the training set on that set; reaching it means memorization.  Without
    data, the section contains the losses that the training recorded.
    """
    try:
        run.require_means()
        if train is None or held_out is None or not len(held_out) or not len(train):
            columns, source, levels, seed = _read_stored(run), "recorded by the training", T_RANGES, run.config.training.seed
        else:
            columns, source = _measure(run, train, held_out, seed, levels), "measured on the data"
    except UserError as error:
        return ReportSection(NAME, TITLE, figures={"not_computable": str(error)})
    low = run.diffusion.denoiser.schedule.t_min
    t = low + (1 - low) * (np.arange(levels) + 0.5) / levels
    rows: list[dict[str, Any]] = []
    for k in range(levels):
        row: dict[str, Any] = {"t": float(t[k])}
        for name, column in columns.items():
            row[name] = column[k][0]
            if column[k][1] is not None:
                row[f"{name}, standard error"] = column[k][1]
        rows.append(row)
    settings = run.diffusion_settings
    measure = "" if settings.loss["name"] == "mse" else f"{format_spec(settings.loss)} "
    loss = f"{settings.weight} {measure}loss of {settings.target}"
    draws = HELD_OUT_DRAWS[run.kind]
    figures: dict[str, Any] = {"loss": loss, "source": source, "seed": seed, "noisy samples per column": draws, "levels": rows}
    if "optimum of the training set" not in columns:
        why = "it is known for squared errors only" if measure else "the training set is too large"
        figures["optimum of the training set"] = {"not_computable": why}
    notes = (
        "The optimum is the loss of the optimal denoiser of the training set on that set. Only a model that reproduces the"
        " training data reaches it; a model of the distribution stays above it, most of all at low noise.",
    )
    picture = _picture(t, columns, loss)
    errors = " ± 2 standard errors" if columns["held out"][0][1] is not None else ""
    caption = f"Mean loss in {levels} ranges of t{errors}; {draws} noisy samples, evenly spaced in t, seed {seed}"
    return ReportSection(NAME, TITLE, _verdict(columns, t), notes, figures, {caption: picture})


def _verdict(columns: dict[str, Column], t: np.ndarray) -> tuple[str, ...]:
    held, train = columns["held out"], columns.get("training")
    worst = int(np.argmax([value for value, _ in held]))
    lines = [f"The held-out loss is largest around t = {t[worst]:.2f}, at {held[worst][0]:.3g}."]
    if train is None or any(error is None for _, error in (*held, *train)):
        return tuple(lines)
    gaps = [(h[0] - s[0]) / max(math.hypot(h[1] or 0.0, s[1] or 0.0), 1e-300) for h, s in zip(held, train, strict=True)]
    overfitted = [k for k, gap in enumerate(gaps) if gap > SIGNIFICANT]
    if overfitted:
        where = ", ".join(f"{t[k]:.2f}" for k in overfitted)
        lines.append(f"The held-out loss exceeds the training loss around t = {where}: the model overfits there.")
    else:
        lines.append("Held-out and training loss do not differ significantly at any level.")
    return tuple(lines)
