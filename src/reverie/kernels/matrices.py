"""Gram matrices: in blocks, checked, and turned back into points."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from reverie.base.distances import euclidean, row_blocks
from reverie.base.errors import UserError
from reverie.base.points import check_points, real_dtype, tensor
from reverie.kernels.kernel import Kernel

Points = Tensor | Sequence[str]


def check_inputs(*sets: Any) -> tuple[Any, ...]:
    """Return sets of points as tensors and of strings as they are; refuse sets that cannot be compared."""
    checked = [s if len(s) and isinstance(s[0], str) else tensor(s) for s in sets]
    for points in checked:
        if isinstance(points, Tensor):
            if points.ndim != 2:
                raise UserError(f"a kernel compares points of shape (n, d), got {tuple(points.shape)}")
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
    """Return the matrix k(x_i, y_j), or k(x_i, x_j): (n, m)."""
    x, y = check_inputs(x, x if y is None else y)
    return torch.cat([kernel(x[rows], y) for rows in row_blocks(len(x), len(y))])


def gram_times(kernel: Kernel, x: Any, y: Any, values: Tensor) -> Tensor:
    """Return sum_j k(x_i, y_j) values_j without the matrix: (n, ...).  values: (m, ...)."""
    x, y = check_inputs(x, y)
    return torch.cat([torch.tensordot(kernel(x[rows], y).to(values), values, 1) for rows in row_blocks(len(x), len(y))])


def median_width(x: Any, y: Any = None, *, most: int = 2000, seed: int = 0) -> float:
    """Return the median distance between two different points of the sets, a common width for kernels that decay.

    Of more than `most` points, that many are drawn without replacement.
    """
    sets = check_inputs(x) if y is None else check_inputs(x, y)
    if not isinstance(sets[0], Tensor):
        raise UserError("strings have no distance to take the median of; give a kernel that compares them, such as Spectrum")
    points = torch.cat(sets)
    if len(points) > most:
        points = points[torch.randperm(len(points), generator=torch.Generator().manual_seed(seed))[:most].to(points.device)]
    if len(points) < 2:
        raise UserError("a median distance needs at least two points")
    i, j = torch.triu_indices(len(points), len(points), 1)
    median = float(euclidean(points, points)[i, j].median())
    if median == 0:
        raise UserError("most of the points are equal, so their median distance is 0; give the width yourself")
    return median


def _symmetric(values: Any) -> Tensor:
    """Return a symmetric matrix of real numbers, or say what is wrong with it."""
    matrix = tensor(values)
    matrix = matrix.to(real_dtype(matrix))
    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1] or not len(matrix):
        raise UserError(f"a Gram matrix is square, got {tuple(matrix.shape)}")
    if not matrix.isfinite().all():
        raise UserError("the Gram matrix holds NaN or infinity")
    if not torch.allclose(matrix, matrix.T, rtol=1e-5, atol=1e-8 * float(matrix.abs().max())):
        raise UserError("the Gram matrix is not symmetric")
    return matrix


def smallest_eigenvalue(matrix: Any) -> float:
    """Return the smallest eigenvalue of a symmetric matrix relative to the largest in size."""
    values = torch.linalg.eigvalsh(_symmetric(matrix))
    return float(values[0] / values.abs().max().clamp(min=torch.finfo(values.dtype).tiny))


def is_positive(matrix: Any) -> bool:
    """Whether a symmetric matrix is positive semidefinite, up to rounding: whether it is the Gram matrix of some points."""
    matrix = _symmetric(matrix)
    return smallest_eigenvalue(matrix) >= -len(matrix) * torch.finfo(matrix.dtype).eps


def columns_as_points(matrix: Any, rotation: Any = None) -> tuple[Tensor, Tensor]:
    """Return the points phi_i = Q K e_i as rows, (n, n), and the metric M = Q K⁻¹ Qᵀ, (n, n), in which they have K as products.

    phi_iᵀ M phi_j = e_iᵀ K K⁻¹ K e_j = K_ij for every rotation Q: a Gram matrix tells its points up to a rotation only.  K is
    inverted on its range where it is singular.  rotation: (n, n), the identity if not given.
    """
    matrix = _symmetric(matrix)
    q = torch.eye(len(matrix), dtype=matrix.dtype) if rotation is None else tensor(rotation).to(matrix.dtype)
    if q.shape != matrix.shape or not torch.allclose(q.T @ q, torch.eye(len(q), dtype=q.dtype), atol=1e-6):
        raise UserError(f"a rotation of these points is an orthogonal matrix of {len(matrix)} x {len(matrix)}")
    return (q @ matrix).T, q @ torch.linalg.pinv(matrix, hermitian=True) @ q.T


def l2_inner(f: Callable[[float], float], g: Callable[[float], float], a: float, b: float) -> float:
    """Return the inner product of functions on an interval, the integral of f(t) g(t) from a to b (adaptive quadrature)."""
    from scipy.integrate import quad

    if not (math.isfinite(a) and math.isfinite(b) and a <= b):
        raise UserError(f"functions are compared on an interval of finite ends, got {a} and {b}")
    return float(quad(lambda t: f(t) * g(t), a, b, limit=200)[0])


def embed(matrix: Any) -> Tensor:
    """Return points whose inner products are the matrix: (n, r), r its rank.  They are unique up to a rotation.

    By Cholesky's factor, or by eigenvectors, v_k sqrt(lambda_k), where the matrix is singular.
    """
    matrix = _symmetric(matrix)
    if not is_positive(matrix):
        raise UserError(
            f"the matrix has a negative eigenvalue ({smallest_eigenvalue(matrix):.1e} of the largest), so it is no Gram matrix"
        )
    values, vectors = torch.linalg.eigh(matrix)
    kept = values > len(matrix) * torch.finfo(matrix.dtype).eps * values[-1]
    points: Tensor = torch.linalg.cholesky(matrix) if kept.all() else (vectors[:, kept] * values[kept].sqrt()).flip(-1)
    return points
