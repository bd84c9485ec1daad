"""Sparse Jacobians, Hessians and traces from few products."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.func import grad, vmap
from torch.fx.experimental.proxy_tensor import make_fx

from reverie.autodiff.sparse.color import Coloring, color
from reverie.autodiff.sparse.decompress import FORMATS, as_torch, decompress, seeds
from reverie.autodiff.sparse.detect import Function, detect
from reverie.autodiff.sparse.path import check_same_path
from reverie.base.errors import UserError, pick

CHUNK = 64  # products that run at once
GENERAL_PROBLEMS = ("columns", "rows", "both")  # problems for any matrix


def _products(f: Function, x: Tensor, vectors: Tensor, chunk: int) -> Tensor:
    """Return J v for each vector: (colours, m)."""

    def push(v: Tensor) -> Tensor:
        product: Tensor = torch.func.jvp(f, (x,), (v.reshape(x.shape),))[1]
        return product.reshape(-1)

    return _vmap(push, vectors, chunk)


def _vmap(push: Callable[[Tensor], Tensor], vectors: Tensor, chunk: int) -> Tensor:
    if len(vectors) == 1:
        return push(vectors[0])[None]
    mapped: Tensor = vmap(push, chunk_size=chunk if len(vectors) > chunk else None)(vectors)
    return mapped


def _back_products(f: Function, x: Tensor, vectors: Tensor, chunk: int) -> Tensor:
    """Return u^T J for each vector: (colours, n)."""
    result: Any = torch.func.vjp(f, x)
    y, pull = result
    _check_outputs(y.numel(), vectors.shape[1])
    return _vmap(lambda u: pull(u.reshape(y.shape))[0].reshape(-1), vectors, chunk)


def _check_outputs(outputs: int, expected: int) -> None:
    if outputs != expected:
        raise UserError(f"the plan is for {expected:,} outputs, but f has {outputs:,}; make one with color(detect(f, x))")


def _check_plan(coloring: Coloring, x: Tensor, allowed: tuple[str, ...]) -> None:
    """Raise an error if a plan is for another number of inputs or another problem."""
    if coloring.pattern.shape[1] != x.numel():
        raise UserError(
            f"the plan is for {coloring.pattern.shape[1]:,} inputs, but x has {x.numel():,}; make one with color(detect(f, x))"
        )
    if coloring.problem not in allowed:
        raise UserError(
            f"this needs a colouring for {' or '.join(repr(name) for name in allowed)}, and the plan is for"
            f" {coloring.problem!r}"
        )


def _values(f: Function, x: Tensor, plan: Coloring, chunk: int) -> Tensor:
    """Return the entries of the matrix in the order of the plan's recovery."""
    columns, rows = seeds(plan, x.device, x.dtype)
    m = plan.pattern.shape[0]
    compressed = _products(f, x, columns, chunk).T if len(columns) else x.new_zeros(m, 0)
    row_compressed = _back_products(f, x, rows, chunk) if len(rows) else None
    _check_outputs(compressed.shape[0], m)
    return decompress(plan, compressed, row_compressed)


def sparse_jacobian(f: Function, x: Tensor, plan: Coloring | None = None, format: str = "torch", chunk: int = CHUNK) -> Any:
    """Return the Jacobian of f at x as a sparse matrix, (numel of f(x), numel of x), from one product for each colour.

    plan: a reusable colouring, default color(detect(f, x)); format: "torch" (COO, differentiable) or "scipy"; chunk: number of
    products that run at once.
    """
    if plan is None:
        plan = color(detect(f, x))
    else:
        _check_plan(plan, x, GENERAL_PROBLEMS)
        check_same_path(plan.pattern, f, x)
    return pick(FORMATS, format, "format")(plan, _values(f, x, plan, chunk))


def recorded_jacobian(f: Function, x: Tensor, plan: Coloring | None = None) -> Callable[[Tensor], Tensor]:
    """Return a function of x that computes the sparse Jacobian of f by replaying recorded operations.

    It avoids the dispatch overhead of torch.func, which dominates for a small f.  f must perform the same operations for every
    x of this shape, without branches on values.  The recording refers to the tensors in f's closure: an in-place change of them
    takes effect, rebinding their names does not.
    """
    plan = color(detect(f, x)) if plan is None else plan
    _check_plan(plan, x, GENERAL_PROBLEMS)
    check_same_path(plan.pattern, f, x)
    graph = make_fx(lambda x: _values(f, x, plan, CHUNK))(x.contiguous())  # strides are recorded as well
    graph.graph.eliminate_dead_code()  # removes the computation of f itself, which is not used
    graph.recompile()

    def jacobian(x_new: Tensor) -> Tensor:
        if (x_new.shape, x_new.dtype, x_new.device) != (x.shape, x.dtype, x.device):
            raise UserError(
                f"this Jacobian was recorded for {tuple(x.shape)} {x.dtype} on {x.device}, and x is {tuple(x_new.shape)}"
                f" {x_new.dtype} on {x_new.device}; record it again"
            )
        check_same_path(plan.pattern, f, x_new)
        return as_torch(plan, graph(x_new.contiguous()))

    return jacobian


def sparse_hessian(f: Function, x: Tensor, plan: Coloring | None = None, format: str = "torch", chunk: int = CHUNK) -> Any:
    """Return the Hessian of a scalar f at x as a sparse matrix, (numel of x, numel of x), by forward on reverse.

    plan: color(detect(f, x, "hessian"), problem); by default the problem "star" or "columns", whichever needs fewer colours;
    other arguments as for sparse_jacobian.
    """
    slope = grad(f)
    if plan is None:
        pattern = detect(f, x, "hessian")
        plan = min((color(pattern, problem) for problem in ("star", "columns")), key=lambda c: c.number)
    else:
        _check_plan(plan, x, (*GENERAL_PROBLEMS, "star", "acyclic"))
        check_same_path(plan.pattern, slope, x)
    return pick(FORMATS, format, "format")(plan, _values(slope, x, plan, chunk))


def diagonal(f: Function, x: Tensor, plan: Coloring | None = None, chunk: int = CHUNK) -> Tensor:
    """Return the diagonals of the Jacobians of a batch, with the shape of x, from one product per colour.

    f acts on each batch element separately: (B, ...) -> (B, ...).  plan: for one element, default color(detect(f, x[:1]),
    "diagonal"); columns share a product if their diagonal entries are in rows without other entries of the colour.
    """
    plan = color(detect(f, x[:1]), "diagonal") if plan is None else plan
    _check_plan(plan, x[:1], ("diagonal",))
    check_same_path(plan.pattern, f, x)
    columns, _ = seeds(plan, x.device, x.dtype)
    members = max(1, chunk // max(1, len(x)))

    def push(v: Tensor) -> Tensor:
        v = v.reshape(x.shape[1:]).expand(x.shape)
        product: Tensor = torch.func.jvp(f, (x,), (v,))[1]
        return product * v

    parts = [_vmap(push, part, members).sum(0) for part in columns.split(members)]
    return torch.stack(parts).sum(0)


def divergence(f: Function, x: Tensor, plan: Coloring | None = None, chunk: int = CHUNK) -> Tensor:
    """Return the exact traces of the Jacobians of a batch: (B,).  Arguments as for `diagonal`."""
    return diagonal(f, x, plan, chunk).flatten(1).sum(1)


def value_and_trace_probes(f: Function, x: Tensor, probes: Tensor) -> tuple[Tensor, Tensor]:
    """Return f(x), and v^T J v for each probe v and each batch element: (P, B).  Arguments as for `hutchinson`.

    It uses reverse mode, with one forward sweep for all probes.
    """
    result: Any = torch.func.vjp(f, x)
    value, pull = result
    return value, torch.stack([(pull(v)[0] * v).flatten(1).sum(1) for v in probes])


def hutchinson(f: Function, x: Tensor, probes: Tensor) -> Tensor:
    """Return unbiased estimates of the traces of the Jacobians of a batch, the means of v^T J v: (B,).

    For dense Jacobians.  probes: (P, B, ...), independent entries with mean 0 and variance 1, preferably +-1.
    """
    return value_and_trace_probes(f, x, probes)[1].mean(0)
