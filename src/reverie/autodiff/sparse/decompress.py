"""Decompression: the entries of a matrix from compressed products."""

from __future__ import annotations

from functools import lru_cache

import torch
from scipy import sparse
from torch import Tensor

from reverie.autodiff.sparse.color import Coloring


@lru_cache(maxsize=64)
def _indices(coloring: Coloring, device: torch.device) -> tuple[Tensor, Tensor, list[tuple[Tensor, Tensor, Tensor, Tensor]]]:
    """Return the sources, the positions, and the levels of substitution as tensors, cached per colouring."""
    plan = coloring.recovery

    def to_device(array: object) -> Tensor:
        return torch.as_tensor(array).to(device)

    levels = []
    for pairs, fresh in plan.levels:
        assert plan.mirror is not None
        levels.append((to_device(pairs[0]), to_device(pairs[1]), to_device(fresh), to_device(plan.mirror[fresh])))
    positions = torch.stack([to_device(plan.rows).long(), to_device(plan.columns).long()])
    return to_device(plan.source), positions, levels


@lru_cache(maxsize=64)
def seeds(coloring: Coloring, device: torch.device, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Return the seed vectors of columns, (colours, n), and of rows, (colours, m), cached per colouring."""
    columns, rows = (torch.from_numpy(s.T.copy()).to(device=device, dtype=dtype) for s in coloring.seeds)
    return columns, rows


def decompress(coloring: Coloring, compressed: Tensor, row_compressed: Tensor | None = None) -> Tensor:
    """Return the values of the entries, in the order of `coloring.recovery`.

    compressed: (m, colours) = J S; row_compressed: (row colours, n) = R^T J, for problems that have row colours.
    """
    source, _, levels = _indices(coloring, compressed.device)
    flat = compressed.reshape(-1)
    if row_compressed is not None:
        flat = torch.cat([flat, row_compressed.reshape(-1)])
    values = flat.index_select(0, source)
    for to, subtracted, fresh, twins in levels:
        if len(to):
            values.index_add_(0, to, values[subtracted], alpha=-1)
        values[twins] = values[fresh]
    return values


def as_torch(coloring: Coloring, values: Tensor) -> Tensor:
    """Return the matrix as a torch sparse COO tensor, its entries sorted by rows."""
    _, positions, _ = _indices(coloring, values.device)
    return torch.sparse_coo_tensor(positions, values, coloring.pattern.shape, is_coalesced=True, check_invariants=False)


def as_scipy(coloring: Coloring, values: Tensor) -> sparse.csr_array:
    """Return the matrix as a scipy.sparse.csr_array."""
    plan, pattern, data = coloring.recovery, coloring.pattern, values.detach().cpu().numpy()
    if len(data) == pattern.nnz:  # copies, so that changes of the matrix do not affect the plan
        return sparse.csr_array((data, pattern.indices.copy(), pattern.indptr.copy()), shape=pattern.shape)
    return sparse.csr_array((data, (plan.rows, plan.columns)), shape=pattern.shape)


FORMATS = {"torch": as_torch, "scipy": as_scipy}
