"""Demos of denoising: Tweedie's formula, one sampling step, samplers, guidance, and the variational bound."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from reverie.base.errors import UserError
from reverie.base.noise import Noise, image_seeds
from reverie.base.scalar import sqrt
from reverie.data import Dataset
from reverie.data.dataset import chunk_size, evenly_spaced_indices
from reverie.demos.demo import Control, Demo
from reverie.demos.forward_process import NUMBER, SEED, T, add_noise
from reverie.demos.panels import (
    Subject,
    axis_limits,
    axis_names,
    bars,
    curves,
    dots,
    images,
    plot2d,
    plots2d,
    rms,
    text,
)
from reverie.diffusion.condition import NULL
from reverie.diffusion.oracle import DatasetDenoiser
from reverie.diffusion.pair import pair_of
from reverie.diffusion.samplers import GRIDS, SAMPLERS
from reverie.draw.picture import to_bytes
from reverie.runs.run import Run

MAX_DATA, MAX_ENCODED = 3000, 256  # data of the optimal denoiser, for pixels and for autoencoder codes
SHOWN_IMAGES, SHOWN_POINTS, SHOWN_TIMES = 8, 800, 6


@torch.no_grad()
def tweedie(run: Run, data: Dataset, image: np.ndarray | None, t: float, number: int, seed: int) -> dict[str, Any]:
    """Return Tweedie's estimate of x0 by the network, and that of the optimal denoiser of the dataset."""
    denoiser = run.diffusion.denoiser
    subject = Subject(run, data, image, number)
    truth, x, alpha, sigma = add_noise(subject, denoiser.schedule, t, seed)
    score = denoiser.score(x, t, subject.cond)
    x0 = (x + sigma**2 * score) / alpha
    others = evenly_spaced_indices(len(data), chunk_size(data.shape, MAX_ENCODED if run.model.lossy else MAX_DATA))
    others = others[others != number % len(data)] if subject.is_image else others  # without the clean sample itself
    training_data = data.batch(others)[0].to(run.model.device)
    optimal = DatasetDenoiser(denoiser.schedule, run.model.encode(training_data))(x, t).x0
    title = (
        f"optimal denoiser of {len(training_data):,} other images" if subject.is_image else "optimal denoiser of the dataset"
    )
    parts = [
        subject.show_data("noisy sample x_t", x),
        subject.show_values("score times sigma", sigma * score, 2.0),
        subject.show_data("predicted clean sample (x_t + sigma² score) / alpha", x0),
        subject.show_data(title, optimal),
        subject.show_data("clean sample x_0", truth.x0),
    ]
    return {
        "panels": [
            subject.panel("", *parts),
            bars(
                "RMS distance to the clean sample x_0",
                [
                    ("x_t", rms(x - truth.x0)),
                    ("network", rms(x0 - truth.x0)),
                    ("optimal", rms(optimal - truth.x0)),
                ],
            ),
        ]
    }


@torch.no_grad()
def step(
    run: Run, data: Dataset, image: np.ndarray | None, t: float, ratio: float, eta: float, number: int, seed: int
) -> dict[str, Any]:
    """Return the three terms of one sampling step from t to s, and their sum."""
    denoiser = run.diffusion.denoiser
    subject = Subject(run, data, image, number)
    _, x, alpha, sigma = add_noise(subject, denoiser.schedule, t, seed)
    s = max(t * ratio, denoiser.schedule.t_min)
    alpha_s, sigma_s = (float(c) for c in denoiser.schedule(s))
    estimate = denoiser(x, t, subject.cond)
    k = eta**2 * max(0.0, 1 - (alpha * sigma_s / (alpha_s * sigma)) ** 2)
    z = Noise(image_seeds(seed + 1, len(x))).like(x)
    terms = alpha_s * estimate.x0, sigma_s * float(sqrt(1 - k)) * estimate.eps, sigma_s * float(sqrt(k)) * z
    return {
        "panels": [
            subject.panel(
                "",
                subject.show_data(f"noisy sample x_t, t = {t:.2f}", x),
                subject.show_data("predicted clean sample x̂_0", estimate.x0),
                subject.show_values("predicted noise ε̂", estimate.eps, 1.5),
                subject.show_data("1: clean-sample term", terms[0]),
                subject.show_values("2: predicted-noise term", terms[1], 1.5),
                subject.show_values("3: fresh-noise term", terms[2], 1.5),
                subject.show_data(f"sum x_s, s = {s:.2f}", sum(terms, torch.zeros_like(x))),
            ),
            bars(
                "RMS of each term",
                [("clean sample", rms(terms[0])), ("predicted noise", rms(terms[1])), ("fresh noise", rms(terms[2]))],
            ),
        ]
    }


@torch.no_grad()
def samplers(run: Run, data: Dataset, image: np.ndarray | None, steps: int, seed: int, **chosen: str) -> dict[str, Any]:
    """Return the trajectories of several samplers from the same noise with the same number of steps."""
    sheets, results = [], []
    for name in dict.fromkeys(chosen.values()):
        options: Any = {"sampler": name, "steps": steps, "seed": seed, "autoguidance": 1.0}
        options |= {"label": "all"} if run.config.data.labels else {}
        n = SHOWN_IMAGES if run.kind == "images" else SHOWN_POINTS
        snapshots: list[tuple[float, np.ndarray]] = []
        for frame in run.frames(n, **options):
            if frame.i * SHOWN_TIMES >= len(snapshots) * frame.of or frame.i == frame.of - 1:
                snapshots.append((frame.t, run.decode(frame.x if frame.i < frame.of - 1 else frame.x0)))
        if run.kind == "images":
            rows = [np.concatenate([_with_border(x) for x in to_bytes(batch)], axis=1) for _, batch in snapshots]
            sheets.append((f"{name}: from t = {snapshots[0][0]:.2f} (top) to {snapshots[-1][0]:.2f}", np.concatenate(rows)))
        else:
            results.append((name, snapshots[-1][1]))
    if sheets:
        return {"panels": [images("", sheets, large=True)]}
    limits = axis_limits(np.concatenate([x for _, x in results]))
    return {"panels": [plots2d([plot2d(name, limits, dots=[dots(x)], axes=axis_names(run)) for name, x in results])]}


def _with_border(image: np.ndarray) -> np.ndarray:
    """Return an image with a white line above and to the left of it."""
    return np.pad(image, ((1, 0), (1, 0), *[(0, 0)] * (image.ndim - 2)), constant_values=255)


@torch.no_grad()
def guidance(
    run: Run, data: Dataset, image: np.ndarray | None, t: float, scale: float, number: int, seed: int
) -> dict[str, Any]:
    """Return the unconditional, conditional and guided predictions of x0."""
    if not run.config.data.labels:
        raise UserError("guidance needs a run that was trained with labels; choose another run")
    denoiser = run.diffusion.denoiser
    subject = Subject(run, data, image, number)
    cond = (
        subject.cond if subject.cond is not None else torch.zeros(len(subject.x0), dtype=torch.int64, device=run.model.device)
    )
    _, x, alpha, sigma = add_noise(subject, denoiser.schedule, t, seed)
    a, b = denoiser(x, t, torch.full_like(cond, NULL)), denoiser(x, t, cond)
    guided = pair_of(x, a.x0 + scale * (b.x0 - a.x0), alpha, sigma, "x0")
    label = f"label {run.config.data.labels[int(cond[0])]}" if subject.is_image else "the label of each point"
    return {
        "panels": [
            subject.panel(
                "",
                subject.show_data("noisy sample x_t", x),
                subject.show_data("a: unconditional", a.x0),
                subject.show_data(f"b: conditioned on {label}", b.x0),
                subject.show_values("b - a", b.x0 - a.x0, 1.0),
                subject.show_data(f"guided: a + {scale:.1f} (b - a)", guided.x0),
            ),
            bars("RMS distance to a", [("b", rms(b.x0 - a.x0)), (f"scale {scale:.1f}", rms(guided.x0 - a.x0))]),
        ]
    }


@torch.no_grad()
def bound(run: Run, data: Dataset, image: np.ndarray | None, steps: int, number: int, seed: int) -> dict[str, Any]:
    """Return the terms of the upper bound on the NLL of a few samples along a chain of `steps` steps."""
    model = run.diffusion
    count = 4 if run.kind == "images" else 256
    x, labels = data.batch((torch.arange(count) + number) % len(data))
    if image is not None:
        x, labels, count = torch.from_numpy(image)[None], None, 1
    cond = labels.to(model.device) if labels is not None else None
    grid = GRIDS["uniform"]()(model.denoiser.schedule, steps + 1)
    x, seeds = x.to(model.device), image_seeds(seed, count)
    end = model.best_end(x, cond, seeds)  # below it, KL terms grow by more than the reconstruction term falls
    elbo = model.bound(x, cond, seeds, grid, end=end)
    means = {name: float(part.mean()) for name, part in elbo.parts().items()}
    kl_terms = elbo.denoising.mean(0).tolist()
    total, bits = sum(means.values()), float(elbo.bits.mean())
    is_image = run.kind == "images"
    per_unit = f"{bits:.2f} bits/dim over {elbo.size:,} dimensions" if is_image else f"{total:.2f} nats per point"
    steps_axis = np.arange(1, len(kl_terms) + 1)
    return {
        "panels": [
            bars(f"upper bound on the NLL, mean of {count} {run.kind}, in nats", means.items(), "nats"),
            curves("KL divergence of each step, from noise to data", steps_axis, [("KL", kl_terms)], "step"),
            text(
                f"sum: {total:,.1f} nats, {per_unit}",
                f"the chain ends at t = {end:.3f}, the time of the reconstruction term",
            ),
        ]
    }


_NAMES = tuple(SAMPLERS)


def _default_sampler(name: str, k: int) -> str:
    return name if name in SAMPLERS else _NAMES[k]


DEMOS = {
    "tweedie": Demo(
        "Tweedie's formula",
        "The posterior mean of the clean sample is x_t moved along the score, the gradient of the log-density of noisy data. "
        "So a denoiser and a score model are the same network. "
        "The optimal denoiser averages the training data, weighted by how likely each produced x_t.",
        r"\mathbb{E}[x_0 \mid x_t] = \frac{x_t + \sigma^2\, \nabla_{x_t} \log p_t(x_t)}{\alpha}",
        "reverie sample RUN -n 8 --out samples.gif",
        tweedie,
        (T, NUMBER, SEED),
        requires="diffusion",
    ),
    "step": Demo(
        "One sampling step",
        "A step from t to s combines the predicted clean sample, the predicted noise and fresh noise. "
        "With η = 0 there is no fresh noise, which is DDIM; η = 1 is DDPM. "
        "For every η the two noise terms together have standard deviation sigma_s.",
        r"x_s = \alpha_s\, \hat{x}_0 + \sigma_s \left( \sqrt{1 - k}\; \hat{\varepsilon} + \sqrt{k}\; z \right)",
        "reverie sample RUN --sampler ddim:eta=0.5",
        step,
        (
            T,
            Control("ratio", "s / t", 0.6, low=0.02, high=0.98),
            Control("eta", "Stochasticity η", 1.0),
            NUMBER,
            SEED,
        ),
        more_formulas=(r"k = \eta^2 \left( 1 - \frac{\alpha_t^2\, \sigma_s^2}{\alpha_s^2\, \sigma_t^2} \right)",),
        requires="diffusion",
    ),
    "samplers": Demo(
        "Samplers compared",
        "Several samplers start from the same noise. "
        "Deterministic samplers solve the probability-flow ODE and agree at many steps; stochastic samplers add fresh noise, "
        "which corrects earlier errors. "
        "At few steps their discretization errors differ.",
        r"\frac{dx}{dt} = \dot{\alpha}\, \hat{x}_0(x, t) + \dot{\sigma}\, \hat{\varepsilon}(x, t)",
        "reverie gallery samplers RUN",
        samplers,
        (
            Control("steps", "Steps", 12, "integer", 2, 60, 1),
            *(
                Control(f"s{k + 1}", f"Sampler {k + 1}", _default_sampler(name, k), "choice", choices=_NAMES)
                for k, name in enumerate(("ddpm", "ddim", "langevin"))
            ),
            SEED,
        ),
        requires="diffusion",
    ),
    "guidance": Demo(
        "Classifier-free guidance",
        "A model trained with condition dropout gives a conditional and an unconditional prediction. "
        "Guidance extrapolates from the unconditional to the conditional one by the guidance scale w. "
        "Scale 1 is the conditional prediction; larger scales amplify what the label changes.",
        r"\hat{x}_0 = a + w\,(b - a), \qquad a = \hat{x}_0(x_t, t, \varnothing),\ b = \hat{x}_0(x_t, t, c)",
        "reverie gallery guidance RUN",
        guidance,
        (T, Control("scale", "Guidance scale w", 3.0, low=0.0, high=10.0, step=0.1), NUMBER, SEED),
        requires="labels",
    ),
    "bound": Demo(
        "Variational bound",
        "The ELBO bounds the negative log-likelihood from above by a sum: a prior term at the end of the noising, a KL "
        "divergence for each denoising step, and a reconstruction term. "
        "More steps make the bound tighter. "
        "The training loss is the same sum with other weights.",
        r"-\log p(x_0) \le \mathrm{KL}\big(q(x_T \mid x_0) \,\|\, p(x_T)\big) + \sum_{t} \mathrm{KL}\big(q(x_{s} \mid "
        r"x_t, x_0) \,\|\, p(x_{s} \mid x_t)\big)"
        r" - \log p(x_0 \mid x_1)",
        "reverie evaluate RUN",
        bound,
        (Control("steps", "Steps", 16, "integer", 2, 60, 1), NUMBER, SEED),
        requires="diffusion",
    ),
}
