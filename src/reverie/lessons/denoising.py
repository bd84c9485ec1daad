"""Lessons about denoising: what an estimate is, one step taken apart, samplers side by side, guidance, and the bound."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from reverie.base.errors import UserError
from reverie.base.noise import Noise, image_seeds
from reverie.base.scalar import sqrt
from reverie.data import Dataset
from reverie.data.dataset import at_once, spread
from reverie.diffusion.condition import NULL
from reverie.diffusion.oracle import DatasetDenoiser
from reverie.diffusion.pair import pair_of
from reverie.diffusion.samplers import GRIDS, SAMPLERS
from reverie.draw.picture import to_bytes
from reverie.lessons.lesson import Control, Lesson
from reverie.lessons.process import NUMBER, SEED, T, noised
from reverie.lessons.show import Subject, axes_of, bars, curves, dots, images, limits_of, plane, planes, rms, says
from reverie.runs.run import Run

KNOWN, CODED = 3000, 256  # data that the optimal denoiser knows, and those that a network must code first
SHOWN_IMAGES, SHOWN_POINTS, MOMENTS = 8, 800, 6


@torch.no_grad()
def tweedie(run: Run, data: Dataset, picture: np.ndarray | None, t: float, number: int, seed: int) -> dict[str, Any]:
    """Return the estimate of clean data as x with the score added, of the network and of the best possible denoiser."""
    denoiser = run.diffusion.denoiser
    subject = Subject(run, data, picture, number)
    truth, x, alpha, sigma = noised(subject, denoiser.schedule, t, seed)
    score = denoiser.score(x, t, subject.cond)
    x0 = (x + sigma**2 * score) / alpha
    others = spread(len(data), at_once(data.shape, CODED if run.model.lossy else KNOWN))
    others = others[others != number % len(data)] if subject.images else others  # not the one that is to be guessed
    known = data.batch(others)[0].to(run.model.device)
    best = DatasetDenoiser(denoiser.schedule, run.model.encode(known))(x, t).x0
    parts = [
        subject.seen("x", x),
        subject.raw("sigma score", sigma * score, 2.0),
        subject.seen("(x + sigma² score) / alpha", x0),
        subject.seen(f"the best guess by {len(known):,} other data" if subject.images else "the best guess by the data", best),
        subject.seen("the truth", truth.x0),
    ]
    return {
        "panels": [
            subject.panel("", *parts),
            bars(
                "how far from the truth",
                [
                    ("x itself", rms(x - truth.x0)),
                    ("network", rms(x0 - truth.x0)),
                    ("best guess", rms(best - truth.x0)),
                ],
            ),
        ]
    }


@torch.no_grad()
def step(
    run: Run, data: Dataset, picture: np.ndarray | None, t: float, share: float, eta: float, number: int, seed: int
) -> dict[str, Any]:
    """Return the parts of one step from t to s, and their sum."""
    denoiser = run.diffusion.denoiser
    subject = Subject(run, data, picture, number)
    _, x, alpha, sigma = noised(subject, denoiser.schedule, t, seed)
    s = max(t * share, denoiser.schedule.t_min)
    alpha_s, sigma_s = (float(c) for c in denoiser.schedule(s))
    guess = denoiser(x, t, subject.cond)
    k = eta**2 * max(0.0, 1 - (alpha * sigma_s / (alpha_s * sigma)) ** 2)
    z = Noise(image_seeds(seed + 1, len(x))).like(x)
    parts = alpha_s * guess.x0, sigma_s * float(sqrt(1 - k)) * guess.eps, sigma_s * float(sqrt(k)) * z
    return {
        "panels": [
            subject.panel(
                "",
                subject.seen(f"x, t = {t:.2f}", x),
                subject.seen("x₀ estimate", guess.x0),
                subject.raw("ε estimate", guess.eps, 1.5),
                subject.seen("1: what is kept of x₀", parts[0]),
                subject.raw("2: old noise", parts[1], 1.5),
                subject.raw("3: fresh noise", parts[2], 1.5),
                subject.seen(f"the sum: x, s = {s:.2f}", sum(parts, torch.zeros_like(x))),
            ),
            bars(
                "size of each part",
                [("x₀ estimate", rms(parts[0])), ("old noise", rms(parts[1])), ("fresh noise", rms(parts[2]))],
            ),
        ]
    }


@torch.no_grad()
def samplers(run: Run, data: Dataset, picture: np.ndarray | None, steps: int, seed: int, **chosen: str) -> dict[str, Any]:
    """Return what several samplers make of the same noise in as many steps."""
    sheets, ways = [], []
    for name in dict.fromkeys(chosen.values()):
        options: Any = {"sampler": name, "steps": steps, "seed": seed, "autoguidance": 1.0}
        options |= {"label": "all"} if run.config.data.labels else {}
        n = SHOWN_IMAGES if run.kind == "images" else SHOWN_POINTS
        kept: list[tuple[float, np.ndarray]] = []
        for frame in run.frames(n, **options):
            if frame.i * MOMENTS >= len(kept) * frame.of or frame.i == frame.of - 1:
                kept.append((frame.t, run.decode(frame.x if frame.i < frame.of - 1 else frame.x0)))
        if run.kind == "images":
            rows = [np.concatenate([_framed(image) for image in to_bytes(x)], axis=1) for _, x in kept]
            sheets.append((f"{name}: from t = {kept[0][0]:.2f} down to {kept[-1][0]:.2f}", np.concatenate(rows)))
        else:
            ways.append((name, kept[-1][1]))
    if sheets:
        return {"panels": [images("", sheets, large=True)]}
    limits = limits_of(np.concatenate([x for _, x in ways]))
    return {"panels": [planes([plane(name, limits, dots=[dots(x)], axes=axes_of(run)) for name, x in ways])]}


def _framed(image: np.ndarray) -> np.ndarray:
    """Return an image with a white line around it."""
    return np.pad(image, ((1, 0), (1, 0), *[(0, 0)] * (image.ndim - 2)), constant_values=255)


@torch.no_grad()
def guidance(
    run: Run, data: Dataset, picture: np.ndarray | None, t: float, scale: float, number: int, seed: int
) -> dict[str, Any]:
    """Return the estimates with and without the label, their difference, and the sum that guidance makes of them."""
    if not run.config.data.labels:
        raise UserError("guidance needs a run that was trained with labels")
    denoiser = run.diffusion.denoiser
    subject = Subject(run, data, picture, number)
    cond = (
        subject.cond if subject.cond is not None else torch.zeros(len(subject.x0), dtype=torch.int64, device=run.model.device)
    )
    _, x, alpha, sigma = noised(subject, denoiser.schedule, t, seed)
    free, bound_to = denoiser(x, t, torch.full_like(cond, NULL)), denoiser(x, t, cond)
    led = pair_of(x, free.x0 + scale * (bound_to.x0 - free.x0), alpha, sigma, "x0")
    label = run.config.data.labels[int(cond[0])] if subject.images else "its label"
    return {
        "panels": [
            subject.panel(
                "",
                subject.seen("x", x),
                subject.seen("a: no label", free.x0),
                subject.seen(f"b: label {label}", bound_to.x0),
                subject.raw("b - a", bound_to.x0 - free.x0, 1.0),
                subject.seen(f"a + {scale:.1f} (b - a)", led.x0),
            ),
            bars("how far from a", [("b", rms(bound_to.x0 - free.x0)), (f"scale {scale:.1f}", rms(led.x0 - free.x0))]),
        ]
    }


@torch.no_grad()
def bound(run: Run, data: Dataset, picture: np.ndarray | None, steps: int, number: int, seed: int) -> dict[str, Any]:
    """Return the bound of a few data, part by part, along a chain of so many steps."""
    model = run.diffusion
    count = 4 if run.kind == "images" else 256
    x, labels = data.batch((torch.arange(count) + number) % len(data))
    if picture is not None:
        x, labels, count = torch.from_numpy(picture)[None], None, 1
    cond = labels.to(model.device) if labels is not None else None
    grid = GRIDS["uniform"]()(model.denoiser.schedule, steps + 1)
    x, seeds = x.to(model.device), image_seeds(seed, count)
    end = model.best_end(x, cond, seeds)  # below it a network adds more than decoding takes away
    found = model.bound(x, cond, seeds, grid, end=end)
    means = {name: float(part.mean()) for name, part in found.parts().items()}
    each = found.denoising.mean(0).tolist()
    whole, bits = sum(means.values()), float(found.bits.mean())
    told = f"{bits:.2f} bits for each of {found.size:,} numbers" if run.kind == "images" else f"{whole:.2f} nats for each point"
    return {
        "panels": [
            bars(f"what {count} data cost at most, in nats", means.items(), "nats"),
            curves("each step of the chain, from noise to data", np.arange(1, len(each) + 1), [("KL of a step", each)], "step"),
            says(f"together {whole:,.1f} nats: {told}", f"the chain ends at t = {end:.3f}, where the levels are read off"),
        ]
    }


_NAMES = tuple(SAMPLERS)


def _which(name: str, k: int) -> str:
    return name if name in SAMPLERS else _NAMES[k]


LESSONS = {
    "tweedie": Lesson(
        "Tweedie: the score points home",
        "The best guess of the clean data is x itself, moved along the score. "
        "The score is the slope of the log-density of noised data, and it is all that a denoiser knows. "
        "A denoiser that had the data by heart would average them by how well they explain x.",
        r"\mathbb{E}[x_0 \mid x] = \frac{x + \sigma^2\, \nabla_x \log p_t(x)}{\alpha}",
        "reverie sample RUN -n 8 --out film.gif",
        tweedie,
        (T, NUMBER, SEED),
        of="diffusion",
    ),
    "step": Lesson(
        "One step taken apart",
        "A step keeps a little more of the estimated data, takes over some of the estimated noise, and may add fresh noise. "
        "Without fresh noise it is DDIM, with all of it DDPM. The three parts always have the right size together.",
        r"x_s = \alpha_s\, \hat{x}_0 + \sigma_s \left( \sqrt{1 - k}\; \hat{\varepsilon} + \sqrt{k}\; z \right)",
        "reverie sample RUN --sampler ddim:eta=0.5",
        step,
        (
            T,
            Control("share", "s, as a share of t", 0.6, low=0.02, high=0.98),
            Control("eta", "Fresh noise eta", 1.0),
            NUMBER,
            SEED,
        ),
        also=(r"k = \eta^2 \left( 1 - \frac{\alpha_t^2\, \sigma_s^2}{\alpha_s^2\, \sigma_t^2} \right)",),
        of="diffusion",
    ),
    "samplers": Lesson(
        "Ways down from the noise",
        "The same noise under several samplers: deterministic ones follow the flow, others draw fresh noise and forget "
        "mistakes. "
        "With many steps the deterministic ones agree. With few they show what each is worth.",
        r"\frac{dx}{dt} = \dot{\alpha}\, \hat{x}_0(x, t) + \dot{\sigma}\, \hat{\varepsilon}(x, t)",
        "reverie gallery samplers RUN",
        samplers,
        (
            Control("steps", "Steps", 12, "whole", 2, 60, 1),
            *(
                Control(f"s{k + 1}", f"Sampler {k + 1}", _which(name, k), "choice", choices=_NAMES)
                for k, name in enumerate(("ddpm", "ddim", "langevin"))
            ),
            SEED,
        ),
        of="diffusion",
    ),
    "guidance": Lesson(
        "Guidance is arithmetic",
        "A model that was trained with and without labels gives two estimates of the same thing. "
        "Guidance goes from the one without through the one with the label, and on. Scale 1 stops at the label, more "
        "exaggerates what the label adds.",
        r"\hat{x}_0 = a + w\,(b - a), \qquad a = \hat{x}_0(x, t, \varnothing),\ b = \hat{x}_0(x, t, c)",
        "reverie gallery guidance RUN",
        guidance,
        (T, Control("scale", "Scale w", 3.0, low=0.0, high=10.0, step=0.1), NUMBER, SEED),
        of="labels",
    ),
    "bound": Lesson(
        "The bound, as its bars",
        "What data cost at most under the model is a sum: what is left of them at the end of the noise, "
        "what each step back gets wrong, and reading the levels off at the last. More steps make the chain finer and the "
        "bound tighter. "
        "It is the loss, weighted by what it means in bits.",
        r"-\log p(x_0) \le \mathrm{KL}\big(q(x_T \mid x_0) \,\|\, p(x_T)\big) + \sum_{t} \mathrm{KL}\big(q(x_{s} \mid "
        r"x_t, x_0) \,\|\, p(x_{s} \mid x_t)\big)"
        r" - \log p(x_0 \mid x_1)",
        "reverie evaluate RUN",
        bound,
        (Control("steps", "Steps", 16, "whole", 2, 60, 1), NUMBER, SEED),
        of="diffusion",
    ),
}
