"""`make bench` and `make bench-all`: measure, print, and write docs/benchmarks.md."""

from __future__ import annotations

import argparse
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks.autoencoders import autoencoders
from benchmarks.autoregressive import autoregressive
from benchmarks.busy import busy
from benchmarks.captions import captions
from benchmarks.derivatives import derivatives
from benchmarks.exchange import exchange
from benchmarks.flows import flows
from benchmarks.images import costs, parts, quality, throughput
from benchmarks.inverse import restoration
from benchmarks.measure import Row, machine, side_by_side, write_rows, write_section
from benchmarks.measurement import measure_rows, measurement
from benchmarks.sampling import against_diffusers, evaluations, precision, streaming
from benchmarks.seq2seq import seq2seq
from benchmarks.startup import startup
from benchmarks.steering import steering
from benchmarks.studio import studio
from benchmarks.team import team
from benchmarks.text import language
from benchmarks.transport import large, mmd_row, sinkhorn_rows
from benchmarks.variational import variational
from reverie.base.noise import Noise, image_seeds
from reverie.data.curve import THETA_MAX, THETA_MIN, closest_on_spiral, spiral_curve
from reverie.diffusion.denoiser import NetDenoiser
from reverie.diffusion.loss import draw_times, loss
from reverie.diffusion.oracle import DatasetDenoiser
from reverie.diffusion.pair import Pair
from reverie.diffusion.samplers import start, trajectory
from reverie.diffusion.samplers.grids import Uniform
from reverie.diffusion.samplers.onestep import DDIM, DDPM
from reverie.diffusion.schedule import Linear
from reverie.nets.mlp import ConditionalMLP

PAGE = Path(__file__).parent.parent / "docs" / "benchmarks.md"


class Still(nn.Module):
    """A network without computation, to time everything around it."""

    def forward(self, x: Tensor, level: Tensor, cond: Tensor | None) -> Tensor:
        """Return the input."""
        return x


def sampling(name: str) -> Row:
    """The sampling loop alone, 64 images of 28 x 28, 50 evaluations, against the same loop over a diffusers scheduler."""
    from diffusers import DDIMScheduler, DDPMScheduler

    shape = (64, 1, 28, 28)
    denoise = NetDenoiser(Still(), Linear(), "eps")
    grid = Uniform()(denoise.schedule, 50)
    sampler = DDIM() if name == "DDIM" else DDPM()
    peer: Any = (DDIMScheduler if name == "DDIM" else DDPMScheduler)(num_train_timesteps=1000, clip_sample=False)
    peer.set_timesteps(50)

    def ours() -> Tensor:
        noise = Noise(image_seeds(0, 64))
        x = start(denoise.schedule, 1.0, noise.like(torch.empty(shape)))
        return deque(trajectory(denoise, sampler, x, grid, noise), maxlen=1)[0].x0  # keep only the last frame

    @torch.no_grad()
    def theirs() -> Tensor:
        random = torch.Generator().manual_seed(0)
        x = torch.randn(shape, generator=random)
        for t in peer.timesteps:
            x = peer.step(x, t, x, generator=random).prev_sample
        return x

    note = f"diffusers {name}Scheduler, network without computation, 64 x 28 x 28, 50 steps"
    return side_by_side(f"{name} loop around the network", ours, theirs, note)


def seeded_noise() -> Row:
    """One stream per image, against a loop over generators."""
    x = torch.empty(256, 1, 28, 28)
    seeds = image_seeds(0, 256)

    def generators() -> Tensor:
        return torch.stack([torch.randn(x.shape[1:], generator=torch.Generator().manual_seed(int(s))) for s in seeds])

    return side_by_side(
        "seeded noise, one stream per image",
        lambda: Noise(seeds).like(x),
        generators,
        "a torch.Generator per image, 256 x 28 x 28",
    )


def training_step() -> Row:
    """A training step of the small network, against the shortest equivalent loop."""
    data = torch.randn(10_000, 2)
    nets = [ConditionalMLP(), ConditionalMLP()]
    optimizers = [torch.optim.AdamW(net.parameters(), fused=True) for net in nets]
    denoise, random = NetDenoiser(nets[0], Linear(), "eps"), torch.Generator().manual_seed(0)
    bar = torch.cumprod(1 - torch.linspace(1e-4, 0.02, 1000), 0)
    alphas, sigmas = bar.sqrt(), (1 - bar).sqrt()

    def batch() -> Tensor:
        return data[torch.randint(len(data), (512,), generator=random)]

    def ours() -> None:
        for _ in range(50):
            x0 = batch()
            t = draw_times("uniform", denoise.schedule, 512, random)
            value = loss(denoise, Pair(x0, torch.randn(x0.shape, generator=random)), t).mean()
            optimizers[0].zero_grad()
            value.backward()
            optimizers[0].step()

    def bare() -> None:
        for _ in range(50):
            x0 = batch()
            index = torch.randint(1000, (512,), generator=random)
            eps = torch.randn(x0.shape, generator=random)
            x = alphas[index, None] * x0 + sigmas[index, None] * eps
            value = (nets[1](x, index / 50.0 - 10) - eps).square().mean()
            optimizers[1].zero_grad()
            value.backward()
            optimizers[1].step()

    return side_by_side("50 training steps of the 6,000-parameter MLP", ours, bare, "a bare loop with tables, batch 512")


def closest_point() -> Row:
    """The closest point on the spiral, against brute force with curve points for the same precision of 1e-5."""
    points = np.random.default_rng(0).normal(0, 0.7, (2000, 2))
    curve = spiral_curve(np.linspace(THETA_MIN, THETA_MAX, 10_000))

    def brute() -> object:
        return np.sqrt(((points**2).sum(1)[:, None] - 2 * points @ curve.T + (curve**2).sum(1)).min(1))

    note = "brute force over 10,000 curve points, 2,000 points"
    return side_by_side("closest points on the spiral", lambda: closest_on_spiral(points), brute, note)


def optimum() -> Row:
    """The optimal denoiser of a finite set, against the direct formula with all differences in memory."""
    data, x = torch.rand(2000, 784), torch.randn(16, 784)
    oracle = DatasetDenoiser(Linear(), data)
    alpha, sigma = (float(c) for c in Linear()(0.5))

    def direct() -> Tensor:
        squared = (x[:, None] - alpha * data).square().sum(-1)
        return (-squared / (2 * sigma**2)).softmax(1) @ data

    note = "the formula without optimisation, float32, 16 images against 2,000"
    return side_by_side("optimal denoiser of a finite set", lambda: oracle(x, 0.5), direct, note)


def rows() -> list[Row]:
    """Return the comparisons with a peer, in milliseconds."""
    own = [sampling("DDIM"), sampling("DDPM"), seeded_noise(), training_step(), closest_point(), optimum()]
    return [*own, *sinkhorn_rows(), mmd_row(), *measure_rows(), startup()]


# Sections of the page in order: those of a few minutes (`make bench`), and the long ones (`make bench-all`).
SHORT: dict[str, Callable[[], list[str]]] = {
    "Training speed of image networks": lambda: throughput() + parts() + costs(),
    "Training on a busy machine": busy,
    "Several processes": team,
    "Quality on MNIST": quality,
    "Sampling in bfloat16": precision,
    "Streaming to disk": streaming,
    "Exported models": exchange,
    "Derivatives": derivatives,
    "Measuring": measurement,
    "The studio": studio,
}
LONG: dict[str, Callable[[], list[str]]] = {
    "Autoencoders": autoencoders,
    "Flows and the Sinkhorn generator": flows,
    "Autoregressive models": autoregressive,
    "Language models": lambda: language(seeds=(0, 1, 2)),
    "Sequence to sequence": lambda: seq2seq(seeds=(0, 1, 2)),
    "Text to image": lambda: captions(networks=["unet-tiny", "unet-tiny:attends=yes"]),
    "Quality against network evaluations": evaluations,
    "Sampling speed at equal quality": against_diffusers,
    "Variances and schedules for few steps": variational,
    "Inpainting and inverse problems": restoration,
    "Steering": steering,
    "Transport and kernels at large": large,
}


def main() -> None:
    """Measure the selected sections and write each as soon as it is measured; the others are kept."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--all", action="store_true", help="also run the long sections")
    parser.add_argument("--only", default="", help="sections whose title contains this")
    args = parser.parse_args()
    torch.set_num_threads(2)
    print(machine())
    if not args.only:
        write_rows(rows(), PAGE)
    for title, measured in (SHORT | LONG if args.all or args.only else SHORT).items():
        if args.only.casefold() in title.casefold():
            begun = time.perf_counter()
            write_section(title, measured(), PAGE)
            print(f"{title}: {time.perf_counter() - begun:.0f} s", flush=True)
    print(f"wrote {PAGE}")


if __name__ == "__main__":
    main()
