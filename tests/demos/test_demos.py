"""Demos compute what their formulas state on trained runs; typed expressions are parsed, never executed."""

from __future__ import annotations

import base64
import io
import math
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from reverie import api
from reverie.base.errors import UserError
from reverie.data import Dataset
from reverie.demos import DEMOS
from reverie.demos.demo import Control
from reverie.demos.expressions import parse_function
from reverie.demos.panels import heatmap
from reverie.diffusion.process import posterior
from reverie.runs.run import Run
from reverie.studio.serialize import serialize
from reverie.transport import between, exact


def training_data(run: Run) -> Dataset:
    return api.load_source_data(run.config.data, folder=run.path).split(run.config.data.seed)[0]


@pytest.fixture(scope="module")
def subjects(digits_run: Run, patterns_run: Run) -> dict[str, tuple[Run, Dataset]]:
    return {"images": (digits_run, training_data(digits_run)), "points": (patterns_run, training_data(patterns_run))}


def compute(name: str, subject: tuple[Run, Dataset] | None = None, **values: Any) -> dict[str, Any]:
    demo = DEMOS[name]
    checked = demo.check(values)
    inputs = {} if subject is None else {"run": subject[0], "data": subject[1], "image": None}
    return serialize(demo.compute(**inputs, **checked))  # type: ignore[no-any-return]


def numbers(line: str) -> list[float]:
    """Return the numbers in a line of text."""
    return [float(number) for number in re.findall(r"-?\d+(?:\.\d+)?(?:e[-+]?\d+)?", line)]


CASES = [
    (name, kind) for name, demo in DEMOS.items()
    for kind in (
        ["nothing"] if not demo.needs_run else ["points"] if demo.requires == "points2d" else ["images", "points"]
    )
    if name != "density"
]  # fmt: skip


@pytest.mark.parametrize(("name", "kind"), CASES)
def test_every_demo_reacts_to_its_controls(name: str, kind: str, subjects: dict[str, tuple[Run, Dataset]]) -> None:
    demo, subject = DEMOS[name], subjects.get(kind)
    first = compute(name, subject)
    assert first["panels"] and demo.text.count(".") + demo.text.count("?") >= 3 and demo.command.startswith("reverie ")
    control = next(c for c in demo.controls if c.kind in ("slider", "integer") or c.kind == "matrix" or len(c.choices) > 1)
    other: Any = {
        "slider": control.high - 0.1 * (control.high - control.low), "integer": round(control.high / 2) + 1,
        "matrix": [[1, 0], [1, 1]], "choice": control.choices[-1:] and control.choices[-1],
    }[control.kind]  # fmt: skip
    assert compute(name, subject, **{control.name: other}) != first
    assert compute(name, subject) == first


def test_the_density_of_the_flow_integrates_to_one(subjects: dict[str, tuple[Run, Dataset]]) -> None:
    integral = numbers(compute("density", subjects["points"])["panels"][1]["lines"][0])[0]
    assert 0.8 < integral < 1.2


@pytest.fixture(scope="module")
def people(trained: Callable[..., Run], tmp_path_factory: pytest.TempPathFactory) -> tuple[Run, Dataset]:
    """Return a run on heights and weights, columns whose means and scales are far from 0 and 1."""
    random = np.random.default_rng(0)
    height = random.normal(170, 9, 3000)
    weight = 70 + 0.9 * (height - 170) + random.normal(0, 8, 3000)
    table = tmp_path_factory.mktemp("people") / "people.csv"
    np.savetxt(table, np.stack([height, weight], -1), "%.5f", ",", header="height,weight", comments="")
    run = trained("people", str(table), steps=700, network="mlp:hidden=64")
    return run, Dataset("people", torch.from_numpy(np.stack([height, weight], -1)).float())


def test_a_density_in_user_units_integrates_to_one(people: tuple[Run, Dataset]) -> None:
    plot, text = compute("density", people)["panels"]
    assert 0.95 < numbers(text["lines"][0])[0] < 1.05
    peak = 1 / (2 * np.pi * 9 * 8)  # of the normal distribution
    assert 0.6 * peak < numbers(text["lines"][1])[0] < 1.7 * peak
    (left, right), (low, high) = plot["limits"]
    assert (left + right) / 2 == pytest.approx(170, abs=3) and (low + high) / 2 == pytest.approx(70, abs=3)
    assert 4 < (right - left) / 9 < 12 and 4 < (high - low) / 11.4 < 12  # each column by its own scale


def test_a_density_is_darkest_at_the_mean_of_the_data(people: tuple[Run, Dataset]) -> None:
    plot, _ = compute("density", people)["panels"]
    shade = np.asarray(Image.open(io.BytesIO(base64.b64decode(plot["background"].split(",")[1]))))[..., 3].astype(float)
    (left, right), (low, high) = plot["limits"]
    x = left + (right - left) * (np.arange(shade.shape[1]) + 0.5) / shade.shape[1]
    y = high - (high - low) * (np.arange(shade.shape[0]) + 0.5) / shade.shape[0]
    weight = shade**2 / (shade**2).sum()  # shades are roots
    assert float((weight * x).sum()) == pytest.approx(170, abs=3)
    assert float((weight * y[:, None]).sum()) == pytest.approx(70, abs=3)


@pytest.mark.parametrize("name", ["field", "paths", "samplers"])
def test_plots_are_centred_on_the_data(name: str, people: tuple[Run, Dataset]) -> None:
    panel = compute(name, people)["panels"][0]
    for plot in panel["items"] if panel["kind"] == "plots2d" else [panel]:
        (left, right), (low, high) = plot["limits"]
        assert left < 155 < 185 < right and low < 50 < 90 < high and right - left < 150 and high - low < 200


def test_a_trajectory_starts_at_the_chosen_noise(people: tuple[Run, Dataset]) -> None:
    panel = compute("paths", people, noise=[[1.0, -2.0]], steps=4)["panels"][0]
    origin, unit = np.array(panel["origin"]), np.array(panel["unit"])
    assert np.allclose(panel["paths"][0]["points"][:2], origin + unit * [1, -2], rtol=1e-3)
    assert origin == pytest.approx([170, 70], abs=3)


def test_a_step_without_fresh_noise_is_ddim(digits_run: Run) -> None:
    """x_s = alpha_s x0 + sigma_s eps equals the step of the DDIM sampler."""
    from reverie.base.noise import Noise, image_seeds
    from reverie.diffusion.samplers import Frame
    from reverie.diffusion.samplers.onestep import DDIM

    data = training_data(digits_run)
    panels = compute("step", (digits_run, data), t=0.6, ratio=0.5, eta=0.0, number=3, seed=2)["panels"]
    shown = pixels(panels[0]["items"][-1]["image"])
    assert panels[1]["items"][2]["value"] == 0
    denoiser = digits_run.diffusion.denoiser
    x0 = digits_run.model.encode(data.batch(torch.tensor([3]))[0])
    alpha, sigma = denoiser.schedule(0.6)
    x = alpha * x0 + sigma * Noise(image_seeds(2, 1)).like(x0)
    with torch.no_grad():
        frame = Frame(0, 2, 0.6, x, denoiser(x, 0.6, data.labels[3:4]))  # type: ignore[index]
        expected, _ = DDIM().step(denoiser, frame, 0.3, Noise(image_seeds(0, 1)), None)
    assert np.abs(shown.astype(int) - np.asarray(255 * digits_run.decode(expected)[0].clip(0, 1)).round()).max() <= 1


def pixels(address: str) -> np.ndarray:
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(address.split(",")[1]))))


def test_the_posterior_matches_the_forward_process(digits_run: Run) -> None:
    data = training_data(digits_run)
    found = compute("posterior", (digits_run, data), t=0.5, ratio=0.4, number=1, seed=0)["panels"]
    schedule = digits_run.diffusion.denoiser.schedule
    _, variance = posterior(schedule, torch.zeros(1, 1), torch.zeros(1, 1), 0.5, 0.2)
    assert numbers(found[2]["lines"][0])[-1] == pytest.approx(float(variance) ** 0.5, abs=5e-4)
    u, density = np.array(found[1]["x"]), np.array(found[1]["series"][1]["y"])
    assert np.trapezoid(density, u) == pytest.approx(1, abs=0.01)


def test_guidance_at_scale_one_is_conditional_and_at_zero_unconditional(digits_run: Run) -> None:
    items = compute("guidance", (digits_run, training_data(digits_run)), scale=1.0)["panels"][0]["items"]
    assert items[2]["image"] == items[4]["image"]
    items = compute("guidance", (digits_run, training_data(digits_run)), scale=0.0)["panels"][0]["items"]
    assert items[1]["image"] == items[4]["image"]


def test_the_exact_plan_has_the_least_cost() -> None:
    x, y = [[0.0, 0.0], [1.0, 0.0]], [[1.0, 0.5], [0.0, 0.5]]
    cost, _ = numbers(compute("transport", x=x, y=y, epsilon=0.01)["panels"][2]["lines"][0])
    best = exact(between(torch.tensor(x), torch.tensor(y))).cost
    assert cost == pytest.approx(float(best), abs=1e-4) == pytest.approx(0.25)


def test_a_banded_matrix_needs_three_colours_and_an_arrow_matrix_six() -> None:
    assert compute("coloring")["panels"][1]["items"][1]["value"] == 3
    arrow = [[int(i == 0 or j == 0 or i == j) for j in range(6)] for i in range(6)]
    assert compute("coloring", pattern=arrow, problem="columns")["panels"][1]["items"][1]["value"] == 6


def test_a_rotation_gives_the_embedding_of_the_offset() -> None:
    line = compute("embedding", position=7, offset=31)["panels"][2]["lines"][1]
    assert numbers(line)[-1] < 1e-12


@pytest.mark.parametrize(
    ("text", "f", "slope"),
    [
        ("sin(x) * x^2", lambda x: math.sin(x) * x**2, lambda x: math.cos(x) * x**2 + 2 * x * math.sin(x)),
        ("exp(-x^2 / 2)", lambda x: math.exp(-(x**2) / 2), lambda x: -x * math.exp(-(x**2) / 2)),
        ("2 * pi * x - e", lambda x: 2 * math.pi * x - math.e, lambda x: 2 * math.pi),
        ("-x", lambda x: -x, lambda x: -1.0),
    ],
)  # fmt: skip
def test_typed_functions_and_their_derivatives(text: str, f: Any, slope: Any) -> None:
    _, value, _, derivative = numbers(compute("derivatives", formula=text, at=0.7)["panels"][1]["lines"][0])
    assert value == pytest.approx(f(0.7), rel=1e-4) and derivative == pytest.approx(slope(0.7), rel=1e-4)


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
def test_invalid_expressions_are_refused_and_never_executed(text: str) -> None:
    with pytest.raises(UserError):
        parse_function(text)(torch.tensor(1.0))


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("slider", 7.0), ("slider", "1"), ("slider", True), ("integer", float("inf")), ("choice", "c"), ("text",
        "x" * 300), ("text", 3),
        ("points", []), ("points", [[1, 2, 3]]), ("points", [[1e9, 0]]), ("points", [[0, 0]] * 1000), ("matrix", [[1], [1, 2]]),
        ("matrix", [[1] * 100] * 100), ("matrix", 7),
    ],
)  # fmt: skip
def test_invalid_control_values_are_refused(kind: str, value: Any) -> None:
    with pytest.raises(UserError):
        Control("x", "X", 0.5, kind, 0, 1, choices=("a", "b")).check(value)


def test_a_heatmap_is_white_at_zero() -> None:
    colours = heatmap(np.array([[-1.0, 0.0, 1.0]]))
    assert (
        colours[0, 1].tolist() == [255, 255, 255]
        and colours[0, 0, 2] > colours[0, 0, 0]
        and colours[0, 2, 0] > colours[0, 2, 2]
    )
