"""Hierarchies: with a fixed linear encoder they are diffusion."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import reverie
from reverie.base.errors import UserError
from reverie.base.noise import Noise, image_seeds
from reverie.base.spec import build
from reverie.data.codec import Levels, Standard
from reverie.diffusion.denoiser import NetDenoiser
from reverie.diffusion.likelihood.bound import bound
from reverie.diffusion.process import transition
from reverie.diffusion.schedules import SCHEDULES
from reverie.families.vae.hierarchy import HVAE, LinearMHVAE, MarkovHVAE
from reverie.families.vae.networks import ResidualMLP
from reverie.families.vae.observation import OBSERVATIONS, Gaussian
from reverie.families.vae.settings import fixed_chain
from reverie.families.vae.variational import Variational
from reverie.nets import NETWORKS

POINTS: dict[str, Any] = {
    "observation": Gaussian(None), "codec": Standard([0.0] * 2, [1.0] * 2), "shape": (2,), "labels": 0,
}  # fmt: skip


def ladder(latents: tuple[int, ...], hidden: int, blocks: int, **options: Any) -> HVAE:
    """A ladder of dense layers."""
    shape, labels = options["shape"], options["labels"]
    encoder = ResidualMLP(shape, (hidden,), hidden, blocks, labels)
    decoder = ResidualMLP((hidden,), (*shape, options["observation"].parameters), hidden, blocks, labels)
    return HVAE(encoder, decoder, latents, hidden, **options)


MODELS: dict[str, Callable[..., Variational]] = {"hvae": ladder, "mhvae": MarkovHVAE}


class FixedNoise(Noise):
    """Noise with given values."""

    def __init__(self, each: list[Tensor]) -> None:
        super().__init__(torch.zeros(len(each[0]), dtype=torch.int64))
        self.each = each

    def like(self, x: Tensor) -> Tensor:
        return self.each.pop(0)


class Guess(nn.Module):
    """What a denoiser takes x to be at the times of a chain."""

    def __init__(self, denoiser: NetDenoiser, times: list[float]) -> None:
        super().__init__()
        self.denoiser, self.times = denoiser, times

    def forward(self, z: Tensor, t: int, cond: Tensor | None) -> Tensor:
        return self.denoiser(z, self.times[t - 1], cond).x0


class Last(nn.Module):
    """The last step of diffusion: a normal around the estimate, of variance sigma² / (alpha² + sigma²)."""

    def __init__(self, denoiser: NetDenoiser, t: float) -> None:
        super().__init__()
        self.denoiser, self.t = denoiser, t

    def forward(self, z: Tensor, cond: Tensor | None = None) -> Tensor:
        alpha, sigma = (float(c) for c in self.denoiser.schedule(self.t))
        mean = self.denoiser(z, self.t, cond).x0
        return torch.stack([mean, torch.full_like(mean, math.log(sigma**2 / (alpha**2 + sigma**2)) / 2)], -1)


@pytest.mark.parametrize("name", ["cosine", "linear", "rectified"])
def test_a_chain_with_a_fixed_linear_encoder_is_diffusion(name: str) -> None:
    """For the same weights every term of the bound is the same; where a schedule does not preserve variance, so is the rest."""
    torch.manual_seed(0)
    schedule = build(SCHEDULES, name, "schedule")
    net = build(NETWORKS, {"name": "mlp", "hidden": 16}, "network").double()
    for p in net.parameters():
        nn.init.normal_(p, std=0.3)
    denoiser = NetDenoiser(net, schedule, "v", 1.0).double()
    times = [0.15, 0.3, 0.55, 0.8, 0.97]
    first = tuple(float(c) for c in schedule(times[0]))
    chain = [first, *((float(a), float(b)) for a, b in (transition(schedule, s, t) for s, t in pairwise(times)))]
    model = LinearMHVAE(chain, Guess(denoiser, times), Last(denoiser, times[0]), **POINTS).double()
    for t, (scale, std) in zip(times, model.marginals, strict=True):
        assert (scale, std) == pytest.approx(tuple(float(c) for c in schedule(t)), abs=1e-12)
    x = torch.randn(40, 2, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    log_likelihood, levels = model.bound(x, None, Noise(image_seeds(0, 40)).like)
    eps = [(level.z - scale * x) / std for level, (scale, std) in zip(levels, reversed(model.marginals), strict=True)]
    grid = torch.tensor(times[::-1], dtype=torch.float64)
    theirs = bound(denoiser, x, grid, FixedNoise(eps))
    for level, term in zip(levels[1:], theirs.denoising.T, strict=True):
        assert torch.allclose(level.kl().sum(1), term, atol=1e-6, rtol=1e-9)
    assert torch.allclose(-log_likelihood[:, 0], theirs.reconstruction, atol=1e-6, rtol=1e-9)
    if name != "rectified":  # whose noise is wider than N(0, 1) where it begins
        assert torch.allclose(levels[0].kl().sum(1), theirs.prior, atol=1e-6)


def test_the_fixed_chain_preserves_variance_and_ends_in_noise() -> None:
    scale = 1.0
    for a, b in fixed_chain(5):
        assert a**2 + b**2 == pytest.approx(1, abs=1e-9)
        scale *= a
    assert abs(scale) < 1e-3


@pytest.mark.parametrize("name", MODELS)
def test_closed_terms_and_draws_have_the_same_mean(name: str) -> None:
    torch.manual_seed(0)
    model = MODELS[name]((2, 2, 1), 16, 1, **POINTS).double()
    for p in model.parameters():
        nn.init.normal_(p, std=0.3)
    x = torch.randn(4, 2, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    seeds = torch.arange(4)
    with torch.no_grad():
        log_likelihood, levels = model.bound(x, None, lambda like: torch.randn(like.shape, dtype=like.dtype), 4000)
        each = log_likelihood - torch.stack([level.kl().sum(1) for level in levels]).sum(0).unflatten(0, (4, -1))
    drawn = model.log_weights(x, None, seeds, 4000)
    error = (each.var(1) + drawn.var(1)).div(4000).sqrt()
    assert ((each.mean(1) - drawn.mean(1)).abs() < 4 * error).all()
    tight = [float(model.log_prob(x, None, seeds, k).nats.mean()) for k in (1, 4000)]
    assert tight[0] < tight[1] + 0.5


def test_each_latent_of_a_ladder_knows_all_above_and_of_a_chain_its_neighbour_alone() -> None:
    torch.manual_seed(0)

    def depends_on_the_top(model: Variational, lowest: int, drawn: int) -> bool:
        """Return whether p of the lowest latent changes with the topmost sample while those between are fixed."""
        x, found = torch.ones(1, 2), []
        for top in (0.0, 1.0):
            calls, eps = iter(range(9)), {drawn: top}

            def draw(like: Tensor, eps: dict[int, float] = eps, calls: Iterator[int] = calls) -> Tensor:
                return torch.full_like(like, eps.get(next(calls), 0.0))

            levels, _ = model.infer(x, None, draw)
            level = levels[lowest]
            assert level.prior is not None
            found.append(level.prior.mean)
        return not torch.equal(*found)

    rungs, chain = ladder((2, 2, 2), 8, 0, **POINTS), MarkovHVAE((2, 2, 2), 8, 0, **POINTS)
    with torch.no_grad():
        for p in (*rungs.parameters(), *chain.parameters()):
            nn.init.normal_(p, std=0.5)
        assert depends_on_the_top(rungs, lowest=2, drawn=0)
        assert not depends_on_the_top(chain, lowest=0, drawn=2)  # z_3 is drawn last, after z_1 and z_2, which stay


def test_a_chain_with_a_fixed_encoder_learns(tmp_path: Path) -> None:
    options = {"family": "mhvae:encoder=linear,hidden=32,levels=3", "steps": 30, "points": 500, "learning_rate": 1e-2}
    found = reverie.train("moons", tmp_path / "run", **options)
    rows = [row["held_out"] for row in found.metrics() if "held_out" in row]
    assert rows[-1] < rows[0] and found.sample(5).x.shape == (5, 2)


def test_labels_condition_the_model_and_are_required() -> None:
    options = {"observation": OBSERVATIONS["bernoulli"](2), "codec": Levels([0, 255]), "shape": (3,), "labels": 2}
    for kind in MODELS.values():
        model = kind((2, 2), 8, 0, **options)
        x, seeds = torch.ones(2, 3), torch.arange(2)
        one, other = (model.log_prob(x, torch.full((2,), k), seeds).nats for k in (0, 1))
        assert not torch.allclose(one, other)
        with pytest.raises(UserError, match="2 labels"):
            model.log_prob(x, None, seeds)


@pytest.mark.parametrize(
    ("family", "match"),
    [("hvae:latent=3", "latent.*3 > 2"), ("mhvae:encoder=square", "encoder"), ("hvae:levels=1", "levels")],
)
def test_invalid_options_raise_user_errors(tmp_path: Path, family: str, match: str) -> None:
    with pytest.raises(UserError, match=match):
        reverie.train("moons", tmp_path / "run", family=family, steps=1, points=50)
