"""Conditional sampling of an autoregressive model: unknown values given known ones.

If the known values come first, the others are exact samples of the conditional distribution.  Otherwise a particle filter is
used: many data are generated at once, known values weight them by their likelihood, and resampling replaces particles of low
weight by copies of others (Gordon et al. 1993).  It converges to the conditional distribution with the number of particles.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from reverie.base.noise import Noise
from reverie.families.model import SamplingInputs, check_labelled

if TYPE_CHECKING:
    from reverie.families.autoregressive.model import Autoregressive

PARTICLES = 64  # per sample
RESAMPLING = 2**28  # index in each sample's random stream of the first resampling draw
MIN_EFFECTIVE_SHARE = 0.5  # effective share of the particles below which they are resampled


@dataclass(frozen=True)
class KnownNumbers:
    """Known values of a datum, in generation order.  z: (D,) in model units; seen: (D,) bool."""

    z: Tensor
    seen: Tensor

    @property
    def first(self) -> int:
        """The number of known values before the first unknown one."""
        return int((~self.seen).long().argmax()) if not bool(self.seen.all()) else len(self.seen)

    @property
    def comes_first(self) -> bool:
        """Whether all known values precede the unknown ones."""
        return not bool(self.seen[self.first :].any())


def complete(
    model: Autoregressive, known: KnownNumbers, order: Tensor, inputs: SamplingInputs, log_prior: Tensor | None,
    note: Callable[[float], None],
) -> Iterator[tuple[int, Tensor]]:  # fmt: skip
    """Generate data around known values; yield the index of the newest value and all values so far, (B, D), in `order`.

    log_prior: (L,), of labels, if they are sampled too.  note: called with the effective share of the particles, 1 for
    exact samples.
    """
    cond = inputs.cond.to(model.device) if inputs.cond is not None else None
    if known.comes_first:
        note(1.0)
        if log_prior is not None:
            cond = _sample_index(label_posterior(model, known, order, log_prior), Noise(inputs.seeds, 1))
        check_labelled(model.label_count, cond, len(inputs.seeds))
        yield from _exact_samples(model, known, order, inputs.seeds, cond)
    else:
        yield from _particles(model, known, order, inputs.seeds, cond, log_prior, note)


def _exact_samples(
    model: Autoregressive, known: KnownNumbers, order: Tensor, seeds: Tensor, cond: Tensor | None
) -> Iterator[tuple[int, Tensor]]:
    incremental_decoder, size = model.incremental_decoder(len(seeds), cond, order), len(order)
    x = known.z.expand(len(seeds), -1).masked_fill(~known.seen, -1.0)
    u, v = (part.to(x) for part in Noise(seeds).uniform(size))
    for i in range(size):
        if i >= known.first:
            x[:, i] = model.observation.sample(incremental_decoder.next_parameters(), u[:, i], v[:, i])
        if i + 1 < size:
            incremental_decoder.append(x[:, i])
        if i >= known.first or i + 1 == size:
            yield i, x


def label_posterior(model: Autoregressive, known: KnownNumbers, order: Tensor, log_prior: Tensor) -> Tensor:
    """Return log p(label | known values) by Bayes' rule: (L,).  The known values come first."""
    labels = torch.arange(len(log_prior), device=model.device)
    log_p = log_prior.to(known.z).clone()
    incremental_decoder = model.incremental_decoder(len(labels), labels, order)
    for i in range(known.first):
        z = known.z[i].expand(len(labels))
        log_p += model.observation.log_prob(z, incremental_decoder.next_parameters())
        if i + 1 < known.first:
            incremental_decoder.append(z)
    return log_p.log_softmax(0)


def _sample_index(log_p: Tensor, noise: Noise) -> Tensor:
    """Sample from probabilities, one per seed: (B,) int64.  log_p: (K,) or (B, K)."""
    u = noise.uniform(1)[0].to(log_p)
    return (u > log_p.exp().cumsum(-1)[..., :-1]).sum(-1)


def _particles(
    model: Autoregressive, known: KnownNumbers, order: Tensor, seeds: Tensor, cond: Tensor | None, log_prior: Tensor | None,
    note: Callable[[float], None],
) -> Iterator[tuple[int, Tensor]]:  # fmt: skip
    """Generate PARTICLES data per sample, yield the first of each, and select one by weight at the end."""
    count, per_sample, noise = len(seeds), PARTICLES, Noise(seeds)
    first = torch.arange(count, device=model.device)[:, None] * per_sample
    labels = cond.repeat_interleave(per_sample) if cond is not None else None
    if log_prior is not None:  # particles per label in proportion to the prior
        cumulative = log_prior.to(known.z).exp().cumsum(0)
        labels = (
            torch.bucketize(_evenly_spaced(per_sample, noise, cumulative) * cumulative[-1], cumulative, right=True)
            .clamp(max=len(cumulative) - 1)
            .flatten()
        )
    check_labelled(model.label_count, labels, count * per_sample)
    incremental_decoder = model.incremental_decoder(count * per_sample, labels, order)
    x = known.z.expand(count * per_sample, -1).masked_fill(~known.seen, -1.0)
    log_w = x.new_zeros(count, per_sample)
    for i, is_known in enumerate(known.seen.tolist()):
        y = incremental_decoder.next_parameters()
        if is_known:
            log_w = log_w + model.observation.log_prob(x[:, i], y).unflatten(0, (count, per_sample))
        else:
            u, v = (part.to(x).flatten() for part in noise.uniform(per_sample))
            x[:, i] = model.observation.sample(y, u, v)
        if i + 1 == len(order):
            break
        incremental_decoder.append(x[:, i])
        if is_known and bool((degenerate := _effective_share(log_w) < MIN_EFFECTIVE_SHARE).any()):
            identity = torch.arange(per_sample, device=x.device).expand(count, -1)
            ancestors = _resampled_indices(log_w.softmax(1), Noise(seeds, RESAMPLING + i))
            index = (first + torch.where(degenerate[:, None], ancestors, identity)).flatten()
            incremental_decoder.select(index)
            x, log_w = x[index], log_w.masked_fill(degenerate[:, None], 0.0)
        yield i, x[first[:, 0]]
    note(float(_effective_share(log_w).mean()))
    yield len(order) - 1, x[first[:, 0] + _sample_index(log_w.log_softmax(1), noise)]


def _effective_share(log_w: Tensor) -> Tensor:
    """Return the effective share of particles, 1 / (K sum w²): (B,).  log_w: (B, K)."""
    return 1 / (log_w.shape[1] * log_w.softmax(1).square().sum(1))


def _evenly_spaced(count: int, noise: Noise, like: Tensor) -> Tensor:
    """Return evenly spaced positions in [0, 1] with a random offset: (B, count)."""
    return (torch.arange(count, device=like.device) + noise.uniform(1)[0].to(like)) / count


def _resampled_indices(w: Tensor, noise: Noise) -> Tensor:
    """Return indices of surviving particles by systematic resampling: (B, K) int64.  w: (B, K)."""
    positions = _evenly_spaced(w.shape[1], noise, w)
    return torch.searchsorted(w.cumsum(1).contiguous(), positions.contiguous()).clamp(max=w.shape[1] - 1)
