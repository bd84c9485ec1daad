"""Images coded along the chain of a diffusion model, so that they take as many bits as its bound says.

Bits back with a stack of bits (BB-ANS, arXiv:1901.04866), level by level along a Markov chain (Bit-Swap, arXiv:1905.06845).
With z_1, ..., z_T the noised image at the times of a grid, from little noise to much, and `pop` and `push` a stack that reads
and writes what a distribution is worth in bits:

    coding    pop z_1 ~ q(z_1 | x), push x ~ p(x | z_1);
              for i = 1 .. T-1: pop z_i+1 ~ q(z_i+1 | z_i), push z_i ~ p(z_i | z_i+1);  push z_T ~ p(z_T)
    decoding  the same backwards, with pop and push exchanged

which leaves E_q[log q(z_1..T | x) - log p(x, z_1..T)] on the stack: the bound.  What is popped from the stack must be there, so
it begins with something that has to be sent anyway.  The numbers of z lie in bins, whose width is a part of the noise that the
step to them adds.  Several images go together, so that the network sees them as one batch.
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

Stack = Any  # of constriction, which has no types

FINENESS = (2.0, 4.0)  # bins in a deviation of the noise that each step adds: the first images have few bits to begin with
NEAR = 10.0  # deviations from its mean within which a number has a bin of its own
FURTHEST = 2**16  # bins on each side that have a probability of their own, at most
FAR = 2**24 - 2  # bins beyond those in which a number may lie; constriction knows no more
SPARE = 1.1  # times the bits that are popped before any are pushed


def bits_to_begin(shape: tuple[int, ...], fineness: float) -> float:
    """Return how many bits must be on the stack before an image is pushed: two levels of noise, with some to spare."""
    return SPARE * math.prod(shape) * 2 * math.log2(math.sqrt(2 * math.pi * math.e) * fineness)


def _stream() -> Any:
    """Return constriction's coders, which compression alone needs."""
    try:
        import constriction
    except ImportError:
        raise UserError("compression needs the package constriction: pip install 'reverie[compress]'") from None
    return constriction.stream


def stack_of(words: np.ndarray, *, seal: bool = False) -> Stack:
    """Return a stack of bits that holds these.  words: uint32; seal: for bits of any kind, instead of another stack's."""
    return _stream().stack.AnsCoder(words, seal)


class ChainCoder:
    """Pushes images onto a stack of bits and pops them off again."""

    def __init__(self, model: Diffusion, chain: Chain, fineness: float = FINENESS[-1]) -> None:
        self._models = _stream().model
        if model.codec.levels is None:
            raise UserError(
                "only images can be compressed, whose numbers have levels; this models points, or an autoencoder's codes"
            )
        self.model, self.denoiser, self.schedule = model, model.denoiser, model.denoiser.schedule
        self.levels, self.shape, self.chain, self.fineness = model.codec.levels, model.shape, chain, fineness
        self.times: list[float] = chain.grid(self.schedule).flip(0).tolist()  # rising: from little noise to much
        alpha, sigma = (float(c) for c in self.schedule(self.times[0]))
        self.alpha, self.sigma = alpha, sigma
        added = [sigma, *(float(transition(self.schedule, s, t)[1]) for s, t in pairwise(self.times))]
        self.bins = {t: std / fineness for t, std in zip(self.times, added, strict=True)}
        self._level = self._models.QuantizedGaussian(0, self.levels - 1)
        self._shares = self._models.Categorical(perfect=False)
        self._beyond = self._models.Uniform(FAR)

    def push(self, stack: Stack, x: Tensor) -> Tensor:
        """Code images, and return what the bound promises along the way they took: (B,) nats.  x: (B, C, H, W), user units."""
        x0 = self._of_levels(level_of(self.model.codec.encode(x.to(self.model.device)), self.levels))
        z = self._pop_noised(stack, self.times[0], self.alpha * x0, self.sigma)
        self._push_image(stack, x0, z)
        nats = log_normal(z, self.alpha * x0, self.sigma**2)
        nats -= log_decoded(self.denoiser, x0, z, self.times[0], None, self.levels)
        for s, t in pairwise(self.times):
            scale, std = (float(c) for c in transition(self.schedule, s, t))
            ahead = self._pop_noised(stack, t, scale * z, std)
            mean, back = self._back(ahead, t, s)
            self._push_number(stack, s, z, mean, back)
            nats += log_normal(ahead, scale * z, std**2) - log_normal(z, mean, back**2)
            z = ahead
        self._push_number(stack, self.times[-1], z, torch.zeros_like(z), self._last_std())
        return nats - log_normal(z, 0.0, self._last_std() ** 2)

    def pop(self, stack: Stack, count: int) -> Tensor:
        """Decode the images that were coded last, so many together: (B, C, H, W) in user units."""
        like = torch.zeros(count, *self.shape, device=self.model.device)
        z = self._pop_number(stack, self.times[-1], like, self._last_std())
        for s, t in reversed(list(pairwise(self.times))):
            before = self._pop_number(stack, s, *self._back(z, t, s))
            scale, std = (float(c) for c in transition(self.schedule, s, t))
            self._push_noised(stack, t, z, scale * before, std)
            z = before
        x0 = self._pop_image(stack, z)
        self._push_noised(stack, self.times[0], z, self.alpha * x0, self.sigma)
        return self.model.codec.decode(x0)

    @property
    def knows_levels(self) -> bool:
        """Whether the model tells how likely each level is at each place, before it has seen anything of an image."""
        return isinstance(self.denoiser, LatticeDenoiser)

    def push_plain(self, stack: Stack, x: Tensor) -> None:
        """Code an image by what the model says of each place alone, which pops nothing.  x: (C, H, W) in user units."""
        index = level_of(self.model.codec.encode(x.to(self.model.device)), self.levels)
        stack.encode_reverse(index.cpu().numpy().ravel().astype(np.int32), *self._alone())

    def pop_plain(self, stack: Stack) -> Tensor:
        """Decode what `push_plain` coded: (C, H, W) in user units."""
        found = torch.from_numpy(stack.decode(*self._alone())).reshape(self.shape)
        return self.model.codec.decode(self._of_levels(found.to(self.model.device)))

    def _alone(self) -> tuple[Any, ...]:
        assert isinstance(self.denoiser, LatticeDenoiser)
        nothing = torch.zeros(1, *self.shape, device=self.model.device)
        return self._shares_of(self.denoiser.logits(nothing, self.times[-1], None))

    def _last_std(self) -> float:
        return math.hypot(*map(float, self.schedule(self.times[-1])))

    def _back(self, z: Tensor, t: float, s: float) -> tuple[Tensor, float | Tensor]:
        """Return mean and deviation of p(z_s | z_t)."""
        guess = self.denoiser(z, t)
        variance = self.chain.variance(self.schedule, t, s, guess)
        std = variance.sqrt().expand_as(z) if isinstance(variance, Tensor) else math.sqrt(variance)
        return guess.mix(*ancestral(self.schedule, t, s)), std

    # A number is told by how many bins it is away from the one its mean lies in.  Every bin that a coder knows has a least
    # probability, whatever the normal says, so it should know few: those within NEAR deviations.  Noise is drawn from these
    # alone.  What is only written may lie beyond them, and is then the last one and how far beyond.

    def _near(self, t: float, mean: Tensor, std: float | Tensor) -> tuple[np.ndarray, int, tuple[Any, ...]]:
        """Return the bin of each mean, how many on each side have a probability, and the distribution over these."""
        centre = mean.cpu().double().numpy().ravel() / self.bins[t]
        each = std.cpu().double().numpy().ravel() if isinstance(std, Tensor) else np.full(len(centre), std)
        deviation, nearest = each / self.bins[t], np.rint(centre)
        if not np.isfinite(centre).all() or not np.isfinite(deviation).all() or deviation.min() <= 0:
            raise ValueError("a mean or a deviation that is no number")
        reach = min(math.ceil(NEAR * deviation.max()), FURTHEST)
        return nearest, reach, (self._models.QuantizedGaussian(-reach, reach), centre - nearest, deviation)

    def _place(self, t: float, z: Tensor) -> np.ndarray:
        return np.rint(z.cpu().double().numpy().ravel() / self.bins[t])

    def _numbers(self, t: float, place: np.ndarray, like: Tensor) -> Tensor:
        return torch.from_numpy((place * self.bins[t]).astype(np.float32)).to(like.device).reshape(like.shape)

    def _pop_noised(self, stack: Stack, t: float, mean: Tensor, std: float) -> Tensor:
        nearest, _, normals = self._near(t, mean, std)
        return self._numbers(t, stack.decode(*normals) + nearest, mean)

    def _push_noised(self, stack: Stack, t: float, z: Tensor, mean: Tensor, std: float) -> None:
        nearest, _, normals = self._near(t, mean, std)
        stack.encode_reverse((self._place(t, z) - nearest).astype(np.int32), *normals)

    def _pop_number(self, stack: Stack, t: float, mean: Tensor, std: float | Tensor) -> Tensor:
        nearest, reach, normals = self._near(t, mean, std)
        away = stack.decode(*normals).astype(np.float64)
        if len(last := np.flatnonzero(np.abs(away) == reach)):
            away[last] += np.sign(away[last]) * stack.decode(self._beyond, len(last))
        return self._numbers(t, nearest + away, mean)

    def _push_number(self, stack: Stack, t: float, z: Tensor, mean: Tensor, std: float | Tensor) -> None:
        nearest, reach, normals = self._near(t, mean, std)
        away = self._place(t, z) - nearest
        inside = away.clip(-reach, reach)
        if len(last := np.flatnonzero(np.abs(inside) == reach)):
            stack.encode_reverse(np.abs(away - inside)[last].astype(np.int32), self._beyond)
        stack.encode_reverse(inside.astype(np.int32), *normals)

    def _told(self, z: Tensor) -> tuple[Any, ...]:
        """Return what p(x | z_1) is made of: the distribution and its parameters for each number."""
        t = self.times[0]
        if isinstance(self.denoiser, LatticeDenoiser):
            return self._shares_of(self.denoiser.logits(z, t, None))
        half = (self.levels - 1) / 2
        centre = (self.denoiser(z, t).x0.cpu().double().numpy().ravel() + 1) * half
        if not np.isfinite(centre).all():
            raise ValueError("a mean that is no number")
        std = self.sigma / math.hypot(self.alpha, self.sigma) * half
        return self._level, centre, np.full(centre.shape, max(std, 0.05))

    def _shares_of(self, logits: Tensor) -> tuple[Any, ...]:
        shares = logits.cpu().double().softmax(-1).reshape(-1, self.levels).numpy().astype(np.float32)
        return self._shares, shares

    def _push_image(self, stack: Stack, x0: Tensor, z: Tensor) -> None:
        stack.encode_reverse(level_of(x0, self.levels).cpu().numpy().ravel().astype(np.int32), *self._told(z))

    def _pop_image(self, stack: Stack, z: Tensor) -> Tensor:
        found: Any = stack.decode(*self._told(z))
        return self._of_levels(torch.from_numpy(found).to(z.device).reshape(z.shape))

    def _of_levels(self, index: Tensor) -> Tensor:
        """Return levels in model units; coding and decoding must have them from the same place, to the last bit."""
        return index.to(torch.float32) * (2 / (self.levels - 1)) - 1


@contextmanager
def repeatable() -> Iterator[None]:
    """Work with one thread and without gradients, so that coding and decoding see the same numbers to the last bit."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with torch.no_grad():
            yield
    finally:
        torch.set_num_threads(threads)
