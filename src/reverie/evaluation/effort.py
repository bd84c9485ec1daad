"""Quality against network evaluations: what a faster sampler costs."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from typing import Any

from reverie.errors import UserError
from reverie.evaluation.section import Section
from reverie.picture import CYCLE, INK, SOFT, figure, png_bytes
from reverie.run import Progress, Run
from reverie.samplers import GRIDS, SAMPLERS, affordable
from reverie.samples import Samples
from reverie.spec import build

NAME, TITLE = "network_evaluations", "Quality against network evaluations"
SAMPLERS_SHOWN = ("ddpm", "ddim", "dpm++2m")
BUDGETS = (5, 10, 20, 40)

Quality = Callable[[Samples], tuple[float, float | None]]  # a value, the less the better, and its standard error


def _picture(rows: Sequence[dict[str, Any]], what: str, floor: float | None) -> bytes:
    made = figure(7, 3.6)
    axes = made.subplots()
    names = list(dict.fromkeys(row["sampler"] for row in rows))
    for k, name in enumerate(names):
        mine = [row for row in rows if row["sampler"] == name]
        spread = 1.03 ** (k - (len(names) - 1) / 2)  # so that error bars of different samplers do not cover each other
        axes.errorbar(
            [row["evaluations"] * spread for row in mine], [row["value"] for row in mine],
            yerr=[2 * (row["standard error"] or 0) for row in mine],
            color=CYCLE[k % len(CYCLE)], marker="o", ms=4, lw=1.4, capsize=2, label=name,
        )  # fmt: skip
    if floor is not None:
        axes.axhline(floor, color=SOFT, lw=1, ls="--", label="floor: held-out data")
    budgets = sorted({row["evaluations"] for row in rows})
    axes.set(xscale="log", xlabel="network evaluations for a sample", ylabel=what)
    axes.set_xticks(budgets, [str(b) for b in budgets])
    axes.minorticks_off()
    axes.set_title("What more evaluations buy", fontsize=10, color=INK)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(fontsize=8, frameon=False)
    return png_bytes(made)


def _as_good(row: dict[str, Any], best: dict[str, Any]) -> bool:
    """Tell whether a row is not worse than the best by more than two standard errors of the difference."""
    return bool(row["value"] - best["value"] <= 2 * math.hypot(row["standard error"] or 0, best["standard error"] or 0))


def evaluations_section(
    run: Run,
    quality: Quality,
    *,
    what: str,
    unit: str = "",
    n: int = 256,
    seed: int = 0,
    counts: Sequence[int] = BUDGETS,
    samplers: Sequence[str] = SAMPLERS_SHOWN,
    floor: float | None = None,
    on_progress: Progress | None = None,
) -> Section:
    """Draw n samples with each sampler and budget and measure them: quality(samples) gives a value and its standard error.

    Less must be better.  what: its name; floor: the value of held-out data.  The noise of a sample is the same everywhere.
    """
    spacing = build(GRIDS, run.usual({})[2], "grid")
    rows: list[dict[str, Any]] = []
    jobs = [(name, budget) for name in samplers for budget in counts]
    for k, (name, budget) in enumerate(jobs):
        sampler = build(SAMPLERS, name, "sampler")
        steps = affordable(sampler, spacing, run.model.denoiser.schedule, budget)
        if steps is None:
            raise UserError(f"the cost of {name} depends on the data, so it cannot be given a number of evaluations")
        begun = time.perf_counter()
        samples = run.sample(n, sampler=name, steps=steps, seed=seed)
        seconds = (time.perf_counter() - begun) / n
        value, error = quality(samples)
        spent = sampler.evaluations(spacing(run.model.denoiser.schedule, steps))
        rows.append(
            {
                "sampler": name,
                "evaluations": spent,
                "steps": steps,
                "value": value,
                "standard error": error,
                "ms for a sample": 1e3 * seconds,
            }
        )
        if on_progress:
            on_progress(k + 1, len(jobs))
    best = min(rows, key=lambda row: float(row["value"]))
    enough = min((row for row in rows if _as_good(row, best)), key=lambda row: int(row["evaluations"]))
    least = f"{enough['value']:.3g} {unit}".strip()
    if all(_as_good(row, best) for row in rows):
        verdict = (f"No sampler and no number of evaluations differs from the others by more than noise in its {what}.",)
    else:
        choice = f"{enough['sampler']} with {enough['evaluations']} network evaluations is enough"
        verdict = (f"{choice}: its {what} is {least}, and none is better by more than noise.",)
    beside = {"measure": what, "unit": unit or None, "samples": n, "seed": seed, "grid": run.usual({})[2], "floor": floor}
    figures: dict[str, Any] = {**{key: value for key, value in beside.items() if value is not None}, "results": rows}
    words = ("Less is better. Every sampler starts from the same noise, so the figures tend to err together.",)
    caption = f"{what} against network evaluations ± 2 standard errors; n = {n}, seed {seed}"
    return Section(NAME, TITLE, verdict, words, figures, {caption: _picture(rows, what, floor)})
