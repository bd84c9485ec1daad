"""A linear autoencoder is PCA, a denoising one estimates the score; invalid options raise errors."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from torch import Tensor

import reverie
from reverie.base.errors import UserError
from reverie.data import Dataset, load_data
from reverie.data.codec import Pixels, Standard
from reverie.families.latent_space import principal_angles
from reverie.families.model import SamplingInputs, TrainedModel
from reverie.families.vae.autoencoder import Autoencoder, DenoisingAutoencoder
from reverie.families.vae.networks import ConvDecoder, ConvEncoder, Linear, ResidualMLP


def learn(model: TrainedModel, x: Tensor, steps: int, batch: int, rate: float) -> None:
    """Train by Adam with a rate that falls to zero."""
    optimizer = torch.optim.Adam(model.parameters(), rate)
    slower = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    random = torch.Generator().manual_seed(0)
    for step in range(steps):
        optimizer.zero_grad()
        model.loss(x[torch.randint(len(x), (batch,), generator=random)], None, step).mean().backward()
        optimizer.step()
        slower.step()


def test_angles_between_spaces_are_those_of_scipy() -> None:
    from scipy.linalg import subspace_angles

    a, b = torch.randn(2, 9, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    assert principal_angles(a, b).flip(0).numpy() == pytest.approx(subspace_angles(a.numpy(), b.numpy()), abs=1e-12)
    tilted = a + 1e-9 * b
    assert 0 < float(principal_angles(a, tilted).max()) < 1e-8


def test_a_linear_autoencoder_trained_by_gradients_finds_the_subspace_of_pca() -> None:
    torch.manual_seed(0)
    x = load_data("digits8").subsample(2000)
    model = Autoencoder(Linear((1, 8, 8), (6,)), Linear((6,), (1, 8, 8, 1)), (6,), Pixels(), (1, 8, 8), 0)
    model.initialize(Dataset("digits8", (255 * x).round().byte()))
    learn(model, x, steps=500, batch=256, rate=3e-2)
    z = (2 * x - 1).flatten(1).double()
    values, vectors = torch.linalg.eigh(z.T.cov(correction=0))
    left = float(values[:-6].sum()) / 64  # Eckart and Young: no other map of rank 6 leaves less
    with torch.no_grad():
        error = float(model.loss(x, None, 0).double().mean())
    assert left <= error * (1 + 1e-6) and error < 1.01 * left
    decoder = next(p for name, p in model.decoder.named_parameters() if name.endswith("weight"))
    assert float(principal_angles(vectors[:, -6:], decoder.detach()).max()) < math.radians(4)


def test_what_a_denoising_autoencoder_changes_is_the_score_of_a_gaussian() -> None:
    """Of linear ones the best is S (S + sigma²)^-1 y, with S the covariance, so the score is -(S + sigma²)^-1 y."""
    torch.manual_seed(0)
    random, sigma = torch.Generator().manual_seed(1), 0.3
    mix = torch.tensor([[1.0, 0.0], [0.8, 0.5]])
    x = torch.randn(20_000, 2, generator=random) @ mix.T
    model = DenoisingAutoencoder(
        Linear((2,), (2,)), Linear((2,), (2, 1)), (2,), Standard([0.0, 0.0], [1.0, 1.0]), (2,), 0, sigma=sigma
    )
    learn(model, x, steps=1000, batch=512, rate=3e-2)
    y = torch.randn(200, 2, generator=random) @ mix.T
    exact = -y @ torch.linalg.inv(mix @ mix.T + sigma**2 * torch.eye(2))
    with torch.no_grad():
        off = (model.score(y) - exact).square().mean() / exact.square().mean()
    assert float(off.sqrt()) < 0.05


def mixture(count: int, random: torch.Generator) -> tuple[Tensor, Tensor]:
    centres = torch.tensor([[1.0, 1.0], [-1.0, 1.0], [0.0, -1.0]])
    return centres[torch.randint(3, (count,), generator=random)] + 0.3 * torch.randn(count, 2, generator=random), centres


@pytest.mark.slow
def test_a_denoising_autoencoder_knows_the_score_of_a_mixture_and_walks_to_its_samples() -> None:
    torch.manual_seed(0)
    random, sigma = torch.Generator().manual_seed(1), 0.25
    x, centres = mixture(20_000, random)
    model = DenoisingAutoencoder(
        ResidualMLP((2,), (2,), 128, 1, 0),
        ResidualMLP((2,), (2, 1), 128, 1, 0),
        (2,),
        Standard([0.0, 0.0], [1.0, 1.0]),
        (2,),
        0,
        sigma=sigma,
    )
    learn(model, x, steps=4000, batch=512, rate=3e-3)
    model.finalize(Dataset("mixture", x))
    y = x[:1000] + sigma * torch.randn(1000, 2, generator=random)
    y.requires_grad_()
    far = (y[:, None] - centres).square().sum(2)
    density = torch.logsumexp(-far / (2 * (0.3**2 + sigma**2)), 1).sum()
    (exact,) = torch.autograd.grad(density, y)
    with torch.no_grad():
        off = (model.score(y) - exact).square().mean() / exact.square().mean()
    assert float(off.sqrt()) < 0.15
    *_, last = model.frames(SamplingInputs(torch.arange(3000), options={"steps": 200}))
    near = (last.x0[:, None] - centres).square().sum(2)
    nearest = near.argmin(1)
    assert torch.bincount(nearest, minlength=3).float().div(3000).sub(1 / 3).abs().max() < 0.08
    width = float((near.min(1).values / 2).mean().sqrt())
    assert width == pytest.approx(math.sqrt(0.3**2 + sigma**2 / 2), rel=0.1)


def test_codes_are_drawn_with_the_moments_of_each_label() -> None:
    random = torch.Generator().manual_seed(0)
    labels = torch.arange(600) % 2
    x = torch.randn(600, 3, generator=random) * torch.tensor([1.0, 2.0, 0.1]) + 5.0 * labels[:, None]
    model = Autoencoder(Linear((3,), (3,)), Linear((3,), (3, 1)), (3,), Standard([0.0] * 3, [1.0] * 3), (3,), 2)
    with torch.no_grad():
        for part in (model.encoder, model.decoder):
            assert isinstance(part, Linear)
            part.map.weight.copy_(torch.eye(3))
            part.map.bias.zero_()
    model.finalize(Dataset("two", x, labels, ("a", "b")))
    seeds = torch.arange(4000)
    for label in (0, 1):
        (frame,) = model.frames(SamplingInputs(seeds, torch.full((4000,), label)))
        assert torch.allclose(frame.x0.mean(0), x[labels == label].mean(0), atol=0.15)
        assert torch.allclose(frame.x0.std(0), x[labels == label].std(0), rtol=0.06)


def test_the_latent_of_convolutions_is_a_map_and_back_bit_for_bit() -> None:
    encoder, decoder = ConvEncoder(3, 4, (8, 8, 8), 0), ConvDecoder(4, 3, 1, (8, 8, 8), 0)
    model = Autoencoder(encoder, decoder, (4, 4, 4), Pixels(), (3, 16, 16), 0).eval()
    x = torch.rand(2, 3, 16, 16, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        z = model.to_latent(x)
        assert z.shape == (2, 4, 4, 4) and torch.equal(z, model.to_latent(x))
        back = model.from_latent(z)
    assert (
        back.shape == x.shape and torch.equal(back, model.from_latent(z)) and 0 <= float(back.min()) <= float(back.max()) <= 1
    )


@pytest.mark.parametrize(
    ("family", "match"),
    [
        ("autoencoder:latent=65", "latent.*65 > 64"),
        ("pca:latent=65", "latent.*65 > 64"),
        ("denoising-autoencoder:sigma=0", "sigma"),
    ],
)
def test_invalid_options_raise_user_errors(tmp_path: Path, family: str, match: str) -> None:
    with pytest.raises(UserError, match=match):
        reverie.train("digits8", tmp_path / "run", family=family, **({} if family.startswith("pca") else {"steps": 1}))
    assert not (tmp_path / "run").exists()


def test_an_autoencoder_has_no_likelihood() -> None:
    model = Autoencoder(Linear((2,), (1,)), Linear((1,), (2, 1)), (1,), Standard([0.0] * 2, [1.0] * 2), (2,), 0)
    with pytest.raises(UserError, match="no likelihood"):
        model.log_prob(torch.zeros(1, 2), None, torch.zeros(1).long())
