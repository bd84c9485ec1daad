"""What each family is trained by: its training loss against its own likelihood or bound, or an independent computation."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import ot
import torch
from torch import Tensor

from reverie.base.noise import image_seeds
from reverie.data import Dataset
from reverie.diffusion.condition import drop_conditions
from reverie.diffusion.pair import row
from reverie.families.diffusion.model import Diffusion
from reverie.families.language.bigram import Bigram
from reverie.families.language.model import NONE
from reverie.families.model import FittedModel, Model, TrainedModel
from reverie.families.sinkhorn.model import SinkhornGenerator
from reverie.families.vae.autoencoder import Autoencoder, DenoisingAutoencoder
from reverie.families.vae.variational import Variational

DATA, BATCHES, DRAWS = 16, 30, 200  # data; training losses of them, by different seeds; draws for expectations


@dataclass(frozen=True)
class Mean:
    """A mean and its standard error."""

    value: float
    error: float = 0.0

    @classmethod
    def of(cls, draws: Tensor) -> Mean:
        """The mean over independent draws: (K,)."""
        draws = draws.double()
        return cls(float(draws.mean()), float(draws.std() / math.sqrt(len(draws))) if len(draws) > 1 else 0.0)


def _seeds(x: Tensor, k: int = 0) -> Tensor:
    return image_seeds(1000 + k, len(x))


def _volume(model: Any) -> float:
    """What losses in model units leave out of log-densities in user units, in nats; probabilities of levels have no units."""
    return 0.0 if model.codec.levels is not None else float(model.codec.log_cell(model.shape))


def likelihood(model: Any, x: Tensor, cond: Tensor | None) -> Mean:
    """-log p(x) / D in model units, exactly."""
    return Mean(-float(model.log_prob(x, cond, _seeds(x)).nats.mean() - _volume(model)) / model.size)


def noised_likelihood(model: Any, x: Tensor, cond: Tensor | None) -> Mean:
    """-log p(x) / D in user units, with noise within the levels of images."""
    costs = [-model.log_prob(x, cond, _seeds(x, k)).nats.mean() for k in range(BATCHES if x[0].ndim == 3 else 1)]
    return Mean.of(torch.stack(costs) / x[0].numel())


def likelihood_of_tokens(model: Any, x: Tensor, cond: Tensor | None) -> Mean:
    """-log p(text) for each token of it."""
    return Mean(-float((model.log_prob(x, None, _seeds(x)).nats / (model.encode(x) != NONE).sum(1)).mean()))


def likelihood_of_answers(model: Any, x: Tensor, cond: Tensor | None) -> Mean:
    """-log p(target | source) for each token of the target, its end among them."""
    return Mean(-float((model.log_prob(x, None, _seeds(x)).nats / ((model.encode(x)[:, 1] != NONE).sum(1) + 1)).mean()))


def bound(model: Variational, x: Tensor, cond: Tensor | None) -> Mean:
    """-ELBO / D in model units, and with several draws the importance-weighted bound, by the weights of the likelihood.

    beta: (beta - 1) E [log q(z | x) - log p(z)] / D besides.
    """
    assert model.free_bits == 0 and (model.beta == 1 or model.importance == 1)
    log_w = model.log_weights(x, cond, _seeds(x), DRAWS * model.importance).double()
    found = -(log_w.unflatten(1, (DRAWS, -1)).logsumexp(2) - math.log(model.importance) - _volume(model))
    if model.beta != 1:
        _, levels = model.bound(model.encode(x), cond, lambda like: torch.randn_like(like), DRAWS)
        found -= (model.beta - 1) * torch.stack([level.log_ratio() for level in levels]).sum(0).unflatten(0, (-1, DRAWS))
    return Mean.of(found.mean(0) / model.size)


def squared_error(model: Autoencoder, x: Tensor, cond: Tensor | None) -> Mean:
    """|x - decoder(encoder(x))|² / D in model units."""
    assert not model.kl and not model.perceptual
    return Mean(float((model.expected(model.to_latent(x)) - model.encode(x)).square().mean()))


def error_of_undone_noise(model: DenoisingAutoencoder, x: Tensor, cond: Tensor | None) -> Mean:
    """|x - r(x + sigma eps)|² / D, where r(y) = y + sigma² score(y)."""
    z, errors = model.encode(x), []
    for _ in range(DRAWS):
        y = z + model.sigma * torch.randn_like(z)
        errors.append((y + model.sigma**2 * model.score(y) - z).square().mean())
    return Mean.of(torch.stack(errors))


def weighted_bound(model: Diffusion, x: Tensor, cond: Tensor | None) -> Mean:
    """The integral in -ELBO / D over the log-SNR, with the weighting in place of 1/2 d log-SNR.

    weighting: the plain error of the target, (b - a sigma / alpha)² times that of eps; times: their density; label dropout: a
    share of the labels is hidden.
    """
    schedule, target, sigma_data = model.denoiser.schedule, model.denoiser.target, model.denoiser.sigma_data
    assert model.weight == "uniform" and not model.likelihood and not model.denoiser.has_variance
    share = model.label_dropout if cond is not None else 0.0
    without = None if cond is None else drop_conditions(cond, torch.ones(len(x)).bool())

    def draw(k: int, labels: Tensor | None) -> Tensor:
        found = model.bound(x, labels, _seeds(x, k), draws=50)
        t = torch.as_tensor(schedule.invert(found.log_snr.double().flatten())).reshape(found.log_snr.shape)
        h = 1e-4 * t
        slope = (schedule.log_snr(t - h) - schedule.log_snr(t + h)) / (2 * h)
        alpha, sigma = schedule(t)
        size = (alpha**2 + sigma**2).sqrt()
        a, b = row(target, alpha / size, sigma / size, sigma_data)
        u = (t - schedule.t_min) / (1 - schedule.t_min)
        density = {"stratified": 1.0, "logit-normal": (-(u.logit() ** 2) / 2).exp() / math.sqrt(2 * math.pi) / u / (1 - u)}
        weight = density[model.times] / (1 - schedule.t_min) * (b - a * sigma / alpha) ** 2 / (slope / 2)
        return (found.denoising * weight).sum(1).mean() / found.size

    return Mean.of(torch.stack([(1 - share) * draw(k, cond) + (share * draw(k, without) if share else 0) for k in range(8)]))


def whole_bound(model: Diffusion, x: Tensor, cond: Tensor | None) -> Mean:
    """-ELBO / D, of which the reconstruction is that of the noised number alone: a normal around x / alpha."""
    assert model.likelihood and model.weight == "vlb" and model.codec.levels is None
    alpha, sigma = model.denoiser.schedule(0.0)
    last = 0.5 + math.log(2 * math.pi) / 2 + math.log(float(sigma / alpha))
    draws = [model.bound(x, cond, _seeds(x, k), draws=50) for k in range(8)]
    return Mean.of(torch.stack([(found.prior + found.denoising.sum(1)).mean() / found.size + last for found in draws]))


def divergence(model: SinkhornGenerator, x: Tensor, cond: Tensor | None) -> Mean:
    """The Sinkhorn divergence by halves of generated points and data, by POT, in units of the mean cost of data."""
    assert model.cost == "squared" and not model.features.shape[1] and model.independent
    unit, labels = float(model.unit), torch.zeros(len(x), 0) if not model.label_count or cond is None else cond
    if labels.ndim == 1:
        labels = math.sqrt(model.label_cost * unit / 2) * torch.eye(model.label_count)[labels]

    def moved(p: Tensor, q: Tensor) -> float:
        costs, a, b = ot.dist(p.double().numpy(), q.double().numpy()), np.full(len(p), 1 / len(p)), np.full(len(q), 1 / len(q))
        plan = ot.sinkhorn(a, b, costs, model.epsilon_now * unit, "sinkhorn_log", 1000, 1e-9)
        relative = np.sum(plan * np.log(np.maximum(plan, 1e-300) / np.outer(a, b)))
        return float((plan * costs).sum() + model.epsilon_now * unit * relative)

    draws = []
    for _ in range(BATCHES):
        made = model.generate(torch.randn(len(x), model.latent), cond)
        (a, b), (c, d) = (torch.cat([z.flatten(1), labels], 1).tensor_split(2) for z in (made, model.encode(x)))
        draws.append((moved(a, c) + moved(b, d) - moved(a, b) - moved(c, d)) / 2 / unit)
    return Mean.of(torch.tensor(draws))


Objective = Callable[[Any, Tensor, Tensor | None], Mean]
OBJECTIVES: dict[str, Objective] = {
    "diffusion": weighted_bound, "autoencoder": squared_error, "denoising-autoencoder": error_of_undone_noise,
    "vae": bound, "hvae": bound, "mhvae": bound, "flow": noised_likelihood, "sinkhorn": divergence,
    **dict.fromkeys(("gaussian", "mixture", "pca", "ar1", "ar"), noised_likelihood),
    **dict.fromkeys(("fvsbn", "nade", "rnn", "lstm", "transformer"), likelihood),
    **dict.fromkeys(("bigram", "mlp-lm"), likelihood_of_tokens),
    **dict.fromkeys(("seq2seq", "transformer-seq2seq"), likelihood_of_answers),
}  # fmt: skip


@torch.no_grad()
def objectives(model: Model, data: Dataset, objective: Objective) -> tuple[Mean, Mean]:
    """Return the mean training loss and what it should be on the same data.

    Without what is changed in training only: dropout, augmentation, and clusters that a network is conditioned on.
    """
    model = copy.deepcopy(model).eval()
    if isinstance(model, Diffusion):
        model.augment = model.clusters = None
    if isinstance(model, SinkhornGenerator):
        model.set_progress(0.0)  # a large epsilon, at which POT converges soon
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        if isinstance(model, Bigram):
            ids = torch.from_numpy(model.tokens(data.x.codes)).long()[None]
            first = model.logits(ids, None)[0][0, 0, ids[0, 0]]  # which the fit leaves out
            after = model.log_prob(torch.as_tensor(data.x.codes)[None], None, _seeds(ids)).nats - first
            return Mean(list(model.fit(data, 0))[-1]), Mean(-float(after) / (ids.shape[1] - 1))
        if isinstance(model, FittedModel):
            *_, fitted = model.fit(data, 0)
            return Mean(fitted), objective(model, *data.batch(torch.arange(len(data))))
        assert isinstance(model, TrainedModel)
        x, cond = data.batch(torch.arange(DATA))
        losses = torch.stack([model.loss(x, cond, seed).mean() for seed in range(BATCHES)])
        return Mean.of(losses), objective(model, x, cond)
