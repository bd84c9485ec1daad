"""Derivatives on top of torch.func: modes, second order, implicit functions, and sparse matrices by graph colouring."""

from typing import TYPE_CHECKING

from reverie.autodiff.dual import Dual, derivative, second_derivative
from reverie.autodiff.graph import Graph, Node, record
from reverie.autodiff.implicit import implicit
from reverie.autodiff.linear_programs import LinearProgram, linear_program
from reverie.autodiff.modes import functionalize, jacobian, jvp, vjp
from reverie.autodiff.profile import Cost, Profile, measure, profile
from reverie.autodiff.second import bilinear, hessian, hvp
from reverie.autodiff.sparse import (
    Coloring,
    color,
    detect,
    diagonal,
    divergence,
    exact_color,
    hutchinson,
    recorded_jacobian,
    sparse_hessian,
    sparse_jacobian,
)
from reverie.base.deprecations import deprecated_names

__all__ = [
    "Coloring",
    "Cost",
    "Dual",
    "Graph",
    "LinearProgram",
    "Node",
    "Profile",
    "bilinear",
    "color",
    "derivative",
    "detect",
    "diagonal",
    "divergence",
    "exact_color",
    "functionalize",
    "hessian",
    "hutchinson",
    "hvp",
    "implicit",
    "jacobian",
    "jvp",
    "linear_program",
    "measure",
    "profile",
    "record",
    "recorded_jacobian",
    "second_derivative",
    "sparse_hessian",
    "sparse_jacobian",
    "vjp",
]

if not TYPE_CHECKING:
    __getattr__ = deprecated_names(__name__)
