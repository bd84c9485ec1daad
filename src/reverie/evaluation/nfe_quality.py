"""Quality against network evaluations: what a faster sampler costs."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from typing import Any

from reverie.base.errors import UserError
from reverie.base.progress import OnCount
from reverie.base.spec import build
from reverie.diffusion.samplers import GRIDS, SAMPLERS, affordable
from reverie.draw.picture import CYCLE, INK, SOFT, figure, png_bytes
from reverie.evaluation.report_section import ReportSection
from reverie.evaluation.scores import difference_threshold, format_score, score
from reverie.runs.run import Run
from reverie.runs.samples import Samples
from reverie.runs.sampling_options import Options

NAME, TITLE = "network_evaluations", "Quality against network evaluations"
SAMPLERS_SHOWN = ("ddpm", "ddim", "dpm++2m")
BUDGETS = (5, 10, 20, 40)
MATTERS = 0.25  # of what the best lies above real data: what more than that is worse is not as good, however unsure

Quality = Callable[[Samples], tuple[float, float | None]]  # a value, the less the better, and its standard error


def _picture(rows: Sequence[dict[str, Any]], what: str, floor: tuple[float, float] | None) -> bytes:
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
        axes.axhline(floor[0], color=SOFT, lw=1, ls="--", label="real data")
        axes.axhspan(floor[0] - 2 * floor[1], floor[0] + 2 * floor[1], color=SOFT, alpha=0.15, lw=0)
    budgets = sorted({row["evaluations"] for row in rows})
    axes.set(xscale="log", xlabel="network evaluations for a sample", ylabel=what)
    axes.set_xticks(budgets, [str(b) for b in budgets])
    axes.minorticks_off()
    axes.set_title("What more evaluations buy", fontsize=10, color=INK)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(fontsize=8, frameon=False)
    return png_bytes(made)


def _within_noise(row: dict[str, Any], best: dict[str, Any], rows: int) -> bool:
    """Tell whether one of some rows is not worse than the best by more than luck makes it once in twenty."""
    noise = math.hypot(row["standard error"] or 0, best["standard error"] or 0)
    return bool(row["value"] - best["value"] <= difference_threshold(rows) * noise)


def _said(row: dict[str, Any], unit: str) -> str:
    return f"{format_score({'value': row['value'], 'error': row['standard error']})} {unit}".rstrip()


def _verdict(rows: Sequence[dict[str, Any]], what: str, unit: str, floor: tuple[float, float]) -> str:
    """Say how few evaluations are enough, if that can be known.

    To be enough is to be as good as the best that was measured: within noise, and by so little that it does not matter, for
    large noise would let anything pass.
    """
    best = min(rows, key=lambda row: float(row["value"]))
    if all(_within_noise(row, best, len(rows)) for row in rows):
        return f"No sampler and no number of evaluations differs from the others by more than noise in its {what}."
    little = max(MATTERS * abs(best["value"] - floor[0]), floor[1])
    good = [row for row in rows if _within_noise(row, best, len(rows)) and row["value"] - best["value"] <= little]
    enough = min(good, key=lambda row: (int(row["evaluations"]), float(row["value"])))
    choice = f"{enough['sampler']} with {enough['evaluations']} network evaluations"
    if enough is best:
        return f"{choice} has the least {what}, {_said(best, unit)}; no fewer evaluations were found to be as good."
    name = f"{best['sampler']} with {best['evaluations']}"
    return f"{choice} is enough: its {what} is {_said(enough, unit)}; the least of all, {_said(best, unit)}, has {name}."


def _drawn_before(
    run: Run, quality: Quality, options: Options, samples: Samples, rows: Sequence[dict[str, Any]]
) -> list[dict[str, Any]]:
    """Return the row of samples that were drawn for the rest of the report, unless it is there or its cost is not known."""
    name, steps, _ = run.chosen_sampling(options)
    sampler, grid = run.sampling(options)
    spent = sampler.evaluations(grid)
    asked = options.get("autoguidance")
    spent = spent if spent is None or (run.autoguidance if asked is None else asked) == 1 else 2 * spent
    if spent is None or any((row["sampler"], row["evaluations"]) == (name, spent) for row in rows):
        return []
    value, error = quality(samples)
    return [{"sampler": name, "evaluations": spent, "steps": steps, "value": value, "standard error": error,
             "ms for a sample": None}]  # fmt: skip


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
    floor: tuple[float, float] | None = None,
    evaluated: tuple[Options, Samples] | None = None,
    on_progress: OnCount | None = None,
) -> ReportSection:
    """Draw n samples with each sampler and budget and measure them: quality(samples) gives a value and its standard error.

    Less must be better.  what: its name; floor: the value of real data and its error; evaluated: samples that are there
    already, and how they were drawn.  The noise of a sample is the same everywhere.
    """
    spacing = build(GRIDS, run.chosen_sampling({})[2], "grid")
    rows: list[dict[str, Any]] = []
    each = 1 if run.autoguidance == 1 else 2  # networks that an estimate takes
    jobs = [(name, budget) for name in samplers for budget in counts]
    for k, (name, budget) in enumerate(jobs):
        sampler = build(SAMPLERS, name, "sampler")
        steps = affordable(sampler, spacing, run.diffusion.denoiser.schedule, budget // each)
        if steps is None:
            raise UserError(f"the cost of {name} depends on the data, so it cannot be given a number of evaluations")
        begun = time.perf_counter()
        samples = run.sample(n, sampler=name, steps=steps, seed=seed)
        seconds = (time.perf_counter() - begun) / n
        value, error = quality(samples)
        spent = each * (sampler.evaluations(spacing(run.diffusion.denoiser.schedule, steps)) or 0)
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
    if evaluated is not None:
        rows += _drawn_before(run, quality, *evaluated, rows)
    verdict = (_verdict(rows, what, unit, floor or (0.0, 0.0)),)
    beside: dict[str, Any] = {
        "measure": what,
        "unit": unit or None,
        "samples": n,
        "seed": seed,
        "grid": run.chosen_sampling({})[2],
    }
    beside |= {"floor": score(*floor)} if floor else {}
    figures: dict[str, Any] = {**{key: value for key, value in beside.items() if value is not None}, "results": rows}
    words = (
        f"Less is better. Each figure is of {n} samples, so it is less sure than that of all samples. Every sampler starts from"
        " the same noise, so the figures tend to err together.",
    )
    caption = f"{what} against network evaluations ± 2 standard errors; n = {n}, seed {seed}"
    return ReportSection(NAME, TITLE, verdict, words, figures, {caption: _picture(rows, what, floor)})
