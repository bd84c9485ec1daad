"""Derivatives of the result of any solver, by the implicit function theorem.

If F(w, l) = 0 and A = dF/dw is invertible, then dw/dl = -A^-1 dF/dl.  A product with it takes one linear solve.
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

WARN_AT = 0.5  # warn if more than this share of the digits of the dtype is lost
NO_DERIVATIVE = "so the implicit function theorem does not hold and the solution has no derivative at this point"


def _condition(lu: Tensor, norm: float) -> float:
    """Return the reciprocal condition number in the 1-norm, estimated from the LU factors (LAPACK gecon)."""
    estimate = lapack.dgecon if lu.dtype == torch.float64 else lapack.sgecon
    reciprocal, _ = estimate(np.asfortranarray(lu.cpu().numpy()), norm)
    return float(reciprocal)


def _check_condition(reciprocal: float, unit: float) -> None:
    """Raise an error if the reciprocal condition number shows a singular matrix; warn if it is ill-conditioned."""
    if not reciprocal >= unit:
        raise UserError(f"dF/dw is singular at the solution (reciprocal condition {reciprocal:.1e}), {NO_DERIVATIVE}")
    if reciprocal < unit**WARN_AT:
        warnings.warn(
            f"dF/dw is ill-conditioned at the solution: about {-np.log10(reciprocal):.0f} of the"
            f" {-np.log10(unit):.0f} digits of its derivatives are lost",
            ReverieWarning,
            stacklevel=2,
        )


def _lu(system: System, w: Tensor, parameters: tuple[Tensor, ...]) -> Callable[[Tensor, bool], Tensor]:
    """Factorize A once; every product is then two triangular solves."""
    flat = w.reshape(-1)
    a: Tensor = jacrev(lambda z: system.F(z.reshape(w.shape), *parameters).reshape(-1))(flat)
    if not bool(torch.isfinite(a).all()):
        raise UserError(f"dF/dw is not finite at the solution, {NO_DERIVATIVE}")
    lu, pivots, _info = torch.linalg.lu_factor_ex(a)
    reciprocal = _condition(lu, float(a.abs().sum(0).max())) if bool((lu.diagonal() != 0).all()) else 0.0
    _check_condition(reciprocal, torch.finfo(w.dtype).eps)
    return lambda r, adjoint: torch.linalg.lu_solve(lu, pivots, r.T, adjoint=adjoint).T


def _krylov(method: str) -> Callable[..., Callable[[Tensor, bool], Tensor]]:
    """Return a matrix-free solver: products with A by forward mode, with its transpose by reverse mode."""

    def prepare(system: System, w: Tensor, parameters: tuple[Tensor, ...]) -> Callable[[Tensor, bool], Tensor]:
        def at(z: Tensor) -> Tensor:
            return system.F(z.reshape(w.shape), *parameters).reshape(-1)

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
            with np.errstate(all="ignore"):  # the residual shows any failure
                solution, _ = solver(operator, right, rtol=10 * unit, atol=0.0, maxiter=10 * len(flat), **options)
            residual = float(np.linalg.norm(matvec(solution) - right)) / max(float(np.linalg.norm(right)), 1e-300)
            if not residual < unit**WARN_AT:
                fault = "not symmetric positive definite, " if method == "cg" else ""
                raise UserError(
                    f"{method} did not solve with dF/dw (relative residual {residual:.1e}): it is {fault}singular or"
                    f" ill-conditioned, {NO_DERIVATIVE}; linear='lu' shows which"
                )
            return torch.from_numpy(solution).to(w)

        # A structured right-hand side may hide a singular A; a random one does not.
        probe = torch.randn(len(flat), dtype=torch.float64, generator=torch.Generator().manual_seed(0)).to(w)
        product_norm, solution_norm = (
            float(np.linalg.norm(a)) for a in (product(probe), solve_one(probe, False).double().cpu())
        )
        _check_condition(float(probe.norm()) ** 2 / max(product_norm * solution_norm, 1e-300), unit)
        return lambda r, adjoint: torch.stack([solve_one(row, adjoint) for row in r])

    return prepare


LINEAR_SOLVERS: dict[str, Any] = {
    "lu": _lu,  # dense, one factorization for all products
    "gmres": _krylov("gmres"),  # matrix-free, for large w
    "cg": _krylov("cg"),  # matrix-free, for symmetric positive definite dF/dw
}


@dataclass(eq=False)
class System:
    """An equation F(w, l) = 0, its solver, and the solver of its linearization, prepared at the first product."""

    F: Callable[..., Tensor]
    solve: Callable[..., Tensor]
    linear: str
    prepared: Callable[[Tensor, bool], Tensor] | None = field(default=None, repr=False)

    def solver(self, w: Tensor, parameters: tuple[Tensor, ...]) -> Callable[[Tensor, bool], Tensor]:
        """Return the function (r, adjoint) -> A^-1 r or A^-T r for rows r."""
        if self.prepared is None:
            if (shape := self.F(w, *parameters).shape) != w.shape:
                raise UserError(f"F must return the shape of w, {tuple(w.shape)}, but returns {tuple(shape)}")
            self.prepared = pick(LINEAR_SOLVERS, self.linear, "linear solver")(self, w, parameters)
        return self.prepared


def _matvec(system: System, adjoint: bool, u: Tensor) -> Callable[..., Tensor]:
    """Return the function (w, *l) -> A u, or A^T u, for each of the vectors u: (..., *w.shape)."""

    def product(w: Tensor, *parameters: Tensor) -> Tensor:
        def multiply(v: Tensor) -> Tensor:
            if adjoint:
                pulled: Tensor = _pulled(lambda z: system.F(z, *parameters), w)[1](v)[0]
                return pulled
            pushed: Tensor = jvp(lambda z: system.F(z, *parameters), (w,), (v,))[1]
            return pushed

        return vmap(multiply)(u.reshape(-1, *w.shape)).reshape(u.shape)

    return product


def _apply_solve(*args: Any) -> Tensor:
    solution: Tensor = _Solve.apply(*args)  # type: ignore[no-untyped-call]
    return solution


def _apply_root(*args: Any) -> Tensor:
    root: Tensor = _Root.apply(*args)  # type: ignore[no-untyped-call]
    return root


def _split(batched: tuple[int | None, ...], values: tuple[Any, ...], count: int) -> list[tuple[Any, ...]]:
    """Return the arguments of each batch element."""
    return [tuple(v if d is None else v.movedim(d, 0)[k] for v, d in zip(values, batched, strict=True)) for k in range(count)]


class _Solve(torch.autograd.Function):
    """u = A^-1 r, or A^-T r, at (w, l).  Differentiable in r, w and l, because A u = r is an implicit equation as well."""

    @staticmethod
    def forward(system: System, adjoint: bool, r: Tensor, w: Tensor, *parameters: Tensor) -> Tensor:
        return system.solver(w, parameters)(r.reshape(-1, w.numel()), adjoint).reshape(r.shape)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Tensor) -> None:
        ctx.system, ctx.adjoint, _r, *values = inputs
        ctx.save_for_backward(output, *values)
        ctx.save_for_forward(output, *values)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        u, w, *parameters = ctx.saved_tensors
        s = _apply_solve(ctx.system, not ctx.adjoint, g, w, *parameters)
        rest = _pulled(_matvec(ctx.system, ctx.adjoint, u), w, *parameters)[1](-s)
        return None, None, s, *rest

    @staticmethod
    def jvp(ctx: Any, _system: None, _adjoint: None, dr: Tensor | None, *tangents: Tensor | None) -> Tensor:
        u, w, *parameters = ctx.saved_tensors
        tangent = _push(_matvec(ctx.system, ctx.adjoint, u), (w, *parameters), tangents)
        right = -tangent if dr is None else dr - tangent
        return _apply_solve(ctx.system, ctx.adjoint, right, w, *parameters)

    @staticmethod
    def vmap(info: Any, dims: Any, system: System, adjoint: bool, r: Tensor, *values: Tensor) -> tuple[Tensor, int]:
        if all(d is None for d in dims[3:]):  # many right-hand sides, one matrix
            return _apply_solve(system, adjoint, r.movedim(dims[2], 0), *values), 0
        members = _split(dims[2:], (r, *values), info.batch_size)
        return torch.stack([_apply_solve(replace(system, prepared=None), adjoint, *member) for member in members]), 0


def _push(f: Callable[..., Tensor], x: tuple[Tensor, ...], v: tuple[Tensor | None, ...]) -> Tensor:
    """Return J v as the derivative of u -> u^T J, so that it can be nested in another forward mode."""
    filled = tuple(torch.zeros_like(a) if b is None else b for a, b in zip(x, v, strict=True))
    y, pull = _pulled(f, *x)
    _, double_pull = _pulled(lambda u: pull(u), torch.zeros_like(y))
    product: Tensor = double_pull(filled)[0]
    return product


class _Root(torch.autograd.Function):
    """w with F(w, l) = 0."""

    @staticmethod
    def forward(system: System, *parameters: Tensor) -> Tensor:
        return system.solve(*(p.detach() for p in parameters)).detach()

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Tensor) -> None:
        ctx.system, *parameters = inputs
        ctx.save_for_backward(output, *parameters)
        ctx.save_for_forward(output, *parameters)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        w, *parameters = ctx.saved_tensors
        s = _apply_solve(ctx.system, True, g, w, *parameters)
        return None, *_pulled(lambda *p: ctx.system.F(w, *p), *parameters)[1](-s)

    @staticmethod
    def jvp(ctx: Any, _system: None, *tangents: Tensor | None) -> Tensor:
        w, *parameters = ctx.saved_tensors
        tangent = _push(lambda *p: ctx.system.F(w, *p), tuple(parameters), tangents)
        return _apply_solve(ctx.system, False, -tangent, w, *parameters)

    @staticmethod
    def vmap(info: Any, dims: Any, system: System, *parameters: Tensor) -> tuple[Tensor, int]:
        members = _split(dims[1:], parameters, info.batch_size)
        return torch.stack([_apply_root(replace(system, prepared=None), *member) for member in members]), 0


def implicit(F: Callable[..., Tensor], solve: Callable[..., Tensor], linear: str = "lu") -> Callable[..., Tensor]:
    """Return solve with exact derivatives of every order and mode wherever F(solve(*l), *l) = 0.

    F(w, *l) has the shape of w; a fixed point w = g(w, l) is F = w - g(w, l).  solve may be any iteration or library; it
    receives plain tensors.  linear: "lu" factorizes dF/dw once for all products; "gmres" and "cg" are matrix-free.  A singular
    dF/dw raises a UserError, an ill-conditioned one a ReverieWarning.
    """
    pick(LINEAR_SOLVERS, linear, "linear solver")

    def solution(*parameters: Tensor) -> Tensor:
        as_tuple(parameters, "a parameter of an implicit function")
        return _apply_root(System(F, solve, linear), *parameters)

    return solution
