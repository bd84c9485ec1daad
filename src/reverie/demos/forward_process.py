"""Demos of the forward process: noising, its Gaussian posterior, and prediction targets."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import torch

from reverie.base.noise import Noise, image_seeds
from reverie.base.spec import build
from reverie.data import Dataset
from reverie.demos.demo import Control, Demo
from reverie.demos.panels import Subject, curves, rms, text
from reverie.diffusion.pair import TARGETS, Pair, row
from reverie.diffusion.process import posterior as posterior_of
from reverie.diffusion.schedule import Schedule
from reverie.diffusion.schedules import SCHEDULES
from reverie.runs.run import Run

TIMES = np.linspace(0.005, 1, 100)
OWN = "schedule of the run"
T = Control("t", "Time t", 0.5, low=0.01, high=1.0)
NUMBER = Control("number", "Training sample", 0, "integer", 0, 999, 1)
SEED = Control("seed", "Noise seed", 0, "integer", 0, 999, 1)


def add_noise(subject: Subject, schedule: Schedule, t: float, seed: int) -> tuple[Pair, torch.Tensor, float, float]:
    """Return the clean sample with its noise, x_t, alpha_t and sigma_t."""
    eps = Noise(image_seeds(seed, len(subject.x0))).like(subject.x0)
    alpha, sigma = (float(c) for c in schedule(t))
    truth = Pair(subject.x0, eps)
    return truth, truth.mix(alpha, sigma), alpha, sigma


@torch.no_grad()
def _amplitudes(schedule: Schedule) -> tuple[np.ndarray, np.ndarray]:
    """Return alpha and sigma at TIMES."""
    alpha, sigma = (torch.as_tensor(c, dtype=torch.float64).expand(len(TIMES)) for c in schedule(torch.from_numpy(TIMES)))
    return alpha.numpy(), sigma.numpy()


@cache
def _signal_fractions() -> list[tuple[str, np.ndarray]]:
    """Return the fraction of the variance that is signal, for every schedule."""
    amplitudes = {name: _amplitudes(schedule()) for name, schedule in SCHEDULES.items()}
    return [(name, a**2 / (a**2 + s**2)) for name, (a, s) in amplitudes.items()]


@torch.no_grad()
def forward(
    run: Run, data: Dataset, image: np.ndarray | None, t: float, schedule: str, number: int, seed: int
) -> dict[str, Any]:
    """Return x_t, alpha and sigma over time, and the signal fraction of every schedule."""
    run_schedule = run.diffusion.denoiser.schedule
    selected = run_schedule if schedule == OWN else build(SCHEDULES, schedule, "schedule")
    subject = Subject(run, data, image, number)
    truth, x, alpha, sigma = add_noise(subject, selected, t, seed)
    displayed = x / (alpha**2 + sigma**2) ** 0.5 if sigma > 2 else x  # x_t of variance-exploding schedules exceeds any image
    a, s = _amplitudes(selected)
    return {
        "panels": [
            subject.panel(
                "",
                subject.show_data("clean sample x_0", truth.x0),
                subject.show_values("noise ε", truth.eps, 1.5),
                subject.show_data(f"noisy sample x_t = {alpha:.2f} x_0 + {sigma:.2f} ε", displayed),
            ),
            curves(f"alpha and sigma, {schedule}", TIMES, [("alpha", a), ("sigma", s)], "t", t, log=bool(s.max() > 3)),
            curves("signal fraction of the variance of x_t, by schedule", TIMES, _signal_fractions(), "t", t),
        ]
    }


@torch.no_grad()
def posterior(
    run: Run, data: Dataset, image: np.ndarray | None, t: float, ratio: float, number: int, seed: int
) -> dict[str, Any]:
    """Return q(x_s | x_t, x0) as images, and as the density of one coordinate."""
    schedule = run.diffusion.denoiser.schedule
    subject = Subject(run, data, image, number)
    truth, x, _, _ = add_noise(subject, schedule, t, seed)
    s = max(t * ratio, schedule.t_min)
    mean, variance = posterior_of(schedule, x, truth.x0, t, s)
    sample = mean + float(variance) ** 0.5 * Noise(image_seeds(seed + 1, len(x))).like(x)
    x0, index = truth.x0.flatten(), truth.x0[0].numel() // 2
    (alpha_s, sigma_s), std = (float(c) for c in schedule(s)), float(variance) ** 0.5
    before, after = alpha_s * float(x0[index]), float(mean.flatten()[index])
    u = np.linspace(min(before - 3 * sigma_s, after - 3 * std), max(before + 3 * sigma_s, after + 3 * std), 160)
    densities = [("q(x_s | x_0)", _normal_density(u, before, sigma_s)), ("q(x_s | x_t, x_0)", _normal_density(u, after, std))]
    return {
        "panels": [
            subject.panel(
                "",
                subject.show_data("clean sample x_0", truth.x0),
                subject.show_data(f"noisy sample x_t, t = {t:.2f}", x),
                subject.show_data(f"posterior mean of x_s, s = {s:.2f}", mean),
                subject.show_data("posterior sample x_s", sample),
            ),
            curves("density of the middle coordinate of x_s, without and with x_t", u, densities, "x_s", after),
            text(f"conditioning on x_t reduces the standard deviation from {sigma_s:.3f} to {std:.3f}"),
        ]
    }


def _normal_density(u: np.ndarray, mean: float, std: float) -> np.ndarray:
    return np.asarray(np.exp(-(((u - mean) / std) ** 2) / 2) / (std * (2 * np.pi) ** 0.5))


@torch.no_grad()
def targets(run: Run, data: Dataset, image: np.ndarray | None, t: float, number: int, seed: int) -> dict[str, Any]:
    """Return every prediction target of one noisy sample, and the network's prediction of it."""
    denoiser = run.diffusion.denoiser
    subject = Subject(run, data, image, number)
    truth, x, alpha, sigma = add_noise(subject, denoiser.schedule, t, seed)
    estimate = denoiser(x, t, subject.cond)
    items, lines = [], []
    for name in TARGETS:
        a, b = (float(c) for c in row(name, alpha, sigma))
        target, prediction = truth.mix(a, b), estimate.mix(a, b)
        scale = max(2 * rms(target), 1e-6)
        items += [
            subject.show_values(f"{name}, target", target, scale),
            subject.show_values(f"{name}, prediction", prediction, scale),
        ]
        lines.append(f"{name} = {a:.2f} x_0 {'+' if b >= 0 else '-'} {abs(b):.2f} ε, RMSE {rms(prediction - target):.3f}")
    return {"panels": [subject.panel("", subject.show_data("noisy sample x_t", x), *items), text(*lines)]}


DEMOS = {
    "forward": Demo(
        "Forward process",
        "The signal fades and noise grows at the rate that the noise schedule sets. "
        "One Gaussian jump leads from a clean sample to any time t. "
        "Move t, and compare how much signal each schedule keeps.",
        r"x_t = \alpha(t)\, x_0 + \sigma(t)\, \varepsilon, \qquad \varepsilon \sim \mathcal{N}(0, I)",
        "reverie gallery forward DATA",
        forward,
        (T, Control("schedule", "Noise schedule", OWN, "choice", choices=(OWN, *SCHEDULES)), NUMBER, SEED),
        requires="diffusion",
    ),
    "posterior": Demo(
        "Posterior of one step",
        "Given the clean sample, every reverse step is a Gaussian. "
        "Its mean interpolates between x_t and x_0, and its variance is smaller than that of x_s without x_t. "
        "Sampling replaces x_0 by the network's prediction.",
        r"q(x_s \mid x_t, x_0) = \mathcal{N}\!\left(\frac{\alpha_{ts}\,\sigma_s^2\, x_t + \alpha_s\,\sigma_{ts}^2\, "
        r"x_0}{\sigma_t^2},\ "
        r"\frac{\sigma_{ts}^2\,\sigma_s^2}{\sigma_t^2} I\right)",
        "reverie gallery normal",
        posterior,
        (T, Control("ratio", "s / t", 0.7, low=0.05, high=0.98), NUMBER, SEED),
        more_formulas=(
            r"\alpha_{ts} = \frac{\alpha_t}{\alpha_s}, \qquad \sigma_{ts}^2 = \sigma_t^2 - \alpha_{ts}^2\, \sigma_s^2",
        ),
        requires="diffusion",
    ),
    "targets": Demo(
        "Prediction targets",
        "A network can predict the noise, the clean sample or a linear combination of both. "
        "Each target and x_t together determine x_0 and ε by a 2 x 2 linear system. "
        "The targets differ in the noise levels at which an error of the network is amplified.",
        r"y = a(t)\, x_0 + b(t)\, \varepsilon",
        "reverie list targets",
        targets,
        (T, NUMBER, SEED),
        requires="diffusion",
        more_formulas=(
            r"x_0 = \frac{b\, x_t - \sigma\, y}{\alpha b - \sigma a}, \qquad \varepsilon = \frac{\alpha\, y - a\, x_t}"
            r"{\alpha b - \sigma a}",
        ),
    ),
}
