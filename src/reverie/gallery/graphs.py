"""The graphical model of every family: nodes and arrows, shaded data, plates, and the factorisation in formula and words."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.patches import Circle, FancyArrowPatch, FancyBboxPatch

from reverie.draw.picture import ACCENT, INK, SOFT, check_picture, figure, save
from reverie.families import FAMILIES
from reverie.families.graphical import LEVELS, GraphicalModel

# Lengths are in inches; the axes of the figure have these units.
COLUMNS, WIDE, MARGIN = 3, 4.9, 0.3
RADIUS, STEP, ELIDED, RISE = 0.25, 1.0, 0.4, 0.9  # of a circle; between circles; added where some are omitted; vertical
OVER, UNDER, BESIDE, FARTHER = (
    0.28,
    0.42,
    0.24,
    0.07,
)  # bends: over circles, of encoders, next to other arrows, per circle passed
LINE, TITLE, FORMULA, GAP = 0.19, 0.42, 0.32, 0.26  # heights of a line of words, a name, a formula; between rows
CLEAR = 0.34  # smallest distance of arrows to the centres of other circles
PAD, CORNER = 0.16, 0.22  # around the nodes of a plate, and below them for its letter
MAX_CHARACTERS = 66  # in a line of text
SHADE, PLATE = "#d3dcea", "#b9c3cf"

Place = tuple[float, float]


@dataclass(frozen=True)
class Arrow:
    """An arrow between two positions.  bend: of matplotlib's arc3; elided: whether it stands for several arrows."""

    start: Place
    end: Place
    bend: float = 0.0
    elided: bool = False
    dashed: bool = False

    @property
    def middle(self) -> Place:
        """The midpoint of the arrow."""
        (x, y), (u, v) = self.start, self.end
        return (x + u) / 2 + self.bend * (v - y) / 2, (y + v) / 2 - self.bend * (u - x) / 2

    def clear_of(self, circles: Iterable[Place]) -> bool:
        """Return whether the arrow touches no other node."""
        start, middle, end = (np.array(position) for position in (self.start, self.middle, self.end))
        s = np.linspace(0, 1, 41)[:, None]
        curve = start + s * (4 * middle - 3 * start - end) + 2 * s**2 * (start + end - 2 * middle)
        others = [position for position in circles if position not in (self.start, self.end)]
        return all(np.linalg.norm(curve - position, axis=1).min() > CLEAR for position in others)


def places(model: GraphicalModel) -> dict[str, Place]:
    """Return the position of each node: x by its longest path to a leaf, nodes of equal distance stacked."""
    graph, top = model.graph(), model.levels()[:1]
    distance: dict[str, float] = {}
    for v in reversed(graph.nodes):
        distance[v] = max((distance[w] + STEP + (ELIDED if v in top else 0) for w in graph.children(v)), default=0.0)
    columns = {x: [v for v in graph.nodes if distance[v] == x] for x in distance.values()}
    middle = max(distance.values()) / 2
    return {v: (middle - x, RISE * ((len(column) - 1) / 2 - k)) for x, column in columns.items() for k, v in enumerate(column)}


def arrows(model: GraphicalModel, at: Mapping[str, Place]) -> list[Arrow]:
    """Return the arrows of the model, straight or bent around nodes, and those of the encoder."""
    levels, model_graph, encoder = model.levels(), model.graph(), model.encoder_graph()
    result = []
    for graph in filter(None, (model_graph, encoder)):
        for a, b in sorted(graph.edges):
            dashed, (x, u) = graph is encoder, (at[a][0], at[b][0])
            passed = sum(min(x, u) < at[v][0] < max(x, u) and at[v][1] == at[a][1] == at[b][1] for v in at)
            min_bend = (BESIDE if (a, b) in model_graph.edges else UNDER) if dashed else OVER if passed else 0.0
            side = 1 if (u > x) == dashed else -1  # arc3 bends to the right of the direction
            arrow = Arrow(at[a], at[b], side * (min_bend + FARTHER * passed), {a, b} == set(levels[:2]), dashed)
            candidates = (
                replace(arrow, bend=arrow.bend + direction * k * FARTHER) for k in range(12) for direction in (side, -side)
            )
            result.append(next((candidate for candidate in candidates if candidate.clear_of(at.values())), arrow))
    return result


def letters(name: str, model: GraphicalModel) -> str:
    """Return a node's name as a formula; the last of several levels is level T."""
    stem, _, index = name.rpartition("_") if "_" in name else (name, "", "")
    if name in model.levels() and index == str(LEVELS):
        index = "T"
    return f"${stem if len(stem.rstrip(chr(39))) == 1 else _upright(stem)}" + (f"_{{{index}}}$" if index else "$")


def formula(text: str) -> str:
    """Return a factorisation as a formula."""
    words = re.sub(r"\bprod(_\{[^{}]*\}\^\w+) ", r"{\\prod}\1\\,", text)
    words = re.sub(r"(?<![\\\w{])([^\W\d_]{2,})", lambda match: _upright(match[1]), words)
    for plain, spaced in ((" | ", r"\,|\,"), (", ", r",\,"), (" = ", "="), (") ", r")\;")):
        words = words.replace(plain, spaced)
    return f"${words}$"


def _upright(word: str) -> str:
    return rf"\mathrm{{{word}}}"


def _box(axes: Axes, left: float, bottom: float, right: float, top: float, letter: str) -> None:
    style = "round,pad=0,rounding_size=0.12"
    axes.add_patch(FancyBboxPatch((left, bottom), right - left, top - bottom, style, fc="none", ec=PLATE, lw=1.2, zorder=0))
    axes.text(right - 0.1, bottom + 0.07, f"${letter}$", ha="right", va="bottom", fontsize=10, color=SOFT)


def _circle(axes: Axes, at: Place, name: str, shaded: bool = False, given: bool = False, radius: float = RADIUS) -> None:
    fill, line = SHADE if shaded else "white", (0, (3, 2)) if given else "-"
    axes.add_patch(Circle(at, radius, fc=fill, ec=INK, lw=1.3, ls=line, zorder=2))
    axes.text(*at, name, ha="center", va="center_baseline", fontsize=12, color=INK, zorder=3)


def _arrow(axes: Axes, arrow: Arrow) -> None:
    colour, line = (ACCENT, (0, (4, 2.5))) if arrow.dashed else (INK, "-")
    shrink, layer = 72 * RADIUS + 1, 0.5 if arrow.elided else 1.0
    bent = FancyArrowPatch(
        arrow.start, arrow.end, arrowstyle="-", connectionstyle=f"arc3,rad={arrow.bend}", shrinkA=shrink, shrinkB=shrink + 5,
        color=colour, lw=1.3, ls=line, zorder=layer,
    )  # fmt: skip
    head = FancyArrowPatch(
        arrow.start, arrow.end, arrowstyle="-|>,head_length=5,head_width=2.6", connectionstyle=f"arc3,rad={arrow.bend}",
        shrinkA=shrink, shrinkB=shrink, color=colour, lw=0, zorder=layer,
    )  # fmt: skip
    axes.add_patch(bent)
    axes.add_patch(head)
    if arrow.elided:
        plain = {"boxstyle": "square,pad=0.25", "fc": "white", "ec": "none"}
        axes.text(*arrow.middle, "···", ha="center", va="center", fontsize=11, color=colour, bbox=plain, zorder=layer)


def _extent(at: Mapping[str, Place], drawn: Iterable[Arrow]) -> tuple[float, float]:
    """Return the extent of a graph below and above its middle, without the plate."""
    heights = [y for _, y in at.values()]
    bends = [arrow.middle[1] for arrow in drawn]
    return min([min(heights) - RADIUS, *bends]), max([max(heights) + RADIUS, *bends])


def _panel_heights(model: GraphicalModel) -> tuple[float, float]:
    """Return the heights above and below the middle of the graph, with its plate."""
    at = places(model)
    low, high = _extent(at, arrows(model, at))
    return high + PAD, -low + PAD + CORNER


def _graph(axes: Axes, model: GraphicalModel, x: float, y: float) -> None:
    """Draw a graph around a position."""
    graph = model.graph()
    at = {v: (x + u, y + w) for v, (u, w) in places(model).items()}
    drawn = arrows(model, at)
    above, below = _panel_heights(model)
    left, right = min(u for u, _ in at.values()) - RADIUS, max(u for u, _ in at.values()) + RADIUS
    _box(axes, left - 1.3 * PAD, y - below, right + 1.3 * PAD, y + above, "N")
    for arrow in drawn:
        _arrow(axes, arrow)
    for v in graph.nodes:
        _circle(axes, at[v], letters(v, model), v in graph.observed, v in graph.given)


def _text(axes: Axes, model: GraphicalModel, x: float, top: float) -> None:
    """Write the factorisations and the words below a graph."""
    y = top
    for text, colour in ((model.model, INK), (model.encoder, ACCENT)):
        if text:
            axes.text(x, y - FORMULA / 2, formula(text), ha="center", va="center", fontsize=11.5, color=colour)
        y -= FORMULA if text else 0
    for line in _lines(model.words):
        axes.text(x, y - LINE / 2, line, ha="center", va="center", fontsize=9, color=INK)
        y -= LINE


def _text_height(model: GraphicalModel) -> float:
    return FORMULA * (2 if model.encoder else 1) + LINE * len(_lines(model.words))


def _lines(words: str) -> list[str]:
    """Return words in the smallest number of lines, of similar lengths."""
    min_lines = len(textwrap.wrap(words, MAX_CHARACTERS))
    return next(lines for n in range(1, MAX_CHARACTERS + 1) if len(lines := textwrap.wrap(words, n)) == min_lines)


def _legend(axes: Axes, models: Iterable[GraphicalModel], width: float, y: float) -> None:
    """Draw the legend of symbols in one centred line."""
    given = ["given"] if any(model.graph().given for model in models) else []
    labels = ["data", "latent", *given, "model", "encoder, or forward process", "repeated: N data"]
    widths = [0.55 + 0.066 * len(label) for label in labels]
    x = (width - sum(widths)) / 2
    for label, advance in zip(labels, widths, strict=True):
        if label in ("data", "latent", "given"):
            _circle(axes, (x + 0.1, y), "", label == "data", label == "given", 0.09)
        elif label.startswith("repeated"):
            axes.add_patch(
                FancyBboxPatch((x, y - 0.08), 0.22, 0.16, "round,pad=0,rounding_size=0.04", fc="none", ec=PLATE, lw=1.2)
            )
        else:
            colour, line = (INK, "-") if label == "model" else (ACCENT, (0, (4, 2.5)))
            axes.plot([x - 0.05, x + 0.14], [y, y], color=colour, lw=1.3, ls=line)
            axes.add_patch(FancyArrowPatch((x, y), (x + 0.24, y), arrowstyle="-|>,head_length=5,head_width=2.6", lw=0,
                                           color=colour, shrinkA=0, shrinkB=0))  # fmt: skip
        axes.text(x + 0.3, y, label, ha="left", va="center_baseline", fontsize=9, color=INK)
        x += advance
    note = "For labelled data, all variables are conditioned on the label."
    axes.text(width / 2, y - 0.27, note, ha="center", va="center", fontsize=9, color=SOFT)


def draw(out: Path) -> list[Path]:
    """Draw the graphs of all families, the smallest first, and return the file."""
    check_picture(out)
    graphs = {name: family.graph for name, family in FAMILIES.items()}
    order = sorted(graphs, key=lambda name: len(graphs[name].graph().nodes))
    columns = COLUMNS if len(order) > 4 else 2
    rows = [order[k : k + columns] for k in range(0, len(order), columns)]
    above = [max(_panel_heights(graphs[name])[0] for name in row) for row in rows]
    below = [max(_panel_heights(graphs[name])[1] for name in row) for row in rows]
    texts = [max(_text_height(graphs[name]) for name in row) for row in rows]
    heights = [TITLE + a + b + t + GAP for a, b, t in zip(above, below, texts, strict=True)]
    width, height = columns * WIDE + 2 * MARGIN, sum(heights) + 2 * MARGIN + 0.6
    fig = figure(width, height, {"left": 0, "right": 1, "bottom": 0, "top": 1})
    axes = fig.subplots()
    axes.set(xlim=(0, width), ylim=(0, height))
    axes.axis("off")
    top = height - MARGIN
    for row, up, down, row_height in zip(rows, above, below, heights, strict=True):
        for k, name in enumerate(row):
            x, y = MARGIN + WIDE * (k + 0.5), top - TITLE - up
            axes.text(x, top - TITLE / 2, name, ha="center", va="center", fontsize=13, color=INK, weight="bold")
            _graph(axes, graphs[name], x, y)
            _text(axes, graphs[name], x, y - down - 0.08)
        top -= row_height
    _legend(axes, graphs.values(), width, MARGIN + 0.35)
    save(fig, out)
    return [out]
