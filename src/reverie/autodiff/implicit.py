"""Derivatives of what a solver returns, by the implicit function theorem and without a look inside the solver.

If F(w, l) = 0 and A = dF/dw can be inverted, then dw/dl = -A^-1 dF/dl.  A product with it is one linear solve.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from scipy.linalg import lapack
from scipy.sparse import linalg
from torch import Tensor
from torch.func import jacrev, jvp, vmap

from reverie.autodiff.modes import as_tuple
from reverie.base.errors import ReverieWarning, UserError, pick

_pulled: Any = torch.func.vjp  # (f(x), u -> u^T J)

WARN_AT = 0.5  # share of the digits of the dtype that may be lost without a warning
NO_THEOREM = "so the implicit function theorem does not hold and the solution has no derivative at this point"


def _condition(lu: Tensor, norm: float) -> float:
    """Return the reciprocal condition number in the 1-norm, estimated from the factors (LAPACK gecon)."""
    estimate = lapack.dgecon if lu.dtype == torch.float64 else lapack.sgecon
    reciprocal, _ = estimate(np.asfortranarray(lu.cpu().numpy()), norm)
    return float(reciprocal)


def _judged(reciprocal: float, unit: float) -> None:
    """Refuse a matrix that is singular by its reciprocal condition number, warn of one that nearly is."""
    if not reciprocal >= unit:
        raise UserError(f"dF/dw is singular at the solution (reciprocal condition {reciprocal:.1e}), {NO_THEOREM}")
    if reciprocal < unit**WARN_AT:
        warnings.warn(
            f"dF/dw is ill-conditioned at the solution: about {-np.log10(reciprocal):.0f} of the"
            f" {-np.log10(unit):.0f} digits of its derivatives are lost",
            ReverieWarning,
            stacklevel=2,
        )


def _lu(system: System, w: Tensor, given: tuple[Tensor, ...]) -> Callable[[Tensor, bool], Tensor]:
    """Factorise A once; every product is then two triangular solves."""
    flat = w.reshape(-1)
    a: Tensor = jacrev(lambda z: system.F(z.reshape(w.shape), *given).reshape(-1))(flat)
    if not bool(torch.isfinite(a).all()):
        raise UserError(f"dF/dw is not finite at the solution, {NO_THEOREM}")
    lu, pivots, _info = torch.linalg.lu_factor_ex(a)
    reciprocal = _condition(lu, float(a.abs().sum(0).max())) if bool((lu.diagonal() != 0).all()) else 0.0
    _judged(reciprocal, torch.finfo(w.dtype).eps)
    return lambda r, adjoint: torch.linalg.lu_solve(lu, pivots, r.T, adjoint=adjoint).T


def _krylov(method: str) -> Callable[..., Callable[[Tensor, bool], Tensor]]:
    """Return a solver that only multiplies with A, by forward mode, or with its transpose, by reverse mode."""

    def prepare(system: System, w: Tensor, given: tuple[Tensor, ...]) -> Callable[[Tensor, bool], Tensor]:
        def at(z: Tensor) -> Tensor:
            return system.F(z.reshape(w.shape), *given).reshape(-1)

        flat, unit = w.reshape(-1), torch.finfo(w.dtype).eps
        _, pull = _pulled(at, flat)

        def product(v: Any, adjoint: bool = False) -> np.ndarray:
            u = torch.as_tensor(np.ascontiguousarray(v).reshape(-1)).to(w)
            out: Tensor = pull(u)[0] if adjoint else jvp(at, (flat,), (u,))[1]
            return out.double().cpu().numpy()

        def solve_one(r: Tensor, adjoint: bool) -> Tensor:
            matvec = partial(product, adjoint=adjoint)
            operator = linalg.LinearOperator((len(flat), len(flat)), matvec=matvec, dtype=np.float64)
            right = r.double().cpu().numpy()
            solver: Any = linalg.cg if method == "cg" else linalg.gmres
            options = {} if method == "cg" else {"restart": min(len(flat), 100)}
            with np.errstate(all="ignore"):  # what goes wrong shows in the residual
                found, _ = solver(operator, right, rtol=10 * unit, atol=0.0, maxiter=10 * len(flat), **options)
            missed = float(np.linalg.norm(matvec(found) - right)) / max(float(np.linalg.norm(right)), 1e-300)
            if not missed < unit**WARN_AT:
                fault = "not symmetric positive definite, " if method == "cg" else ""
                raise UserError(
                    f"{method} did not solve with dF/dw (relative residual {missed:.1e}): it is {fault}singular or"
                    f" ill-conditioned, {NO_THEOREM}; linear='lu' tells which"
                )
            return torch.from_numpy(found).to(w)

        # The right sides that are asked for may hide a singular A; one drawn at random does not.
        probe = torch.randn(len(flat), dtype=torch.float64, generator=torch.Generator().manual_seed(0)).to(w)
        stretched, shrunk = (float(np.linalg.norm(a)) for a in (product(probe), solve_one(probe, False).double().cpu()))
        _judged(float(probe.norm()) ** 2 / max(stretched * shrunk, 1e-300), unit)
        return lambda r, adjoint: torch.stack([solve_one(row, adjoint) for row in r])

    return prepare


LINEAR: dict[str, Any] = {
    "lu": _lu,  # dense, one factorisation for all products
    "gmres": _krylov("gmres"),  # matrix-free, for large w
    "cg": _krylov("cg"),  # matrix-free, for symmetric positive definite dF/dw
}


@dataclass(eq=False)
class System:
    """An equation F(w, l) = 0, its solver, and the solver of its linearisation, which is prepared at the first product."""

    F: Callable[..., Tensor]
    solve: Callable[..., Tensor]
    linear: str
    prepared: Callable[[Tensor, bool], Tensor] | None = field(default=None, repr=False)

    def solver(self, w: Tensor, given: tuple[Tensor, ...]) -> Callable[[Tensor, bool], Tensor]:
        """Return (r, adjoint) -> A^-1 r or A^-T r for rows r."""
        if self.prepared is None:
            if (found := self.F(w, *given).shape) != w.shape:
                raise UserError(f"F must give the shape of w, {tuple(w.shape)}, and gives {tuple(found)}")
            self.prepared = pick(LINEAR, self.linear, "linear solver")(self, w, given)
        return self.prepared


def _times(system: System, adjoint: bool, u: Tensor) -> Callable[..., Tensor]:
    """Return (w, *l) -> A u, or A^T u, for each of the vectors u: (..., *w.shape)."""

    def product(w: Tensor, *given: Tensor) -> Tensor:
        def one(v: Tensor) -> Tensor:
            if adjoint:
                pulled: Tensor = _pulled(lambda z: system.F(z, *given), w)[1](v)[0]
                return pulled
            pushed: Tensor = jvp(lambda z: system.F(z, *given), (w,), (v,))[1]
            return pushed

        return vmap(one)(u.reshape(-1, *w.shape)).reshape(u.shape)

    return product


def _solved(*args: Any) -> Tensor:
    found: Tensor = _Solve.apply(*args)  # type: ignore[no-untyped-call]
    return found


def _rooted(*args: Any) -> Tensor:
    found: Tensor = _Root.apply(*args)  # type: ignore[no-untyped-call]
    return found


def _split(batched: tuple[int | None, ...], values: tuple[Any, ...], count: int) -> list[tuple[Any, ...]]:
    """Return the arguments of each member of a batch."""
    return [tuple(v if d is None else v.movedim(d, 0)[k] for v, d in zip(values, batched, strict=True)) for k in range(count)]


class _Solve(torch.autograd.Function):
    """u = A^-1 r, or A^-T r, at (w, l).  Differentiable in r, w and l, because A u = r is an implicit equation too."""

    @staticmethod
    def forward(system: System, adjoint: bool, r: Tensor, w: Tensor, *given: Tensor) -> Tensor:
        return system.solver(w, given)(r.reshape(-1, w.numel()), adjoint).reshape(r.shape)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Tensor) -> None:
        ctx.system, ctx.adjoint, _r, *values = inputs
        ctx.save_for_backward(output, *values)
        ctx.save_for_forward(output, *values)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        u, w, *given = ctx.saved_tensors
        s = _solved(ctx.system, not ctx.adjoint, g, w, *given)
        rest = _pulled(_times(ctx.system, ctx.adjoint, u), w, *given)[1](-s)
        return None, None, s, *rest

    @staticmethod
    def jvp(ctx: Any, _system: None, _adjoint: None, dr: Tensor | None, *tangents: Tensor | None) -> Tensor:
        u, w, *given = ctx.saved_tensors
        moved = _push(_times(ctx.system, ctx.adjoint, u), (w, *given), tangents)
        right = -moved if dr is None else dr - moved
        return _solved(ctx.system, ctx.adjoint, right, w, *given)

    @staticmethod
    def vmap(info: Any, dims: Any, system: System, adjoint: bool, r: Tensor, *values: Tensor) -> tuple[Tensor, int]:
        if all(d is None for d in dims[3:]):  # many right sides, one matrix
            return _solved(system, adjoint, r.movedim(dims[2], 0), *values), 0
        members = _split(dims[2:], (r, *values), info.batch_size)
        return torch.stack([_solved(replace(system, prepared=None), adjoint, *one) for one in members]), 0


def _push(f: Callable[..., Tensor], x: tuple[Tensor, ...], v: tuple[Tensor | None, ...]) -> Tensor:
    """Return J v as the derivative of u -> u^T J, so that it may stand inside another forward mode."""
    filled = tuple(torch.zeros_like(a) if b is None else b for a, b in zip(x, v, strict=True))
    y, pull = _pulled(f, *x)
    _, again = _pulled(lambda u: pull(u), torch.zeros_like(y))
    product: Tensor = again(filled)[0]
    return product


class _Root(torch.autograd.Function):
    """w with F(w, l) = 0."""

    @staticmethod
    def forward(system: System, *given: Tensor) -> Tensor:
        return system.solve(*(p.detach() for p in given)).detach()

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Tensor) -> None:
        ctx.system, *given = inputs
        ctx.save_for_backward(output, *given)
        ctx.save_for_forward(output, *given)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        w, *given = ctx.saved_tensors
        s = _solved(ctx.system, True, g, w, *given)
        return None, *_pulled(lambda *p: ctx.system.F(w, *p), *given)[1](-s)

    @staticmethod
    def jvp(ctx: Any, _system: None, *tangents: Tensor | None) -> Tensor:
        w, *given = ctx.saved_tensors
        moved = _push(lambda *p: ctx.system.F(w, *p), tuple(given), tangents)
        return _solved(ctx.system, False, -moved, w, *given)

    @staticmethod
    def vmap(info: Any, dims: Any, system: System, *given: Tensor) -> tuple[Tensor, int]:
        members = _split(dims[1:], given, info.batch_size)
        return torch.stack([_rooted(replace(system, prepared=None), *one) for one in members]), 0


def implicit(F: Callable[..., Tensor], solve: Callable[..., Tensor], linear: str = "lu") -> Callable[..., Tensor]:
    """Return solve as a function whose derivatives of every order and mode are exact wherever F(solve(*l), *l) = 0.

    F(w, *l) has the shape of w; a fixed point w = g(w, l) is F = w - g(w, l).  solve may be anything, an iteration or a
    library outside torch; it sees plain tensors.  linear: "lu" factorises dF/dw once for all products, "gmres" and "cg"
    only multiply with it.  Where dF/dw is singular a UserError says so, where it is ill-conditioned a ReverieWarning.
    """
    pick(LINEAR, linear, "linear solver")

    def solution(*given: Tensor) -> Tensor:
        as_tuple(given, "a parameter of an implicit function")
        return _rooted(System(F, solve, linear), *given)

    return solution
