"""Low-rank adapters (LoRA, arXiv:2106.09685): trainable low-rank changes of frozen weights."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TypeVar

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

T = TypeVar("T")

ADAPTED = nn.Linear | nn.Conv2d | nn.ConvTranspose2d
ORIGINAL, UP, DOWN = "parametrizations.weight.original", "parametrizations.weight.0.up", "parametrizations.weight.0.down"
LABEL_TABLE = "label.table"  # labels may have other meanings in new data, so this small table is trained in full


class LowRank(nn.Module):
    """W -> W + up down, with up = 0 initially.  W: (out, ...) as a matrix (out, in); up: (out, rank); down: (rank, in)."""

    def __init__(self, weight: Tensor, rank: int, seed: int) -> None:
        super().__init__()
        rows, columns = len(weight), weight[0].numel()
        random = torch.Generator().manual_seed(seed)
        first = torch.randn(rank, columns, generator=random) / columns**0.5
        self.up, self.down = nn.Parameter(weight.new_zeros(rows, rank)), nn.Parameter(first.to(weight))

    def forward(self, weight: Tensor) -> Tensor:
        """Return the adapted matrix."""
        return weight + (self.up @ self.down).view_as(weight)


def adaptable_layers(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Yield the trainable linear and convolutional layers with their names."""
    for name, layer in model.named_modules():
        if isinstance(layer, ADAPTED) and layer.weight.requires_grad:
            yield name, layer


def add_adapters(model: nn.Module, rank: int) -> None:
    """Freeze a model and add a trainable adapter of this rank to each matrix; the label table stays trainable."""
    layers = list(adaptable_layers(model))
    model.requires_grad_(False)
    for k, (_, layer) in enumerate(layers):
        weight: Tensor = layer.weight  # type: ignore[assignment]  # of a layer, a parameter
        parametrize.register_parametrization(layer, "weight", LowRank(weight, rank, k))
        layer.parametrizations.weight.original.requires_grad_(False)  # type: ignore[union-attr]  # torch says only Module
    for name, p in model.named_parameters():
        if name.endswith((LABEL_TABLE, UP, DOWN)):
            p.requires_grad_(True)


def without_adapters(found: Mapping[str, T]) -> dict[str, T]:
    """Drop the entries of adapters and rename the others as in a model without adapters."""
    base = {name: value for name, value in found.items() if not name.endswith((UP, DOWN))}
    return {f"{name.removesuffix(ORIGINAL)}weight" if name.endswith(ORIGINAL) else name: value for name, value in base.items()}


def merged_weights(model: nn.Module) -> dict[str, Tensor]:
    """Return the weights with the adapters merged into them, under the names of a model without adapters."""
    state = model.state_dict()
    for name in [name for name in state if name.endswith(ORIGINAL)]:
        layer = name.removesuffix(ORIGINAL)
        state[name] = state[name] + (state[layer + UP] @ state[layer + DOWN]).view_as(state[name])
    return without_adapters(state)


def adapter_weights(model: nn.Module) -> dict[str, Tensor]:
    """Return the weights of the adapters (up and down of each layer) and the label table; empty without adapters."""
    state = model.state_dict()
    adapters = {
        name.replace("parametrizations.weight.0.", ""): tensor for name, tensor in state.items() if name.endswith((UP, DOWN))
    }
    return {**adapters, **{name: t for name, t in state.items() if name.endswith(LABEL_TABLE)}} if adapters else {}
