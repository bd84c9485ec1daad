"""Demos that need no run: embeddings, optimal transport, kernels, derivatives, matrix colouring, graphical models."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import torch

from reverie.autodiff import color, record
from reverie.autodiff.sparse.color import PROBLEMS
from reverie.base.errors import ReverieWarning, UserError
from reverie.base.spec import build
from reverie.demos.demo import Control, Demo
from reverie.demos.expressions import FUNCTIONS, parse_function
from reverie.demos.panels import bars, curves, dots, heatmap, images, plot2d, plots2d, text
from reverie.families import FAMILIES
from reverie.gallery.graphs import arrows as arrows_of
from reverie.gallery.graphs import formula as formula_of
from reverie.gallery.graphs import places as positions_of
from reverie.kernels import KERNELS, gram
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
POINT_KERNELS = tuple(name for name in KERNELS if name not in ("spectrum", "words"))
MIN_MASS = 1e-3  # relative to the largest entry of a plan; smaller entries are not drawn


def embedding(position: int, offset: int, circles: int) -> dict[str, Any]:
    """Return the coordinates of a sinusoidal embedding, and the circles on which an offset is a rotation."""
    embed = SinusoidalEmbedding(2 * circles, base=200.0)
    positions = torch.arange(0, 101, dtype=torch.float64)
    first, second = embed(torch.tensor([float(position), float(position + offset)], dtype=torch.float64))
    rotated = embed.rotation(torch.tensor(float(offset), dtype=torch.float64)) @ first
    circle = np.stack([np.cos(np.linspace(0, 2 * np.pi, 80)), np.sin(np.linspace(0, 2 * np.pi, 80))], -1)
    panels = []
    for i in range(circles):
        a, b = (np.array([[float(p[2 * i + 1]), float(p[2 * i])]]) for p in (first, second))
        lines: list[dict[str, Any]] = [{"points": circle.ravel().round(4), "colour": 7, "width": 1}]
        lines += [{"points": np.concatenate([[[0.0, 0.0]], end]).ravel(), "colour": k} for k, end in enumerate((a, b))]
        panels.append(
            plot2d(
                f"circle {i + 1}: period {embed.period(2 * i):.0f}",
                (-1.25, 1.25),
                paths=lines,
                dots=[dots(a, 0, size=5), dots(b, 1, size=5)],
            )
        )
    coordinates = embed(positions).T.numpy()
    error = float((rotated - second).abs().max())
    return {
        "panels": [
            curves(
                "coordinates of the embedding by position",
                positions.numpy(),
                [(f"coordinate {k + 1}", coordinates[k]) for k in range(2 * circles)],
                "position",
                float(position),
            ),
            plots2d(panels),
            text(
                f"blue: position {position}; orange: position {position + offset}",
                f"rotation by offset {offset}, maximum error to the embedding of {position + offset}: {error:.1e}",
            ),
        ]
    }


def transport(x: list[list[float]], y: list[list[float]], epsilon: float) -> dict[str, Any]:
    """Return the exact and the entropic transport plan between two point sets."""
    a, b = (torch.tensor(points, dtype=torch.float64) for points in (x, y))
    problem = between(a, b)
    optimal = exact(problem)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ReverieWarning)
        entropic = sinkhorn(problem, epsilon)
    edge = float(torch.cat([a, b]).abs().max()) * 1.15
    panels = []
    for title, plan in (("exact", torch.as_tensor(optimal.plan)), (f"Sinkhorn, ε = {epsilon:g}", entropic.plan())):
        max_mass = float(plan.max())
        lines = [
            {"points": [*a[i].tolist(), *b[j].tolist()], "colour": 7, "alpha": float(plan[i, j]) / max_mass, "width": 2}
            for i in range(len(a))
            for j in range(len(b))
            if plan[i, j] > MIN_MASS * max_mass
        ]
        panels.append(plot2d(title, (-edge, edge), paths=lines, dots=[dots(a, 0, size=5), dots(b, 1, size=5)]))
    matrices = [(title, heatmap(np.asarray(p, float))) for title, p in (("exact", optimal.plan), ("Sinkhorn", entropic.plan()))]
    return {
        "panels": [
            plots2d(panels),
            images("transport plans as matrices", matrices),
            text(
                f"cost: {float(optimal.cost):.4f} exact, {float(entropic.cost()):.4f} entropic",
                f"{entropic.iterations} Sinkhorn iterations, marginal error "
                f"{entropic.marginal_error:.1e}{'' if entropic.converged else ', not converged'}",
            ),
        ]
    }


def kernels(kernel: str, width: float, points: int) -> dict[str, Any]:
    """Return the Gram matrix of a kernel on two circles, its spectrum, and the kernel along a line."""
    k = build(KERNELS, f"{kernel}:width={width}" if kernel not in ("linear", "polynomial") else kernel, "kernel")
    half = points // 2
    angle = torch.arange(half, dtype=torch.float64) * 2 * torch.pi / half
    ring = torch.stack([angle.cos(), angle.sin()], -1)
    x = torch.cat([0.4 * ring, ring])
    matrix = gram(k, x).numpy()
    eigenvalues = np.linalg.eigvalsh(matrix)[::-1]
    line = torch.linspace(-3, 3, 121, dtype=torch.float64)[:, None]
    values = gram(k, line, torch.tensor([[0.6]], dtype=torch.float64)).numpy()[:, 0]
    return {
        "panels": [
            plots2d([plot2d("data: two circles", (-1.3, 1.3), dots=[dots(x[:half], 0, size=3), dots(x[half:], 1, size=3)])]),
            images("", [("Gram matrix, inner circle first", heatmap(matrix))], large=True),
            curves("k(u, 0.6) for u on a line", line[:, 0].numpy(), [("k", values)], "u", 0.6),
            bars("largest eigenvalues of the Gram matrix", [(str(i + 1), float(v)) for i, v in enumerate(eigenvalues[:8])]),
            text(f"smallest eigenvalue: {eigenvalues[-1]:.1e}, non-negative up to rounding"),
        ]
    }


def derivatives(formula: str, at: float) -> dict[str, Any]:
    """Return a function with its tangent and derivative, and the forward and reverse sweep through its graph."""
    f = parse_function(formula)
    x = torch.linspace(-4, 4, 241, dtype=torch.float64)
    y = f(x).detach().numpy()
    derivative = torch.func.vmap(torch.func.grad(lambda u: f(u)))(x).detach().numpy()
    point = torch.tensor(at, dtype=torch.float64)
    graph = record(lambda u: f(u), point)
    tangents, adjoints = graph.tangents(torch.ones_like(point)), graph.adjoints()
    value, slope = float(f(point)), float(adjoints[0])
    finite = np.abs(y[np.isfinite(y)])
    y_limit = float(np.quantile(finite, 0.95)) * 1.5 + 1 if len(finite) else 1.0
    series = [
        (name, np.where(np.abs(row) <= y_limit, row, np.nan))
        for name, row in (("f", y), ("tangent", value + slope * (x.numpy() - at)), ("f'", derivative))
    ]
    lines = [
        f"{node.name} = {node.op}({', '.join(graph.nodes[i].name for i in node.inputs)}) = {float(node.value):.4g};"
        f" tangent {float(tangents[k]):.4g}, adjoint {float(adjoints[k]):.4g}"
        for k, node in enumerate(graph.nodes)
    ]
    return {
        "panels": [
            curves(f"f(x) = {formula}", x.numpy(), series, "x", at),
            text(f"f({at:g}) = {value:.6g}, derivative f'({at:g}) = {slope:.6g}", *lines),
        ]
    }


def colouring(pattern: list[list[int]], problem: str) -> dict[str, Any]:
    """Return a colouring of the columns or rows of a sparse matrix with few colours."""
    cells = np.array(pattern, bool)
    if not cells.any():
        raise UserError("the matrix has no non-zero entries; mark some")
    result = color(cells, problem)
    pixels = np.full((*cells.shape, 3), 238, np.uint8)
    for i, j in zip(*np.nonzero(cells), strict=True):
        c = (
            result.colors[j]
            if result.colors[j] >= 0
            else len(PALETTE) // 2 + result.row_colors[i]
            if result.row_colors[i] >= 0
            else 7
        )
        pixels[i, j] = PALETTE[c % len(PALETTE)]
    columns, rows = result.numbers
    uncompressed = cells.shape[0] if problem == "rows" else cells.shape[1]
    return {
        "panels": [
            images("", [("non-zero entries, by the colour of their product", pixels)], large=True),
            bars("matrix-vector products", [("without colouring", uncompressed), ("with colouring", result.number)]),
            text(f"{result.number} colours ({columns} of columns, {rows} of rows), one product each, determine the matrix"),
        ]
    }


def graphs(family: str) -> dict[str, Any]:
    """Return the graphical model of a family."""
    model = FAMILIES[family].graph
    positions = positions_of(model)
    nodes = [{"name": name, "x": x, "y": -y, "observed": name in model.data()} for name, (x, y) in positions.items()]
    edges = [
        {
            "from": [a.start[0], -a.start[1]],
            "to": [a.end[0], -a.end[1]],
            "middle": [a.middle[0], -a.middle[1]],
            "dashed": a.dashed,
            "elided": a.elided,
        }
        for a in arrows_of(model, positions)
    ]
    latex = [formula_of(source).strip("$") for source in (model.model, model.encoder) if source]
    return {
        "panels": [
            {"kind": "graph", "title": f"graphical model of {family}", "nodes": nodes, "edges": edges},
            *({"kind": "formula", "latex": source} for source in latex),
            text(model.words),
        ]
    }


_BANDS = [[int(abs(i - j) <= 1) for j in range(8)] for i in range(8)]
_LEFT = [[-1.0, 0.5], [-0.8, -0.4], [-1.2, 0.0], [-0.5, 0.9], [-0.6, -0.9]]
_RIGHT = [[0.9, 0.8], [1.1, -0.2], [0.6, -0.8], [0.8, 0.2], [1.3, 0.5]]

DEMOS = {
    "embedding": Demo(
        "Sinusoidal embeddings",
        "The noise level enters a network as points on circles with different periods. "
        "Different positions have different embeddings. "
        "Adding an offset to the position rotates the embedding by angles that depend only on the offset.",
        r"\mathrm{SE}(p)_{2i} = \sin(\omega_i p), \quad \mathrm{SE}(p)_{2i+1} = \cos(\omega_i p), \quad \omega_i = b^{-2i/d}",
        "reverie gallery embeddings",
        embedding,
        (
            Control("position", "Position", 20, "integer", 0, 100, 1),
            Control("offset", "Offset k", 15, "integer", 0, 60, 1),
            Control("circles", "Circles", 3, "integer", 1, 4, 1),
        ),
        more_formulas=(
            r"\begin{pmatrix} \cos \omega_i k & \sin \omega_i k \\ -\sin \omega_i k & \cos \omega_i k \end{pmatrix}",
        ),
    ),
    "transport": Demo(
        "Optimal transport",
        "An optimal transport plan moves one distribution onto another at the least total cost. "
        "Sinkhorn's algorithm adds an entropy penalty and rescales rows and columns in turn. "
        "Drag the points, and lower ε to approach the exact plan.",
        r"\min_{P}\ \langle P, C \rangle + \epsilon\, \mathrm{KL}(P \mid a\, b^\top), \qquad P_{ij} = a_i b_j\, e^{(f_i + "
        r"g_j - C_{ij})/\epsilon}",
        "reverie gallery transport",
        transport,
        (
            Control("x", "Source points (blue)", _LEFT, "points", -1.6, 1.6),
            Control("y", "Target points (orange)", _RIGHT, "points", -1.6, 1.6),
            Control("epsilon", "ε, relative to the mean cost", 0.05, low=0.005, high=1.0, step=0.005),
        ),
    ),
    "kernels": Demo(
        "Kernels",
        "A kernel is an inner product in a feature space that is never computed explicitly. "
        "Linear methods need only its Gram matrix, which is positive semidefinite. "
        "The width is the distance over which points count as similar.",
        r"k(x, y) = \langle \varphi(x), \varphi(y) \rangle, \qquad K_{ij} = k(x_i, x_j) \succeq 0",
        "reverie gallery kernels",
        kernels,
        (
            Control("kernel", "Kernel", "gaussian", "choice", choices=POINT_KERNELS),
            Control("width", "Width", 0.5, low=0.05, high=3.0, step=0.05),
            Control("points", "Points", 48, "integer", 8, 96, 2),
        ),
    ),
    "derivatives": Demo(
        "Automatic differentiation",
        "Type a function of x. "
        "Forward mode propagates tangents from the input to the output, reverse mode adjoints from the output to the input, "
        "both by the same local derivatives. "
        "Both give the derivative.",
        r"\dot{s} = \sum_i \frac{\partial s}{\partial s_i}\, \dot{s}_i, \qquad \bar{s}_i \leftarrow \bar{s}_i + \bar{s}\, "
        r"\frac{\partial s}{\partial s_i}",
        "reverie gallery autodiff",
        derivatives,
        (
            Control("formula", f"f(x), with + - * / ^ and {', '.join(FUNCTIONS)}", "sin(x) * exp(-x^2 / 8)", "text"),
            Control("at", "x", 1.0, low=-4.0, high=4.0, step=0.05),
        ),
    ),
    "coloring": Demo(
        "Matrix colouring",
        "Columns with no non-zero entry in a common row can share one Jacobian-vector product. "
        "A colouring groups such columns, so the number of colours is the number of products for the whole matrix. "
        "Click entries to change the sparsity pattern.",
        r"J\, S = B, \qquad S_{jc} = \begin{cases} 1 & \text{column } j \text{ has colour } c \\ 0 & "
        r"\text{otherwise} \end{cases}",
        "reverie gallery coloring",
        colouring,
        (
            Control("pattern", "Sparsity pattern", _BANDS, "matrix"),
            Control("problem", "Problem", "columns", "choice", choices=tuple(PROBLEMS)),
        ),
    ),
    "graphs": Demo(
        "Graphical models",
        "Nodes are random variables; an arrow leads from each variable to those whose distribution depends on it. "
        "Observed variables are shaded. "
        "Dashed arrows are the encoder, the approximate posterior of the latents given data.",
        r"p(x_1, \dots, x_n) = \prod_i p(x_i \mid \mathrm{parents}(x_i))",
        "reverie gallery graphs",
        graphs,
        (Control("family", "Family", next(iter(FAMILIES)), "choice", choices=tuple(FAMILIES)),),
    ),
}
