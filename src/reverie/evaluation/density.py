"""The negative log-likelihood (NLL) of held-out data under families other than diffusion."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from reverie.base.errors import UserError
from reverie.base.noise import image_seeds
from reverie.data import Dataset
from reverie.data.kind import KINDS
from reverie.diffusion.likelihood.flow import LogProb
from reverie.diffusion.likelihood.normal import mean_and_error
from reverie.evaluation.likelihood import NAME, TITLE
from reverie.evaluation.report_section import ReportSection
from reverie.evaluation.scores import format_score, score
from reverie.runs.run import Run

MAX_HELD_OUT = 2048  # maximum number of held-out data
DRAWS = 16  # draws of dequantization noise per datum


def _dequantised_log_prob(run: Run, x: Tensor, labels: Tensor | None, seed: int, first: LogProb) -> Tensor:
    """Return log 1/K sum_k p(x + u_k), a tighter bound than that of one draw of noise (arXiv:1509.00519): (N,)."""
    others = [run.model.log_prob(x, labels, image_seeds(seed, len(x), k * MAX_HELD_OUT)).nats for k in range(1, DRAWS)]
    return torch.stack([first.nats, *others]).logsumexp(0) - math.log(DRAWS)


def density_section(run: Run, x: Tensor | None, labels: Tensor | None, seed: int = 0) -> ReportSection:
    """Measure the NLL of held-out data, in bits/dim for images, else in nats.  x: (N, ...) in user units; labels: (N,)."""
    try:
        if x is None or not len(x):
            raise UserError("there are no held-out data: they are missing, or the dataset is too small to hold any out")
        x, labels = x[:MAX_HELD_OUT], labels[:MAX_HELD_OUT] if labels is not None else None
        result = run.model.log_prob(x, labels, image_seeds(seed, len(x)))
        family, images = run.config.model_family, run.kind == "images"
        exact = family.likelihood == "exact"
        dequantised = exact and images and family.dequantises
        nats = _dequantised_log_prob(run, x, labels, seed, result) if dequantised else result.nats
    except UserError as error:
        return ReportSection(NAME, TITLE, figures={"not_computable": str(error)})
    unit, what = "bits/dim" if images else "nats", KINDS[run.kind].partition(" ")[2]
    scale = result.size * math.log(2) if images else 1.0
    name = "dequantised" if dequantised else "exact" if exact else "bound"
    figure = score(*mean_and_error(-nats / scale), unit=unit, n=len(nats), seed=seed)
    figures = {name: figure}
    verdict = f"The NLL of a held-out {what} is {'' if name == 'exact' else 'at most '}{format_score(figure)} {unit}."
    notes = []
    if not images:
        notes = ["Nats refer to a density in the units of the data and may be negative; only differences are meaningful."]
    elif dequantised:
        single = score(*mean_and_error(-result.nats / scale), unit=unit, n=len(nats), seed=seed)
        figures["dequantised, one draw"], figure["draws"] = single, DRAWS
        notes = [
            "Images are dequantized: uniform noise within a level gives them a density. One draw of noise yields"
            f" {format_score(single)} {unit}; importance weighting of {DRAWS} draws can only lower it. It remains an upper"
            " bound on the NLL of the levels themselves."
        ]
    elif exact:
        figure |= {"nats": float(-nats.mean())}
        notes = [f"The NLL of the levels of each image is {figure['nats']:.2f} nats."]
    if not exact:
        datum_error = float(result.error.nan_to_num().square().mean().sqrt())  # per datum
        figure |= {"draws": result.evaluations, "nats": float(-result.nats.mean()), "error_of_a_datum": datum_error}
        notes.append(
            f"The importance-weighted bound of {result.divergence} (arXiv:1509.00519) is {figure['nats']:.2f} nats per {what},"
            f" with an estimation error of {datum_error:.2g} nats per {what}; more draws can only lower it."
        )
    notes.append("The error is the standard error over the data.")
    return ReportSection(NAME, TITLE, (verdict,), tuple(notes), figures)


def held_out_of(data: Dataset | None) -> tuple[Tensor | None, Tensor | None]:
    """Return the held-out data to measure, at most MAX_HELD_OUT, with their labels."""
    return data.batch(torch.arange(min(MAX_HELD_OUT, len(data)))) if data is not None and len(data) else (None, None)
