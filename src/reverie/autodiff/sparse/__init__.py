"""Sparse derivatives: detect a pattern, colour it, compute few products, decompress."""

from reverie.autodiff.sparse.check import (
    check,
    check_acyclic,
    check_both,
    check_columns,
    check_diagonal,
    check_rows,
    check_star,
)
from reverie.autodiff.sparse.color import PROBLEMS, Coloring, color
from reverie.autodiff.sparse.decompress import decompress
from reverie.autodiff.sparse.detect import detect
from reverie.autodiff.sparse.evaluate import (
    diagonal,
    divergence,
    hutchinson,
    recorded_jacobian,
    sparse_hessian,
    sparse_jacobian,
    value_and_trace_probes,
)
from reverie.autodiff.sparse.exact import exact_color
from reverie.autodiff.sparse.order import ORDERS

__all__ = [
    "ORDERS",
    "PROBLEMS",
    "Coloring",
    "check",
    "check_acyclic",
    "check_both",
    "check_columns",
    "check_diagonal",
    "check_rows",
    "check_star",
    "color",
    "decompress",
    "detect",
    "diagonal",
    "divergence",
    "exact_color",
    "hutchinson",
    "recorded_jacobian",
    "sparse_hessian",
    "sparse_jacobian",
    "value_and_trace_probes",
]
