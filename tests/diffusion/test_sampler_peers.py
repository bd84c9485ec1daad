"""Samplers against diffusers, for the same predictions."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from reverie.base.noise import Noise, image_seeds
from reverie.diffusion.denoiser import Clip, Denoiser, NetDenoiser, noise_level
from reverie.diffusion.samplers import Frame, Sampler, trajectory
from reverie.diffusion.samplers.grids import Karras, Trailing
from reverie.diffusion.samplers.multistep import DPM2M, DPMSDE, AdamsBashforth, UniPC
from reverie.diffusion.samplers.onestep import DDIM, DDPM
from reverie.diffusion.samplers.rungekutta import Heun
from reverie.diffusion.schedule import Cosine, Linear, Schedule


def precise(peer: Any) -> Any:
    """Their tables are float32, which leaves three digits of 1 - alpha_bar at the first steps: redo them in float64."""
    peer.betas = peer.betas.double()
    peer.alphas = 1 - peer.betas
    peer.alphas_cumprod = peer.alphas.cumprod(0)
    return peer


class Constant(nn.Module):
    """A network that always gives the same answer."""

    def __init__(self, y: Tensor) -> None:
        super().__init__()
        self.y = y

    def forward(self, x: Tensor, level: Tensor, cond: Tensor | None) -> Tensor:
        return self.y


@pytest.mark.parametrize("index", [1, 250, 700, 980])
@pytest.mark.parametrize("target", ["eps", "v"])
@pytest.mark.parametrize(("schedule", "beta_schedule"), [(Linear(), "linear"), (Cosine(), "squaredcos_cap_v2")])
@pytest.mark.parametrize("clip", [False, True])
@pytest.mark.parametrize("kind", ["ddpm-posterior", "ddpm-forward", "ddim-0", "ddim-0.7"])
def test_one_step_equals_diffusers(
    kind: str, clip: bool, schedule: Schedule, beta_schedule: str, target: str, index: int
) -> None:
    from diffusers import DDIMScheduler, DDPMScheduler

    random = torch.Generator().manual_seed(index)
    x, y = torch.randn(4, 3, 8, 8, generator=random), torch.randn(4, 3, 8, 8, generator=random)
    z = torch.randn(x.shape, generator=torch.Generator().manual_seed(99))
    common = {
        "num_train_timesteps": 1000,
        "beta_schedule": beta_schedule,
        "prediction_type": {"eps": "epsilon", "v": "v_prediction"}[target],
        "clip_sample": clip,
    }

    name, _, option = kind.partition("-")
    if name == "ddpm":
        peer = precise(DDPMScheduler(variance_type={"posterior": "fixed_small", "forward": "fixed_large"}[option], **common))
        theirs = peer.step(y, index, x, generator=torch.Generator().manual_seed(99))
        sampler: Sampler = DDPM(option)
    else:
        peer = precise(DDIMScheduler(**common))
        peer.set_timesteps(1000)
        # With a clipped x0 its noise must follow, or x = alpha x0 + sigma eps breaks: their switch for it is off by default.
        theirs = peer.step(y, index, x, eta=float(option), variance_noise=z, use_clipped_model_output=True)
        sampler = DDIM(float(option))

    class Drawn(Noise):
        def like(self, x: Tensor) -> Tensor:
            return z.to(x)

    denoise: Denoiser = NetDenoiser(Constant(y), schedule, target)
    denoise = Clip(denoise) if clip else denoise
    t, s = (torch.tensor(k / 1000, dtype=torch.float64) for k in (index + 1, index))
    ours, _ = sampler.step(denoise, Frame(0, 2, t, x, denoise(x, t)), s, Drawn(image_seeds(0, 4)), None)
    # Where x0 is x / alpha with a small alpha, float32 data have only 1e-5 of that in common.
    scale = max(1.0, float(theirs.pred_original_sample.abs().max()))
    torch.testing.assert_close(ours, theirs.prev_sample, rtol=1e-5, atol=1e-5 * scale)


class Wave(nn.Module):
    """A smooth network with no weights: its noise estimate bends with x and with the noise level."""

    def forward(self, x: Tensor, level: Tensor, cond: Tensor | None) -> Tensor:
        return torch.sin(1.5 * x) * (0.6 + 0.03 * level.reshape(-1, *[1] * (x.ndim - 1))) + 0.2


class Listed(Noise):
    """Given noise, draw by draw."""

    def __init__(self, draws: list[Tensor]) -> None:
        super().__init__(image_seeds(0, len(draws[0])))
        self.left: Iterator[Tensor] = iter(draws)

    def like(self, x: Tensor) -> Tensor:
        return next(self.left).to(x)


STEPS = 12
COMMON: dict[str, Any] = {
    "num_train_timesteps": 1000, "beta_schedule": "linear", "beta_start": 1e-4, "beta_end": 0.02,
    "timestep_spacing": "trailing",
}  # fmt: skip


def theirs(peer: Any, x: Tensor, exploding: bool, **options: Any) -> list[Tensor]:
    """Run their loop with our network and return x before each of their steps, and the sample.

    Some of their schedulers keep x / alpha instead of x: `exploding`.
    """
    schedule, net = Linear(), Wave()
    peer.set_timesteps(STEPS)
    visited = []
    for k, index in enumerate(peer.timesteps):
        alpha, sigma = schedule((float(index) + 1) / 1000)
        visited.append(x * alpha if exploding else x)
        level = torch.tensor(noise_level(alpha, sigma), dtype=x.dtype).expand(len(x))
        more = {"variance_noise": options["draws"][k]} if "draws" in options else {}
        x = peer.step(net(visited[-1], level, None), index, x, **more).prev_sample
    return [*visited, x]


def ours(sampler: Sampler, x: Tensor, noise: Noise | None = None) -> list[Tensor]:
    denoise = NetDenoiser(Wave(), Linear(), "eps")
    grid = Trailing()(denoise.schedule, STEPS)
    # their trailing times are rounded to the chain
    grid = (grid * 1000).round() / 1000
    frames = list(trajectory(denoise, sampler, x, grid, noise or Noise(image_seeds(0, len(x)))))
    return [*(f.x for f in frames), frames[-1].x0]


@pytest.fixture
def noise_image() -> Tensor:
    return torch.randn(3, 1, 4, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(5))


def compare(mine: list[Tensor], other: list[Tensor]) -> None:
    for a, b in zip(mine, other, strict=True):
        torch.testing.assert_close(a, b.to(a), rtol=1e-4, atol=1e-4)


def test_dpm_solver_2m_equals_diffusers(noise_image: Tensor) -> None:
    from diffusers import DPMSolverMultistepScheduler

    peer = precise(DPMSolverMultistepScheduler(**COMMON, algorithm_type="dpmsolver++", solver_order=2))
    compare(ours(DPM2M(), noise_image), theirs(peer, noise_image, exploding=False))


def test_dpm_solver_sde_equals_diffusers(noise_image: Tensor) -> None:
    from diffusers import DPMSolverMultistepScheduler

    random = torch.Generator().manual_seed(6)
    draws = [torch.randn(noise_image.shape, generator=random, dtype=torch.float64) for _ in range(STEPS)]
    peer = precise(DPMSolverMultistepScheduler(**COMMON, algorithm_type="sde-dpmsolver++", solver_order=2))
    compare(ours(DPMSDE(), noise_image, Listed(draws)), theirs(peer, noise_image, exploding=False, draws=draws))


@pytest.mark.parametrize("order", [1, 2, 3])
def test_unipc_equals_diffusers(order: int, noise_image: Tensor) -> None:
    from diffusers import UniPCMultistepScheduler

    peer = precise(UniPCMultistepScheduler(**COMMON, solver_order=order, solver_type="bh2"))
    # They fall back to lower orders over the last steps, so of third order the last two of our x are not theirs.
    shared = slice(None) if order < 3 else slice(0, -2)
    compare(ours(UniPC(order), noise_image)[shared], theirs(peer, noise_image, exploding=False)[shared])


def test_heun_equals_diffusers(noise_image: Tensor) -> None:
    from diffusers import HeunDiscreteScheduler

    peer = precise(HeunDiscreteScheduler(**COMMON))
    alpha, _ = Linear()(1.0)
    visited = theirs(peer, noise_image / alpha, exploding=True)
    # They evaluate twice a step: at x, and at where Euler's step would lead.
    compare(ours(Heun(), noise_image), [visited[0], *visited[2:-1:2], visited[-1]])


def test_adams_bashforth_of_second_order_equals_diffusers(noise_image: Tensor) -> None:
    from diffusers import LMSDiscreteScheduler

    class Two(LMSDiscreteScheduler):
        def step(self, *args: Any, **options: Any) -> Any:
            return super().step(*args, order=2, **options)

    alpha, _ = Linear()(1.0)
    visited = theirs(precise(Two(**COMMON)), noise_image / alpha, exploding=True)
    compare(ours(AdamsBashforth(2), noise_image)[:-1], visited[:-1])  # they extrapolate to sigma = 0, we estimate


def test_a_wrong_coefficient_is_noticed(noise_image: Tensor) -> None:
    from diffusers import DPMSolverMultistepScheduler

    peer = precise(DPMSolverMultistepScheduler(**COMMON, algorithm_type="dpmsolver++", solver_order=2))
    with pytest.raises(AssertionError):
        compare(ours(DDIM(), noise_image), theirs(peer, noise_image, exploding=False))


def test_karras_grid_equals_diffusers() -> None:
    from diffusers import DPMSolverMultistepScheduler

    peer = precise(DPMSolverMultistepScheduler(num_train_timesteps=1000, beta_schedule="linear", use_karras_sigmas=True))
    peer.set_timesteps(STEPS)
    alpha, sigma = Linear()(Karras()(Linear(), STEPS))
    torch.testing.assert_close(torch.as_tensor(sigma / alpha).float(), peer.sigmas[:STEPS].float(), rtol=2e-3, atol=0)
