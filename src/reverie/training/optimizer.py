"""Optimizers: AdamW, and Muon for the weight matrices of networks."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import AdamW, Optimizer

NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)  # steep at 0, within [0.7, 1.2] after a few steps (Jordan et al. 2024)
ITERATIONS = 4
LIKE_ADAM = 0.2  # the root mean square of an Adam update, which Muon's is brought to (arXiv:2502.16982, section 2.2)


def orthogonalise(g: Tensor) -> Tensor:
    """Return matrices with the singular vectors of g and singular values near 1.  g: (..., m, n) with m <= n.

    Newton-Schulz: s -> a s + b s³ + c s⁵.  The iteration is done on the small side only: it keeps P and A = P g gᵀ P,
    both (m, m), and multiplies P g once at the end.
    """
    a, b, c = NEWTON_SCHULZ
    g = g / (g.flatten(-2).norm(dim=-1)[..., None, None] + 1e-12)
    gram = g @ g.mT
    identity = torch.eye(g.shape[-2], dtype=g.dtype, device=g.device)
    product = gram
    for i in range(ITERATIONS):
        factor = a * identity + (b * identity + c * gram) @ gram
        product = factor if i == 0 else factor @ product
        if i < ITERATIONS - 1:  # nobody asks for the last one
            gram = factor @ gram @ factor
    return product @ g


class Muon(Optimizer):
    """Momentum whose update of a weight matrix is made orthogonal (Jordan et al. 2024, arXiv:2502.16982).

    m <- b m + (1 - b) g;  w <- w - rate 0.2 sqrt(max(rows, columns)) orthogonalise((1 - b) g + b m).
    A convolution's weight counts as a matrix of outputs x (inputs x places).  Matrices of one shape are treated together.
    """

    def __init__(self, parameters: Iterable[nn.Parameter], lr: float, momentum: float = 0.95) -> None:
        super().__init__(parameters, {"lr": lr, "momentum": momentum})

    @torch.no_grad()  # torch's own signature is overloaded for closures, which the trainer never gives
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """Update every parameter that has a gradient."""
        for group in self.param_groups:
            alike: dict[tuple[int, int], list[tuple[Tensor, Tensor, Tensor]]] = defaultdict(list)
            for p in group["params"]:
                if p.grad is not None:
                    alike[len(p), p[0].numel()].append((p, p.grad, self._momentum(p)))
            for (rows, columns), found in alike.items():
                matrices, gradients, momenta = (list(kind) for kind in zip(*found, strict=True))
                torch._foreach_lerp_(momenta, gradients, 1 - group["momentum"])
                ahead = torch._foreach_lerp(gradients, momenta, group["momentum"])
                stacked = torch.stack([g.reshape(rows, columns) for g in ahead])
                update = orthogonalise(stacked) if rows <= columns else orthogonalise(stacked.mT).mT
                rate = group["lr"] * LIKE_ADAM * max(rows, columns) ** 0.5
                torch._foreach_add_(matrices, [u.reshape(p.shape) for u, p in zip(update, matrices, strict=True)], alpha=-rate)

    def _momentum(self, p: nn.Parameter) -> Tensor:
        state = self.state[p]
        if not state:
            state["momentum"] = torch.zeros_like(p)
        momentum: Tensor = state["momentum"]
        return momentum


def _adamw(parameters: list[nn.Parameter], rate: float, decay: float) -> AdamW:
    fused = parameters[0].device.type in ("cpu", "cuda")
    return AdamW(parameters, lr=rate, betas=(0.9, 0.99), weight_decay=decay, fused=fused)


def adamw(net: nn.Module, rate: float, decay: float) -> list[Optimizer]:
    """Return AdamW for everything."""
    return [_adamw([p for p in net.parameters() if p.requires_grad], rate, decay)]


def muon(net: nn.Module, rate: float, decay: float) -> list[Optimizer]:
    """Return Muon for the weights of dense layers, convolutions and recurrent cells, and AdamW for biases, norms and tables."""
    layers = [m for m in net.modules() if isinstance(m, nn.Linear | nn.Conv2d | nn.ConvTranspose2d | nn.RNNBase)]
    named = [(name, p) for m in layers for name, p in m.named_parameters(recurse=False)]
    matrices = [p for name, p in named if name.startswith("weight") and p.requires_grad]
    mine = {id(p) for p in matrices}
    return [_adamw([p for p in net.parameters() if p.requires_grad and id(p) not in mine], rate, decay), Muon(matrices, rate)]


OPTIMIZERS: dict[str, Callable[[nn.Module, float, float], list[Any]]] = {"adamw": adamw, "muon": muon}

STATE: dict[type[Optimizer], tuple[str, ...]] = {AdamW: ("step", "exp_avg", "exp_avg_sq"), Muon: ("momentum",)}  # per parameter
NEVER_NEGATIVE = ("step", "exp_avg_sq")  # of these
