"""A batch of linear systems of which only products are known, solved side by side."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Solved:
    """Solutions x, (B, ...), the relative residuals |S x - right| / |right| they leave, (B,), and the products taken."""

    x: Tensor
    residual: Tensor
    products: int


def conjugate_residuals(product: Callable[[Tensor], Tensor], right: Tensor, tolerance: float = 1e-3, most: int = 20) -> Solved:
    """Solve S x = right for each member of a batch, with at most so many products with S, each taken for all at once.

    Generalised conjugate residuals (Eisenstat, Elman, Schultz, "Variational iterative methods for nonsymmetric systems of
    linear equations", 1983): where S is symmetric and positive definite this is the conjugate gradient iteration in the
    norm of the residual, and where it is neither the residual still never rises, which plain conjugate gradients
    do not grant.  A member rests once its residual is below tolerance |right|; none depends on the others.  right: (B, ...).
    """

    def dot(a: Tensor, b: Tensor) -> Tensor:
        return (a * b).flatten(1).sum(1).reshape(-1, *[1] * (a.ndim - 1))

    x, rest, goal = torch.zeros_like(right), right, dot(right, right)
    going, past, taken = goal > 0, list[tuple[Tensor, Tensor, Tensor]](), 0
    while taken < most and bool(going.any()):
        way, image = rest, product(rest)
        taken += 1
        for earlier, its_image, power in past:
            share = dot(image, its_image) / power
            way, image = way - share * earlier, image - share * its_image
        power = dot(image, image)
        going = going & (power > 0)
        power, image = torch.where(going, power, 1.0), torch.where(going, image, 0.0)
        stride = dot(rest, image) / power
        x, rest = x + stride * way, rest - stride * image
        past.append((way, image, power))
        going = going & (dot(rest, rest) > tolerance**2 * goal)
    left = dot(rest, rest) / torch.where(goal > 0, goal, 1.0)
    return Solved(x, left.sqrt().reshape(-1), taken)
