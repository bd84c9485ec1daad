"""Derivatives on top of torch.func: the modes, second order, implicit functions, and sparse matrices by colouring."""

from reverie.autodiff.dual import Dual, derivative, second_derivative
from reverie.autodiff.graph import Graph, Node, record
from reverie.autodiff.implicit import implicit
from reverie.autodiff.modes import jacobian, jvp, of_parameters, vjp
from reverie.autodiff.profile import Cost, Profile, measure, profile
from reverie.autodiff.programme import Programme, linear_programme
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

__all__ = [
    "Coloring",
    "Cost",
    "Dual",
    "Graph",
    "Node",
    "Profile",
    "Programme",
    "bilinear",
    "color",
    "derivative",
    "detect",
    "diagonal",
    "divergence",
    "exact_color",
    "hessian",
    "hutchinson",
    "hvp",
    "implicit",
    "jacobian",
    "jvp",
    "linear_programme",
    "measure",
    "of_parameters",
    "profile",
    "record",
    "recorded_jacobian",
    "second_derivative",
    "sparse_hessian",
    "sparse_jacobian",
    "vjp",
]
