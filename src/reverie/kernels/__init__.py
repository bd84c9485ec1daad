"""Kernels, their Gram matrices, and what can be done with inner products alone.

k = Gaussian(median_width(x)) + 0.1 * Linear()
gram(k, x), kernel_pca(k, x), kernel_ridge(k, x, y)
mmd(x, y, k).value, mmd_test(x, y, k).p_value
"""

from __future__ import annotations

from reverie.kernels.discrepancy import ESTIMATORS, MMD, MMDTest, mmd, mmd_test
from reverie.kernels.kernel import (
    KERNELS,
    Gaussian,
    InverseMultiquadric,
    Kernel,
    Laplace,
    Linear,
    Polynomial,
    RationalQuadratic,
    Spectrum,
    Unit,
    Words,
)
from reverie.kernels.matrices import (
    columns_as_points,
    embed,
    gram,
    gram_times,
    is_positive,
    l2_inner,
    median_width,
    smallest_eigenvalue,
)
from reverie.kernels.methods import Function, KernelPCA, kernel_pca, kernel_ridge, nadaraya_watson, section

__all__ = [
    "ESTIMATORS", "KERNELS", "MMD", "Function", "Gaussian", "InverseMultiquadric", "Kernel", "KernelPCA", "Laplace", "Linear",
    "MMDTest", "Polynomial", "RationalQuadratic", "Spectrum", "Unit", "Words", "columns_as_points", "embed", "gram",
    "gram_times", "is_positive", "kernel_pca",
    "kernel_ridge", "l2_inner", "median_width", "mmd", "mmd_test", "nadaraya_watson", "section", "smallest_eigenvalue",
]  # fmt: skip
