"""The maximum mean discrepancy: the distance between the means of two distributions in a kernel's feature space."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from reverie.base.distances import finest_dtype, row_blocks
from reverie.base.errors import UserError, pick
from reverie.base.noise import check_seed
from reverie.kernels.kernel import Gaussian, Kernel
from reverie.kernels.matrices import Points, check_inputs, median_width

BLOCK_SIZE = 1024  # rows and columns


@dataclass(frozen=True, eq=False)
class MMD:
    """An estimate of MMD² from n and m points, differentiable in the points, with its standard error.

    error_given_y: the standard error over draws of x for a fixed y; use it to compare several sets with one y.
    error_if_equal: the standard error if both sets came from one distribution; use it to test for equality.
    """

    value: Tensor
    standard_error: float
    error_given_y: float
    error_if_equal: float
    n: int
    m: int


@dataclass(frozen=True, eq=False)
class MMDTest:
    """The unbiased estimate of MMD², and the share of random permutations (including the identity) that reach it."""

    value: float
    p_value: float
    permutations: int


def mmd(x: Any, y: Any, kernel: Kernel | None = None, *, estimator: str = "unbiased") -> MMD:
    """Estimate MMD² = E k(x, x') + E k(y, y') - 2 E k(x, y) (Gretton et al., JMLR 13, 2012).  x: (n, d); y: (m, d).

    Estimators: unbiased (pairs of distinct points; may be negative), biased (all pairs; never negative), linear (disjoint
    pairs; O(n) time).  The default kernel is Gaussian with the median distance as its width.  Gram matrices are computed in
    blocks.
    """
    x, y, kernel = _prepare(x, y, kernel)
    return pick(ESTIMATORS, estimator, "estimator")(kernel, x, y)


def mmd_test(x: Any, y: Any, kernel: Kernel | None = None, *, permutations: int = 500, seed: int = 0) -> MMDTest:
    """Test whether two sets come from one distribution, by permutations of the unbiased estimate of MMD².

    One pass over the blocks of the joint Gram matrix serves all permutations; memory is O((n + m) permutations).
    """
    if permutations < 1:
        raise UserError(f"a permutation test needs at least one permutation, got {permutations}")
    x, y, kernel = _prepare(x, y, kernel)
    n, m = len(x), len(y)
    both = torch.cat([x, y]) if isinstance(x, Tensor) else [*x, *y]
    random = torch.Generator().manual_seed(check_seed(seed))
    orders = [torch.arange(n + m), *(torch.randperm(n + m, generator=random) for _ in range(permutations))]
    first = torch.zeros(n + m, permutations + 1, dtype=torch.float64)
    for k, order in enumerate(orders):
        first[order[:n], k] = 1.0
    with torch.no_grad():
        xx, x_all, total = torch.zeros(permutations + 1, dtype=torch.float64), torch.zeros(permutations + 1), 0.0
        for rows in row_blocks(n + m, n + m):
            tile = kernel(both[rows], both).cpu().double()
            tile[torch.arange(len(tile)), torch.arange(rows.start, rows.stop)] = 0.0
            xx += (first[rows] * (tile @ first)).sum(0)
            sums = tile.sum(1)
            x_all = x_all + sums @ first[rows]
            total += float(sums.sum())
    xy = x_all - xx
    yy = total - xx - 2 * xy
    values = xx / (n * (n - 1)) + yy / (m * (m - 1)) - 2 * xy / (n * m)
    as_large = int((values[1:] >= values[0] - 1e-12 * values.abs().max()).sum())
    return MMDTest(float(values[0]), (1 + as_large) / (1 + permutations), permutations)


def _prepare(x: Any, y: Any, kernel: Kernel | None) -> tuple[Any, Any, Kernel]:
    x, y = check_inputs(x, y)
    if len(x) < 2 or len(y) < 2:
        raise UserError(f"MMD needs at least two points in each set, got {len(x)} and {len(y)}")
    return x, y, kernel if kernel is not None else Gaussian(median_width(x, y))


@dataclass(frozen=True, eq=False)
class _GramSums:
    """Sums over a Gram matrix: the total (differentiable), the row sums (n,), the column sums (m,), and the sum of squares."""

    total: Tensor
    rows: Tensor
    columns: Tensor
    squares: float


def _gram_sums(kernel: Kernel, x: Points, y: Points | None = None) -> _GramSums:
    """Sum the Gram matrix of two sets, or of one set without its diagonal, in square blocks.

    For one set only the blocks on and above the diagonal are computed.
    """
    same_set = y is None
    other = x if y is None else y
    empty = x.new_empty(0, dtype=finest_dtype(x)) if isinstance(x, Tensor) else torch.empty(0, dtype=torch.float64)
    total, squares = empty.new_zeros(()), 0.0
    rows, columns = empty.new_zeros(len(x)), empty.new_zeros(len(other))

    def block(i: slice, j: slice) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        k = kernel(x[i], other[j]).to(empty)
        if same_set and i == j:
            k = k - k.diagonal().diag()
        return k.sum(), k.detach().sum(1), k.detach().sum(0), k.detach().square().sum()

    keep = not any(isinstance(points, Tensor) and points.requires_grad for points in (x, other))
    for i in row_blocks(len(x), BLOCK_SIZE):
        for j in row_blocks(len(other), BLOCK_SIZE):
            if same_set and j.start < i.start:
                continue
            # the backward pass recomputes each block to save memory
            part, row_sums, column_sums, square = block(i, j) if keep else checkpoint(block, i, j, use_reentrant=False)
            multiplicity = 2 if same_set and i != j else 1
            total, squares = total + multiplicity * part, squares + multiplicity * float(square)
            rows[i] += row_sums
            columns[j] += column_sums
            if multiplicity == 2:
                rows[j] += column_sums
    return _GramSums(total, rows, columns, squares)


def _quadratic(kernel: Kernel, x: Points, y: Points, biased: bool) -> MMD:
    n, m = len(x), len(y)
    xx, yy, xy = _gram_sums(kernel, x), _gram_sums(kernel, y), _gram_sums(kernel, x, y)
    if biased:
        mean_xx = (xx.total + kernel.pairs(x, x).to(xx.total).sum()) / n**2
        mean_yy = (yy.total + kernel.pairs(y, y).to(yy.total).sum()) / m**2
    else:
        mean_xx, mean_yy = xx.total / (n * (n - 1)), yy.total / (m * (m - 1))
    value = mean_xx + mean_yy - 2 * xy.total / (n * m)
    return MMD(value.to(x.dtype) if isinstance(x, Tensor) else value, *_standard_errors(xx, yy, xy, n, m), n, m)


def _standard_errors(xx: _GramSums, yy: _GramSums, xy: _GramSums, n: int, m: int) -> tuple[float, float, float]:
    """Return three standard errors: of the unbiased estimate, given y, and for equal distributions (Hoeffding decomposition).

    With h_i = mean k(x_i, x) - mean k(x_i, y), the first-order variance is 4 var(h)/n, and likewise for y.  The sample variance
    of h also contains the variance of the means, which is subtracted; the part due to y is subtracted only if y is random.  s
    is the mean square of a doubly centred Gram matrix.  The second-order variance is 2 s_xx/n² + 2 s_yy/m² + 4 s_xy/(nm); it is
    the whole variance for equal distributions.  Given y, it is 2 s_xx/n².
    """
    row_x, row_y = xx.rows / (n - 1), yy.rows / (m - 1)
    across_x, across_y = xy.rows / m, xy.columns / n
    s_xx = (xx.squares / (n * (n - 1)) - 2 * row_x.square().mean() + row_x.mean() ** 2).clamp(min=0)
    s_yy = (yy.squares / (m * (m - 1)) - 2 * row_y.square().mean() + row_y.mean() ** 2).clamp(min=0)
    s_xy = xy.squares / (n * m) - across_x.square().mean() - across_y.square().mean() + across_x.mean() ** 2
    s_xy = s_xy.clamp(min=0)
    given_y = (row_x - across_x).var() - s_xx / n
    given_x = (row_y - across_y).var() - s_yy / m
    second = 2 * s_xx / n**2 + 2 * s_yy / m**2 + 4 * s_xy / (n * m)
    both = 4 * (given_y - s_xy / m) / n + 4 * (given_x - s_xy / n) / m + second
    variance_given_y = 4 * given_y / n + 2 * s_xx / n**2
    # the subtracted terms are estimates themselves, so bound the result from below
    variances = torch.maximum(both, second / 4), torch.maximum(variance_given_y, s_xx / n**2 / 2), second
    return float(variances[0].sqrt()), float(variances[1].sqrt()), float(variances[2].sqrt())


def _linear(kernel: Kernel, x: Points, y: Points) -> MMD:
    """Average h = k(x, x') + k(y, y') - k(x, y') - k(x', y) over disjoint pairs of pairs."""
    pairs = min(len(x), len(y)) // 2
    if pairs < 2:
        raise UserError(f"the linear estimator needs at least four points of each set, got {len(x)} and {len(y)}")
    x1, x2, y1, y2 = x[0 : 2 * pairs : 2], x[1 : 2 * pairs : 2], y[0 : 2 * pairs : 2], y[1 : 2 * pairs : 2]
    h = kernel.pairs(x1, x2) + kernel.pairs(y1, y2) - kernel.pairs(x1, y2) - kernel.pairs(x2, y1)
    error = float(h.detach().cpu().double().std() / pairs**0.5)
    return MMD(h.mean(), error, error, error, 2 * pairs, 2 * pairs)  # each h uses different y, so there is no error given y


ESTIMATORS: dict[str, Callable[[Kernel, Any, Any], MMD]] = {
    "unbiased": lambda kernel, x, y: _quadratic(kernel, x, y, False),
    "biased": lambda kernel, x, y: _quadratic(kernel, x, y, True),
    "linear": _linear,
}
