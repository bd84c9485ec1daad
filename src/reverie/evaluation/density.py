"""What held-out data cost under a model whose likelihood is known."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from reverie.base.errors import UserError
from reverie.base.noise import image_seeds
from reverie.data import Dataset
from reverie.data.kind import KINDS
from reverie.diffusion.likelihood.normal import mean_and_error
from reverie.evaluation.likelihood import NAME, TITLE
from reverie.evaluation.score import said, score
from reverie.evaluation.section import Section
from reverie.runs.run import Run

MOST = 2048  # held-out data that are measured


def density_section(run: Run, x: Tensor | None, labels: Tensor | None, seed: int = 0) -> Section:
    """Measure what held-out data cost: bits/dim of images, else nats.  x: (N, ...) in user units; labels: (N,)."""
    try:
        if x is None or not len(x):
            raise UserError("there are no held-out data: they are gone, or the set is too small to have any")
        found = run.model.log_prob(x[:MOST], labels[:MOST] if labels is not None else None, image_seeds(seed, len(x[:MOST])))
    except UserError as error:
        return Section(NAME, TITLE, figures={"not_computable": str(error)})
    images = run.kind == "images"
    unit, what = "bits/dim" if images else "nats", KINDS[run.kind].partition(" ")[2]
    value, deviation = mean_and_error(-found.nats / (found.size * math.log(2) if images else 1.0))
    exact = run.config.model_family.likelihood == "exact"
    dequantised = images and run.config.model_family.dequantises
    name = ("dequantised" if dequantised else "exact") if exact else "bound"
    figure = score(value, deviation, unit=unit, n=len(found.nats), seed=seed)
    verdict = f"A held-out {what} costs {'' if name == 'exact' else 'at most '}{said(figure)} {unit}."
    words = []
    if not images:
        words = ["Nats are those of a density in the units of the data, and may be negative; only differences mean something."]
    elif exact and not dequantised:
        figure |= {"nats": float(-found.nats.mean())}
        words = [f"It is that of the levels of each image themselves, {figure['nats']:.2f} nats."]
    elif exact:
        words = ["Images are dequantised: uniform noise within a level is added once, which can only raise the cost."]
    if not exact:
        within = float(found.error.nan_to_num().square().mean().sqrt())  # of one datum
        figure |= {"draws": found.evaluations, "nats": float(-found.nats.mean()), "error_of_a_datum": within}
        words.append(
            f"It is the importance-weighted bound of {found.divergence} (arXiv:1509.00519), {figure['nats']:.2f} nats for each"
            f" {what}; more draws can only lower it, and those made leave each {what} an error of {within:.2g} nats."
        )
    return Section(NAME, TITLE, (verdict,), (*words, "The error is the standard error over the data."), {name: figure})


def held_out_of(data: Dataset | None) -> tuple[Tensor | None, Tensor | None]:
    """Return at most as many held-out data as are measured, with their labels."""
    return data.batch(torch.arange(min(MOST, len(data)))) if data is not None and len(data) else (None, None)
