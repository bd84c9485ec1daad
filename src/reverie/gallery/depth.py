"""Gradients by depth: the effect of residual connections, LayerNorm and BatchNorm in a deep network at initialization."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from reverie.draw.curves import label_axes
from reverie.draw.picture import CYCLE, SOFT, check_picture, figure, save

DEPTH, WIDTH, BATCH = 60, 64, 64
MIN_SHOWN = 1e-16  # smallest value shown
# Whether there is a residual connection, the norm, and its position.
VARIANTS: dict[str, tuple[bool, str, str]] = {
    "plain": (False, "none", "pre"), "LayerNorm": (False, "layer", "pre"), "BatchNorm": (False, "batch", "pre"),
    "residual": (True, "none", "pre"), "residual, LayerNorm before (pre)": (True, "layer", "pre"),
    "residual, LayerNorm after (post)": (True, "layer", "post"), "residual, BatchNorm before": (True, "batch", "pre"),
}  # fmt: skip


class Layer(nn.Module):
    """f(x) = W2 relu(W1 x), with or without residual connection, with a norm before or after."""

    def __init__(self, residual: bool, norm: str, place: str) -> None:
        super().__init__()
        self.residual, self.place = residual, place
        norms = {"none": nn.Identity(), "layer": nn.LayerNorm(WIDTH), "batch": nn.BatchNorm1d(WIDTH)}
        self.norm: nn.Module = norms[norm]
        self.first, self.second = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        for linear in (self.first, self.second):
            nn.init.normal_(linear.weight, std=WIDTH**-0.5)
            nn.init.zeros_(linear.bias)

    def forward(self, x: Tensor) -> Tensor:
        """Return (B, WIDTH)."""
        y: Tensor = self.second(self.first(self.norm(x) if self.place == "pre" else x).relu())
        y = x + y if self.residual else y
        return y if self.place == "pre" else self.norm(y)


def gradients(variant: str, seed: int = 0) -> np.ndarray:
    """Return the norm of the gradient of 1/2 |x_L - y|² for a random y at the input of each layer: (DEPTH + 1,)."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        layers = [Layer(*VARIANTS[variant]) for _ in range(DEPTH)]
        x, target = torch.randn(BATCH, WIDTH), torch.randn(BATCH, WIDTH)
    activations = [x.requires_grad_()]
    for layer in layers:
        activations.append(layer(activations[-1]))
    gradients = torch.autograd.grad(0.5 * (activations[-1] - target).square().sum(1).mean(), activations)
    return np.array([float(g.norm()) for g in gradients])


def draw(out: Path) -> list[Path]:
    """Draw the gradient norms by depth."""
    check_picture(out)
    fig = figure(9.5, 4.2)
    axes = fig.subplots()
    axes.axhline(1, color=SOFT, lw=0.8)
    for k, variant in enumerate(VARIANTS):
        norms = gradients(variant)
        norms = norms / norms[-1]
        norms[norms < MIN_SHOWN] = np.nan
        axes.semilogy(range(DEPTH + 1), norms, "-" if VARIANTS[variant][0] else "--", lw=1.6, color=CYCLE[k], label=variant)
    title = "Norm of the gradient at each layer, relative to the last"
    label_axes(axes, title, f"layer, of {DEPTH} of width {WIDTH} at initialization", "norm of the gradient")
    axes.legend(fontsize=8, loc="upper left", bbox_to_anchor=(1.01, 1), frameon=False)
    save(fig, out)
    return [out]
