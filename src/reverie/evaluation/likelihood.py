"""The negative log-likelihood (NLL) of held-out data under a diffusion: the ELBO with its terms, and the probability flow."""

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
from reverie.diffusion.likelihood.ends import END_TIMES
from reverie.draw.curves import label_axes
from reverie.draw.picture import ACCENT, SOFT, WARM, figure, png_bytes
from reverie.evaluation.bound_parts import bars, bound_parts
from reverie.evaluation.report_section import ReportSection
from reverie.evaluation.scores import format_score, score
from reverie.runs.error_curve_file import MEASURED, measure_error_curve
from reverie.runs.run import Run

NAME, TITLE = "likelihood", "Likelihood of held-out data"
BANDS = 24  # ranges of the log-SNR in the picture
ZERO_NOISE = 1 / (2 * math.log(2))  # bits/dim per unit of log-SNR if the noise estimate is 0
END_DATA = 32  # training data for selecting the end of the bounds
DRAWS = 16  # noise levels per datum in continuous time
PATHS = 8  # per datum, for the importance-weighted bound
WEIGHTED = 16  # data with an importance-weighted bound
FLOW_PASSES = 450  # approximate network passes per datum of the flow, two thirds of them for the divergence


def passes(run: Run, bounded: int, flow: int) -> int:
    """Return the approximate number of network passes of the section; passes in float64 count twice."""
    for_end, chain = END_DATA * 2 * END_TIMES, bounded * (len(run.sampling({})[1]) + DRAWS)
    return 2 * (for_end + MEASURED * LEVELS + chain + flow * FLOW_PASSES)


def _concatenate(parts: Sequence[Bound]) -> Bound:
    names = ("prior", "denoising", "reconstruction", "log_snr")
    return Bound(**{name: torch.cat([getattr(p, name).cpu() for p in parts]) for name in names}, size=parts[0].size)


def _measure(
    run: Run, x: Tensor, labels: Tensor | None, seed: int, grid: Tensor, variance: str, error: ErrorCurve | None,
    end: float | None, flow_n: int, tolerance: float, probes: int, paths: int, on_progress: OnCount | None,
) -> tuple[Bound, Bound, LogProb, Tightened | None]:  # fmt: skip
    """Return the bounds of the chain and in continuous time, the log-probability, and the importance-weighted bound.

    The bounds use all data, the flow the first flow_n, and importance weighting the first WEIGHTED.
    """
    device, size = run.diffusion.device, run.batch_size()
    counts = {"bounds": len(x), "flow": flow_n, "paths": min(len(x), WEIGHTED) if paths else 0}
    jobs = [(kind, part) for kind, n in counts.items() for part in torch.arange(n).split(size) if n]
    chains, integrals, flows, tightened = [], [], [], []
    seeds = image_seeds(seed, len(x))
    for k, (kind, part) in enumerate(jobs):
        batch, cond = x[part].to(device), labels[part].to(device) if labels is not None else None
        if kind == "bounds":
            chains.append(run.diffusion.bound(batch, cond, seeds[part], grid, variance, end=end, error=error))
            integrals.append(run.diffusion.bound(batch, cond, seeds[part], draws=DRAWS, end=end))
        elif kind == "flow":
            flows.append(run.diffusion.log_prob(batch, cond, seeds[part], tolerance, probes))
        else:
            tightened.append(run.diffusion.importance_weighted(batch, cond, seeds[part], grid, variance, paths, end, error))
        if on_progress:
            on_progress(k + 1, len(jobs))
    first = flows[0]
    flow = LogProb(
        torch.cat([f.nats.cpu() for f in flows]), torch.cat([f.error.cpu() for f in flows]),
        max(f.evaluations for f in flows), first.divergence, first.size,
    )  # fmt: skip
    weighted = None
    if tightened:
        weighted = Tightened(
            torch.cat([t.nats.cpu() for t in tightened]), torch.cat([t.single.cpu() for t in tightened]), paths
        )
    return _concatenate(chains), _concatenate(integrals), flow, weighted


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
    """Return the centers of ranges of the log-SNR, their bits/dim per unit of log-SNR, and the standard errors."""
    log_snr, terms = bound.log_snr.double(), bound.denoising / (bound.size * math.log(2))
    # Each term covers an equal share of tau = log(1 + alpha / sigma), and d log_snr = 2 (1 + exp(-log_snr / 2)) dtau.
    tau = torch.nn.functional.softplus(log_snr / 2)
    width = (tau.max() - tau.min()) / bound.denoising.shape[1]
    density = terms / (2 * (1 + torch.exp(-log_snr / 2)) * width)
    edges = torch.linspace(float(log_snr.quantile(0.02)), float(log_snr.max()), BANDS + 1, dtype=torch.float64)
    band = torch.bucketize(log_snr, edges) - 1
    rows = [density[band == k] for k in range(BANDS)]
    nonempty = [k for k, row in enumerate(rows) if len(row) > 1]
    centers = ((edges[1:] + edges[:-1]) / 2)[nonempty]
    means = torch.stack([rows[k].mean() for k in nonempty])
    errors = torch.stack([rows[k].std() / math.sqrt(len(rows[k])) for k in nonempty])
    return centers.numpy(), means.numpy(), errors.numpy()


def _picture(integral: Bound, figures: dict[str, dict[str, Any]], unit: str, reference: tuple[str, float] | None) -> bytes:
    fig = figure(9, 3.4)
    left, right = fig.subplots(1, 2, width_ratios=(4, 3))
    centers, means, errors = _bands(integral)
    left.fill_between(centers, means - 2 * errors, means + 2 * errors, color=ACCENT, alpha=0.2, lw=0)
    left.plot(centers, means, color=ACCENT, lw=1.6)
    left.axhline(ZERO_NOISE, color=SOFT, lw=1, ls="--")
    label = "noise estimate 0"
    left.annotate(label, (centers[0], ZERO_NOISE), (0, 3), textcoords="offset points", fontsize=8, color=SOFT)
    left.set_ylim(0, 1.15 * max(ZERO_NOISE, float(means.max())))
    label_axes(left, "NLL by noise level", "log-SNR, from noise to data", "bits/dim per unit of log-SNR")
    for k, (name, row) in enumerate(figures.items()):
        colour = WARM if name == "flow" else ACCENT
        right.errorbar(row["value"], -k, xerr=2 * row.get("error", 0.0), fmt="o", color=colour, capsize=3, ms=5)
    if reference:
        right.axvline(reference[1], color=SOFT, lw=1, ls="--")
        right.annotate(reference[0], (reference[1], 0.5), (-4, 0), textcoords="offset points", ha="right", va="top", fontsize=8,
                       color=SOFT)  # fmt: skip
    right.set_yticks(range(0, -len(figures), -1), [name.replace(", ", ",\n") for name in figures])
    right.set_ylim(-len(figures) + 0.4, 0.6)
    label_axes(right, "NLL per datum", f"{unit} ± 2 standard errors", "")
    return png_bytes(fig)


def _reference(x: Tensor) -> float:
    """Return the NLL in nats of points under the Gaussian with their mean and covariance.

    It is NaN for degenerate points: too few of them, or all on a line or plane.
    """
    covariance = torch.atleast_2d(x.double().T.cov(correction=1 if len(x) > 1 else 0))
    full = int(torch.linalg.matrix_rank(covariance, hermitian=True)) == len(covariance)
    return float(torch.logdet(2 * math.pi * math.e * covariance) / 2) if full else math.nan


def _checked(run: Run, x: Tensor | None, labels: Tensor | None, n: int) -> tuple[Tensor, Tensor | None]:
    run.require_means()
    if x is None or not len(x):
        raise UserError("there are no held-out data: they are missing, or the dataset is too small to hold any out")
    if tuple(x.shape[1:]) != tuple(run.diffusion.shape):
        raise UserError(f"the data have the shape {tuple(x.shape[1:])}, and the run models {tuple(run.diffusion.shape)}")
    run.diffusion.codec.log_cell(run.diffusion.shape)  # raises an error if the codec has no density
    if labels is not None and not run.conditional:
        labels = None
    if labels is None and run.config.data.labels and not run.diffusion_settings.label_dropout:
        raise UserError("the run was trained without label dropout, and these data have no labels; use labelled data")
    return x[:n], labels[:n] if labels is not None else None


def _chosen_end(run: Run, train: Dataset, seed: int) -> float:
    """Return the end of the bounds that minimizes the bound of training data."""
    x, labels = train.batch(torch.linspace(0, len(train) - 1, min(len(train), END_DATA), dtype=torch.float64).long())
    device, cond = run.diffusion.device, labels if run.conditional else None
    cond = cond.to(device) if cond is not None else None
    return run.diffusion.best_end(x.to(device), cond, image_seeds(seed, len(x)))


def _variance(run: Run, train: Dataset | None) -> str:
    """Return the best available variance of the chain's steps; "posterior" is far too small with few steps."""
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
    """Measure the NLL of n held-out data by the ELBO, and of flow_n of them by the probability flow.

    x: (N, ...) in user units, images in [0, 1]; labels: (N,); train: training data, which determine the end of the bounds
    (otherwise t_min) and the variance of the chain's steps; steps: of the chain, by default those of sampling; paths: per
    datum for the importance-weighted bound, 0 for none; on_progress: called with (done, of).
    """
    try:
        x, labels = _checked(run, x, labels, n)
        grid = run.sampling({"steps": steps})[1]
        flow_n = max(1, min(flow_n, len(x)))
        end = _chosen_end(run, train, seed) if train is not None else None
        variance = _variance(run, train)
        error = measure_error_curve(run, train, seed) if train is not None and variance == "optimal" else None
        measured = _measure(run, x, labels, seed, grid, variance, error, end, flow_n, tolerance, probes, paths, on_progress)
        return _section(run, x, labels, seed, grid, variance, end, *measured, tolerance)
    except UserError as error:
        return ReportSection(NAME, TITLE, figures={"not_computable": str(error)})


def _section(
    run: Run, x: Tensor, labels: Tensor | None, seed: int, grid: Tensor, variance: str, end: float | None, chain: Bound,
    integral: Bound, flow: LogProb, weighted: Tightened | None, tolerance: float,
) -> ReportSection:  # fmt: skip
    levels = run.diffusion.codec.levels
    images = levels is not None
    scale = chain.size * math.log(2)
    unit, divisor, what = ("bits/dim", scale, "image") if images else ("nats", 1.0, "point")
    bounds = {
        f"bound, {len(grid)} steps": _figure(chain.nats / divisor, unit, seed),
        "bound, continuous time": _figure(integral.nats / divisor, unit, seed),
        "flow": _figure(-flow.nats / divisor, unit, seed),
    }
    if weighted is not None:
        bounds[f"bound, {len(grid)} steps, {weighted.paths} paths"] = _figure(weighted.nats / divisor, unit, seed)
    name, value = ("uniform noise", math.log2(levels)) if levels else ("a Gaussian fit", _reference(x))
    reference = (name, value) if math.isfinite(value) else None
    gap = _figure((integral.nats[: len(flow.nats)] + flow.nats) / divisor, unit, seed)
    best = min(bounds.values(), key=lambda row: float(row["value"]))
    elbo, exact = (format_score(bounds[name]) for name in ("bound, continuous time", "flow"))
    comparison = f"; {reference[0]} has {reference[1]:.3g}" if reference else ""
    verdict = [f"The NLL of a held-out {what} is {exact} {unit} by the flow and at most {elbo} by the ELBO{comparison}."]
    if reference and best["value"] >= reference[1]:
        verdict.append(f"That is not below {reference[0]}: the model has not learned the density of the data.")
    if len(x) > 1 and (
        poor := [level for level, nll, error in zip(*_bands(integral), strict=True) if nll - 3 * error > ZERO_NOISE]
    ):
        verdict.append(
            f"Above a log-SNR of {poor[0]:.1f} the noise estimate is worse than 0, which contributes most of the bound."
        )
    if "error" not in best:
        verdict.append("One datum has no standard error; hold out more data.")
    if "error" in gap and gap["value"] < -3 * gap["error"]:
        verdict.append("The NLL by the flow exceeds the bound, so the two do not model the same density.")
    parts = bound_parts(integral, divisor, unit)
    figures: dict[str, Any] = {
        **bounds,
        "bound minus flow": gap,
        **({f"gain of {weighted.paths} paths": _figure(weighted.gap / divisor, unit, seed)} if weighted is not None else {}),
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
    notes = (
        "The ELBO is an upper bound on the NLL of the model that adds noise at each step; the flow gives the exact NLL of the"
        " deterministic model. The two models agree for a perfect network, so for a trained one their order is not certain.",
        f"Bits/dim count all {levels} levels of the images; the flow adds {run.diffusion.dequantiser} noise within a level,"
        " which can only increase the NLL."
        if images
        else "Nats refer to a density in the units of the data and may be negative; only differences are meaningful.",
        *(
            ()
            if weighted is None
            else (
                f"Importance weighting of {weighted.paths} paths for each of {len(weighted.nats)} data lowers the bound of"
                f" {len(grid)} steps by {format_score(_figure(weighted.gap / divisor, unit, seed))} {unit}, a part of its gap"
                " KL(q(path | x) || p(path | x)).",
            )
        ),
        *(() if end is None else (f"Both bounds end at t = {end:.3g}, which minimizes the bound of training data.",)),
        "Errors are standard errors over the data.",
    )
    pictures = {}
    if len(x) > 1:
        counts = f"n = {len(x)} ({len(flow.nats)} by the flow), seed {seed}"
        caption = f"Bits/dim by noise level, and the NLL of a held-out {what}; {counts}"
        pictures[caption] = _picture(integral, bounds, unit, reference)
        whole = f"Terms of the bound of {format_score(bounds['bound, continuous time'])} {unit}, ± 2 standard errors"
        pictures[f"{whole}; n = {len(x)}, seed {seed}"] = bars(parts, unit)
    return ReportSection(NAME, TITLE, tuple(verdict), notes, figures, pictures)
