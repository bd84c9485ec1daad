"""Anderson acceleration of a fixed-point iteration."""

from __future__ import annotations

import torch
from torch import Tensor


class Anderson:
    """Extrapolate to the fixed point of a map from its last values (Anderson 1965; Walker and Ni, doi:10.1137/10078356X).

    With residuals r_i = map(x_i) - x_i, the next x is sum_i c_i map(x_i), where c minimizes |sum_i c_i r_i| in the weighted
    norm subject to sum_i c_i = 1.  x: (..., m); every batch element has its own c.
    """

    def __init__(self, weights: Tensor, memory: int) -> None:
        self.weights, self.memory = weights, memory
        self.history: list[tuple[Tensor, Tensor]] = []  # (map(x), map(x) - x)

    def reset(self) -> None:
        """Clear the history; call it when the map has changed."""
        self.history.clear()

    def next(self, x: Tensor, mapped: Tensor) -> Tensor:
        """Return the next iterate from the current x and map(x)."""
        residual = mapped - x
        if not self.history:
            extrapolated = mapped
        else:
            change = residual[..., None, :] - torch.stack([r for _, r in self.history], -2)  # (..., k, m)
            step = mapped[..., None, :] - torch.stack([y for y, _ in self.history], -2)
            scaled = change * self.weights[..., None, :]
            gram = scaled @ change.mT
            squares = gram.diagonal(dim1=-2, dim2=-1)
            ridge = 1e-13 * squares.sum(-1, keepdim=True) + torch.finfo(gram.dtype).tiny
            gram = gram + torch.diag_embed(ridge.expand_as(squares))
            coefficients = torch.linalg.solve(gram, (scaled @ residual[..., None]))
            extrapolated = mapped - (coefficients.mT @ step)[..., 0, :]
        self.history = [*self.history, (mapped, residual)][-self.memory :]
        return extrapolated
