"""Steering: wrappers that are themselves denoisers."""

from __future__ import annotations

import torch
from torch import Tensor

from reverie.denoiser import NULL, Denoiser
from reverie.pair import Pair
from reverie.scalar import Time


class ClassifierFree(Denoiser):
    """Classifier-free guidance (arXiv:2207.12598): none + scale (conditional - none), for x0 and eps alike.

    Scale 1 is plain conditional sampling and 0 is unconditional, each for one evaluation; any other scale runs both
    halves as one batch of 2B.
    """

    def __init__(self, inner: Denoiser, scale: float) -> None:
        super().__init__()
        self.inner, self.schedule, self.scale = inner, inner.schedule, scale

    def forward(self, x: Tensor, t: Time, cond: Tensor | None = None) -> Pair:
        """Return the guided estimate.  x: (B, ...); t: float or (B,); cond: (B,)."""
        if cond is None or self.scale == 0:
            return self.inner(x, t, None)
        if self.scale == 1:
            return self.inner(x, t, cond)
        t2 = t.repeat(2) if isinstance(t, Tensor) and t.ndim else t
        both = self.inner(x.repeat(2, *[1] * (x.ndim - 1)), t2, torch.cat([cond, torch.full_like(cond, NULL)]))
        (x0, x0_none), (eps, eps_none) = both.x0.chunk(2), both.eps.chunk(2)
        return Pair(torch.lerp(x0_none, x0, self.scale), torch.lerp(eps_none, eps, self.scale))
