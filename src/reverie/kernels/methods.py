"""Kernel methods: functions in the reproducing kernel Hilbert space, kernel PCA, ridge regression and smoothing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from reverie.base.distances import finest_dtype, row_blocks
from reverie.base.errors import UserError
from reverie.base.validation import real_dtype, tensor
from reverie.kernels.kernel import Kernel
from reverie.kernels.matrices import Points, check_inputs, gram, gram_product


@dataclass(frozen=True, eq=False)
class RKHSFunction:
    """f = sum_i c_i k(x_i, .), an element of the RKHS of the kernel.  points: n of them; coefficients: (n,) or (n, t).

    <f, g> = c^T K(x, y) d, and f(z) = <f, k(z, .)>, the reproducing property.
    """

    kernel: Kernel
    points: Points
    coefficients: Tensor

    def __call__(self, z: Any) -> Tensor:
        """Return f at points z: (m,) or (m, t)."""
        z, points = check_inputs(z, self.points)
        return gram_product(self.kernel, z, points, self.coefficients)

    def inner(self, other: RKHSFunction) -> Tensor:
        """Return <f, g>: (), or (t,) for t outputs."""
        if self.kernel != other.kernel:
            raise UserError("the inner product needs two functions with the same kernel")
        return (self.coefficients * other(self.points)).sum(0)

    def norm(self) -> Tensor:
        """Return sqrt(<f, f>)."""
        return self.inner(self).clamp(min=0).sqrt()

    def __add__(self, other: RKHSFunction) -> RKHSFunction:
        if self.kernel != other.kernel:
            raise UserError("the sum needs two functions with the same kernel")
        coefficients = torch.cat([self.coefficients, other.coefficients])
        if isinstance(self.points, Tensor) and isinstance(other.points, Tensor):
            return RKHSFunction(self.kernel, torch.cat([self.points, other.points]), coefficients)
        return RKHSFunction(self.kernel, [*self.points, *other.points], coefficients)

    def __mul__(self, number: float) -> RKHSFunction:
        return RKHSFunction(self.kernel, self.points, self.coefficients * number)

    __rmul__ = __mul__


def representer(kernel: Kernel, x: Any) -> RKHSFunction:
    """Return k(x, .), the representer of evaluation at x.  x: (1, d), or a list with one string."""
    (x,) = check_inputs(x)
    if len(x) != 1:
        raise UserError(f"k(x, .) needs exactly one point, got {len(x)}")
    return RKHSFunction(kernel, x, torch.ones(1, dtype=x.dtype if isinstance(x, Tensor) else torch.float64))


@dataclass(frozen=True, eq=False)
class KernelPCA:
    """Principal components in feature space.  values: (c,), the variances times n; coordinates: (n, c)."""

    kernel: Kernel
    points: Points
    values: Tensor
    coordinates: Tensor
    means: Tensor  # (n,), column means of the Gram matrix

    def __call__(self, z: Any) -> Tensor:
        """Return the coordinates of new points: (m, c)."""
        k = gram(self.kernel, z, self.points).to(self.means)
        centred = k - k.mean(1, keepdim=True) - self.means + self.means.mean()
        return centred @ (self.coordinates / self.values)


def kernel_pca(kernel: Kernel, x: Any, components: int = 2) -> KernelPCA:
    """Return the leading principal components of phi(x) from the centred Gram matrix (Schölkopf et al. 1998)."""
    (x,) = check_inputs(x)
    if not 1 <= components < len(x):
        raise UserError(f"{len(x)} points have from 1 to {len(x) - 1} principal components, got {components}")
    k = gram(kernel, x)
    means = k.mean(0)
    values, vectors = torch.linalg.eigh(k - means - means[:, None] + means.mean())
    values, vectors = values.flip(0)[:components], vectors.flip(1)[:, :components]
    if values[-1] <= len(x) * torch.finfo(values.dtype).eps * values[0]:
        rank = int((values > len(x) * torch.finfo(values.dtype).eps * values[0]).sum())
        raise UserError(f"the features of the points span only {rank} dimensions; request at most {rank} components")
    largest = vectors.gather(0, vectors.abs().argmax(0, keepdim=True))  # made positive, to fix the signs
    return KernelPCA(kernel, x, values, vectors * largest.sign() * values.sqrt(), means)


def kernel_ridge(kernel: Kernel, x: Any, y: Any, penalty: float = 1e-3) -> RKHSFunction:
    """Return argmin_f sum_i |f(x_i) - y_i|² + penalty |f|², with (K + penalty I) c = y.  y: (n,) or (n, t)."""
    (x,) = check_inputs(x)
    k = gram(kernel, x)
    y = _targets(y, len(x)).to(k)
    if y.ndim > 2:
        raise UserError(f"targets must have shape (n,) or (n, t), got {tuple(y.shape)}")
    if not penalty >= 0:
        raise UserError(f"the penalty must be 0 or more, got {penalty}")
    factor, failed = torch.linalg.cholesky_ex(k + penalty * torch.eye(len(k), dtype=k.dtype, device=k.device))
    if failed:
        raise UserError("the Gram matrix is singular at this penalty; raise it")
    coefficients = torch.cholesky_solve(y.reshape(len(y), -1), factor)
    return RKHSFunction(kernel, x, coefficients.reshape(y.shape))


def nadaraya_watson(kernel: Kernel, x: Any, y: Any, at: Any) -> Tensor:
    """Return the kernel-weighted means sum_i k(z, x_i) y_i / sum_i k(z, x_i) at points z: (m, ...).  y: (n, ...).

    The weights are a softmax of log k, so far from all x the nearest points dominate instead of 0/0.
    """
    x, at = check_inputs(x, at)
    y = _targets(y, len(x))
    if isinstance(x, Tensor):
        x, at = x.to(finest_dtype(x)), at.to(finest_dtype(at))
    targets = y.to(finest_dtype(y))
    means = []
    for rows in row_blocks(len(at), len(x)):
        logs = kernel.log(at[rows], x)
        if not logs.detach().amax(1).isfinite().all():
            raise UserError("the kernel is negative, or 0 at all points, for some z; use a positive kernel")
        means.append(torch.tensordot(logs.softmax(1), targets, 1))
    return torch.cat(means).to(real_dtype(y))


def _targets(values: Any, points: int) -> Tensor:
    """Return the targets of regression as a tensor: (n, ...)."""
    y = tensor(values)
    if y.ndim < 1 or len(y) != points:
        raise UserError(f"{points} points need {points} targets, got the shape {tuple(y.shape)}")
    if not y.isfinite().all():
        raise UserError("the targets contain NaN or infinity; remove those points first")
    return y
