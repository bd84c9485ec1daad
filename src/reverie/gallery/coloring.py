"""Sparse matrices with their graphs, colourings and compressed forms, for small examples and band matrices."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from reverie.autodiff.sparse import Coloring, color, exact_color
from reverie.base.files import check_folder
from reverie.draw.picture import CYCLE, INK, SOFT, figure, save

RECTANGLE = np.zeros((4, 5), bool)
RECTANGLE[[0, 0, 1, 1, 2, 2, 3, 3], [1, 3, 3, 4, 1, 2, 0, 2]] = True
SQUARE = np.eye(4, dtype=bool)
SQUARE[[0, 1, 0, 2, 1, 3], [1, 0, 2, 0, 3, 1]] = True
TWO_SHARED_ROWS = np.array([[0, 0, 1], [1, 1, 0], [1, 1, 0]], bool)  # columns 1 and 2 share two rows
PATH = np.abs(np.subtract.outer(np.arange(4), np.arange(4))) <= 1
CYCLE_OF_FOUR = np.logical_or.reduce([np.roll(np.eye(4, dtype=bool), k, 0) for k in (-1, 0, 1)])
CYCLE_OF_FIVE = np.logical_or.reduce([np.roll(np.eye(5, dtype=bool), k, 0) for k in (-1, 0, 1)])
BIPARTITE = np.kron([[0, 1], [1, 0]], np.ones((3, 3))).astype(bool) | np.eye(6, dtype=bool)
BANDS = np.abs(np.subtract.outer(np.arange(24), np.arange(24))) <= 5


def _colour(c: int) -> tuple[float, float, float]:
    """Return the c-th colour, lighter after each cycle."""
    base = np.array(to_rgb(CYCLE[c % len(CYCLE)]))
    faded = base + (1 - base) * min(0.75, 0.45 * (c // len(CYCLE)))
    return (float(faded[0]), float(faded[1]), float(faded[2]))


def draw_pattern(
    axes: Axes, pattern: np.ndarray, row_colors: np.ndarray, colors: np.ndarray, names: np.ndarray | None = None
) -> None:
    """Draw the entries of a matrix as squares in the colours of columns or rows; -1 means no colour."""
    picture = np.ones((*pattern.shape, 3))
    for i, j in zip(*np.nonzero(pattern), strict=True):
        c = int(colors[j]) if colors[j] >= 0 else int(row_colors[i])
        picture[i, j] = _colour(c) if c >= 0 else to_rgb(SOFT)
        if names is not None:
            axes.text(j, i, names[i, j], ha="center", va="center", color="white", fontsize=9)
    axes.imshow(picture, interpolation="nearest")
    axes.set(xticks=np.arange(-0.5, pattern.shape[1]), yticks=np.arange(-0.5, pattern.shape[0]), xticklabels=[], yticklabels=[])
    axes.grid(color="#e3e8ee", lw=0.8)
    axes.tick_params(length=0)
    for side in axes.spines.values():
        side.set_color("#d5dbe1")


def _dots(axes: Axes, positions: np.ndarray, colors: np.ndarray, names: list[str]) -> None:
    shades = [_colour(int(c)) if c >= 0 else to_rgb("#c3ccd6") for c in colors]
    axes.scatter(positions[:, 0], positions[:, 1], s=330, c=shades, zorder=2, edgecolors="white", linewidths=1.5)
    for (x, y), name in zip(positions, names, strict=True):
        axes.text(x, y, name, ha="center", va="center", color="white", fontsize=9, zorder=3)


def _bipartite(axes: Axes, coloring: Coloring) -> None:
    m, n = coloring.pattern.shape
    rows = np.stack([np.linspace(0, 1, m + 2)[1:-1], np.zeros(m)], 1)
    columns = np.stack([np.linspace(0, 1, n + 2)[1:-1], np.ones(n)], 1)
    for i, j in zip(*coloring.pattern.nonzero(), strict=True):
        axes.plot(*zip(rows[i], columns[j], strict=True), color=SOFT, lw=1.2, zorder=0)
    _dots(axes, columns, coloring.colors, [f"{j + 1}" for j in range(n)])
    _dots(axes, rows, coloring.row_colors, [f"{i + 1}" for i in range(m)])
    axes.text(-0.02, 1, "columns", ha="right", va="center", fontsize=9, color=INK)
    axes.text(-0.02, 0, "rows", ha="right", va="center", fontsize=9, color=INK)
    axes.set(xlim=(-0.12, 1.05), ylim=(-0.35, 1.35))
    axes.axis("off")


def _ring(axes: Axes, edges: np.ndarray, colors: np.ndarray) -> None:
    """Draw a graph with vertices on a circle; edges: number of edges between two vertices, (n, n)."""
    n = len(colors)
    angle = np.pi / 2 - 2 * np.pi * np.arange(n) / n
    positions = np.stack([np.cos(angle), np.sin(angle)], 1)
    for i, j in zip(*np.nonzero(np.triu(edges, 1)), strict=True):
        for bend in 0.12 * (np.arange(edges[i, j]) - (edges[i, j] - 1) / 2):  # parallel edges side by side
            style = {"arrowstyle": "-", "color": SOFT, "lw": 1.2, "connectionstyle": f"arc3,rad={bend * 2}"}
            axes.annotate("", positions[i], positions[j], arrowprops=style, zorder=0)
    _dots(axes, positions, colors, [f"{j + 1}" for j in range(n)])
    axes.set(xlim=(-1.4, 1.4), ylim=(-1.4, 1.4), aspect="equal")
    axes.axis("off")


def _adjacency(axes: Axes, coloring: Coloring) -> None:
    _ring(axes, coloring.pattern.toarray().astype(int), coloring.colors)


def _names(pattern: np.ndarray, symmetric: bool) -> np.ndarray:
    """Name the entries a1, a2, ...; symmetric entries share a name."""
    names = np.full(pattern.shape, "", dtype=object)
    count = 0
    for i, j in zip(*np.nonzero(pattern), strict=True):
        if symmetric and names[j, i]:
            names[i, j] = names[j, i]
            continue
        count += 1
        names[i, j] = f"a{count}"
    return names


def _compressed(axes: Axes, coloring: Coloring, names: np.ndarray) -> None:
    columns, rows = coloring.seeds
    by_rows = columns.shape[1] == 0
    seeds, values = (rows, names.T) if by_rows else (columns, names)
    texts = [
        ["+".join(name for name, selected in zip(line, seed, strict=True) if selected and name) for seed in seeds.T]
        for line in values
    ]
    grid = np.array(texts, dtype=object)
    grid = grid.T if by_rows else grid
    shades = np.array([_colour(c) for c in range(seeds.shape[1])])
    picture = np.broadcast_to(shades[:, None] if by_rows else shades[None], (*grid.shape, 3))
    axes.imshow(picture, interpolation="nearest", alpha=0.9)
    for i, j in np.ndindex(grid.shape):
        axes.text(j, i, str(grid[i, j] or 0), ha="center", va="center", color="white", fontsize=8)
    axes.set(xticks=np.arange(-0.5, grid.shape[1]), yticks=np.arange(-0.5, grid.shape[0]), xticklabels=[], yticklabels=[])
    axes.grid(color="white", lw=1)
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)


def _example(pattern: np.ndarray, problems: tuple[str, ...], symmetric: bool) -> Figure:
    fig = figure(10, 2.9 * len(problems))
    names = _names(pattern, symmetric)
    for panels, problem in zip(fig.subplots(len(problems), 3, squeeze=False), problems, strict=True):
        coloring = color(pattern, problem)
        draw_pattern(panels[0], pattern, coloring.row_colors, coloring.colors, names)
        (_adjacency if symmetric else _bipartite)(panels[1], coloring)
        _compressed(panels[2], coloring, names)
        product = "R^T J" if problem == "rows" else "J S"
        titles = (f"{problem}: {coloring.number} colours", "the graph", f"compressed, {product}")
        for axes, title in zip(panels, titles, strict=True):
            axes.set_title(title, fontsize=10, color=INK)
    return fig


def rectangle() -> Figure:
    """Draw the 4 x 5 example coloured by columns and by rows."""
    return _example(RECTANGLE, ("columns", "rows"), symmetric=False)


def square() -> Figure:
    """Draw the symmetric 4 x 4 example: three colours directly, two by substitution."""
    return _example(SQUARE, ("columns", "star", "acyclic"), symmetric=True)


def bands() -> Figure:
    """Draw a band matrix with three colourings."""
    fig = figure(11, 4.2)
    for axes, problem in zip(fig.subplots(1, 3), ("columns", "star", "acyclic"), strict=True):
        coloring = color(BANDS, problem)
        draw_pattern(axes, BANDS, coloring.row_colors, coloring.colors)
        axes.set_title(f"{problem}: {coloring.number} colours", fontsize=10, color=INK)
    return fig


def arrow() -> Figure:
    """Draw an arrow matrix: full rows by row products, the rest by column products."""
    pattern = np.eye(12, dtype=bool)
    pattern[0] = pattern[:, 0] = True
    fig = figure(11, 4.2)
    for axes, problem in zip(fig.subplots(1, 3), ("columns", "rows", "both"), strict=True):
        coloring = color(pattern, problem)
        draw_pattern(axes, pattern, coloring.row_colors, coloring.colors)
        if problem == "both":  # entries from row products, in separate colours
            for i in np.flatnonzero(coloring.row_colors >= 0):
                shade = _colour(coloring.numbers[0] + int(coloring.row_colors[i]))
                for j in np.flatnonzero(pattern[i]):
                    axes.add_patch(Rectangle((j - 0.5, i - 0.5), 1, 1, fc=shade, ec="#e3e8ee", lw=0.8))
        axes.set_title(f"{problem}: {coloring.number} colours", fontsize=10, color=INK)
    return fig


def column_graph() -> Figure:
    """Draw the column intersection graph of two patterns; each shared row is an edge."""
    fig = figure(10, 5.4)
    for panels, pattern in zip(fig.subplots(2, 3), (RECTANGLE, TWO_SHARED_ROWS), strict=True):
        coloring = color(pattern)
        draw_pattern(panels[0], pattern, coloring.row_colors, coloring.colors, _names(pattern, False))
        shared = pattern.T.astype(int) @ pattern.astype(int)
        _ring(panels[1], shared, coloring.colors)
        _bipartite(panels[2], coloring)
        titles = (f"{coloring.number} colours", "column intersection graph, an edge per row", "columns and rows")
        for axes, title in zip(panels, titles, strict=True):
            axes.set_title(title, fontsize=10, color=INK)
    return fig


def cycle() -> Figure:
    """Draw why a cycle of two colours is invalid: each product contains two unknowns."""
    fig = figure(10, 5.4)
    names = _names(CYCLE_OF_FOUR, True)
    for panels, problem in zip(fig.subplots(2, 3), ("diagonal", "acyclic"), strict=True):
        coloring = exact_color(CYCLE_OF_FOUR, problem)
        draw_pattern(panels[0], CYCLE_OF_FOUR, coloring.row_colors, coloring.colors, names)
        _adjacency(panels[1], coloring)
        _compressed(panels[2], coloring, names)
        result = "every sum has two unknowns" if problem == "diagonal" else "every entry can be recovered"
        titles = (f"{TITLES[problem]}: {coloring.number} colours", "the graph", f"J S: {result}")
        for axes, title in zip(panels, titles, strict=True):
            axes.set_title(title, fontsize=10, color=INK)
    return fig


TITLES = {"diagonal": "neighbours differ", "acyclic": "acyclic", "star": "star", "columns": "distance 2"}
GRAPHS = {"path": PATH, "four-cycle": CYCLE_OF_FOUR, "five-cycle": CYCLE_OF_FIVE, "K(3, 3)": BIPARTITE}


def chromatic() -> Figure:
    """Draw minimum colourings of small graphs by exhaustive search; numbers never decrease from left to right."""
    fig = figure(10, 9.6)
    for panels, (name, graph) in zip(fig.subplots(len(GRAPHS), len(TITLES)), GRAPHS.items(), strict=True):
        for axes, (problem, title) in zip(panels, TITLES.items(), strict=True):
            coloring = exact_color(graph, problem)
            _adjacency(axes, coloring)
            axes.set_title(f"{name}, {title}: {coloring.number}", fontsize=10, color=INK)
    return fig


PICTURES = {
    "rectangle": rectangle,
    "columns": column_graph,
    "symmetric": square,
    "cycle": cycle,
    "chromatic": chromatic,
    "bands": bands,
    "arrow": arrow,
}


def draw(out: Path) -> list[Path]:
    """Draw all figures into a folder and return the files."""
    check_folder(out)
    files = [out / f"{name}.png" for name in PICTURES]
    for path, make in zip(files, PICTURES.values(), strict=True):
        save(make(), path)
    return files
