"""A batched iterative solver of linear systems that needs only matrix-vector products."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class LinearSolution:
    """Solutions x, (B, ...), relative residuals |S x - right| / |right|, (B,), and the number of products."""

    x: Tensor
    residual: Tensor
    products: int


def conjugate_residuals(
    product: Callable[[Tensor], Tensor], right: Tensor, tolerance: float = 1e-3, max_products: int = 20
) -> LinearSolution:
    """Solve S x = right for each member of a batch, with a limited number of batched products with S.

    Generalised conjugate residuals (Eisenstat, Elman, Schultz, "Variational iterative methods for nonsymmetric systems of
    linear equations", 1983): for a symmetric positive definite S this minimizes the residual over the Krylov space, as
    conjugate residuals do; for any other S the residual still never increases.  A member stops once its residual is below
    tolerance |right|; members are independent.  right: (B, ...).
    """

    def dot(a: Tensor, b: Tensor) -> Tensor:
        return (a * b).flatten(1).sum(1).reshape(-1, *[1] * (a.ndim - 1))

    x, residual, target = torch.zeros_like(right), right, dot(right, right)
    active, history, products = target > 0, list[tuple[Tensor, Tensor, Tensor]](), 0
    while products < max_products and bool(active.any()):
        direction, image = residual, product(residual)
        products += 1
        for earlier_direction, earlier_image, image_norm2 in history:
            coefficient = dot(image, earlier_image) / image_norm2
            direction, image = direction - coefficient * earlier_direction, image - coefficient * earlier_image
        image_norm2 = dot(image, image)
        active = active & (image_norm2 > 0)
        image_norm2, image = torch.where(active, image_norm2, 1.0), torch.where(active, image, 0.0)
        step = dot(residual, image) / image_norm2
        x, residual = x + step * direction, residual - step * image
        history.append((direction, image, image_norm2))
        active = active & (dot(residual, residual) > tolerance**2 * target)
    relative = dot(residual, residual) / torch.where(target > 0, target, 1.0)
    return LinearSolution(x, relative.sqrt().reshape(-1), products)
