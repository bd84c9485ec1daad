"""Lessons hold what their formulas say, on real runs; and what is typed is read, never run."""

from __future__ import annotations

import base64
import io
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from reverie import api
from reverie.base.errors import UserError
from reverie.data import Dataset
from reverie.diffusion.process import posterior
from reverie.lessons import LESSONS
from reverie.lessons.lesson import Control
from reverie.lessons.show import heat
from reverie.lessons.typed import function
from reverie.runs.run import Run
from reverie.studio.plain import as_json
from reverie.transport import between, exact


def of(run: Run) -> Dataset:
    return api.reread(run.config.data, folder=run.path).split(run.config.data.seed)[0]


@pytest.fixture(scope="module")
def subjects(digits_run: Run, patterns_run: Run) -> dict[str, tuple[Run, Dataset]]:
    return {"images": (digits_run, of(digits_run)), "points": (patterns_run, of(patterns_run))}


def work(name: str, subject: tuple[Run, Dataset] | None = None, **values: Any) -> dict[str, Any]:
    lesson = LESSONS[name]
    checked = lesson.check(values)
    found = lesson.work(**checked) if subject is None else lesson.work(run=subject[0], data=subject[1], picture=None, **checked)
    return as_json(found)  # type: ignore[no-any-return]


CASES = [
    (name, kind) for name, lesson in LESSONS.items()
    for kind in (["nothing"] if lesson.of == "nothing" else ["points"] if lesson.of == "plane" else ["images", "points"])
    if name != "density"
]  # fmt: skip


@pytest.mark.parametrize(("name", "kind"), CASES)
def test_every_lesson_shows_something_and_reacts(name: str, kind: str, subjects: dict[str, tuple[Run, Dataset]]) -> None:
    lesson, subject = LESSONS[name], subjects.get(kind)
    first = work(name, subject)
    assert first["panels"] and lesson.words.count(".") + lesson.words.count("?") >= 3 and lesson.command.startswith("reverie ")
    moved = next(c for c in lesson.controls if c.kind in ("slider", "whole") or c.kind == "cells" or len(c.choices) > 1)
    other: Any = {
        "slider": moved.high - 0.1 * (moved.high - moved.low), "whole": round(moved.high / 2) + 1,
        "cells": [[1, 0], [1, 1]], "choice": moved.choices[-1:] and moved.choices[-1],
    }[moved.kind]  # fmt: skip
    assert work(name, subject, **{moved.name: other}) != first
    assert work(name, subject) == first


def test_the_density_of_the_flow_adds_up_to_one(subjects: dict[str, tuple[Run, Dataset]]) -> None:
    said = work("density", subjects["points"])["panels"][1]["lines"][0]
    assert 0.8 < float(said.split()[4]) < 1.2


@pytest.fixture(scope="module")
def people(trained: Callable[..., Run], tmp_path_factory: pytest.TempPathFactory) -> tuple[Run, Dataset]:
    """Heights and weights: columns whose means and scales are far from 0 and 1."""
    random = np.random.default_rng(0)
    height = random.normal(170, 9, 3000)
    weight = 70 + 0.9 * (height - 170) + random.normal(0, 8, 3000)
    table = tmp_path_factory.mktemp("people") / "people.csv"
    np.savetxt(table, np.stack([height, weight], -1), "%.5f", ",", header="height,weight", comments="")
    run = trained("people", str(table), steps=700, network="mlp:hidden=64")
    return run, Dataset("people", torch.from_numpy(np.stack([height, weight], -1)).float())


def test_a_density_of_columns_in_their_units_adds_up_to_one(people: tuple[Run, Dataset]) -> None:
    plane, said = work("density", people)["panels"]
    assert 0.95 < float(said["lines"][0].split()[4]) < 1.05
    peak = 1 / (2 * np.pi * 9 * 8)  # of the normal distribution
    assert 0.6 * peak < float(said["lines"][1].split()[5]) < 1.7 * peak
    (left, right), (low, high) = plane["limits"]
    assert (left + right) / 2 == pytest.approx(170, abs=3) and (low + high) / 2 == pytest.approx(70, abs=3)
    assert 4 < (right - left) / 9 < 12 and 4 < (high - low) / 11.4 < 12  # each column by its own scale


def test_the_darkest_place_of_a_density_is_where_the_data_are(people: tuple[Run, Dataset]) -> None:
    plane, _ = work("density", people)["panels"]
    shade = np.asarray(Image.open(io.BytesIO(base64.b64decode(plane["below"].split(",")[1]))))[..., 3].astype(float)
    (left, right), (low, high) = plane["limits"]
    x = left + (right - left) * (np.arange(shade.shape[1]) + 0.5) / shade.shape[1]
    y = high - (high - low) * (np.arange(shade.shape[0]) + 0.5) / shade.shape[0]
    weight = shade**2 / (shade**2).sum()  # shades are roots
    assert float((weight * x).sum()) == pytest.approx(170, abs=3)
    assert float((weight * y[:, None]).sum()) == pytest.approx(70, abs=3)


@pytest.mark.parametrize("name", ["field", "paths", "samplers"])
def test_planes_are_centred_on_the_data(name: str, people: tuple[Run, Dataset]) -> None:
    panel = work(name, people)["panels"][0]
    for plane in panel["items"] if panel["kind"] == "planes" else [panel]:
        (left, right), (low, high) = plane["limits"]
        assert left < 155 < 185 < right and low < 50 < 90 < high and right - left < 150 and high - low < 200


def test_a_way_starts_where_it_is_told(people: tuple[Run, Dataset]) -> None:
    panel = work("paths", people, place=[[1.0, -2.0]], steps=4)["panels"][0]
    origin, unit = np.array(panel["origin"]), np.array(panel["unit"])
    assert np.allclose(panel["paths"][0]["points"][:2], origin + unit * [1, -2], rtol=1e-3)
    assert origin == pytest.approx([170, 70], abs=3)


def test_a_step_without_fresh_noise_is_ddim_and_its_parts_add_up(digits_run: Run) -> None:
    """x_s = alpha_s x0 + sigma_s eps is what DDIM's own step gives."""
    from reverie.base.noise import Noise, image_seeds
    from reverie.diffusion.samplers import Frame
    from reverie.diffusion.samplers.onestep import DDIM

    data = of(digits_run)
    panels = work("step", (digits_run, data), t=0.6, share=0.5, eta=0.0, number=3, seed=2)["panels"]
    shown = pixels(panels[0]["items"][-1]["image"])
    assert panels[1]["items"][2]["value"] == 0
    denoiser = digits_run.diffusion.denoiser
    x0 = digits_run.model.encode(data.batch(torch.tensor([3]))[0])
    alpha, sigma = denoiser.schedule(0.6)
    x = alpha * x0 + sigma * Noise(image_seeds(2, 1)).like(x0)
    with torch.no_grad():
        now = Frame(0, 2, 0.6, x, denoiser(x, 0.6, data.labels[3:4]))  # type: ignore[index]
        expected, _ = DDIM().step(denoiser, now, 0.3, Noise(image_seeds(0, 1)), None)
    assert np.abs(shown.astype(int) - np.asarray(255 * digits_run.decode(expected)[0].clip(0, 1)).round()).max() <= 1


def pixels(address: str) -> np.ndarray:
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(address.split(",")[1]))))


def test_the_posterior_is_the_one_of_the_process(digits_run: Run) -> None:
    data = of(digits_run)
    found = work("posterior", (digits_run, data), t=0.5, share=0.4, number=1, seed=0)["panels"]
    schedule = digits_run.diffusion.denoiser.schedule
    _, variance = posterior(schedule, torch.zeros(1, 1), torch.zeros(1, 1), 0.5, 0.2)
    told = float(found[2]["lines"][0].split()[-1])
    assert told == pytest.approx(float(variance) ** 0.5, abs=5e-4)
    u, density = np.array(found[1]["x"]), np.array(found[1]["series"][1]["y"])
    assert np.trapezoid(density, u) == pytest.approx(1, abs=0.01)


def test_scale_one_of_guidance_is_the_label_alone(digits_run: Run) -> None:
    items = work("guidance", (digits_run, of(digits_run)), scale=1.0)["panels"][0]["items"]
    assert items[2]["image"] == items[4]["image"]
    items = work("guidance", (digits_run, of(digits_run)), scale=0.0)["panels"][0]["items"]
    assert items[1]["image"] == items[4]["image"]


def test_the_plan_shown_is_the_cheapest() -> None:
    x, y = [[0.0, 0.0], [1.0, 0.0]], [[1.0, 0.5], [0.0, 0.5]]
    said = work("transport", x=x, y=y, epsilon=0.01)["panels"][2]["lines"][0]
    best = exact(between(torch.tensor(x), torch.tensor(y))).cost
    assert float(said.split()[1]) == pytest.approx(float(best), abs=1e-4) == pytest.approx(0.25)


def test_bands_take_three_colours_and_an_arrow_two_with_both() -> None:
    assert work("coloring")["panels"][1]["items"][1]["value"] == 3
    arrow = [[int(i == 0 or j == 0 or i == j) for j in range(6)] for i in range(6)]
    assert work("coloring", pattern=arrow, problem="columns")["panels"][1]["items"][1]["value"] == 6


def test_a_rotation_gives_the_embedding_of_the_offset() -> None:
    said = work("embedding", position=7, offset=31)["panels"][2]["lines"][1]
    assert float(said.split()[-1]) < 1e-12


@pytest.mark.parametrize(
    ("text", "f", "slope"),
    [
        ("sin(x) * x^2", lambda x: math.sin(x) * x**2, lambda x: math.cos(x) * x**2 + 2 * x * math.sin(x)),
        ("exp(-x^2 / 2)", lambda x: math.exp(-(x**2) / 2), lambda x: -x * math.exp(-(x**2) / 2)),
        ("2 * pi * x - e", lambda x: 2 * math.pi * x - math.e, lambda x: 2 * math.pi),
        ("-x", lambda x: -x, lambda x: -1.0),
    ],
)  # fmt: skip
def test_typed_functions_and_their_slopes(text: str, f: Any, slope: Any) -> None:
    said = work("derivatives", formula=text, at=0.7)["panels"][1]["lines"][0]
    value, rise = (float(part.split()[k].rstrip(",")) for part, k in ((said, 2), (said, -1)))
    assert value == pytest.approx(f(0.7), rel=1e-4) and rise == pytest.approx(slope(0.7), rel=1e-4)


@pytest.mark.parametrize(
    "text",
    [
        "__import__('os').system('id')", "x.__class__", "().__class__.__bases__", "open('/etc/passwd')", "lambda: x",
        "[x for x in x]",
        "eval('1')", "x if x else x", "f'{x}'", "x; x", "x = 1", "sin(x, x)", "sin(**x)", "globals()", "1e9", "True",
        "'a'", "", "y",
        "(" * 300 + "x" + ")" * 300, "9**9**9**9", "-" * 60 + "x",
    ],
)  # fmt: skip
def test_what_is_no_formula_is_refused_and_never_run(text: str) -> None:
    with pytest.raises(UserError):
        function(text)(torch.tensor(1.0))


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("slider", 7.0), ("slider", "1"), ("slider", True), ("whole", float("inf")), ("choice", "c"), ("text",
        "x" * 300), ("text", 3),
        ("points", []), ("points", [[1, 2, 3]]), ("points", [[1e9, 0]]), ("points", [[0, 0]] * 1000), ("cells", [[1], [1, 2]]),
        ("cells", [[1] * 100] * 100), ("cells", 7),
    ],
)  # fmt: skip
def test_wild_values_are_refused(kind: str, value: Any) -> None:
    with pytest.raises(UserError):
        Control("x", "X", 0.5, kind, 0, 1, choices=("a", "b")).check(value)


def test_heat_is_white_at_zero() -> None:
    colours = heat(np.array([[-1.0, 0.0, 1.0]]))
    assert (
        colours[0, 1].tolist() == [255, 255, 255]
        and colours[0, 0, 2] > colours[0, 0, 0]
        and colours[0, 2, 0] > colours[0, 2, 2]
    )
