"""Clean data and noise as one value, and the six things a network can be asked to output.

Coefficients (alpha, sigma, a, b, ...) are float64 of shape () or (B,); data have shape (B, ...).
They meet in `expand`, which is the only place where a coefficient is cast and reshaped.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from reverie.errors import pick

Row = tuple[Tensor, Tensor]


def expand(a: Tensor, x: Tensor) -> Tensor:
    """Cast a coefficient to x's dtype and give it trailing axes: () -> (), (B,) -> (B, 1, ..., 1).

    A 0-dimensional coefficient stays where it is: torch lets it meet a tensor on any device without a copy.
    """
    if a.ndim == 0:
        return a.to(x.dtype)
    return a.to(device=x.device, dtype=x.dtype).reshape(-1, *[1] * (x.ndim - 1))


@dataclass(frozen=True)
class Pair:
    """Clean data x0 and unit noise eps.  x0, eps: (B, ...)."""

    x0: Tensor
    eps: Tensor

    def mix(self, a: Tensor, b: Tensor) -> Tensor:
        """Return a x0 + b eps.  a, b: () or (B,).

        (alpha, sigma) gives noised data, a target's row gives what the network should output, (alpha_s, sigma_s)
        is the deterministic step to time s, and the schedule's rates give the probability-flow velocity.
        """
        return expand(a, self.x0) * self.x0 + expand(b, self.eps) * self.eps


def _eps(alpha: Tensor, sigma: Tensor, k: float) -> Row:
    return torch.zeros_like(alpha), torch.ones_like(alpha)


def _x0(alpha: Tensor, sigma: Tensor, k: float) -> Row:
    return torch.ones_like(alpha), torch.zeros_like(alpha)


def _v(alpha: Tensor, sigma: Tensor, k: float) -> Row:
    return -sigma, alpha


def _flow(alpha: Tensor, sigma: Tensor, k: float) -> Row:
    return -torch.ones_like(alpha), torch.ones_like(alpha)


def _score(alpha: Tensor, sigma: Tensor, k: float) -> Row:
    return torch.zeros_like(alpha), -1 / sigma


def _edm(alpha: Tensor, sigma: Tensor, k: float) -> Row:
    r = (alpha**2 * k**2 + sigma**2).sqrt()
    return sigma / (k * r), -alpha * k / r


Target = Callable[[Tensor, Tensor, float], Row]

TARGETS: dict[str, Target] = {
    "eps": _eps,  # the noise (arXiv:2006.11239)
    "x0": _x0,  # the clean data
    "v": _v,  # alpha eps - sigma x0 (arXiv:2202.00512)
    "flow": _flow,  # eps - x0, the velocity of the straight path (arXiv:2209.03003)
    "score": _score,  # -eps / sigma, the gradient of the log-density (arXiv:2011.13456)
    "edm": _edm,  # unit variance at every noise level for data of standard deviation k (arXiv:2206.00364)
}


def row(target: str, alpha: Tensor, sigma: Tensor, k: float = 1.0) -> Row:
    """Return (a, b) such that the target is a x0 + b eps.  k: standard deviation of the data (EDM only)."""
    return pick(TARGETS, target, "target")(alpha, sigma, k)


def decode(x: Tensor, y: Tensor, alpha: Tensor, sigma: Tensor, a: Tensor, b: Tensor) -> Pair:
    """Solve x = alpha x0 + sigma eps, y = a x0 + b eps for (x0, eps).

    x0 = (b x - sigma y) / D,  eps = (alpha y - a x) / D,  D = alpha b - sigma a.  x, y: (B, ...).
    """
    d = alpha * b - sigma * a
    return Pair(
        x0=expand(b / d, x) * x - expand(sigma / d, x) * y,
        eps=expand(alpha / d, x) * y - expand(a / d, x) * x,
    )


def pair_of(x: Tensor, y: Tensor, alpha: Tensor, sigma: Tensor, target: str, k: float = 1.0) -> Pair:
    """Recover clean data and noise from noised data x and one target value y: `pair_of(x, y, alpha, sigma, "score")`.

    For "score" and "eps" this is Tweedie's formula, x0 = (x + sigma² score) / alpha = (x - sigma eps) / alpha.
    The way back is `pair.mix(*row(target, alpha, sigma))`.
    """
    return decode(x, y, alpha, sigma, *row(target, alpha, sigma, k))
