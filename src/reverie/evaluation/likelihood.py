"""What held-out data cost under a run: the bound as its parts, and the log-probability by the flow."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from reverie.base.errors import UserError
from reverie.base.noise import image_seeds
from reverie.base.progress import OnCount
from reverie.data import Dataset
from reverie.diffusion.error_curve import LEVELS, ErrorCurve
from reverie.diffusion.likelihood import Bound, LogProb, Tightened, mean_and_error
from reverie.diffusion.likelihood.ends import PLACES as ENDS
from reverie.draw.curves import label_axes
from reverie.draw.picture import ACCENT, SOFT, WARM, figure, png_bytes
from reverie.evaluation.bound_parts import bars, bound_parts
from reverie.evaluation.report_section import ReportSection
from reverie.evaluation.scores import format_score, score
from reverie.runs.error_curve_file import MEASURED, measure_error_curve
from reverie.runs.run import Run

NAME, TITLE = "likelihood", "Likelihood of held-out data"
BANDS = 24  # ranges of the log-SNR that are drawn
GUESS = 1 / (2 * math.log(2))  # bits/dim for a unit of log-SNR when noise is predicted to be 0
CHOOSING = 32  # training data by which it is chosen where the bounds end
DRAWS = 16  # noise levels for each datum in continuous time
PATHS = 8  # for each datum, of the bound by several paths
WALKED = 16  # data that it is told of
FOLLOWED = 450  # passes that the flow of a datum takes, about, of which two thirds are for its derivative


def passes(run: Run, bounded: int, followed: int) -> int:
    """Return about how many passes of a datum through the network a likelihood takes: those in full digits count twice."""
    chosen, chain = CHOOSING * 2 * ENDS, bounded * (len(run.sampling({})[1]) + DRAWS)
    return 2 * (chosen + MEASURED * LEVELS + chain + followed * FOLLOWED)


def _joined(parts: Sequence[Bound]) -> Bound:
    names = ("prior", "denoising", "reconstruction", "log_snr")
    return Bound(**{name: torch.cat([getattr(p, name).cpu() for p in parts]) for name in names}, size=parts[0].size)


def _measure(
    run: Run, x: Tensor, labels: Tensor | None, seed: int, grid: Tensor, variance: str, error: ErrorCurve | None,
    end: float | None, flow_n: int, tolerance: float, probes: int, paths: int, on_progress: OnCount | None,
) -> tuple[Bound, Bound, LogProb, Tightened | None]:  # fmt: skip
    """Return the bound of the chain and in continuous time, the log-probability, and the chain's bound by several paths.

    All data are bounded, the first flow_n followed, and the first few of them walked by several paths.
    """
    device, size = run.diffusion.device, run.batch_size()
    counts = {"bounds": len(x), "flow": flow_n, "paths": min(len(x), WALKED) if paths else 0}
    jobs = [(kind, part) for kind, n in counts.items() for part in torch.arange(n).split(size) if n]
    chains, integrals, flows, tights = [], [], [], []
    seeds = image_seeds(seed, len(x))
    for k, (kind, part) in enumerate(jobs):
        batch, cond = x[part].to(device), labels[part].to(device) if labels is not None else None
        if kind == "bounds":
            chains.append(run.diffusion.bound(batch, cond, seeds[part], grid, variance, end=end, error=error))
            integrals.append(run.diffusion.bound(batch, cond, seeds[part], draws=DRAWS, end=end))
        elif kind == "flow":
            flows.append(run.diffusion.log_prob(batch, cond, seeds[part], tolerance, probes))
        else:
            tights.append(run.diffusion.importance_weighted(batch, cond, seeds[part], grid, variance, paths, end, error))
        if on_progress:
            on_progress(k + 1, len(jobs))
    first = flows[0]
    flow = LogProb(
        torch.cat([f.nats.cpu() for f in flows]), torch.cat([f.error.cpu() for f in flows]),
        max(f.evaluations for f in flows), first.divergence, first.size,
    )  # fmt: skip
    tight = None
    if tights:
        tight = Tightened(torch.cat([t.nats.cpu() for t in tights]), torch.cat([t.single.cpu() for t in tights]), paths)
    return _joined(chains), _joined(integrals), flow, tight


def _figure(values: Tensor, unit: str, seed: int) -> dict[str, Any]:
    value, error = mean_and_error(values)
    return score(value, error, unit=unit, n=len(values), seed=seed)


def _rows(bound: Bound, scale: float) -> list[dict[str, Any]]:
    rows = []
    for name, nats in {**bound.parts(), "whole": bound.nats}.items():
        value, error = mean_and_error(nats)
        row = {"part": name, "nats": value, "standard error (nats)": error, "bits/dim": value / scale}
        rows.append({**row, "standard error (bits/dim)": error / scale if error is not None else None})
    return rows


def _bands(bound: Bound) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the middles of ranges of the log-SNR, what they cost in bits/dim for a unit of it, and the standard errors."""
    place, cost = bound.log_snr.double(), bound.denoising / (bound.size * math.log(2))
    # A piece stands for its share of tau = log(1 + alpha / sigma): d log_snr = 2 (1 + exp(-log_snr / 2)) dtau.
    tau = torch.nn.functional.softplus(place / 2)
    width = (tau.max() - tau.min()) / bound.denoising.shape[1]
    density = cost / (2 * (1 + torch.exp(-place / 2)) * width)
    edges = torch.linspace(float(place.quantile(0.02)), float(place.max()), BANDS + 1, dtype=torch.float64)
    which = torch.bucketize(place, edges) - 1
    rows = [density[which == k] for k in range(BANDS)]
    kept = [k for k, row in enumerate(rows) if len(row) > 1]
    middles = ((edges[1:] + edges[:-1]) / 2)[kept]
    means = torch.stack([rows[k].mean() for k in kept])
    errors = torch.stack([rows[k].std() / math.sqrt(len(rows[k])) for k in kept])
    return middles.numpy(), means.numpy(), errors.numpy()


def _picture(integral: Bound, figures: dict[str, dict[str, Any]], unit: str, reference: tuple[str, float] | None) -> bytes:
    made = figure(9, 3.4)
    left, right = made.subplots(1, 2, width_ratios=(4, 3))
    middles, means, errors = _bands(integral)
    left.fill_between(middles, means - 2 * errors, means + 2 * errors, color=ACCENT, alpha=0.2, lw=0)
    left.plot(middles, means, color=ACCENT, lw=1.6)
    left.axhline(GUESS, color=SOFT, lw=1, ls="--")
    left.annotate("noise not predicted at all", (middles[0], GUESS), (0, 3), textcoords="offset points", fontsize=8, color=SOFT)
    left.set_ylim(0, 1.15 * max(GUESS, float(means.max())))
    label_axes(left, "What each noise level costs", "log-SNR, from much noise to little", "bits/dim for a unit of log-SNR")
    for k, (name, found) in enumerate(figures.items()):
        colour = WARM if name == "flow" else ACCENT
        right.errorbar(found["value"], -k, xerr=2 * found.get("error", 0.0), fmt="o", color=colour, capsize=3, ms=5)
    if reference:
        right.axvline(reference[1], color=SOFT, lw=1, ls="--")
        right.annotate(reference[0], (reference[1], 0.5), (-4, 0), textcoords="offset points", ha="right", va="top", fontsize=8,
                       color=SOFT)  # fmt: skip
    right.set_yticks(range(0, -len(figures), -1), [name.replace(", ", ",\n") for name in figures])
    right.set_ylim(-len(figures) + 0.4, 0.6)
    label_axes(right, "What a datum costs", f"{unit} ± 2 standard errors", "")
    return png_bytes(made)


def _reference(x: Tensor) -> float:
    """Return what points cost under the normal distribution that fits them best, in nats: that of their own moments.

    No finite number where the points fill no volume: too few of them, or all on one line or plane.
    """
    covariance = torch.atleast_2d(x.double().T.cov(correction=1 if len(x) > 1 else 0))
    full = int(torch.linalg.matrix_rank(covariance, hermitian=True)) == len(covariance)
    return float(torch.logdet(2 * math.pi * math.e * covariance) / 2) if full else math.nan


def _checked(run: Run, x: Tensor | None, labels: Tensor | None, n: int) -> tuple[Tensor, Tensor | None]:
    run.require_means()
    if x is None or not len(x):
        raise UserError("there are no held-out data: they are gone, or the set is too small to have any")
    if tuple(x.shape[1:]) != tuple(run.diffusion.shape):
        raise UserError(f"the data have the shape {tuple(x.shape[1:])} and the run models {tuple(run.diffusion.shape)}")
    run.diffusion.codec.log_cell(run.diffusion.shape)  # or a refusal, before anything is measured
    if labels is not None and not run.conditional:
        labels = None
    if labels is None and run.config.data.labels and not run.diffusion_settings.label_dropout:
        raise UserError("the run was trained with every label told, and these data have no labels")
    return x[:n], labels[:n] if labels is not None else None


def _chosen_end(run: Run, train: Dataset, seed: int) -> float:
    """Return the end at which the bound of training data is least, which held-out data are then not asked about."""
    x, labels = train.batch(torch.linspace(0, len(train) - 1, min(len(train), CHOOSING), dtype=torch.float64).long())
    device, cond = run.diffusion.device, labels if run.conditional else None
    cond = cond.to(device) if cond is not None else None
    return run.diffusion.best_end(x.to(device), cond, image_seeds(seed, len(x)))


def _variance(run: Run, train: Dataset | None) -> str:
    """Return the best variance of the chain's steps that is known; "posterior" is far too small where steps are few."""
    if run.diffusion.denoiser.has_variance:
        return "learned"
    return "optimal" if train is not None else "forward"


def likelihood_section(
    run: Run,
    x: Tensor | None,
    labels: Tensor | None = None,
    *,
    train: Dataset | None = None,
    n: int = 256,
    flow_n: int = 64,
    seed: int = 0,
    steps: int | None = None,
    tolerance: float = 1e-3,
    probes: int = 1,
    paths: int = 0,
    on_progress: OnCount | None = None,
) -> ReportSection:
    """Measure what n held-out data cost under a run, and flow_n of them by the flow as well.

    x: (N, ...) in user units as a data set gives them, images in [0, 1]; labels: (N,); train: data by which it is chosen where
    the bounds end, which is the schedule's t_min without, and what variance the chain's steps have; steps: of the chain, those
    of sampling if not told; paths: for each of a few data, to tell how much of the chain's bound is its own gap, none if 0;
    on_progress is told (done, of).
    """
    try:
        x, labels = _checked(run, x, labels, n)
        grid = run.sampling({"steps": steps})[1]
        flow_n = max(1, min(flow_n, len(x)))
        end = _chosen_end(run, train, seed) if train is not None else None
        variance = _variance(run, train)
        error = measure_error_curve(run, train, seed) if train is not None and variance == "optimal" else None
        found = _measure(run, x, labels, seed, grid, variance, error, end, flow_n, tolerance, probes, paths, on_progress)
        return _said(run, x, labels, seed, grid, variance, end, *found, tolerance)
    except UserError as error:
        return ReportSection(NAME, TITLE, figures={"not_computable": str(error)})


def _said(
    run: Run, x: Tensor, labels: Tensor | None, seed: int, grid: Tensor, variance: str, end: float | None, chain: Bound,
    integral: Bound, flow: LogProb, tight: Tightened | None, tolerance: float,
) -> ReportSection:  # fmt: skip
    levels = run.diffusion.codec.levels
    images = levels is not None
    scale = chain.size * math.log(2)
    unit, per, what = ("bits/dim", scale, "image") if images else ("nats", 1.0, "point")
    found = {
        f"bound, {len(grid)} steps": _figure(chain.nats / per, unit, seed),
        "bound, continuous time": _figure(integral.nats / per, unit, seed),
        "flow": _figure(-flow.nats / per, unit, seed),
    }
    if tight is not None:
        found[f"bound, {len(grid)} steps, {tight.paths} paths"] = _figure(tight.nats / per, unit, seed)
    name, cost = ("uniform noise", math.log2(levels)) if levels else ("the best normal", _reference(x))
    reference = (name, cost) if math.isfinite(cost) else None
    gap = _figure((integral.nats[: len(flow.nats)] + flow.nats) / per, unit, seed)
    best = min(found.values(), key=lambda row: float(row["value"]))
    at_most, exact = (format_score(found[name]) for name in ("bound, continuous time", "flow"))
    beside = f"; {reference[0]} costs {reference[1]:.3g}" if reference else ""
    verdict = [f"A held-out {what} costs {exact} {unit} by the flow and at most {at_most} by the bound{beside}."]
    if reference and best["value"] >= reference[1]:
        verdict.append(f"That is no better than {reference[0]}: the model has not learned the density of the data.")
    if len(x) > 1 and (
        loud := [place for place, cost, error in zip(*_bands(integral), strict=True) if cost - 3 * error > GUESS]
    ):
        verdict.append(
            f"Where the log-SNR is above {loud[0]:.1f}, the network predicts the noise worse than if it predicted none,"
            " and most of the bound is paid there."
        )
    if "error" not in best:
        verdict.append("One datum gives no standard error; hold out more to know how sure this is.")
    if "error" in gap and gap["value"] < -3 * gap["error"]:
        verdict.append("The flow finds data less probable than the bound does, so the two do not model the same density.")
    parts = bound_parts(integral, per, unit)
    figures: dict[str, Any] = {
        **found,
        "bound minus flow": gap,
        **({f"gain of {tight.paths} paths": _figure(tight.gap / per, unit, seed)} if tight is not None else {}),
        **({"reference": {"value": reference[1], "unit": f"{unit}, {reference[0]}"}} if reference else {}),
        "condition": "the label of each datum" if labels is not None else "none",
        "dimensions": chain.size,
        "chain": f"DDPM, {len(grid)} steps, variance {variance}",
        "noise levels for each datum in continuous time": integral.denoising.shape[1],
        "end of the bounds": run.diffusion.denoiser.schedule.t_min if end is None else end,
        **({"dequantisation": run.diffusion.dequantiser} if images else {}),
        "divergence": flow.divergence,
        "tolerance": tolerance,
        "network evaluations of the flow": flow.evaluations,
        f"parts of the bound, {len(grid)} steps": _rows(chain, scale),
        "parts of the bound, continuous time": _rows(integral, scale),
        "the bound by log-SNR": parts,
    }
    if len(flow.nats) and bool(flow.error.isfinite().all()):
        figures["standard error of one datum by its divergence (nats)"] = float(flow.error.square().mean().sqrt())
    words = (
        "A bound is at least what the data cost under the model that draws fresh noise at each step; the flow is the exact"
        " cost under the one that draws none. These are two models that agree when the network is perfect, so for a trained"
        " one the order of the two figures is usual, not certain.",
        f"Bits/dim count every level of the images, {levels} of them; the flow adds {run.diffusion.dequantiser} noise within a"
        " level, which can only raise the cost."
        if images
        else "Nats are those of a density in the units of the data, and may be negative; only differences mean something.",
        *(
            ()
            if tight is None
            else (
                f"With {tight.paths} paths for each of {len(tight.nats)} data, weighted by how well they explain it, the"
                f" bound of {len(grid)} steps falls by {format_score(_figure(tight.gap / per, unit, seed))} {unit}: at least so"
                " much of it is the gap between the bound and the exact NLL, KL(q(path | x) || p(path | x)).",
            )
        ),
        *(
            ()
            if end is None
            else (f"Both bounds leave what is finer than the noise at t = {end:.3g} to decoding: the best for training data.",)
        ),
        "Errors are standard errors over the data.",
    )
    pictures = {}
    if len(x) > 1:
        counts = f"n = {len(x)} ({len(flow.nats)} by the flow), seed {seed}"
        caption = f"Bits/dim by noise level, and what a held-out {what} costs; {counts}"
        pictures[caption] = _picture(integral, found, unit, reference)
        whole = f"What the bound of {format_score(found['bound, continuous time'])} {unit} is made of, ± 2 standard errors"
        pictures[f"{whole}; n = {len(x)}, seed {seed}"] = bars(parts, unit)
    return ReportSection(NAME, TITLE, tuple(verdict), words, figures, pictures)
