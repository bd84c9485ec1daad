"""Sample quality by number of function evaluations (NFE) of the network."""

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

NAME, TITLE = "network_evaluations", "Quality by number of function evaluations"
SAMPLERS_SHOWN = ("ddpm", "ddim", "dpm++2m")
BUDGETS = (5, 10, 20, 40)
TOLERANCE = 0.25  # of the gap between the best figure and its floor: a larger difference is never "sufficient"

Quality = Callable[[Samples], tuple[float, float | None]]  # a figure, lower is better, and its standard error


def _picture(rows: Sequence[dict[str, Any]], what: str, floor: tuple[float, float] | None) -> bytes:
    fig = figure(7, 3.6)
    axes = fig.subplots()
    names = list(dict.fromkeys(row["sampler"] for row in rows))
    for k, name in enumerate(names):
        points = [row for row in rows if row["sampler"] == name]
        offset = 1.03 ** (k - (len(names) - 1) / 2)  # separates the error bars of different samplers
        axes.errorbar(
            [row["evaluations"] * offset for row in points], [row["value"] for row in points],
            yerr=[2 * (row["standard error"] or 0) for row in points],
            color=CYCLE[k % len(CYCLE)], marker="o", ms=4, lw=1.4, capsize=2, label=name,
        )  # fmt: skip
    if floor is not None:
        axes.axhline(floor[0], color=SOFT, lw=1, ls="--", label="real data")
        axes.axhspan(floor[0] - 2 * floor[1], floor[0] + 2 * floor[1], color=SOFT, alpha=0.15, lw=0)
    budgets = sorted({row["evaluations"] for row in rows})
    axes.set(xscale="log", xlabel="function evaluations per sample (NFE)", ylabel=what)
    axes.set_xticks(budgets, [str(b) for b in budgets])
    axes.minorticks_off()
    axes.set_title("Quality by number of function evaluations", fontsize=10, color=INK)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(fontsize=8, frameon=False)
    return png_bytes(fig)


def _is_within_noise(row: dict[str, Any], best: dict[str, Any], rows: int) -> bool:
    """Return whether a row is not significantly worse than the best of `rows` rows."""
    noise = math.hypot(row["standard error"] or 0, best["standard error"] or 0)
    return bool(row["value"] - best["value"] <= difference_threshold(rows) * noise)


def _format_row(row: dict[str, Any], unit: str) -> str:
    return f"{format_score({'value': row['value'], 'error': row['standard error']})} {unit}".rstrip()


def _verdict(rows: Sequence[dict[str, Any]], what: str, unit: str, floor: tuple[float, float]) -> str:
    """Return the smallest sufficient NFE as a sentence, if the rows differ significantly.

    Sufficient: not significantly worse than the best row, and within TOLERANCE, as large errors alone prove nothing.
    """
    best = min(rows, key=lambda row: float(row["value"]))
    if all(_is_within_noise(row, best, len(rows)) for row in rows):
        return f"No significant difference in {what} between samplers and numbers of function evaluations."
    tolerance = max(TOLERANCE * abs(best["value"] - floor[0]), floor[1])
    sufficient = [row for row in rows if _is_within_noise(row, best, len(rows)) and row["value"] - best["value"] <= tolerance]
    chosen = min(sufficient, key=lambda row: (int(row["evaluations"]), float(row["value"])))
    choice = f"{chosen['sampler']} with {chosen['evaluations']} function evaluations"
    if chosen is best:
        return f"{choice} has the lowest {what}, {_format_row(best, unit)}; fewer evaluations are worse."
    name = f"{best['sampler']} with {best['evaluations']}"
    return f"{choice} is sufficient: {what} {_format_row(chosen, unit)}; the lowest is {_format_row(best, unit)} ({name})."


def _evaluated_row(
    run: Run, quality: Quality, options: Options, samples: Samples, rows: Sequence[dict[str, Any]]
) -> list[dict[str, Any]]:
    """Return the row of the report's own samples, unless it is a duplicate or its NFE is unknown."""
    name, steps, _ = run.chosen_sampling(options)
    sampler, grid = run.sampling(options)
    nfe = sampler.evaluations(grid)
    scale = options.get("autoguidance")
    nfe = nfe if nfe is None or (run.autoguidance if scale is None else scale) == 1 else 2 * nfe
    if nfe is None or any((row["sampler"], row["evaluations"]) == (name, nfe) for row in rows):
        return []
    value, error = quality(samples)
    return [{"sampler": name, "evaluations": nfe, "steps": steps, "value": value, "standard error": error,
             "ms per sample": None}]  # fmt: skip


def nfe_section(
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
    """Measure n samples of each sampler with each budget: quality(samples) returns a figure and its standard error.

    Lower must be better.  what: the name of the figure; floor: the figure of real data and its error; evaluated: existing
    samples and their options.  All samplers start from the same noise.
    """
    spacing = build(GRIDS, run.chosen_sampling({})[2], "grid")
    rows: list[dict[str, Any]] = []
    networks = 1 if run.autoguidance == 1 else 2  # networks per estimate
    jobs = [(name, budget) for name in samplers for budget in counts]
    for k, (name, budget) in enumerate(jobs):
        sampler = build(SAMPLERS, name, "sampler")
        steps = affordable(sampler, spacing, run.diffusion.denoiser.schedule, budget // networks)
        if steps is None:
            raise UserError(f"the number of evaluations of {name} depends on the data; choose another sampler")
        start = time.perf_counter()
        samples = run.sample(n, sampler=name, steps=steps, seed=seed)
        seconds = (time.perf_counter() - start) / n
        value, error = quality(samples)
        nfe = networks * (sampler.evaluations(spacing(run.diffusion.denoiser.schedule, steps)) or 0)
        rows.append(
            {
                "sampler": name,
                "evaluations": nfe,
                "steps": steps,
                "value": value,
                "standard error": error,
                "ms per sample": 1e3 * seconds,
            }
        )
        if on_progress:
            on_progress(k + 1, len(jobs))
    if evaluated is not None:
        rows += _evaluated_row(run, quality, *evaluated, rows)
    verdict = (_verdict(rows, what, unit, floor or (0.0, 0.0)),)
    settings: dict[str, Any] = {
        "metric": what,
        "unit": unit or None,
        "samples": n,
        "seed": seed,
        "grid": run.chosen_sampling({})[2],
    }
    settings |= {"floor": score(*floor)} if floor else {}
    figures: dict[str, Any] = {**{key: value for key, value in settings.items() if value is not None}, "results": rows}
    notes = (
        f"Lower is better. Each figure has {n} samples, so its error is larger than that of all samples. All samplers start"
        " from the same noise, so their errors are correlated.",
    )
    caption = f"{what} by number of function evaluations ± 2 standard errors; n = {n}, seed {seed}"
    return ReportSection(NAME, TITLE, verdict, notes, figures, {caption: _picture(rows, what, floor)})
