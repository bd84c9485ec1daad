"""Image coding along the Markov chain of a diffusion model, at the bit rate of its variational bound.

Bits-back coding with asymmetric numeral systems (BB-ANS, arXiv:1901.04866), level by level along a Markov chain (Bit-Swap,
arXiv:1905.06845).  z_1, ..., z_T are the noisy images at the times of a grid, from low noise to high noise; `pop` and `push`
decode from and encode to a stack of bits with a distribution:

    coding    pop z_1 ~ q(z_1 | x), push x ~ p(x | z_1);
              for i = 1 .. T-1: pop z_i+1 ~ q(z_i+1 | z_i), push z_i ~ p(z_i | z_i+1);  push z_T ~ p(z_T)
    decoding  the reverse, with pop and push exchanged

The net size is E_q[log q(z_1..T | x) - log p(x, z_1..T)], the variational bound.  Popping needs initial bits on the stack, so
some images are stored without the chain.  z is discretized to bins, whose width is a fraction of the std of the noise that
the step adds.  Images are coded in batches.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor

from reverie.base.errors import UserError
from reverie.compression.chain import Chain
from reverie.diffusion.lattice import LatticeDenoiser, level_of
from reverie.diffusion.likelihood.bound import log_decoded
from reverie.diffusion.likelihood.normal import log_normal
from reverie.diffusion.process import transition
from reverie.diffusion.samplers.onestep import ancestral
from reverie.families.diffusion.model import Diffusion

Stack = Any  # of constriction, which is untyped

FINENESS = (2.0, 4.0)  # bins per std of the added noise; the first images have few initial bits
CODED_STDS = 10.0  # stds around the mean within which values have bins of their own
MAX_BINS = 2**16  # maximum number of bins on each side with individual probabilities
OUTLIER_BINS = 2**24 - 2  # further bins for outliers; the limit of constriction
SAFETY = 1.1  # safety factor of the initial bits


def initial_bits(shape: tuple[int, ...], fineness: float) -> float:
    """Return the bits needed on the stack before an image is pushed: two noise levels, with a safety factor."""
    return SAFETY * math.prod(shape) * 2 * math.log2(math.sqrt(2 * math.pi * math.e) * fineness)


def _stream() -> Any:
    """Return constriction's stream coders, which only compression needs."""
    try:
        import constriction
    except ImportError:
        raise UserError("compression needs the package constriction: pip install 'reverie[compress]'") from None
    return constriction.stream


def stack_of(words: np.ndarray, *, seal: bool = False) -> Stack:
    """Return a stack of bits with this content.  words: uint32; seal: for arbitrary bits, instead of the state of a stack."""
    return _stream().stack.AnsCoder(words, seal)


class ChainCoder:
    """Pushes images onto a stack of bits and pops them off."""

    def __init__(self, model: Diffusion, chain: Chain, fineness: float = FINENESS[-1]) -> None:
        self._models = _stream().model
        if model.codec.levels is None:
            raise UserError(
                "only images with discrete levels can be compressed; this run models points or latents of an autoencoder"
            )
        self.model, self.denoiser, self.schedule = model, model.denoiser, model.denoiser.schedule
        self.levels, self.shape, self.chain, self.fineness = model.codec.levels, model.shape, chain, fineness
        self.times: list[float] = chain.grid(self.schedule).flip(0).tolist()  # increasing: from low to high noise
        alpha, sigma = (float(c) for c in self.schedule(self.times[0]))
        self.alpha, self.sigma = alpha, sigma
        added = [sigma, *(float(transition(self.schedule, s, t)[1]) for s, t in pairwise(self.times))]
        self.bins = {t: std / fineness for t, std in zip(self.times, added, strict=True)}
        self._level = self._models.QuantizedGaussian(0, self.levels - 1)
        self._categories = self._models.Categorical(perfect=False)
        self._beyond = self._models.Uniform(OUTLIER_BINS)

    def push(self, stack: Stack, x: Tensor) -> Tensor:
        """Encode a batch of images; return the bound along the sampled path: (B,) nats.  x: (B, C, H, W) in user units."""
        x0 = self._from_levels(level_of(self.model.codec.encode(x.to(self.model.device)), self.levels))
        z = self._pop_noised(stack, self.times[0], self.alpha * x0, self.sigma)
        self._push_image(stack, x0, z)
        nats = log_normal(z, self.alpha * x0, self.sigma**2)
        nats -= log_decoded(self.denoiser, x0, z, self.times[0], None, self.levels)
        for s, t in pairwise(self.times):
            scale, std = (float(c) for c in transition(self.schedule, s, t))
            noisier = self._pop_noised(stack, t, scale * z, std)
            mean, std_back = self._reverse_step(noisier, t, s)
            self._push_number(stack, s, z, mean, std_back)
            nats += log_normal(noisier, scale * z, std**2) - log_normal(z, mean, std_back**2)
            z = noisier
        self._push_number(stack, self.times[-1], z, torch.zeros_like(z), self._last_std())
        return nats - log_normal(z, 0.0, self._last_std() ** 2)

    def pop(self, stack: Stack, count: int) -> Tensor:
        """Decode the batch that was encoded last, of `count` images: (B, C, H, W) in user units."""
        like = torch.zeros(count, *self.shape, device=self.model.device)
        z = self._pop_number(stack, self.times[-1], like, self._last_std())
        for s, t in reversed(list(pairwise(self.times))):
            cleaner = self._pop_number(stack, s, *self._reverse_step(z, t, s))
            scale, std = (float(c) for c in transition(self.schedule, s, t))
            self._push_noised(stack, t, z, scale * cleaner, std)
            z = cleaner
        x0 = self._pop_image(stack, z)
        self._push_noised(stack, self.times[0], z, self.alpha * x0, self.sigma)
        return self.model.codec.decode(x0)

    @property
    def has_marginals(self) -> bool:
        """Whether the model has marginal probabilities of levels at each position."""
        return isinstance(self.denoiser, LatticeDenoiser)

    def push_plain(self, stack: Stack, x: Tensor) -> None:
        """Encode an image by the marginals of its numbers, without popping bits.  x: (C, H, W) in user units."""
        index = level_of(self.model.codec.encode(x.to(self.model.device)), self.levels)
        stack.encode_reverse(index.cpu().numpy().ravel().astype(np.int32), *self._marginals())

    def pop_plain(self, stack: Stack) -> Tensor:
        """Decode an image of `push_plain`: (C, H, W) in user units."""
        index = torch.from_numpy(stack.decode(*self._marginals())).reshape(self.shape)
        return self.model.codec.decode(self._from_levels(index.to(self.model.device)))

    def _marginals(self) -> tuple[Any, ...]:
        assert isinstance(self.denoiser, LatticeDenoiser)
        blank = torch.zeros(1, *self.shape, device=self.model.device)
        return self._categorical(self.denoiser.logits(blank, self.times[-1], None))

    def _last_std(self) -> float:
        return math.hypot(*map(float, self.schedule(self.times[-1])))

    def _reverse_step(self, z: Tensor, t: float, s: float) -> tuple[Tensor, float | Tensor]:
        """Return the mean and std of p(z_s | z_t)."""
        guess = self.denoiser(z, t)
        variance = self.chain.variance(self.schedule, t, s, guess)
        std = variance.sqrt().expand_as(z) if isinstance(variance, Tensor) else math.sqrt(variance)
        return guess.mix(*ancestral(self.schedule, t, s)), std

    # A value is coded as its offset in bins from the bin of its mean.  A coder gives every bin a minimum probability, so only
    # bins within CODED_STDS are coded; noise is sampled from these.  Values beyond are coded as the last bin and the distance
    # to it.

    def _binned_normals(self, t: float, mean: Tensor, std: float | Tensor) -> tuple[np.ndarray, int, tuple[Any, ...]]:
        """Return the bin of each mean, the number of bins on each side, and the distribution over them."""
        centre = mean.cpu().double().numpy().ravel() / self.bins[t]
        stds = std.cpu().double().numpy().ravel() if isinstance(std, Tensor) else np.full(len(centre), std)
        deviation, nearest = stds / self.bins[t], np.rint(centre)
        if not np.isfinite(centre).all() or not np.isfinite(deviation).all() or deviation.min() <= 0:
            raise ValueError("a mean or std is not finite or not positive")
        reach = min(math.ceil(CODED_STDS * deviation.max()), MAX_BINS)
        return nearest, reach, (self._models.QuantizedGaussian(-reach, reach), centre - nearest, deviation)

    def _bin_index(self, t: float, z: Tensor) -> np.ndarray:
        return np.rint(z.cpu().double().numpy().ravel() / self.bins[t])

    def _values(self, t: float, index: np.ndarray, like: Tensor) -> Tensor:
        return torch.from_numpy((index * self.bins[t]).astype(np.float32)).to(like.device).reshape(like.shape)

    def _pop_noised(self, stack: Stack, t: float, mean: Tensor, std: float) -> Tensor:
        nearest, _, normals = self._binned_normals(t, mean, std)
        return self._values(t, stack.decode(*normals) + nearest, mean)

    def _push_noised(self, stack: Stack, t: float, z: Tensor, mean: Tensor, std: float) -> None:
        nearest, _, normals = self._binned_normals(t, mean, std)
        stack.encode_reverse((self._bin_index(t, z) - nearest).astype(np.int32), *normals)

    def _pop_number(self, stack: Stack, t: float, mean: Tensor, std: float | Tensor) -> Tensor:
        nearest, reach, normals = self._binned_normals(t, mean, std)
        offset = stack.decode(*normals).astype(np.float64)
        if len(last := np.flatnonzero(np.abs(offset) == reach)):
            offset[last] += np.sign(offset[last]) * stack.decode(self._beyond, len(last))
        return self._values(t, nearest + offset, mean)

    def _push_number(self, stack: Stack, t: float, z: Tensor, mean: Tensor, std: float | Tensor) -> None:
        nearest, reach, normals = self._binned_normals(t, mean, std)
        offset = self._bin_index(t, z) - nearest
        inside = offset.clip(-reach, reach)
        if len(last := np.flatnonzero(np.abs(inside) == reach)):
            stack.encode_reverse(np.abs(offset - inside)[last].astype(np.int32), self._beyond)
        stack.encode_reverse(inside.astype(np.int32), *normals)

    def _image_distribution(self, z: Tensor) -> tuple[Any, ...]:
        """Return p(x | z_1) as a constriction distribution and its parameters."""
        t = self.times[0]
        if isinstance(self.denoiser, LatticeDenoiser):
            return self._categorical(self.denoiser.logits(z, t, None))
        half = (self.levels - 1) / 2
        centre = (self.denoiser(z, t).x0.cpu().double().numpy().ravel() + 1) * half
        if not np.isfinite(centre).all():
            raise ValueError("a mean is not finite")
        std = self.sigma / math.hypot(self.alpha, self.sigma) * half
        return self._level, centre, np.full(centre.shape, max(std, 0.05))

    def _categorical(self, logits: Tensor) -> tuple[Any, ...]:
        probabilities = logits.cpu().double().softmax(-1).reshape(-1, self.levels).numpy().astype(np.float32)
        return self._categories, probabilities

    def _push_image(self, stack: Stack, x0: Tensor, z: Tensor) -> None:
        stack.encode_reverse(level_of(x0, self.levels).cpu().numpy().ravel().astype(np.int32), *self._image_distribution(z))

    def _pop_image(self, stack: Stack, z: Tensor) -> Tensor:
        index: Any = stack.decode(*self._image_distribution(z))
        return self._from_levels(torch.from_numpy(index).to(z.device).reshape(z.shape))

    def _from_levels(self, index: Tensor) -> Tensor:
        """Return levels in model units, identical to the last bit in encoding and decoding."""
        return index.to(torch.float32) * (2 / (self.levels - 1)) - 1


@contextmanager
def deterministic() -> Iterator[None]:
    """Use one thread and no gradients, so that encoding and decoding compute identical numbers."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with torch.no_grad():
            yield
    finally:
        torch.set_num_threads(threads)
