"""Sparsity patterns of Jacobians and Hessians."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from scipy import sparse
from torch import Tensor

from reverie.autodiff.second import check_scalar
from reverie.autodiff.sparse.color import color
from reverie.autodiff.sparse.path import Detected, ExecutionPath, ValueReads
from reverie.autodiff.sparse.rules import rule_of
from reverie.autodiff.sparse.tracer import Pattern, Tracer, empty, from_edges
from reverie.base.errors import UserError, pick

Function = Callable[[Tensor], Tensor]


def _checked(y: Tensor) -> Tensor:
    if not isinstance(y, Tensor) or y.layout != torch.strided:
        kind = f"a tensor of layout {y.layout}" if isinstance(y, Tensor) else f"a {type(y).__name__}"
        raise UserError(f"detect needs a function that returns one dense tensor, and this one returns {kind}")
    return y


def _traced(f: Function, x: Tensor) -> Pattern:
    """Trace dependencies through f.  The pattern holds for every x with the same execution path."""
    with torch.no_grad(), Tracer(x.numel(), rule_of) as tracer, ValueReads(tracer.value_dependent_ops):
        base = x.detach().clone(memory_format=torch.contiguous_format)
        tracer.set_rows(base, sparse.eye_array(x.numel(), dtype=bool, format="csr"))
        y = _checked(f(base))
        rows = tracer.rows(y)
    tracer.warn_of_untraced()
    pattern = Detected(rows if rows is not None else empty(y.numel(), x.numel()))
    if tracer.value_dependent_ops:
        pattern.path = ExecutionPath(x.detach().clone(), tuple(dict.fromkeys(tracer.value_dependent_ops)))
    return pattern


def _probed(f: Function, x: Tensor) -> Pattern:
    """Find the entries that are non-zero at x, by products with random vectors on recursively halved groups of columns.

    A row that is zero for a group has no entry in it.  Groups without a common row share a product, so each halving costs about
    as many products as the matrix has colours: colours x log2(n) in total, instead of n.
    """
    n = x.numel()
    random = torch.Generator().manual_seed(0)
    with torch.no_grad():
        rows = _checked(f(x)).numel()
    weights = (0.5 + torch.rand(n, generator=random, dtype=torch.float64)).to(x)  # random, so that entries do not cancel
    signs = torch.where(torch.rand(n, generator=random) < 0.5, -1.0, 1.0).to(x)
    groups = np.zeros(n, np.int64)
    pattern = sparse.csr_array(np.ones((rows, 1), bool))  # (rows, groups)
    for width in (1 << k for k in range(max(n - 1, 0).bit_length(), -1, -1)):
        finer = np.arange(n) // width
        parents = np.zeros(finer[-1] + 1, np.int64)
        parents[finer] = groups
        candidates = sparse.csr_array(pattern.tocsc()[:, parents].tocsr())
        coloring = color(candidates, "columns")
        hits = np.zeros(candidates.nnz, bool)
        entry_rows = np.repeat(np.arange(candidates.shape[0]), np.diff(candidates.indptr))
        entry_colors = coloring.colors[candidates.indices]
        for c in range(coloring.number):
            chosen = torch.from_numpy(coloring.colors[finer] == c).to(x.device)
            v = (weights * signs * chosen).reshape(x.shape)
            product = torch.func.jvp(f, (x,), (v,))[1].reshape(-1).cpu().numpy()
            in_color = np.flatnonzero(entry_colors == c)
            hits[in_color] = product[entry_rows[in_color]] != 0
        pattern = from_edges(entry_rows[hits], candidates.indices[hits], candidates.shape)
        groups = finer
    return pattern


METHODS: dict[str, Callable[[Function, Tensor], Pattern]] = {"global": _traced, "local": _probed}
MATRICES: dict[str, Callable[[Function], Function]] = {"jacobian": lambda f: f, "hessian": torch.func.grad}


def detect(f: Function, x: Tensor, matrix: str = "jacobian", method: str = "global") -> Pattern:
    """Return the sparsity pattern of the Jacobian or Hessian of f as a boolean scipy.sparse.csr_array.

    "global" traces dependencies through the operations.  It contains every entry that can be non-zero at any x with the same
    shape and execution path; operations without a rule count as dense, with a warning.  Indices and conditions computed from x,
    as by sorting, stand for all possible values.  If the operations depend on values of x, by an `if` or a boolean mask, a plan
    from the pattern checks the execution path at each x.  "local" contains the entries that are non-zero at x, and holds
    only there.  The pattern of a Hessian is that of the Jacobian of the gradient.  x: any shape; returns (numel of f(x), numel
    of x).
    """
    if not x.is_floating_point():
        raise UserError(f"detect needs an x of floating-point numbers, got {x.dtype}; use x.double()")
    if matrix == "hessian":
        check_scalar(f, x)
    if not x.numel():
        return empty(0 if matrix == "hessian" else _checked(f(x)).numel(), 0)
    pattern = pick(METHODS, method, "method of detection")(pick(MATRICES, matrix, "matrix")(f), x)
    result = Detected(pattern + pattern.T if matrix == "hessian" else pattern)
    result.path = pattern.path if isinstance(pattern, Detected) else None
    result.sort_indices()
    return result
