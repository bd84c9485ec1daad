"""Kernels, Gram matrices and kernel methods.

k = Gaussian(median_width(x)) + 0.1 * Linear()
gram(k, x), kernel_pca(k, x), kernel_ridge(k, x, y)
mmd(x, y, k).value, mmd_test(x, y, k).p_value
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from reverie.base.deprecations import deprecated_names
from reverie.kernels.discrepancy import ESTIMATORS, MMD, MMDTest, mmd, mmd_test
from reverie.kernels.kernel import (
    KERNELS,
    BagOfWords,
    Gaussian,
    InverseMultiquadric,
    Kernel,
    Laplace,
    Linear,
    Normalized,
    Polynomial,
    RationalQuadratic,
    Spectrum,
)
from reverie.kernels.matrices import (
    columns_as_points,
    embed,
    gram,
    gram_product,
    is_positive_semidefinite,
    l2_inner,
    median_width,
    smallest_eigenvalue,
)
from reverie.kernels.methods import KernelPCA, RKHSFunction, kernel_pca, kernel_ridge, nadaraya_watson, representer

__all__ = [
    "ESTIMATORS",
    "KERNELS",
    "MMD",
    "BagOfWords",
    "Gaussian",
    "InverseMultiquadric",
    "Kernel",
    "KernelPCA",
    "Laplace",
    "Linear",
    "MMDTest",
    "Normalized",
    "Polynomial",
    "RKHSFunction",
    "RationalQuadratic",
    "Spectrum",
    "columns_as_points",
    "embed",
    "gram",
    "gram_product",
    "is_positive_semidefinite",
    "kernel_pca",
    "kernel_ridge",
    "l2_inner",
    "median_width",
    "mmd",
    "mmd_test",
    "nadaraya_watson",
    "representer",
    "smallest_eigenvalue",
]  # fmt: skip

if not TYPE_CHECKING:
    __getattr__ = deprecated_names(__name__)
