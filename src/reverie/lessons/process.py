"""Lessons about the forward process: noise comes in, and what is known of the way back."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import torch

from reverie.base.noise import Noise, image_seeds
from reverie.base.spec import build
from reverie.data import Dataset
from reverie.diffusion.pair import TARGETS, Pair, row
from reverie.diffusion.process import posterior as posterior_of
from reverie.diffusion.schedule import Schedule
from reverie.diffusion.schedules import SCHEDULES
from reverie.lessons.lesson import Control, Lesson
from reverie.lessons.show import Subject, curves, rms, says
from reverie.runs.run import Run

TIMES = np.linspace(0.005, 1, 100)
OWN = "that of the run"
T = Control("t", "Time t", 0.5, low=0.01, high=1.0)
NUMBER = Control("number", "Datum", 0, "whole", 0, 999, 1)
SEED = Control("seed", "Seed of the noise", 0, "whole", 0, 999, 1)


def noised(subject: Subject, schedule: Schedule, t: float, seed: int) -> tuple[Pair, torch.Tensor, float, float]:
    """Return the data with their noise, x at time t, and the two amplitudes there."""
    eps = Noise(image_seeds(seed, len(subject.x0))).like(subject.x0)
    alpha, sigma = (float(c) for c in schedule(t))
    truth = Pair(subject.x0, eps)
    return truth, truth.mix(alpha, sigma), alpha, sigma


@torch.no_grad()
def _curves(schedule: Schedule) -> tuple[np.ndarray, np.ndarray]:
    """Return alpha and sigma at TIMES."""
    alpha, sigma = (torch.as_tensor(c, dtype=torch.float64).expand(len(TIMES)) for c in schedule(torch.from_numpy(TIMES)))
    return alpha.numpy(), sigma.numpy()


@cache
def _shares() -> list[tuple[str, np.ndarray]]:
    """Return how much of the variance is signal under every schedule."""
    found = {name: _curves(made()) for name, made in SCHEDULES.items()}
    return [(name, a**2 / (a**2 + s**2)) for name, (a, s) in found.items()]


@torch.no_grad()
def forward(
    run: Run, data: Dataset, picture: np.ndarray | None, t: float, schedule: str, number: int, seed: int
) -> dict[str, Any]:
    """Return data at a time, and how much of them is left under every schedule."""
    own = run.diffusion.denoiser.schedule
    chosen = own if schedule == OWN else build(SCHEDULES, schedule, "schedule")
    subject = Subject(run, data, picture, number)
    truth, x, alpha, sigma = noised(subject, chosen, t, seed)
    shown = x / (alpha**2 + sigma**2) ** 0.5 if sigma > 2 else x  # where nothing fades, x grows out of every picture
    a, s = _curves(chosen)
    return {
        "panels": [
            subject.panel(
                "",
                subject.seen("x₀, the data", truth.x0),
                subject.raw("ε, the noise", truth.eps, 1.5),
                subject.seen(f"x = {alpha:.2f} x₀ + {sigma:.2f} ε", shown),
            ),
            curves(f"alpha and sigma, {schedule}", TIMES, [("alpha", a), ("sigma", s)], "t", t, log=bool(s.max() > 3)),
            curves("share of signal in the variance, every schedule", TIMES, _shares(), "t", t),
        ]
    }


@torch.no_grad()
def posterior(
    run: Run, data: Dataset, picture: np.ndarray | None, t: float, share: float, number: int, seed: int
) -> dict[str, Any]:
    """Return q(x_s | x_t, x0) as pictures and as curves of one number."""
    schedule = run.diffusion.denoiser.schedule
    subject = Subject(run, data, picture, number)
    truth, x, _, _ = noised(subject, schedule, t, seed)
    s = max(t * share, schedule.t_min)
    mean, variance = posterior_of(schedule, x, truth.x0, t, s)
    draw = mean + float(variance) ** 0.5 * Noise(image_seeds(seed + 1, len(x))).like(x)
    flat, place = truth.x0.flatten(), truth.x0[0].numel() // 2
    (alpha_s, sigma_s), std = (float(c) for c in schedule(s)), float(variance) ** 0.5
    before, after = alpha_s * float(flat[place]), float(mean.flatten()[place])
    u = np.linspace(min(before - 3 * sigma_s, after - 3 * std), max(before + 3 * sigma_s, after + 3 * std), 160)
    densities = [("q(x_s | x₀)", _normal(u, before, sigma_s)), ("q(x_s | x_t, x₀)", _normal(u, after, std))]
    return {
        "panels": [
            subject.panel(
                "",
                subject.seen("x₀", truth.x0),
                subject.seen(f"x_t, t = {t:.2f}", x),
                subject.seen(f"mean of x_s, s = {s:.2f}", mean),
                subject.seen("a draw of x_s", draw),
            ),
            curves("one number of x_s, before and after x_t is known", u, densities, "x_s", float(mean.flatten()[place])),
            says(f"the standard deviation falls from {sigma_s:.3f} to {std:.3f}"),
        ]
    }


def _normal(u: np.ndarray, mean: float, std: float) -> np.ndarray:
    return np.asarray(np.exp(-(((u - mean) / std) ** 2) / 2) / (std * (2 * np.pi) ** 0.5))


@torch.no_grad()
def targets(run: Run, data: Dataset, picture: np.ndarray | None, t: float, number: int, seed: int) -> dict[str, Any]:
    """Return every target of one noised datum, as it is and as the network answers."""
    denoiser = run.diffusion.denoiser
    subject = Subject(run, data, picture, number)
    truth, x, alpha, sigma = noised(subject, denoiser.schedule, t, seed)
    guess = denoiser(x, t, subject.cond)
    asked, lines = [], []
    for name in TARGETS:
        a, b = (float(c) for c in row(name, alpha, sigma))
        right, answer = truth.mix(a, b), guess.mix(a, b)
        size = max(2 * rms(right), 1e-6)
        asked += [subject.raw(f"{name}, asked", right, size), subject.raw(f"{name}, answered", answer, size)]
        lines.append(
            f"{name} = {a:.2f} x₀ {'+' if b >= 0 else '-'} {abs(b):.2f} ε, answered with an error of {rms(answer - right):.3f}"
        )
    return {"panels": [subject.panel("", subject.seen("x", x), *asked), says(*lines)]}


LESSONS = {
    "forward": Lesson(
        "Noise comes in",
        "Data fade and noise grows until nothing else is left, at a pace that the schedule sets. "
        "One jump leads from clean data to any time t. Move t, and compare what every schedule leaves of the signal.",
        r"x_t = \alpha(t)\, x_0 + \sigma(t)\, \varepsilon, \qquad \varepsilon \sim \mathcal{N}(0, I)",
        "reverie gallery forward DATA",
        forward,
        (T, Control("schedule", "Schedule", OWN, "choice", choices=(OWN, *SCHEDULES)), NUMBER, SEED),
        of="diffusion",
    ),
    "posterior": Lesson(
        "One step back, if the end were known",
        "If the clean data were known, each step back would be a normal distribution. "
        "Its mean lies between where x is and where the data are, and it is narrower than before x was known. "
        "Drawing puts the network's estimate in the place of the data.",
        r"q(x_s \mid x_t, x_0) = \mathcal{N}\!\left(\frac{\alpha_{ts}\,\sigma_s^2\, x_t + \alpha_s\,\sigma_{ts}^2\, "
        r"x_0}{\sigma_t^2},\ "
        r"\frac{\sigma_{ts}^2\,\sigma_s^2}{\sigma_t^2} I\right)",
        "reverie gallery normal",
        posterior,
        (T, Control("share", "s, as a share of t", 0.7, low=0.05, high=0.98), NUMBER, SEED),
        also=(r"\alpha_{ts} = \frac{\alpha_t}{\alpha_s}, \qquad \sigma_{ts}^2 = \sigma_t^2 - \alpha_{ts}^2\, \sigma_s^2",),
        of="diffusion",
    ),
    "targets": Lesson(
        "What the network is asked",
        "The same knowledge can be asked for in several ways, each a sum of data and noise. "
        "From any answer follow both, by one small system of equations. They differ in which noise levels they make easy.",
        r"y = a(t)\, x_0 + b(t)\, \varepsilon",
        "reverie list targets",
        targets,
        (T, NUMBER, SEED),
        of="diffusion",
        also=(
            r"x_0 = \frac{b\, x - \sigma\, y}{\alpha b - \sigma a}, \qquad \varepsilon = \frac{\alpha\, y - a\, x}{\alpha b - "
            r"\sigma a}",
        ),
    ),
}
