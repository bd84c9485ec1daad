"""Sparsity patterns of Jacobians and Hessians."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from scipy import sparse
from torch import Tensor

from reverie.autodiff.second import of_one_number
from reverie.autodiff.sparse.color import color
from reverie.autodiff.sparse.rules import rule_of
from reverie.autodiff.sparse.tracer import Pattern, Tracer, empty, links
from reverie.autodiff.sparse.way import Detected, Reads, Way
from reverie.base.errors import UserError, pick

Function = Callable[[Tensor], Tensor]


def _checked(y: Tensor) -> Tensor:
    if not isinstance(y, Tensor) or y.layout != torch.strided:
        kind = f"a tensor of layout {y.layout}" if isinstance(y, Tensor) else f"a {type(y).__name__}"
        raise UserError(f"detect needs a function that gives one dense tensor, and this one gives {kind}")
    return y


def _traced(f: Function, x: Tensor) -> Pattern:
    """Follow index sets through f.  It holds for every x at which f goes the same way, which it tells if values decide."""
    with torch.no_grad(), Tracer(x.numel(), rule_of) as tracer, Reads(tracer.deciders):
        base = x.detach().clone(memory_format=torch.contiguous_format)
        tracer.write(base, sparse.eye_array(x.numel(), dtype=bool, format="csr"))
        y = _checked(f(base))
        rows = tracer.rows(y)
    tracer.warn_of_unknown()
    found = Detected(rows if rows is not None else empty(y.numel(), x.numel()))
    if tracer.deciders:
        found.way = Way(x.detach().clone(), tuple(dict.fromkeys(tracer.deciders)))
    return found


def _probed(f: Function, x: Tensor) -> Pattern:
    """Find the entries that are not zero at x by products with random vectors on ever smaller groups of columns.

    A row that gives zero for a group has no entry in it.  Groups that no row sees both of share a product, so each
    halving costs about as many products as the matrix has colours: colours x log2(n) in all, instead of n.
    """
    n = x.numel()
    random = torch.Generator().manual_seed(0)
    with torch.no_grad():
        rows = _checked(f(x)).numel()
    weights = (0.5 + torch.rand(n, generator=random, dtype=torch.float64)).to(x)  # no cancellation but by bad luck
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
            mine = np.flatnonzero(entry_colors == c)
            hits[mine] = product[entry_rows[mine]] != 0
        pattern = links(entry_rows[hits], candidates.indices[hits], candidates.shape)
        groups = finer
    return pattern


METHODS: dict[str, Callable[[Function, Tensor], Pattern]] = {"global": _traced, "local": _probed}
MATRICES: dict[str, Callable[[Function], Function]] = {"jacobian": lambda f: f, "hessian": torch.func.grad}


def detect(f: Function, x: Tensor, matrix: str = "jacobian", method: str = "global") -> Pattern:
    """Return the sparsity pattern of the Jacobian or Hessian of f as a boolean scipy.sparse.csr_array.

    "global" follows index sets through the operations: it has every entry that can be non-zero at any x of the same shape
    at which f does the same operations, and any values of constants, and names operations it does not know.  Indices and
    conditions that are made of x, as by sorting, stand for all places they could mean.  Where values of x decide about the
    operations themselves, by an `if` or a mask that selects more or fewer, a plan made of the pattern compares the way f
    goes and refuses an x at which it is another.  "local" has the entries that are not zero at x, and holds there alone.
    A Hessian's pattern is the Jacobian's of the gradient.  x of any shape; (numel of f(x), numel of x).
    """
    if not x.is_floating_point():
        raise UserError(f"detect needs an x of floating-point numbers, got {x.dtype}; use x.double()")
    if matrix == "hessian":
        of_one_number(f, x)
    if not x.numel():
        return empty(0 if matrix == "hessian" else _checked(f(x)).numel(), 0)
    found = pick(METHODS, method, "method of detection")(pick(MATRICES, matrix, "matrix")(f), x)
    result = Detected(found + found.T if matrix == "hessian" else found)
    result.way = found.way if isinstance(found, Detected) else None
    result.sort_indices()
    return result
