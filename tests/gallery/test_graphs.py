"""The gallery of graphs: every family is drawn, no circle lies on another, and arrows keep clear of circles."""

from __future__ import annotations

from itertools import combinations
from math import dist
from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch
from PIL import Image

from reverie.families.graphical import GRAPHICAL, GraphicalModel
from reverie.gallery.graphs import RADIUS, Arrow, _graph, arrows, formula, letters, places


def along(arrow: Arrow) -> np.ndarray:
    """Points of a bent arrow, (N, 2): a quadratic curve through its middle."""
    start, middle, end = (np.array(p) for p in (arrow.start, arrow.middle, arrow.end))
    turn, s = 2 * middle - (start + end) / 2, np.linspace(0, 1, 101)[:, None]
    return (1 - s) ** 2 * start + 2 * s * (1 - s) * turn + s**2 * end


EXTRA = {
    "two ways": GraphicalModel("p(z) p(k) p(y | z) p(x | y, k)", "", "q(k, y, z | x) = q(k | x) q(y | x) q(z | y)"),
    "past a circle": GraphicalModel("p(a) p(b | a) p(c | a) p(d | b, c) p(x | d, a)", "", "q(a, d | x) = q(d | x) q(a | x)"),
}


@pytest.mark.parametrize("model", (GRAPHICAL | EXTRA).values(), ids=GRAPHICAL | EXTRA)
def test_circles_and_arrows_keep_apart(model: GraphicalModel) -> None:
    at = places(model)
    drawn = arrows(model, at)
    encoder = model.encoder_graph()
    assert len(drawn) == len(model.graph().edges) + (len(encoder.edges) if encoder else 0)
    assert all(dist(at[a], at[b]) > 2.5 * RADIUS for a, b in combinations(at, 2))
    for arrow in drawn:
        for place in at.values():
            if place not in (arrow.start, arrow.end):
                assert np.linalg.norm(along(arrow) - place, axis=1).min() > 1.2 * RADIUS
    for one, other in combinations(drawn, 2):
        assert dist(one.middle, other.middle) > 0.1


def test_names_as_formulas() -> None:
    assert letters("x_3", GRAPHICAL["diffusion"]) == "$x_{T}$" and letters("x_0", GRAPHICAL["diffusion"]) == "$x_{0}$"
    assert letters("x'", GRAPHICAL["denoising-autoencoder"]) == "$x'$"
    assert formula("p(x_T) prod_{t=1}^T p(x | z, word)") == r"$p(x_T)\;{\prod}_{t=1}^T\,p(x\,|\,z,\,\mathrm{word})$"


@pytest.mark.parametrize("name", ["seq2seq", "transformer-seq2seq"])
def test_an_answer_depends_on_its_source(name: str) -> None:
    graph = GRAPHICAL[name].graph(4)
    assert graph.given == {"s"} and graph.children("s") == graph.observed == {"x_1", "x_2", "x_3", "x_4"}
    assert graph.parents("x_3") == {"s", "x_1", "x_2"}


@pytest.mark.parametrize("model", GRAPHICAL.values(), ids=GRAPHICAL)
def test_a_chain_that_is_unrolled_stands_in_no_plate_of_its_own(model: GraphicalModel) -> None:
    axes = Figure().subplots()
    _graph(axes, model, 0, 0)
    boxes = [patch for patch in axes.patches if isinstance(patch, FancyBboxPatch)]
    plates = [text.get_text() for text in axes.texts if text.get_text() in ("$N$", "$T$")]
    assert plates == [f"${plate.count}$" for plate in model.graph().plates] and len(boxes) == len(plates)


def test_the_gallery_is_one_picture(command, tmp_path: Path) -> None:
    code, out, err = command("gallery", "graphs", "--out", tmp_path / "g.png")
    assert code == 0 and "g.png" in out, err
    with Image.open(tmp_path / "g.png") as picture:
        assert picture.size[0] > 900 and len(np.unique(np.asarray(picture.convert("L")))) > 50
    assert command("gallery", "graphs", "--out", tmp_path / "g.txt")[0] == 2
