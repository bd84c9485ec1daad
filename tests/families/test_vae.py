"""The variational bound against closed forms: Gaussian KL, a linear-Gaussian model, decoders that sum to 1."""

from __future__ import annotations

import math
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import reverie
from reverie import api
from reverie.base.errors import UserError
from reverie.base.noise import image_seeds
from reverie.data.codec import Levels, Standard
from reverie.diffusion.likelihood.normal import Diagonal
from reverie.families.vae.model import VAE
from reverie.families.vae.networks import ResidualMLP
from reverie.families.vae.observation import OBSERVATIONS, Gaussian, LogisticMixture
from reverie.families.vae.variational import LatentLevel, importance_bound
from reverie.runs.folder import read_findings

SMALL = "vae:hidden=32,latent=4,blocks=0"


def normals(*shape: int, seed: int = 0) -> Diagonal:
    random = torch.Generator().manual_seed(seed)
    mean, log_std = torch.randn(2, *shape, generator=random, dtype=torch.float64)
    return Diagonal(mean, log_std / 2)


@pytest.mark.parametrize("to", [None, normals(3, 5, seed=1)])
def test_the_kl_in_closed_form_is_that_of_draws_and_of_torch(to: Diagonal | None) -> None:
    q = normals(3, 5)
    prior = torch.distributions.Normal(0.0, 1.0) if to is None else torch.distributions.Normal(to.mean, to.log_std.exp())
    peer = torch.distributions.kl_divergence(torch.distributions.Normal(q.mean, q.log_std.exp()), prior)
    assert torch.allclose(q.kl(to), peer, atol=1e-12)
    many = [Diagonal(d.mean.repeat(20_000, 1), d.log_std.repeat(20_000, 1)) if d is not None else None for d in (q, to)]
    eps = torch.randn(60_000, 5, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    assert many[0] is not None
    drawn = -LatentLevel(many[0], many[1], many[0].at(eps)).log_ratio().unflatten(0, (-1, 3))
    error = drawn.std(0) / math.sqrt(len(drawn))
    assert ((drawn.mean(0) - q.kl(to).sum(1)).abs() < 4 * error).all() and error.max() < 0.1


class Affine(nn.Module):
    """A map that takes no labels."""

    def __init__(self, weight: Tensor, rest: Tensor) -> None:
        super().__init__()
        self.weight, self.rest = weight, rest

    def forward(self, x: Tensor, cond: Tensor | None = None) -> Tensor:
        return torch.stack([x @ self.weight.T, self.rest.expand(len(x), -1)], -1)


class Encoder(Affine):
    """Means and log-deviations one after another."""

    def forward(self, x: Tensor, cond: Tensor | None = None) -> Tensor:
        return super().forward(x).transpose(1, 2).flatten(1)


def linear_gaussian(slack: float) -> tuple[VAE, Tensor, Tensor]:
    """Make x = W z + s e with its exact posterior, whose deviations are multiplied by 1 + slack; data and log p(x).

    W has orthogonal columns, so that the posterior is diagonal.
    """
    random, s = torch.Generator().manual_seed(0), 0.6
    w = torch.linalg.qr(torch.randn(5, 3, generator=random, dtype=torch.float64))[0] * torch.tensor([2.0, 1.0, 0.5]).double()
    precision = 1 + w.square().sum(0) / s**2
    encoder = Encoder(w.T / s**2 / precision[:, None], -precision.log() / 2 + math.log1p(slack))
    decoder = Affine(w, torch.full((5,), math.log(s)).double())
    model = VAE(encoder, decoder, (3,), observation=Gaussian(None), codec=Standard([0.0] * 5, [1.0] * 5), shape=(5,), labels=0)
    x = torch.randn(64, 5, generator=random, dtype=torch.float64) * 1.3
    p = torch.distributions.MultivariateNormal(torch.zeros(5).double(), w @ w.T + s**2 * torch.eye(5).double())
    return model.double(), x, p.log_prob(x)


def test_with_the_exact_posterior_one_draw_gives_the_exact_likelihood() -> None:
    model, x, exact = linear_gaussian(slack=0.0)
    found = model.log_prob(x, None, torch.arange(64), 1).nats
    assert torch.allclose(found, exact, atol=1e-8)


def test_the_bound_rises_with_the_number_of_draws_to_the_exact_likelihood() -> None:
    model, x, exact = linear_gaussian(slack=0.5)
    weights = model.log_weights(x, None, image_seeds(0, 64), 4096)
    means = [float(importance_bound(weights.reshape(-1, k)).mean()) for k in (1, 4, 16, 64, 4096)]  # k = 1 is the ELBO
    assert means == sorted(means) and means[1] - means[0] > 0.05
    found = model.log_prob(x, None, image_seeds(0, 64), 4096)
    assert torch.allclose(found.nats, exact, atol=0.2) and abs(means[-1] - float(exact.mean())) < 0.01
    z = (found.nats - exact) / found.error
    assert 0.6 < float(z.std()) < 1.5  # the reported error is the actual one


def test_one_draw_in_training_and_many_have_the_same_bound_on_average() -> None:
    model, x, _ = linear_gaussian(slack=0.5)
    closed = torch.stack([model.loss(x, None, seed) for seed in range(300)]).mean()
    weights = model.log_weights(x, None, image_seeds(1, 64), 300).mean()
    assert float(closed.detach() * 5 + weights) == pytest.approx(0, abs=0.02)
    model.importance = 64
    tight = torch.stack([model.loss(x, None, seed) for seed in range(20)]).mean()
    assert bool(tight < closed)


def test_beta_free_bits_and_warm_up_weigh_the_kl() -> None:
    model, x, _ = linear_gaussian(slack=0.5)
    kl = model.posterior(x).kl()

    def loss(beta: float = 1.0, free_bits: float = 0.0, kl_warmup: float = 0.0, done: float = 1.0) -> Tensor:
        model.beta, model.free_bits, model.kl_warmup = beta, free_bits, kl_warmup
        model.set_progress(done)
        return model.loss(x, None, 0) * 5

    plain = loss()
    assert torch.allclose(loss(beta=3.0) - plain, 2 * kl.sum(1))
    assert torch.allclose(loss(free_bits=0.8) - plain, (kl.clamp_min(0.8) - kl).sum(1))
    assert torch.allclose(plain - loss(kl_warmup=0.4, done=0.1), 0.75 * kl.sum(1))
    assert torch.equal(loss(kl_warmup=0.4, done=0.5), plain)


@pytest.mark.parametrize(("name", "levels"), [("bernoulli", 2), ("categorical", 7), ("logistic", 7), ("logistic", 256)])
def test_the_probabilities_of_all_levels_sum_to_one(name: str, levels: int) -> None:
    observation = OBSERVATIONS[name](levels)
    y = 2 * torch.randn(1, 30, observation.parameters, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    x = torch.linspace(-1, 1, levels, dtype=torch.float64)
    p = observation.log_prob(x[:, None].expand(-1, 30), y.expand(levels, -1, -1)).exp()
    assert torch.allclose(p.sum(0), torch.ones(30).double(), atol=1e-9)
    if name != "logistic":  # whose mean is that of the continuous mixture
        assert torch.allclose((x[:, None] * p).sum(0), observation.mean(y)[0], atol=1e-9)


def test_a_logistic_far_from_its_level_has_a_gradient() -> None:
    observation = LogisticMixture(256)
    y = observation.initial_parameters(torch.zeros(1, 1))[None].clone()
    y[..., 5:10], y[..., 10:] = 0.99, -7.0
    y.requires_grad_()
    observation.log_prob(torch.full((1, 1), -0.5), y).sum().backward()
    assert y.grad is not None and bool(y.grad.isfinite().all()) and float(y.grad.abs().sum()) > 0


@pytest.mark.parametrize(("name", "levels"), [("bernoulli", 2), ("categorical", 5), ("gaussian", None)])
def test_an_untrained_decoder_says_what_is_true_of_each_number_alone(name: str, levels: int | None) -> None:
    observation, random = OBSERVATIONS[name](levels), torch.Generator().manual_seed(0)
    k = torch.randint(0, levels or 5, (5000, 3), generator=random) * torch.tensor([0, 1, 1])
    x = k.float() if levels is None else 2 * k / (levels - 1) - 1
    mean = observation.mean(observation.initial_parameters(x)[None].float())[0]
    assert torch.allclose(mean, x.mean(0), atol=0.02)


def test_labels_condition_the_model_and_are_required() -> None:
    encoder, decoder = ResidualMLP((3,), (4,), 8, 0, labels=2), ResidualMLP((2,), (3, 1), 8, 0, labels=2)
    model = VAE(encoder, decoder, (2,), observation=OBSERVATIONS["bernoulli"](2), codec=Levels([0, 255]), shape=(3,), labels=2)
    x, seeds = torch.ones(2, 3), torch.arange(2)
    one, other = (model.log_prob(x, torch.full((2,), k), seeds).nats for k in (0, 1))
    assert not torch.allclose(one, other)
    with pytest.raises(UserError, match="2 labels"):
        model.log_prob(x, None, seeds)


@pytest.mark.parametrize(
    ("given", "match"),
    [
        ({"family": "vae:latent=65"}, "latent.*65 > 64"),
        ({"family": "vae:decoder=bernoulli"}, "two levels.*17 levels"),
        ({"family": "vae:decoder=gaussian"}, "images have levels"),
        ({"family": "vae:layers=conv,widths=[8,8,8,8,8]"}, "multiples of 16, got 8x8"),
        ({"family": "vae", "beta": -1}, "beta"),
        ({"family": "gaussian", "beta": 1}, "has no option 'beta'.*vae"),
    ],
)
def test_invalid_options_raise_user_errors(tmp_path: Path, given: dict[str, object], match: str) -> None:
    with pytest.raises(UserError, match=match):
        reverie.train("digits8", tmp_path / "run", steps=1, **given)
    assert not (tmp_path / "run").exists()


def test_one_image_and_points_for_convolutions_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="at least 2 are needed"):
        reverie.train(np.full((1, 8, 8), 200, np.uint8), tmp_path / "run", family="vae", steps=1)
    with pytest.raises(UserError, match="layers=conv needs images"):
        reverie.train("spiral", tmp_path / "run", family="vae:layers=conv", steps=1, points=50)


def test_it_learns_goes_on_bit_for_bit_and_keeps_its_latents(tmp_path: Path) -> None:
    options = {"family": SMALL, "batch": 64, "kl_warmup": 0.3, "labels": "none"}
    whole = reverie.train("digits8", tmp_path / "whole", steps=24, **options)
    assert whole.metrics()[-1]["held_out"] < whole.metrics()[0]["held_out"]
    steps = iter(api.prepare("digits8", tmp_path / "part", steps=24, **options))
    assert len(list(islice(steps, 12))) == 12
    steps.close()
    part = reverie.train(resume=tmp_path / "part")
    kept = part.model.state_dict()
    assert all(torch.equal(tensor, kept[name]) for name, tensor in whole.model.state_dict().items())
    x = torch.rand(3, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    assert isinstance(part.model, VAE) and part.model.to_latent(x).shape == (3, 4)
    back = part.model.from_latent(part.model.to_latent(x))
    assert back.shape == x.shape and 0 <= float(back.detach().min()) <= float(back.detach().max()) <= 1
    with pytest.raises(UserError, match="trained without labels"):
        part.sample(1, label="3")


@pytest.mark.slow
def test_a_kl_that_weighs_too_much_is_found_by_the_doctor(tmp_path: Path) -> None:
    found = reverie.train("digits8", tmp_path / "run", family=SMALL, steps=60, beta=100.0, labels="none", kl_warmup=0.0)
    assert "posterior_collapse" in {finding.check for finding in read_findings(found.path)}
