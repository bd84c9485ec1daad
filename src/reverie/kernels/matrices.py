"""Gram matrices: computation in blocks, checks, and embeddings of points with a given Gram matrix."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from reverie.base.distances import euclidean, row_blocks
from reverie.base.errors import UserError
from reverie.base.validation import check_points, real_dtype, tensor
from reverie.kernels.kernel import Kernel

Points = Tensor | Sequence[str]


def check_inputs(*sets: Any) -> tuple[Any, ...]:
    """Return point sets as tensors and string lists unchanged; raise an error if they cannot be compared."""
    checked = [s if len(s) and isinstance(s[0], str) else tensor(s) for s in sets]
    for points in checked:
        if isinstance(points, Tensor):
            if points.ndim != 2:
                raise UserError(f"a kernel compares points of shape (n, d), got the shape {tuple(points.shape)}")
            check_points(points, "a set of points")
    widths = {points.shape[1] if isinstance(points, Tensor) else "text" for points in checked}
    if len(widths) > 1:
        raise UserError(f"the sets differ in dimension: {' and '.join(map(str, sorted(widths, key=str)))}")
    dtypes = [points.dtype for points in checked if isinstance(points, Tensor)]
    if not dtypes:
        return tuple(checked)
    widest = max(dtypes, key=lambda dtype: torch.finfo(dtype).bits)
    return tuple(points.to(widest) for points in checked)


def gram(kernel: Kernel, x: Any, y: Any = None) -> Tensor:
    """Return the Gram matrix k(x_i, y_j), or k(x_i, x_j): (n, m)."""
    x, y = check_inputs(x, x if y is None else y)
    return torch.cat([kernel(x[rows], y) for rows in row_blocks(len(x), len(y))])


def gram_product(kernel: Kernel, x: Any, y: Any, values: Tensor) -> Tensor:
    """Return sum_j k(x_i, y_j) values_j without storing the matrix: (n, ...).  values: (m, ...)."""
    x, y = check_inputs(x, y)
    return torch.cat([torch.tensordot(kernel(x[rows], y).to(values), values, 1) for rows in row_blocks(len(x), len(y))])


def median_width(x: Any, y: Any = None, *, max_points: int = 2000, seed: int = 0) -> float:
    """Return the median distance between two distinct points of the sets (the median heuristic for kernel widths).

    If there are more than `max_points`, a random subset of that size is used.
    """
    sets = check_inputs(x) if y is None else check_inputs(x, y)
    if not isinstance(sets[0], Tensor):
        raise UserError("strings have no distance to take the median of; pass a string kernel such as Spectrum")
    points = torch.cat(sets)
    if len(points) > max_points:
        points = points[
            torch.randperm(len(points), generator=torch.Generator().manual_seed(seed))[:max_points].to(points.device)
        ]
    if len(points) < 2:
        raise UserError("a median distance needs at least two points")
    i, j = torch.triu_indices(len(points), len(points), 1)
    median = float(euclidean(points, points)[i, j].median())
    if median == 0:
        raise UserError("most of the points are equal, so their median distance is 0; pass the width")
    return median


def _symmetric(values: Any) -> Tensor:
    """Return a symmetric matrix of real numbers, or raise an error."""
    matrix = tensor(values)
    matrix = matrix.to(real_dtype(matrix))
    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1] or not len(matrix):
        raise UserError(f"a Gram matrix is square, got {tuple(matrix.shape)}")
    if not matrix.isfinite().all():
        raise UserError("the Gram matrix contains NaN or infinity")
    if not torch.allclose(matrix, matrix.T, rtol=1e-5, atol=1e-8 * float(matrix.abs().max())):
        raise UserError("the Gram matrix is not symmetric")
    return matrix


def smallest_eigenvalue(matrix: Any) -> float:
    """Return the smallest eigenvalue of a symmetric matrix divided by the largest absolute eigenvalue."""
    values = torch.linalg.eigvalsh(_symmetric(matrix))
    return float(values[0] / values.abs().max().clamp(min=torch.finfo(values.dtype).tiny))


def is_positive_semidefinite(matrix: Any) -> bool:
    """Whether a symmetric matrix is positive semidefinite up to rounding, and so the Gram matrix of some points."""
    matrix = _symmetric(matrix)
    return smallest_eigenvalue(matrix) >= -len(matrix) * torch.finfo(matrix.dtype).eps


def columns_as_points(matrix: Any, rotation: Any = None) -> tuple[Tensor, Tensor]:
    """Return points phi_i = Q K e_i as rows, (n, n), and the metric M = Q K⁻¹ Qᵀ, (n, n), with phi_iᵀ M phi_j = K_ij.

    This holds for every orthogonal Q: a Gram matrix determines its points only up to a rotation.  If K is singular, its
    pseudoinverse is used.  rotation: (n, n), default the identity.
    """
    matrix = _symmetric(matrix)
    q = torch.eye(len(matrix), dtype=matrix.dtype) if rotation is None else tensor(rotation).to(matrix.dtype)
    if q.shape != matrix.shape or not torch.allclose(q.T @ q, torch.eye(len(q), dtype=q.dtype), atol=1e-6):
        raise UserError(f"the rotation must be an orthogonal matrix of {len(matrix)} x {len(matrix)}")
    return (q @ matrix).T, q @ torch.linalg.pinv(matrix, hermitian=True) @ q.T


def l2_inner(f: Callable[[float], float], g: Callable[[float], float], a: float, b: float) -> float:
    """Return the L2 inner product of two functions, the integral of f(t) g(t) from a to b (adaptive quadrature)."""
    from scipy.integrate import quad

    if not (math.isfinite(a) and math.isfinite(b) and a <= b):
        raise UserError(f"the interval must have finite ends a <= b, got {a} and {b}")
    return float(quad(lambda t: f(t) * g(t), a, b, limit=200)[0])


def embed(matrix: Any) -> Tensor:
    """Return points with this Gram matrix: (n, r), where r is its rank.  They are unique up to a rotation.

    They are the Cholesky factor, or v_k sqrt(lambda_k) from the eigenvectors if the matrix is singular.
    """
    matrix = _symmetric(matrix)
    if not is_positive_semidefinite(matrix):
        raise UserError(
            f"the matrix has a negative eigenvalue ({smallest_eigenvalue(matrix):.1e} of the largest), so it is no Gram matrix"
        )
    values, vectors = torch.linalg.eigh(matrix)
    positive = values > len(matrix) * torch.finfo(matrix.dtype).eps * values[-1]
    points: Tensor = (
        torch.linalg.cholesky(matrix) if positive.all() else (vectors[:, positive] * values[positive].sqrt()).flip(-1)
    )
    return points
