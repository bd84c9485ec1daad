"""A learned noise schedule."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional

from reverie.base.errors import UserError
from reverie.base.scalar import Coefficient, Time, as_time
from reverie.diffusion.schedule import Schedule

MAX_MOVE = 6.0  # of each end, in log-SNR
SLOPES = 8.0  # initial slopes of the sigmoids: each covers about a fourth of the times


class _Scaled(torch.autograd.Function):
    """A value whose gradient is scaled by a factor that is determined after the forward pass."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, factor: list[Tensor]) -> Tensor:
        """Return x."""
        ctx.factor = factor
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        """Return the scaled gradient."""
        factor = ctx.factor[0].to(gradients[0]) if ctx.factor else 1.0
        return gradients[0] * factor, None


def _scaled(x: Tensor, factor: list[Tensor]) -> Tensor:
    scaled: Callable[[Tensor, list[Tensor]], Tensor] = _Scaled.apply
    return scaled(x, factor)


class Learned(Schedule):
    """A variance-preserving schedule with a learned log-SNR, monotone in t (arXiv:2107.00630).

    log_snr(t) = first - (first - last) g(t),  alpha² = sigmoid(log_snr),  sigma² = sigmoid(-log_snr),
    g(t) = (m(t) - m(0)) / (m(1) - m(0)),  m(t) = t + sum_k w_k sigmoid(s_k (t - c_k)) with w, s > 0, so that g increases.
    bends: number of terms of the sum; with 0 the log-SNR is linear and only its ends are learned.  Each end stays within
    MAX_MOVE of its initial value: beyond some log-SNR the bound is almost constant, and an optimizer would follow its noise.

    The continuous-time bound does not depend on g, but the variance of its estimate does: under `minimize_variance` the
    gradient with respect to g is that of the squared loss (appendix I of the same paper).
    """

    t_min = 0.0
    signal_limit = 0.1  # higher than for other schedules: the prior term of the bound penalizes remaining signal
    noisier = "train longer, or give a last of at most -7.5"

    def __init__(
        self,
        first: Annotated[float, Field(ge=-30, le=30)] = 12.0,
        last: Annotated[float, Field(ge=-30, le=30)] = -7.5,
        bends: Annotated[int, Field(ge=0, le=4096)] = 32,
    ) -> None:
        super().__init__()
        if not first > last:
            raise UserError(f"a learned schedule needs a first log-SNR above the last, got {first:g} and {last:g}")
        self.begins_with = first, last
        self.moves = nn.Parameter(torch.zeros(2))
        self.bends = bends
        if bends:
            self.raw_weights = nn.Parameter(torch.full((bends,), -4.0))
            self.raw_slopes = nn.Parameter(torch.full((bends,), SLOPES))
            self.centres = nn.Parameter((torch.arange(bends) + 0.5) / bends)
        self._factor: list[Tensor] | None = None

    def log_snr_and_rate(self, t: Tensor) -> tuple[Tensor, Tensor]:
        """Return the log-SNR and its derivative with respect to t.  t: (B,) float64; both: (B,) float64."""
        (first, last), (g, rate) = self.ends(), self._monotone(t)
        if self._factor is not None:
            g, rate = (_scaled(x, self._factor) for x in (g, rate))
        return first - (first - last) * g, -(first - last) * rate

    def ends(self) -> tuple[Tensor, Tensor]:
        """Return the current log-SNR at t = 0 and at t = 1: () float64."""
        first, last = self.begins_with
        max_move = min(MAX_MOVE, 0.45 * (first - last))  # so that they never meet
        ends = torch.tensor([first, last], dtype=torch.float64) + max_move * torch.tanh(self.moves.cpu().double() / max_move)
        return ends[0], ends[1]

    def _monotone(self, t: Tensor) -> tuple[Tensor, Tensor]:
        """Return g(t) and g'(t)."""
        if not self.bends:
            return t * 1.0, torch.ones_like(t)
        weights, slopes = (functional.softplus(p.cpu().double()) for p in (self.raw_weights, self.raw_slopes))
        centres = self.centres.cpu().double()

        def m_and_rate(t: Tensor) -> tuple[Tensor, Tensor]:
            s = torch.sigmoid(slopes * (t[:, None] - centres))
            return t + s @ weights, 1 + (s * (1 - s)) @ (weights * slopes)

        (low, high), (m, rate) = m_and_rate(torch.tensor([0.0, 1.0], dtype=t.dtype))[0], m_and_rate(t)
        return (m - low) / (high - low), rate / (high - low)

    def forward(self, t: Time) -> tuple[Coefficient, Coefficient]:
        """Return the square roots of sigmoid(log_snr) and sigmoid(-log_snr)."""
        alpha, sigma = self._amplitudes(self.log_snr_and_rate(self._batch(t))[0])
        return self._like(t, alpha), self._like(t, sigma)

    def log_snr(self, t: Time) -> Coefficient:
        """Return the log-SNR without rounding at either end."""
        return self._like(t, self.log_snr_and_rate(self._batch(t))[0])

    def rates(self, t: Time) -> tuple[Coefficient, Coefficient]:
        """Return d alpha / dt = alpha sigma² log_snr' / 2 and d sigma / dt = -sigma alpha² log_snr' / 2."""
        log_snr, rate = self.log_snr_and_rate(self._batch(t))
        alpha, sigma = self._amplitudes(log_snr)
        return self._like(t, alpha * sigma**2 * rate / 2), self._like(t, -sigma * alpha**2 * rate / 2)

    def minimize_variance(self, on: bool) -> None:
        """Switch the training of g by the gradient of the squared loss on or off; if on, call `record_loss` after each loss."""
        self._factor = [] if on else None

    def record_loss(self, loss: Tensor) -> None:
        """Record the loss of each datum before its gradient is computed.  loss: (B,)."""
        if self._factor is not None:
            self._factor[:] = [2 * loss.detach().cpu()]

    @staticmethod
    def _batch(t: Time) -> Tensor:
        t = as_time(t)
        return t if isinstance(t, Tensor) else torch.tensor([t], dtype=torch.float64)

    @staticmethod
    def _like(t: Time, value: Tensor) -> Coefficient:
        return value if isinstance(t, Tensor) and t.ndim else float(value.detach())

    @staticmethod
    def _amplitudes(log_snr: Tensor) -> tuple[Tensor, Tensor]:
        return torch.sigmoid(log_snr).sqrt(), torch.sigmoid(-log_snr).sqrt()
