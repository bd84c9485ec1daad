"""Clean data and noise as one value, and the prediction targets of networks.

Coefficients (alpha, sigma, a, b, ...) are floats or float64 of shape (B,); data have shape (B, ...).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from reverie.base.errors import pick
from reverie.base.scalar import Coefficient, combine, sqrt

Row = tuple[Coefficient, Coefficient]


@dataclass(frozen=True)
class Pair:
    """Clean data x0 and unit noise eps.  x0, eps: (B, ...).

    variance: of each number of x0 given x_t, if the estimate has one; it broadcasts to x0.
    """

    x0: Tensor
    eps: Tensor
    variance: Tensor | None = None

    def mix(self, a: Coefficient, b: Coefficient) -> Tensor:
        """Return a x0 + b eps.  a, b: float or (B,).

        (alpha, sigma) gives the noisy sample, a target's row the target, (alpha_s, sigma_s) the deterministic (DDIM) step to
        time s, and the schedule's rates the probability-flow velocity.
        """
        return combine(a, self.x0, b, self.eps)


def _eps(alpha: Coefficient, sigma: Coefficient, k: float) -> Row:
    """The noise (arXiv:2006.11239)."""
    return 0.0, 1.0


def _x0(alpha: Coefficient, sigma: Coefficient, k: float) -> Row:
    """The clean data (arXiv:2202.00512)."""
    return 1.0, 0.0


def _v(alpha: Coefficient, sigma: Coefficient, k: float) -> Row:
    """The velocity of variance-preserving diffusion, alpha eps - sigma x0 (arXiv:2202.00512)."""
    return -sigma, alpha


def _flow(alpha: Coefficient, sigma: Coefficient, k: float) -> Row:
    """The velocity of the straight path, eps - x0 (arXiv:2209.03003)."""
    return -1.0, 1.0


def _score(alpha: Coefficient, sigma: Coefficient, k: float) -> Row:
    """The gradient of the log-density, -eps / sigma (arXiv:2011.13456)."""
    return 0.0, -1 / sigma


def _edm(alpha: Coefficient, sigma: Coefficient, k: float) -> Row:
    """Unit variance at every noise level for data of standard deviation k (arXiv:2206.00364)."""
    r = sqrt(alpha**2 * k**2 + sigma**2)
    return sigma / (k * r), -alpha * k / r


def _levels(alpha: Coefficient, sigma: Coefficient, k: float) -> Row:
    """The clean data, as the mean of a posterior over their levels; see `reverie.diffusion.lattice`."""
    return 1.0, 0.0


Target = Callable[[Coefficient, Coefficient, float], Row]

TARGETS: dict[str, Target] = {
    "eps": _eps,
    "x0": _x0,
    "v": _v,
    "flow": _flow,
    "score": _score,
    "edm": _edm,
    "levels": _levels,
}


def row(target: str, alpha: Coefficient, sigma: Coefficient, k: float = 1.0) -> Row:
    """Return (a, b) such that the target is a x0 + b eps.  k: standard deviation of the data (EDM only)."""
    return pick(TARGETS, target, "target")(alpha, sigma, k)


def decode(x: Tensor, y: Tensor, alpha: Coefficient, sigma: Coefficient, a: Coefficient, b: Coefficient) -> Pair:
    """Solve x = alpha x0 + sigma eps, y = a x0 + b eps for (x0, eps).

    x0 = (b x - sigma y) / D,  eps = (alpha y - a x) / D,  D = alpha b - sigma a.  x, y: (B, ...).
    """
    d = alpha * b - sigma * a
    return Pair(x0=combine(b / d, x, -sigma / d, y), eps=combine(alpha / d, y, -a / d, x))


def pair_of(x: Tensor, y: Tensor, alpha: Coefficient, sigma: Coefficient, target: str, k: float = 1.0) -> Pair:
    """Recover clean data and noise from a noisy sample x and a target value y: `pair_of(x, y, alpha, sigma, "score")`.

    For "score" and "eps" this is Tweedie's formula, x0 = (x + sigma² score) / alpha = (x - sigma eps) / alpha.
    The inverse is `pair.mix(*row(target, alpha, sigma))`.
    """
    return decode(x, y, alpha, sigma, *row(target, alpha, sigma, k))
