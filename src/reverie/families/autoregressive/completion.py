"""Drawing the numbers of a datum that are not known, given those that are, from an autoregressive model.

Where the known numbers come first, what comes after them is drawn from the conditional distribution itself.  Elsewhere by
particles: many data are written at once, known numbers weigh them by how likely they were, and now and then those of little
weight give way to copies of the others (Gordon et al. 1993).  They tend to the conditional distribution as there are more.
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

PARTICLES = 64  # for each datum
RESAMPLING = 2**28  # the number of the first draw, of each datum's own stream, by which particles are drawn anew
FEW = 0.5  # of the particles, by effective number, below which they are drawn anew


@dataclass(frozen=True)
class KnownNumbers:
    """What is known of a datum, in the order in which it is written.  z: (D,) in model units; seen: (D,) bool."""

    z: Tensor
    seen: Tensor

    @property
    def first(self) -> int:
        """How many known numbers come before the first that is not."""
        return int((~self.seen).long().argmax()) if not bool(self.seen.all()) else len(self.seen)

    @property
    def comes_first(self) -> bool:
        """Whether no known number comes after one that is not."""
        return not bool(self.seen[self.first :].any())


def complete(
    model: Autoregressive, known: KnownNumbers, order: Tensor, inputs: SamplingInputs, log_prior: Tensor | None,
    note: Callable[[float], None],
) -> Iterator[tuple[int, Tensor]]:  # fmt: skip
    """Write data around what is known and yield the number of the last number and all so far: (B, D), in the given order.

    log_prior: of labels, where they are drawn as well, (L,); note: is told the effective share of the particles, 1 where the
    draw is exact.
    """
    cond = inputs.cond.to(model.device) if inputs.cond is not None else None
    if known.comes_first:
        note(1.0)
        if log_prior is not None:
            cond = _drawn(label_posterior(model, known, order, log_prior), Noise(inputs.seeds, 1))
        check_labelled(model.label_count, cond, len(inputs.seeds))
        yield from _one_each(model, known, order, inputs.seeds, cond)
    else:
        yield from _particles(model, known, order, inputs.seeds, cond, log_prior, note)


def _one_each(
    model: Autoregressive, known: KnownNumbers, order: Tensor, seeds: Tensor, cond: Tensor | None
) -> Iterator[tuple[int, Tensor]]:
    incremental_decoder, size = model.incremental_decoder(len(seeds), cond, order), len(order)
    x = known.z.expand(len(seeds), -1).masked_fill(~known.seen, -1.0)
    u, v = (part.to(x) for part in Noise(seeds).uniform(size))
    for i in range(size):
        if i >= known.first:
            x[:, i] = model.observation.sample(incremental_decoder.next_parameters(), u[:, i], v[:, i])
        if i + 1 < size:
            incremental_decoder.write(x[:, i])
        if i >= known.first or i + 1 == size:
            yield i, x


def label_posterior(model: Autoregressive, known: KnownNumbers, order: Tensor, log_prior: Tensor) -> Tensor:
    """Return log p(label | known numbers), by Bayes' rule: (L,).  The known numbers come first."""
    labels = torch.arange(len(log_prior), device=model.device)
    found = log_prior.to(known.z).clone()
    incremental_decoder = model.incremental_decoder(len(labels), labels, order)
    for i in range(known.first):
        z = known.z[i].expand(len(labels))
        found += model.observation.log_prob(z, incremental_decoder.next_parameters())
        if i + 1 < known.first:
            incremental_decoder.write(z)
    return found.log_softmax(0)


def _drawn(log_p: Tensor, noise: Noise) -> Tensor:
    """Draw from probabilities, one for each seed: (B,) int64.  log_p: (K,) or (B, K)."""
    u = noise.uniform(1)[0].to(log_p)
    return (u > log_p.exp().cumsum(-1)[..., :-1]).sum(-1)


def _particles(
    model: Autoregressive, known: KnownNumbers, order: Tensor, seeds: Tensor, cond: Tensor | None, log_prior: Tensor | None,
    note: Callable[[float], None],
) -> Iterator[tuple[int, Tensor]]:  # fmt: skip
    """Write `PARTICLES` data for each that is wanted, show the first of them, and keep one by its weight at the end."""
    count, each, noise = len(seeds), PARTICLES, Noise(seeds)
    first = torch.arange(count, device=model.device)[:, None] * each
    own = cond.repeat_interleave(each) if cond is not None else None
    if log_prior is not None:  # as many particles of each label as it has a share of the data
        shares = log_prior.to(known.z).exp().cumsum(0)
        own = torch.bucketize(_even(each, noise, shares) * shares[-1], shares, right=True).clamp(max=len(shares) - 1).flatten()
    check_labelled(model.label_count, own, count * each)
    incremental_decoder = model.incremental_decoder(count * each, own, order)
    x = known.z.expand(count * each, -1).masked_fill(~known.seen, -1.0)
    log_w = x.new_zeros(count, each)
    for i, seen in enumerate(known.seen.tolist()):
        y = incremental_decoder.next_parameters()
        if seen:
            log_w = log_w + model.observation.log_prob(x[:, i], y).unflatten(0, (count, each))
        else:
            u, v = (part.to(x).flatten() for part in noise.uniform(each))
            x[:, i] = model.observation.sample(y, u, v)
        if i + 1 == len(order):
            break
        incremental_decoder.write(x[:, i])
        if seen and bool((poor := _effective(log_w) < FEW).any()):
            stay = torch.arange(each, device=x.device).expand(count, -1)
            drawn = _resampled(log_w.softmax(1), Noise(seeds, RESAMPLING + i))
            index = (first + torch.where(poor[:, None], drawn, stay)).flatten()
            incremental_decoder.take(index)
            x, log_w = x[index], log_w.masked_fill(poor[:, None], 0.0)
        yield i, x[first[:, 0]]
    note(float(_effective(log_w).mean()))
    yield len(order) - 1, x[first[:, 0] + _drawn(log_w.log_softmax(1), noise)]


def _effective(log_w: Tensor) -> Tensor:
    """Return the share of particles that count, 1 / (K sum w²): (B,).  log_w: (B, K)."""
    return 1 / (log_w.shape[1] * log_w.softmax(1).square().sum(1))


def _even(count: int, noise: Noise, like: Tensor) -> Tensor:
    """Return places in [0, 1], evenly spaced from one at random on: (B, count)."""
    return (torch.arange(count, device=like.device) + noise.uniform(1)[0].to(like)) / count


def _resampled(w: Tensor, noise: Noise) -> Tensor:
    """Return which particles go on, evenly spread over their weights (systematic resampling): (B, K) int64.  w: (B, K)."""
    places = _even(w.shape[1], noise, w)
    return torch.searchsorted(w.cumsum(1).contiguous(), places.contiguous()).clamp(max=w.shape[1] - 1)
