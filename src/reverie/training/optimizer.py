"""Optimizers: AdamW, and Muon for the weight matrices of networks."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import AdamW, Optimizer

from reverie.base.team import Team

NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)  # steep at 0, within [0.7, 1.2] after a few steps (Jordan et al. 2024)
ITERATIONS = 4
LIKE_ADAM = 0.2  # root mean square of an Adam update, to which Muon's is scaled (arXiv:2502.16982, section 2.2)


def orthogonalise(g: Tensor) -> Tensor:
    """Return matrices with the singular vectors of g and singular values near 1.  g: (..., m, n) with m <= n.

    Newton-Schulz: s -> a s + b s³ + c s⁵.  The iteration works on the smaller side: it keeps P and A = P g gᵀ P,
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
        if i < ITERATIONS - 1:  # the last one is not needed
            gram = factor @ gram @ factor
    return product @ g


def orthogonal(matrices: Tensor) -> Tensor:
    """Return `orthogonalise` of matrices of any shape: (K, m, n)."""
    return orthogonalise(matrices) if matrices.shape[-2] <= matrices.shape[-1] else orthogonalise(matrices.mT).mT


def orthogonal_updates(matrices: list[Tensor], form: tuple[int, int]) -> list[Tensor]:
    """Return `orthogonal` of tensors reshaped to matrices."""
    return list(orthogonal(torch.stack([g.reshape(form) for g in matrices]))) if matrices else []


def owners(forms: list[tuple[int, int]], world: int) -> list[int]:
    """Assign each matrix to a process: the most expensive first, to the process with the least load."""
    cost = [min(form) ** 2 * (2 * max(form) + 4 * ITERATIONS * min(form)) for form in forms]  # see `orthogonalise`
    load, assigned = [0] * world, [0] * len(forms)
    for k in sorted(range(len(forms)), key=lambda k: -cost[k]):
        assigned[k] = load.index(min(load))
        load[assigned[k]] += cost[k]
    return assigned


def distributed_updates(ahead: Matrices, team: Team) -> Matrices:
    """Return the orthogonal updates, each computed by one process and sent to the others.  ahead: as in `Muon.updates`.

    On two processes of one thread, it takes, in milliseconds of CPU time including communication, 5.2 instead of 6.6 for
    unet-tiny and 22 instead of 33 for unet-small: 2.3 and 4.4 % of a step of batch 64 (`benchmarks/team.py`).
    """
    forms = [form for form, group in ahead.items() for _ in group]
    owner_of = owners(forms, team.world)
    sizes = [sum(rows * columns for k, (rows, columns) in enumerate(forms) if owner_of[k] == r) for r in range(team.world)]
    device = next(iter(ahead.values()))[0].device
    own, start, offset = torch.zeros(max(sizes), device=device), 0, 0
    for form, group in ahead.items():
        for update in orthogonal_updates([g for k, g in enumerate(group, start) if owner_of[k] == team.rank], form):
            own[offset : offset + update.numel()] = update.flatten()
            offset += update.numel()
        start += len(group)
    gathered, offsets, owner = team.all_gather_unchecked(own), [0] * team.world, iter(owner_of)
    updates: Matrices = {form: [] for form in ahead}
    for form, group in ahead.items():
        for _ in group:
            r, size = next(owner), form[0] * form[1]
            updates[form].append(gathered[r][offsets[r] : offsets[r] + size].view(form))
            offsets[r] += size
    return updates


Matrices = dict[tuple[int, int], list[Tensor]]  # by shape: rows, columns


class Muon(Optimizer):
    """Momentum with orthogonalised updates of weight matrices (Jordan et al. 2024, arXiv:2502.16982).

    m <- b m + (1 - b) g;  w <- w - rate 0.2 sqrt(max(rows, columns)) orthogonalise((1 - b) g + b m).
    A convolution weight is a matrix of outputs x (inputs x positions).  Matrices of one shape are processed together.
    team: processes that share the work, see `distributed_updates`.
    """

    team: Team | None = None

    def __init__(self, parameters: Iterable[nn.Parameter], lr: float, momentum: float = 0.95) -> None:
        super().__init__(parameters, {"lr": lr, "momentum": momentum})

    @torch.no_grad()  # torch's own signature is overloaded for closures, which the trainer never passes
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """Update every parameter that has a gradient."""
        for group in self.param_groups:
            by_form: Matrices = defaultdict(list)
            for p in group["params"]:
                if p.grad is not None:
                    by_form[self.form(p)].append(p)
            ahead: Matrices = {}
            for form, parameters in by_form.items():
                gradients = [g for p in parameters if (g := p.grad) is not None]
                momenta = [self._momentum(p) for p in parameters]
                torch._foreach_lerp_(momenta, gradients, 1 - group["momentum"])
                ahead[form] = list(torch._foreach_lerp(gradients, momenta, group["momentum"]))
            for form, updates in self.updates(ahead).items():
                parameters = by_form[form]
                rate = group["lr"] * LIKE_ADAM * max(form) ** 0.5
                torch._foreach_add_(
                    parameters, [u.reshape(p.shape) for u, p in zip(updates, parameters, strict=True)], alpha=-rate
                )

    def form(self, p: Tensor) -> tuple[int, int]:
        """Return the rows and columns of a parameter as a matrix."""
        return len(p), p[0].numel()

    def updates(self, ahead: Matrices) -> Matrices:
        """Return the orthogonal updates.  ahead: gradients with Nesterov momentum."""
        if self.team is not None and self.team.world > 1:
            return distributed_updates(ahead, self.team)
        return {form: orthogonal_updates(gradients, form) for form, gradients in ahead.items()}

    def _momentum(self, p: Tensor) -> Tensor:
        state = self.state[p]
        if not state:
            state["momentum"] = torch.zeros_like(p)
        momentum: Tensor = state["momentum"]
        return momentum


def adamw_of(parameters: list[nn.Parameter], rate: float, decay: float) -> AdamW:
    """Return AdamW for the given parameters."""
    fused = parameters[0].device.type in ("cpu", "cuda")
    return AdamW(parameters, lr=rate, betas=(0.9, 0.99), weight_decay=decay, fused=fused)


def adamw(net: nn.Module, rate: float, decay: float) -> list[Optimizer]:
    """Return AdamW for all parameters."""
    return [adamw_of([p for p in net.parameters() if p.requires_grad], rate, decay)]


def muon(net: nn.Module, rate: float, decay: float) -> list[Optimizer]:
    """Return Muon for weights of dense layers, convolutions and recurrent cells, and AdamW for biases, norms and embeddings."""
    layers = [m for m in net.modules() if isinstance(m, nn.Linear | nn.Conv2d | nn.ConvTranspose2d | nn.RNNBase)]
    named = [(name, p) for m in layers for name, p in m.named_parameters(recurse=False)]
    matrices = [p for name, p in named if name.startswith("weight") and p.requires_grad]
    by_muon = {id(p) for p in matrices}
    others = [p for p in net.parameters() if p.requires_grad and id(p) not in by_muon]
    return [adamw_of(others, rate, decay), Muon(matrices, rate)]


OPTIMIZERS: dict[str, Callable[[nn.Module, float, float], list[Any]]] = {"adamw": adamw, "muon": muon}

STATE: dict[type[Optimizer], tuple[str, ...]] = {AdamW: ("step", "exp_avg", "exp_avg_sq"), Muon: ("momentum",)}  # per parameter
NEVER_NEGATIVE = ("step", "exp_avg_sq")  # entries of STATE that cannot be negative
