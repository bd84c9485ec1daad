"""Low-rank adapters (LoRA, arXiv:2106.09685): a frozen network learns a small change of each of its matrices."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TypeVar

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

T = TypeVar("T")

LAYERS = nn.Linear | nn.Conv2d | nn.ConvTranspose2d
ORIGINAL, UP, DOWN = "parametrizations.weight.original", "parametrizations.weight.0.up", "parametrizations.weight.0.down"
TABLE = "label.table"  # of labels, which new data may mean otherwise: it is learned whole, being small


class LowRank(nn.Module):
    """W -> W + up down, with up zero at first.  W: (out, ...) as a matrix (out, in); up: (out, rank); down: (rank, in)."""

    def __init__(self, weight: Tensor, rank: int, seed: int) -> None:
        super().__init__()
        rows, columns = len(weight), weight[0].numel()
        random = torch.Generator().manual_seed(seed)
        first = torch.randn(rank, columns, generator=random) / columns**0.5
        self.up, self.down = nn.Parameter(weight.new_zeros(rows, rank)), nn.Parameter(first.to(weight))

    def forward(self, weight: Tensor) -> Tensor:
        """Return the changed matrix."""
        return weight + (self.up @ self.down).view_as(weight)


def adaptable(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Yield the layers that learn, by name."""
    for name, layer in model.named_modules():
        if isinstance(layer, LAYERS) and layer.weight.requires_grad:
            yield name, layer


def attach(model: nn.Module, rank: int) -> None:
    """Freeze a model and give each of its matrices a change of a rank that is learned, with the table of labels."""
    layers = list(adaptable(model))
    model.requires_grad_(False)
    for k, (_, layer) in enumerate(layers):
        weight: Tensor = layer.weight  # type: ignore[assignment]  # of a layer, a parameter
        parametrize.register_parametrization(layer, "weight", LowRank(weight, rank, k))
        layer.parametrizations.weight.original.requires_grad_(False)  # type: ignore[union-attr]  # torch says only Module
    for name, p in model.named_parameters():
        if name.endswith((TABLE, UP, DOWN)):
            p.requires_grad_(True)


def plain(found: Mapping[str, T]) -> dict[str, T]:
    """Return what is known of each tensor by the names of a model without adapters, and nothing of those of adapters."""
    kept = {name: value for name, value in found.items() if not name.endswith((UP, DOWN))}
    return {f"{name.removesuffix(ORIGINAL)}weight" if name.endswith(ORIGINAL) else name: value for name, value in kept.items()}


def merged(model: nn.Module) -> dict[str, Tensor]:
    """Return the weights of a model as if it had no adapters, with their changes in them; others as they are."""
    state = model.state_dict()
    for name in [name for name in state if name.endswith(ORIGINAL)]:
        layer = name.removesuffix(ORIGINAL)
        state[name] = state[name] + (state[layer + UP] @ state[layer + DOWN]).view_as(state[name])
    return plain(state)


def factors(model: nn.Module) -> dict[str, Tensor]:
    """Return what an adapter is: up and down of each layer, and the table of labels; nothing for a model without."""
    state = model.state_dict()
    found = {
        name.replace("parametrizations.weight.0.", ""): tensor for name, tensor in state.items() if name.endswith((UP, DOWN))
    }
    return {**found, **{name: t for name, t in state.items() if name.endswith(TABLE)}} if found else {}
