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
from reverie.autodiff.sparse.way import same_way
from reverie.base.errors import UserError, pick

CHUNK = 64  # products that run at once
ANY = ("columns", "rows", "both")  # the problems that are for any matrix


def _products(f: Function, x: Tensor, vectors: Tensor, chunk: int) -> Tensor:
    """Return J v for each vector: (colours, m)."""

    def push(v: Tensor) -> Tensor:
        product: Tensor = torch.func.jvp(f, (x,), (v.reshape(x.shape),))[1]
        return product.reshape(-1)

    return _mapped(push, vectors, chunk)


def _mapped(push: Callable[[Tensor], Tensor], vectors: Tensor, chunk: int) -> Tensor:
    if len(vectors) == 1:
        return push(vectors[0])[None]
    mapped: Tensor = vmap(push, chunk_size=chunk if len(vectors) > chunk else None)(vectors)
    return mapped


def _back_products(f: Function, x: Tensor, vectors: Tensor, chunk: int) -> Tensor:
    """Return u^T J for each vector: (colours, n)."""
    found: Any = torch.func.vjp(f, x)
    y, pull = found
    _gives(y.numel(), vectors.shape[1])
    return _mapped(lambda u: pull(u.reshape(y.shape))[0].reshape(-1), vectors, chunk)


def _gives(outputs: int, wanted: int) -> None:
    if outputs != wanted:
        raise UserError(f"the plan is for {wanted:,} outputs and f gives {outputs:,}; make one with color(detect(f, x))")


def _fits(coloring: Coloring, x: Tensor, allowed: tuple[str, ...]) -> None:
    """Refuse a plan that is for another number of inputs or another problem."""
    if coloring.pattern.shape[1] != x.numel():
        raise UserError(
            f"the plan is for {coloring.pattern.shape[1]:,} inputs and x has {x.numel():,}; make one with color(detect(f, x))"
        )
    if coloring.problem not in allowed:
        raise UserError(
            f"this needs a colouring for the problem {' or '.join(repr(name) for name in allowed)}, and the plan's is"
            f" {coloring.problem!r}"
        )


def _values(f: Function, x: Tensor, plan: Coloring, chunk: int) -> Tensor:
    """Return the entries of the matrix, in the order of the plan's recovery."""
    columns, rows = seeds(plan, x.device, x.dtype)
    m = plan.pattern.shape[0]
    compressed = _products(f, x, columns, chunk).T if len(columns) else x.new_zeros(m, 0)
    row_compressed = _back_products(f, x, rows, chunk) if len(rows) else None
    _gives(compressed.shape[0], m)
    return decompress(plan, compressed, row_compressed)


def sparse_jacobian(f: Function, x: Tensor, plan: Coloring | None = None, format: str = "torch", chunk: int = CHUNK) -> Any:
    """Return the Jacobian of f at x as a sparse matrix, (numel of f(x), numel of x), from one product for each colour.

    plan: a colouring to be used again and again, color(detect(f, x)) if not given; format: "torch" (COO, differentiable)
    or "scipy"; chunk: how many products run at once.
    """
    if plan is None:
        plan = color(detect(f, x))
    else:
        _fits(plan, x, ANY)
        same_way(plan.pattern, f, x)
    return pick(FORMATS, format, "format")(plan, _values(f, x, plan, chunk))


def recorded_jacobian(f: Function, x: Tensor, plan: Coloring | None = None) -> Callable[[Tensor], Tensor]:
    """Return a function of x, of this shape, that gives the sparse Jacobian of f by replaying operations recorded once.

    For a small f most of the time goes into reaching its operations through the layers of torch.func, and this leaves
    them out.  f must do the same operations for every x: no branch on values.  The recording holds the very tensors f
    closes over now: a change of them in place is seen, another tensor under their name is not.
    """
    plan = color(detect(f, x)) if plan is None else plan
    _fits(plan, x, ANY)
    same_way(plan.pattern, f, x)
    graph = make_fx(lambda x: _values(f, x, plan, CHUNK))(x.contiguous())  # strides are recorded too
    graph.graph.eliminate_dead_code()  # the products carry the value of f along, which nobody asks for
    graph.recompile()

    def jacobian(x_new: Tensor) -> Tensor:
        if (x_new.shape, x_new.dtype, x_new.device) != (x.shape, x.dtype, x.device):
            raise UserError(
                f"this Jacobian was recorded for {tuple(x.shape)} {x.dtype} on {x.device}, and x is {tuple(x_new.shape)}"
                f" {x_new.dtype} on {x_new.device}; record it anew"
            )
        same_way(plan.pattern, f, x_new)
        return as_torch(plan, graph(x_new.contiguous()))

    return jacobian


def sparse_hessian(f: Function, x: Tensor, plan: Coloring | None = None, format: str = "torch", chunk: int = CHUNK) -> Any:
    """Return the Hessian of a scalar f at x as a sparse matrix, (numel of x, numel of x), by forward on reverse.

    plan: of color(detect(f, x, "hessian"), problem) for "star" or "columns", which may do with fewer where diagonal entries
    are missing, if not given; otherwise as in sparse_jacobian.
    """
    slope = grad(f)
    if plan is None:
        pattern = detect(f, x, "hessian")
        plan = min((color(pattern, problem) for problem in ("star", "columns")), key=lambda c: c.number)
    else:
        _fits(plan, x, (*ANY, "star", "acyclic"))
        same_way(plan.pattern, slope, x)
    return pick(FORMATS, format, "format")(plan, _values(slope, x, plan, chunk))


def diagonal(f: Function, x: Tensor, plan: Coloring | None = None, chunk: int = CHUNK) -> Tensor:
    """Return the diagonals of the Jacobians of a batch, in the shape of x, from one product for each colour.

    f acts on each member of the batch by itself: (B, ...) -> (B, ...).  plan: of one member, color(detect(f, x[:1]),
    "diagonal") if not given; columns whose diagonal entries do not meet in a row share a product.
    """
    plan = color(detect(f, x[:1]), "diagonal") if plan is None else plan
    _fits(plan, x[:1], ("diagonal",))
    same_way(plan.pattern, f, x)
    columns, _ = seeds(plan, x.device, x.dtype)
    members = max(1, chunk // max(1, len(x)))

    def push(v: Tensor) -> Tensor:
        v = v.reshape(x.shape[1:]).expand(x.shape)
        product: Tensor = torch.func.jvp(f, (x,), (v,))[1]
        return product * v

    parts = [_mapped(push, part, members).sum(0) for part in columns.split(members)]
    return torch.stack(parts).sum(0)


def divergence(f: Function, x: Tensor, plan: Coloring | None = None, chunk: int = CHUNK) -> Tensor:
    """Return the exact traces of the Jacobians of a batch: (B,).  Arguments as for `diagonal`."""
    return diagonal(f, x, plan, chunk).flatten(1).sum(1)


def probed(f: Function, x: Tensor, probes: Tensor) -> tuple[Tensor, Tensor]:
    """Return f(x), and v^T J v for each probe v and each member of a batch: (P, B).  Arguments as for `hutchinson`.

    By reverse mode, whose one forward sweep serves all probes.
    """
    found: Any = torch.func.vjp(f, x)
    value, pull = found
    return value, torch.stack([(pull(v)[0] * v).flatten(1).sum(1) for v in probes])


def hutchinson(f: Function, x: Tensor, probes: Tensor) -> Tensor:
    """Return unbiased estimates of the traces of a batch, the means of v^T J v: (B,).

    For Jacobians too dense to colour.  probes: (P, B, ...) of independent entries with mean 0 and variance 1, best +-1.
    """
    return probed(f, x, probes)[1].mean(0)
