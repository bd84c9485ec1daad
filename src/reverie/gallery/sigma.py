"""Denoising at one fixed noise level, too small, medium or too large, and at all levels.

A network minimizes E|eps_hat(x0 + sigma eps) - eps|² at one sigma.  With a small sigma the training data cover little of the
plane, and it is wrong elsewhere: samples end on the curve at arbitrary positions.  With a large sigma it is accurate
everywhere, but for blurred data.  Conditioned on sigma and trained at all levels, it moves from the blurred to the sharp
distribution.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from reverie.base.noise import Noise, check_seed, image_seeds
from reverie.data import load_data
from reverie.data.curve import THETA_MAX, THETA_MIN, closest_on_spiral
from reverie.diffusion.denoiser import Denoiser, NetDenoiser
from reverie.diffusion.loss import draw_times, loss
from reverie.diffusion.oracle import DatasetDenoiser
from reverie.diffusion.pair import Pair
from reverie.diffusion.process import jump
from reverie.diffusion.samplers.grids import Level, LogSNR
from reverie.diffusion.samplers.langevin import Langevin
from reverie.diffusion.samplers.loop import start, trajectory
from reverie.diffusion.samplers.onestep import DDIM
from reverie.diffusion.schedule import LogLinear
from reverie.draw.picture import ACCENT, INK, WARM, check_picture, dots, figure, save, set_suptitle, square_axes
from reverie.gallery.score import arrows, field, show_field
from reverie.nets.mlp import ConditionalMLP
from reverie.transport import sliced_wasserstein

SIGMAS = {"too small": 0.02, "medium": 0.2, "too large": 2.0, "all levels": None}
SHOWN_SIGMA = 0.2  # at which the network of all levels is shown
POINTS, BATCH, RATE, STEPS = 1000, 512, 5e-3, 1500
STEPS_FACTOR = 4  # of training steps, for the network of all levels
SAMPLES, LANGEVIN_STEPS, STEP_SIZE, START_SIGMA = 300, 200, 0.1, 2.0
SEGMENTS = np.linspace(THETA_MIN, THETA_MAX, 13)  # edges of the curve's segments, in which samples are counted
LIMITS = (-2.0, 2.0)


@dataclass(frozen=True)
class Drawn:
    """Samples, (n, 2): off, mean distance to the curve; apart, sliced Wasserstein-1 distance to the data.

    shares: fraction of the samples closest to each segment of the curve.
    """

    x: np.ndarray
    off: float
    apart: float
    shares: np.ndarray


@dataclass(frozen=True)
class Learned:
    """A network trained at one level, or at all (None), compared with the exact score of the noised data.

    error: E|eps_hat - eps*|² / 2 where the network was trained; wrong: whether the error at a grid position exceeds
    half the length of the exact vector; drawn, exact: samples by the network, and by the exact score.
    """

    sigma: float | None
    net: Denoiser
    error: float
    wrong: Tensor
    drawn: Drawn
    exact: Drawn


def train(data: Tensor, sigma: float | None, seed: int, steps: int) -> NetDenoiser:
    """Train a small network to estimate the noise at one level, or at all of them.  data: (n, 2)."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        net = ConditionalMLP(2, hidden=64)
    denoiser = NetDenoiser(net, LogLinear(0.01, 10.0), "eps", float(data.std()))
    random = torch.Generator().manual_seed(seed)
    optimizer = torch.optim.Adam(net.parameters(), RATE)
    decay = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    for _ in range(steps):
        x0 = data[torch.randint(len(data), (BATCH,), generator=random)]
        t = draw_times("stratified", denoiser.schedule, BATCH, random)
        if sigma is not None:
            t = torch.full_like(t, time_of(denoiser, sigma))
        optimizer.zero_grad()
        loss(denoiser, Pair(x0, torch.randn(x0.shape, generator=random)), t).mean().backward()
        optimizer.step()
        decay.step()
    return denoiser


def time_of(denoiser: Denoiser, sigma: float) -> float:
    """Return the time at which the schedule, whose alpha is 1, has this sigma."""
    return float(denoiser.schedule.invert(-2 * float(np.log(sigma))))


def walk(denoiser: Denoiser, sigma: float | None, data: Tensor, seed: int) -> Drawn:
    """Sample by Langevin dynamics at one level from wide noise, or by DDIM through all levels."""
    schedule, noise = denoiser.schedule, Noise(image_seeds(seed, SAMPLES))
    x = noise.like(torch.empty(SAMPLES, 2))
    if sigma is None:
        frames = trajectory(denoiser, DDIM(), start(schedule, 1.0, x), LogSNR()(schedule, 50), noise)
    else:
        frames = trajectory(
            denoiser, Langevin(1, STEP_SIZE), START_SIGMA * x, Level(time_of(denoiser, sigma))(schedule, LANGEVIN_STEPS), noise
        )
    samples = [frame.x0 for frame in frames][-1]
    _, off = closest_on_spiral(samples.numpy())
    return Drawn(samples.numpy(), float(off.mean()), float(sliced_wasserstein(samples, data, p=1)), shares(samples.numpy()))


def shares(points: np.ndarray) -> np.ndarray:
    """Return the share of points closest to each segment of the curve: (N, 2) -> (12,)."""
    return np.histogram(closest_on_spiral(points)[0], SEGMENTS)[0] / len(points)


@torch.no_grad()
def learn(data: Tensor, sigma: float | None, seed: int = 0, steps: int = STEPS) -> Learned:
    """Train at one level, or at all of them, and compare with the exact score of the noised data.  data: (n, 2)."""
    with torch.enable_grad():
        net = train(data, sigma, seed, steps if sigma else STEPS_FACTOR * steps)
    exact = DatasetDenoiser(net.schedule, data)
    t = time_of(net, sigma or SHOWN_SIGMA)
    noised = jump(net.schedule, data, t, Noise(image_seeds(seed, len(data))))
    positions = arrows(LIMITS)
    truth = field(exact, positions, t)
    is_wrong = (field(net, positions, t) - truth).norm(dim=1) > truth.norm(dim=1) / 2
    error = float((net(noised, t).eps - exact(noised, t).eps).square().mean())
    return Learned(sigma, net, error, is_wrong, walk(net, sigma, data, seed), walk(exact, sigma, data, seed))


def draw(out: Path, *, seed: int = 0) -> list[Path]:
    """Train the four networks, draw scores and samples, and return the file."""
    check_picture(out)
    data, _ = load_data("spiral", POINTS, check_seed(seed)).batch(torch.arange(POINTS))
    fig = figure(3.7 * len(SIGMAS), 9.4)
    positions, expected = arrows(LIMITS), shares(data.numpy())
    axes = fig.subplots(3, len(SIGMAS), height_ratios=(3, 3, 1))
    for (name, sigma), field_axes, sample_axes, counts in zip(SIGMAS.items(), *axes, strict=True):
        learned = learn(data, sigma, seed)
        level = f"sigma {sigma:g}" if sigma else f"shown at sigma {SHOWN_SIGMA:g}"
        error_label = f"error of eps {learned.error:.3f}, {float(learned.wrong.float().mean()):.0%} of arrows wrong"
        square_axes(field_axes, LIMITS).set_title(f"{name}: {level}\n{error_label}", fontsize=10, color=INK)
        t = time_of(learned.net, sigma or SHOWN_SIGMA)
        dots(field_axes, jump(learned.net.schedule, data, t, Noise(image_seeds(seed, len(data)))).numpy(), "#d5dbe1")
        colours = [WARM if wrong else ACCENT for wrong in learned.wrong.tolist()]
        show_field(
            field_axes, positions.numpy(), torch.nn.functional.normalize(field(learned.net, positions, t)).numpy() * 2, colours
        )
        sampler_label = "Langevin at this level" if sigma else "DDIM through all levels"
        drawn, exact = learned.drawn, learned.exact
        caption = f"{sampler_label}: {drawn.off:.3f} from the curve,\n{drawn.apart:.3f} from the data"
        caption += f" (exact score: {exact.off:.3f}, {exact.apart:.3f})"
        square_axes(sample_axes, LIMITS).set_title(caption, fontsize=9, color=INK)
        dots(sample_axes, data.numpy(), "#d5dbe1")
        dots(sample_axes, learned.drawn.x, ACCENT)
        counts.stairs(expected, SEGMENTS, fill=True, color="#d5dbe1")
        counts.stairs(drawn.shares, SEGMENTS, color=ACCENT)
        misplaced = float(abs(drawn.shares - expected).sum() / 2)
        counts.set(xticks=[], yticks=[], ylim=(0, 0.5), xlabel="along the curve, from its inner end")
        counts.set_title(f"{misplaced:.0%} of samples on the wrong segment", fontsize=9, color=INK)
    caption = "denoisers of one noise level; red arrows have errors above half their length; data in grey"
    set_suptitle(fig, f"{caption}; seed {seed}", 11)
    save(fig, out)
    return [out]
