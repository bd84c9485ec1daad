"""Images coded along the chain of a diffusion model, so that they take as many bits as its bound says.

Bits back with a stack of bits (BB-ANS, arXiv:1901.04866), level by level along a Markov chain (Bit-Swap, arXiv:1905.06845).
With z_1, ..., z_T the noised image at the times of a grid, from little noise to much, and `pop` and `push` a stack that reads
and writes what a distribution is worth in bits:

    coding    pop z_1 ~ q(z_1 | x), push x ~ p(x | z_1);
              for i = 1 .. T-1: pop z_i+1 ~ q(z_i+1 | z_i), push z_i ~ p(z_i | z_i+1);  push z_T ~ p(z_T)
    decoding  the same backwards, with pop and push exchanged

which leaves E_q[log q(z_1..T | x) - log p(x, z_1..T)] on the stack: the bound.  What is popped from the stack must be there, so
it begins with something that has to be sent anyway.
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
from reverie.diffusion.lattice import LatticeDenoiser, level_of
from reverie.diffusion.process import transition
from reverie.diffusion.samplers.onestep import VARIANCES, ancestral
from reverie.families.diffusion.model import Diffusion

Stack = Any  # of constriction, which has no types

REACH = 12.0  # deviations of unit noise within which the numbers of a noised image lie
FINENESS = 4.0  # bins in a deviation of the noise that each step adds
VARIANCE = "forward"  # of the chain's steps back: the posterior's is too small where steps are few
NEAR = 10.0  # deviations from its mean within which noise is drawn
SPARE = 1.25  # times the bits that are popped before any are pushed


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
    """Pushes images onto a stack of bits and pops them off again.  grid: (T,) times that fall."""

    def __init__(self, model: Diffusion, grid: Tensor) -> None:
        models = _stream().model
        if model.codec.levels is None:
            raise UserError(
                "only images can be compressed, whose numbers have levels; this models points, or an autoencoder's codes"
            )
        self.model, self.denoiser, self.schedule = model, model.denoiser, model.denoiser.schedule
        self.levels, self.shape = model.codec.levels, model.shape
        self.times: list[float] = grid.flip(0).tolist()  # rising: from little noise to much
        alpha, sigma = (float(c) for c in self.schedule(self.times[0]))
        self.alpha, self.sigma = alpha, sigma
        added = [sigma, *(float(transition(self.schedule, s, t)[1]) for s, t in pairwise(self.times))]
        self.bins = {t: std / FINENESS for t, std in zip(self.times, added, strict=True)}
        reach = max(math.hypot(*map(float, self.schedule(t))) / self.bins[t] for t in self.times)
        self._normal = models.QuantizedGaussian(-math.ceil(REACH * reach), math.ceil(REACH * reach))
        self._noise = models.QuantizedGaussian(-math.ceil(NEAR * FINENESS), math.ceil(NEAR * FINENESS))
        self._level = models.QuantizedGaussian(0, self.levels - 1)
        self._shares = models.Categorical(perfect=False)

    def bits_to_begin(self) -> int:
        """Return how many bits must be on the stack before the first image is pushed, with some to spare."""
        two_levels = 2 * math.log2(math.sqrt(2 * math.pi * math.e) * FINENESS)
        return math.ceil(SPARE * math.prod(self.shape) * two_levels)

    def push(self, stack: Stack, x: Tensor) -> None:
        """Code an image.  x: (C, H, W) in user units."""
        x0 = self._of_levels(level_of(self.model.codec.encode(x[None].to(self.model.device)), self.levels))
        z = self._pop_noised(stack, self.times[0], self.alpha * x0, self.sigma)
        self._push_image(stack, x0, z)
        for s, t in pairwise(self.times):
            scale, std = (float(c) for c in transition(self.schedule, s, t))
            ahead = self._pop_noised(stack, t, scale * z, std)
            self._push(stack, s, z, *self._back(ahead, t, s))
            z = ahead
        self._push(stack, self.times[-1], z, torch.zeros_like(z), self._last_std())

    def pop(self, stack: Stack) -> Tensor:
        """Decode the image that was coded last: (C, H, W) in user units."""
        like = torch.zeros(1, *self.shape, device=self.model.device)
        z = self._pop(stack, self.times[-1], like, self._last_std())
        for s, t in reversed(list(pairwise(self.times))):
            before = self._pop(stack, s, *self._back(z, t, s))
            scale, std = (float(c) for c in transition(self.schedule, s, t))
            self._push_noised(stack, t, z, scale * before, std)
            z = before
        x0 = self._pop_image(stack, z)
        self._push_noised(stack, self.times[0], z, self.alpha * x0, self.sigma)
        return self.model.codec.decode(x0)[0]

    def _last_std(self) -> float:
        return math.hypot(*map(float, self.schedule(self.times[-1])))

    def _back(self, z: Tensor, t: float, s: float) -> tuple[Tensor, float]:
        """Return mean and deviation of p(z_s | z_t)."""
        mean = self.denoiser(z, t).mix(*ancestral(self.schedule, t, s))
        return mean, math.sqrt(float(VARIANCES[VARIANCE](self.schedule, t, s)))

    def _normals(self, t: float, mean: Tensor, std: float) -> tuple[np.ndarray, np.ndarray]:
        """Return mean and deviation of each number, in bins of time t."""
        centre = mean.double().cpu().numpy().ravel() / self.bins[t]
        return centre, np.full(centre.shape, std / self.bins[t])

    def _pop(self, stack: Stack, t: float, mean: Tensor, std: float) -> Tensor:
        found: Any = stack.decode(self._normal, *self._normals(t, mean, std))
        return torch.from_numpy(found * self.bins[t]).to(mean).reshape(mean.shape)

    def _push(self, stack: Stack, t: float, z: Tensor, mean: Tensor, std: float) -> None:
        place = (z.double() / self.bins[t]).round().cpu().numpy().ravel().astype(np.int32)
        stack.encode_reverse(place, self._normal, *self._normals(t, mean, std))

    # Every bin that a coder knows has a least probability, whatever the normal says.  What noise is drawn from must therefore
    # be a narrow range around its mean, or some numbers would be drawn from anywhere; what is only written may be anywhere.

    def _near(self, t: float, mean: Tensor, std: float) -> tuple[np.ndarray, tuple[np.ndarray, np.ndarray]]:
        centre, deviation = self._normals(t, mean, std)
        nearest = np.rint(centre)
        return nearest, (centre - nearest, deviation)

    def _pop_noised(self, stack: Stack, t: float, mean: Tensor, std: float) -> Tensor:
        nearest, normals = self._near(t, mean, std)
        found: Any = stack.decode(self._noise, *normals) + nearest
        return torch.from_numpy(found * self.bins[t]).to(mean).reshape(mean.shape)

    def _push_noised(self, stack: Stack, t: float, z: Tensor, mean: Tensor, std: float) -> None:
        nearest, normals = self._near(t, mean, std)
        place = np.rint(z.double().cpu().numpy().ravel() / self.bins[t]) - nearest
        stack.encode_reverse(place.astype(np.int32), self._noise, *normals)

    def _told(self, z: Tensor) -> tuple[Any, ...]:
        """Return what p(x | z_1) is made of: the distribution and its parameters for each number."""
        t = self.times[0]
        if isinstance(self.denoiser, LatticeDenoiser):
            shares = self.denoiser.logits(z, t, None).double().softmax(-1)
            return self._shares, shares.reshape(-1, self.levels).cpu().numpy().astype(np.float32)
        half = (self.levels - 1) / 2
        centre = (self.denoiser(z, t).x0.double().cpu().numpy().ravel() + 1) * half
        std = self.sigma / math.hypot(self.alpha, self.sigma) * half
        return self._level, centre, np.full(centre.shape, max(std, 0.05))

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
