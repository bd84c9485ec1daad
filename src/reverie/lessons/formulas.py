"""Lessons that need no run: embeddings, transport, kernels, derivatives, colourings, and the graphs of families."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import torch

from reverie.autodiff import color, record
from reverie.autodiff.sparse.color import PROBLEMS
from reverie.base.errors import ReverieWarning, UserError
from reverie.base.spec import build
from reverie.families import FAMILIES
from reverie.gallery.graphs import arrows as arrows_of
from reverie.gallery.graphs import formula as formula_of
from reverie.gallery.graphs import places as places_of
from reverie.kernels import KERNELS, gram
from reverie.lessons.lesson import Control, Lesson
from reverie.lessons.show import bars, curves, dots, heat, images, plane, planes, says
from reverie.lessons.typed import FUNCTIONS, function
from reverie.nets.embedding import SinusoidalEmbedding
from reverie.transport import between, exact, sinkhorn

PALETTE = np.array(
    [
        [42, 102, 211],
        [217, 99, 58],
        [42, 157, 114],
        [160, 75, 192],
        [201, 162, 39],
        [58, 166, 185],
        [176, 48, 96],
        [107, 114, 128],
        [120, 170, 240],
        [240, 170, 140],
        [130, 210, 180],
        [210, 160, 230],
    ],
    np.uint8,
)
NUMERIC = tuple(name for name in KERNELS if name not in ("spectrum", "words"))  # those of points
FAINT = 1e-3  # share of the largest move below which one is not drawn


def embedding(position: int, offset: int, dim: int) -> dict[str, Any]:
    """Return the coordinates of an embedding, and the circles on which an offset is a rotation."""
    made = SinusoidalEmbedding(2 * dim, base=200.0)
    positions = torch.arange(0, 101, dtype=torch.float64)
    here, there = made(torch.tensor([float(position), float(position + offset)], dtype=torch.float64))
    turned = made.rotation(torch.tensor(float(offset), dtype=torch.float64)) @ here
    circle = np.stack([np.cos(np.linspace(0, 2 * np.pi, 80)), np.sin(np.linspace(0, 2 * np.pi, 80))], -1)
    panels = []
    for i in range(dim):
        a, b = (np.array([[float(p[2 * i + 1]), float(p[2 * i])]]) for p in (here, there))
        ways: list[dict[str, Any]] = [{"points": circle.ravel().round(4), "colour": 7, "width": 1}]
        ways += [{"points": np.concatenate([[[0.0, 0.0]], end]).ravel(), "colour": k} for k, end in enumerate((a, b))]
        panels.append(
            plane(
                f"circle {i + 1}: a turn every {made.period(2 * i):.0f}",
                (-1.25, 1.25),
                paths=ways,
                dots=[dots(a, 0, size=5), dots(b, 1, size=5)],
            )
        )
    rows = made(positions).T.numpy()
    return {
        "panels": [
            curves(
                "the coordinates of each position",
                positions.numpy(),
                [(f"coordinate {k + 1}", rows[k]) for k in range(2 * dim)],
                "position",
                float(position),
            ),
            planes(panels),
            says(
                f"blue: position {position}; orange: position {position + offset}",
                f"the rotation by {offset} misses the embedding of {position + offset} by "
                f"{float((turned - there).abs().max()):.1e}",
            ),
        ]
    }


def transport(x: list[list[float]], y: list[list[float]], epsilon: float) -> dict[str, Any]:
    """Return the plans between two sets of points, exact and entropic."""
    a, b = (torch.tensor(points, dtype=torch.float64) for points in (x, y))
    problem = between(a, b)
    best = exact(problem)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ReverieWarning)
        soft = sinkhorn(problem, epsilon)
    edge = float(torch.cat([a, b]).abs().max()) * 1.15
    panels = []
    for title, plan in (("exact", torch.as_tensor(best.plan)), (f"Sinkhorn, ε = {epsilon:g}", soft.plan())):
        most = float(plan.max())
        ways = [
            {"points": [*a[i].tolist(), *b[j].tolist()], "colour": 7, "alpha": float(plan[i, j]) / most, "width": 2}
            for i in range(len(a))
            for j in range(len(b))
            if plan[i, j] > FAINT * most
        ]
        panels.append(plane(title, (-edge, edge), paths=ways, dots=[dots(a, 0, size=5), dots(b, 1, size=5)]))
    plans = [(title, heat(np.asarray(p, float))) for title, p in (("exact", best.plan), ("Sinkhorn", soft.plan()))]
    return {
        "panels": [
            planes(panels),
            images("the plans as matrices", plans),
            says(
                f"cost: {float(best.cost):.4f} exact, {float(soft.cost()):.4f} entropic",
                f"{soft.iterations} iterations, marginal error "
                f"{soft.marginal_error:.1e}{'' if soft.converged else ', not converged'}",
            ),
        ]
    }


def kernels(kernel: str, width: float, points: int) -> dict[str, Any]:
    """Return the Gram matrix of a kernel on two circles, and the kernel along a line."""
    chosen = build(KERNELS, f"{kernel}:width={width}" if kernel not in ("linear", "polynomial") else kernel, "kernel")
    half = points // 2
    angle = torch.arange(half, dtype=torch.float64) * 2 * torch.pi / half
    ring = torch.stack([angle.cos(), angle.sin()], -1)
    x = torch.cat([0.4 * ring, ring])
    matrix = gram(chosen, x).numpy()
    values = np.linalg.eigvalsh(matrix)[::-1]
    line = torch.linspace(-3, 3, 121, dtype=torch.float64)[:, None]
    at = gram(chosen, line, torch.tensor([[0.6]], dtype=torch.float64)).numpy()[:, 0]
    return {
        "panels": [
            planes([plane("two circles", (-1.3, 1.3), dots=[dots(x[:half], 0, size=3), dots(x[half:], 1, size=3)])]),
            images("", [("Gram matrix, inner circle first", heat(matrix))], large=True),
            curves("k(u, 0.6) along a line", line[:, 0].numpy(), [("k", at)], "u", 0.6),
            bars("largest eigenvalues", [(str(k + 1), float(v)) for k, v in enumerate(values[:8])]),
            says(f"smallest eigenvalue {values[-1]:.1e}, which is 0 or above but for rounding"),
        ]
    }


def derivatives(formula: str, at: float) -> dict[str, Any]:
    """Return a function with its tangent, its derivative, and the sweeps through its graph."""
    f = function(formula)
    x = torch.linspace(-4, 4, 241, dtype=torch.float64)
    y = f(x).detach().numpy()
    slope = torch.func.vmap(torch.func.grad(lambda u: f(u)))(x).detach().numpy()
    here = torch.tensor(at, dtype=torch.float64)
    graph = record(lambda u: f(u), here)
    tangents, adjoints = graph.tangents(torch.ones_like(here)), graph.adjoints()
    value, rise = float(f(here)), float(adjoints[0])
    finite = np.abs(y[np.isfinite(y)])
    most = float(np.quantile(finite, 0.95)) * 1.5 + 1 if len(finite) else 1.0
    shown = [
        (name, np.where(np.abs(row) <= most, row, np.nan))
        for name, row in (("f", y), ("tangent", value + rise * (x.numpy() - at)), ("f'", slope))
    ]
    lines = [
        f"{node.name} = {node.op}({', '.join(graph.nodes[i].name for i in node.inputs)}) = {float(node.value):.4g};"
        f" tangent {float(tangents[k]):.4g}, adjoint {float(adjoints[k]):.4g}"
        for k, node in enumerate(graph.nodes)
    ]
    return {
        "panels": [
            curves(f"f(x) = {formula}", x.numpy(), shown, "x", at),
            says(f"f({at:g}) = {value:.6g}, and its slope there is {rise:.6g}", *lines),
        ]
    }


def colouring(pattern: list[list[int]], problem: str) -> dict[str, Any]:
    """Return a matrix with its columns or rows in as few colours as keep every entry apart."""
    cells = np.array(pattern, bool)
    if not cells.any():
        raise UserError("the matrix is empty; mark some entries")
    found = color(cells, problem)
    shades = np.full((*cells.shape, 3), 238, np.uint8)
    for i, j in zip(*np.nonzero(cells), strict=True):
        c = (
            found.colors[j]
            if found.colors[j] >= 0
            else len(PALETTE) // 2 + found.row_colors[i]
            if found.row_colors[i] >= 0
            else 7
        )
        shades[i, j] = PALETTE[c % len(PALETTE)]
    columns, rows = found.numbers
    whole = cells.shape[0] if problem == "rows" else cells.shape[1]
    return {
        "panels": [
            images("", [("the entries, each in the colour of its product", shades)], large=True),
            bars("products with vectors", [("one for each column or row", whole), ("with colours", found.number)]),
            says(
                f"{found.number} colours: {columns} of columns and {rows} of rows; the whole matrix follows from as many "
                f"products"
            ),
        ]
    }


def graphs(family: str) -> dict[str, Any]:
    """Return the graphical model of a family: who depends on whom."""
    model = FAMILIES[family].graph
    at = places_of(model)
    nodes = [{"name": name, "x": x, "y": -y, "seen": name in model.data()} for name, (x, y) in at.items()]
    edges = [
        {
            "from": [a.start[0], -a.start[1]],
            "to": [a.end[0], -a.end[1]],
            "middle": [a.middle[0], -a.middle[1]],
            "dashed": a.dashed,
            "elided": a.elided,
        }
        for a in arrows_of(model, at)
    ]
    written = [formula_of(text).strip("$") for text in (model.model, model.encoder) if text]
    return {
        "panels": [
            {"kind": "graph", "title": f"the graph of {family}", "nodes": nodes, "edges": edges},
            *({"kind": "formula", "latex": text} for text in written),
            says(model.words),
        ]
    }


_BANDS = [[int(abs(i - j) <= 1) for j in range(8)] for i in range(8)]
_LEFT = [[-1.0, 0.5], [-0.8, -0.4], [-1.2, 0.0], [-0.5, 0.9], [-0.6, -0.9]]
_RIGHT = [[0.9, 0.8], [1.1, -0.2], [0.6, -0.8], [0.8, 0.2], [1.3, 0.5]]

LESSONS = {
    "embedding": Lesson(
        "Positions on circles",
        "A network is told the noise level as points on circles that turn at different speeds. "
        "No two positions look alike. Going on by some offset is a rotation, the same from every position.",
        r"\mathrm{SE}(p)_{2i} = \sin(\omega_i p), \quad \mathrm{SE}(p)_{2i+1} = \cos(\omega_i p), \quad \omega_i = b^{-2i/d}",
        "reverie gallery embeddings",
        embedding,
        (
            Control("position", "Position", 20, "whole", 0, 100, 1),
            Control("offset", "Offset", 15, "whole", 0, 60, 1),
            Control("dim", "Circles", 3, "whole", 1, 4, 1),
        ),
        also=(r"\begin{pmatrix} \cos \omega_i k & \sin \omega_i k \\ -\sin \omega_i k & \cos \omega_i k \end{pmatrix}",),
    ),
    "transport": Lesson(
        "Optimal transport",
        "What goes where, so that all of one set becomes the other at the least cost? Sinkhorn blurs the plan a little "
        "and finds it by scaling rows and columns in turn. "
        "Drag the points, and lower ε to sharpen the plan.",
        r"\min_{P}\ \langle P, C \rangle + \epsilon\, \mathrm{KL}(P \mid a\, b^\top), \qquad P_{ij} = a_i b_j\, e^{(f_i + "
        r"g_j - C_{ij})/\epsilon}",
        "reverie gallery transport",
        transport,
        (
            Control("x", "From (blue)", _LEFT, "points", -1.6, 1.6),
            Control("y", "To (orange)", _RIGHT, "points", -1.6, 1.6),
            Control("epsilon", "ε, of the mean cost", 0.05, low=0.005, high=1.0, step=0.005),
        ),
    ),
    "kernels": Lesson(
        "Kernels",
        "A kernel is an inner product in a space that is never visited. Its Gram matrix holds all that linear methods "
        "need, and has no negative eigenvalue. "
        "The width says how far apart points may be and still be alike.",
        r"k(x, y) = \langle \varphi(x), \varphi(y) \rangle, \qquad K_{ij} = k(x_i, x_j) \succeq 0",
        "reverie gallery kernels",
        kernels,
        (
            Control("kernel", "Kernel", "gaussian", "choice", choices=NUMERIC),
            Control("width", "Width", 0.5, low=0.05, high=3.0, step=0.05),
            Control("points", "Points", 48, "whole", 8, 96, 2),
        ),
    ),
    "derivatives": Lesson(
        "Derivatives, forwards and backwards",
        "Type a function of x. Tangents are carried from the input to the result, adjoints from the result to the input, "
        "by the same local derivatives. "
        "Both end in the slope.",
        r"\dot{s} = \sum_i \frac{\partial s}{\partial s_i}\, \dot{s}_i, \qquad \bar{s}_i \leftarrow \bar{s}_i + \bar{s}\, "
        r"\frac{\partial s}{\partial s_i}",
        "reverie gallery autodiff",
        derivatives,
        (
            Control("formula", f"f(x), of + - * / ^ and {', '.join(FUNCTIONS)}", "sin(x) * exp(-x^2 / 8)", "text"),
            Control("at", "x", 1.0, low=-4.0, high=4.0, step=0.05),
        ),
    ),
    "coloring": Lesson(
        "Colouring a sparse matrix",
        "Columns that never meet in a row can share one product with a vector. Giving them colours, so that no two of "
        "one colour meet, tells how few products the whole derivative takes. "
        "Mark entries and watch the colours.",
        r"J\, S = B, \qquad S_{jc} = \begin{cases} 1 & \text{column } j \text{ has colour } c \\ 0 & \text{else} \end{cases}",
        "reverie gallery coloring",
        colouring,
        (
            Control("pattern", "Entries", _BANDS, "cells"),
            Control("problem", "Problem", "columns", "choice", choices=tuple(PROBLEMS)),
        ),
    ),
    "graphs": Lesson(
        "Who depends on whom",
        "A circle is a variable, an arrow says that one is drawn from the other. Data are shaded. "
        "Dashed arrows are the encoder, which goes from data to what they may come from.",
        r"p(x_1, \dots, x_n) = \prod_i p(x_i \mid \mathrm{parents}(x_i))",
        "reverie gallery graphs",
        graphs,
        (Control("family", "Family", next(iter(FAMILIES)), "choice", choices=tuple(FAMILIES)),),
    ),
}
