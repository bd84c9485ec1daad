"""Pages refuse unsuitable runs, the form offers suitable families, and only equal measures share an axis."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from reverie import api
from reverie.data import FROM_FILES, load_data
from reverie.families import FAMILIES
from reverie.runs.run import Run
from reverie.studio.app import Studio
from reverie.studio.guard import Guard
from reverie.studio.library import path_id
from tests.studio.asgi import PORT, TOKEN
from tests.studio.conftest import DIGITS, PATTERNS
from tests.studio.served import CHROMIUM
from tests.studio.test_app import fetch
from tests.studio.test_browser import Visit, visiting

VAE, AGAIN, SERIES, FITTED = (path_id(f"runs/{name}") for name in ("vae8", "again", "series", "fitted"))
browser = pytest.mark.skipif(CHROMIUM is None, reason="no chromium; install it with: apt-get install chromium")


@pytest.fixture(scope="module")
def many(trained: Callable[..., Run], folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with runs of several families and kinds, and data files."""
    root = tmp_path_factory.mktemp("many")
    shutil.copytree(folder / "runs", root / "runs")
    shutil.copytree(folder / "runs" / "digits8", root / "runs" / "again")
    for name, run in (
        ("vae8", trained("vae8", "digits8", family="vae", steps=20)),
        ("series", trained("series", "oscillation", family="ar", points=400)),
        ("fitted", trained("fitted", "digits8", family="gaussian")),
    ):
        shutil.copytree(run.path, root / "runs" / name)
    np.savetxt(root / "people.csv", np.random.default_rng(0).normal([170, 70], [9, 12], (200, 2)), "%.4f", ",")
    (root / "book.txt").write_text("It was a dark and stormy night. " * 200)
    rows = [f"{k},{k + 1} and {k}" for k in range(40)]
    (root / "answers.csv").write_text("source,target\n" + "\n".join(rows))
    shutil.copytree(folder / "photos", root / "photos")
    return root


@pytest.fixture(scope="module")
def visit(many: Path) -> Iterator[Visit]:
    with visiting(many, color_scheme="light") as made:
        yield made


def test_the_kind_of_data_is_known_before_training(many: Path) -> None:
    guard = Guard(Studio(many, []).app(), port=PORT, token=TOKEN)
    found = {one["name"]: one["id"] for one in fetch(guard, "/api/data").json()["local"]}
    kinds = {name: fetch(guard, f"/api/data/{key}").json()["kind"] for name, key in found.items()}
    assert kinds == {"people.csv": "points", "book.txt": "text", "answers.csv": "pairs", "photos": "images"}
    for name in api.names_of("data"):
        kind = fetch(guard, f"/api/data/{name}").json()["kind"]
        assert kind == ("images" if name in FROM_FILES else load_data(name, points=400).kind), name
    assert fetch(guard, "/api/data/nothing").status == 400


def test_families_are_listed_by_kind_of_data(many: Path) -> None:
    families = fetch(Guard(Studio(many, []).app(), port=PORT, token=TOKEN), "/api/studio").json()["families"]
    for name, family in FAMILIES.items():
        assert {kind for kind, able in families.items() if name in able} == set(family.kinds)


def test_held_out_metrics_have_a_measure_and_a_dataset(many: Path) -> None:
    guard = Guard(Studio(many, []).app(), port=PORT, token=TOKEN)
    runs = {key: fetch(guard, f"/api/runs/{key}").json() for key in (DIGITS, AGAIN, PATTERNS, FITTED, VAE)}
    assert runs[DIGITS]["measure"] == runs[AGAIN]["measure"] and runs[DIGITS]["fingerprint"] == runs[AGAIN]["fingerprint"]
    others = [(runs[key]["measure"], runs[key]["fingerprint"]) for key in (DIGITS, PATTERNS, FITTED, VAE)]
    assert len(set(others)) == 4


@browser
@pytest.mark.parametrize(
    ("place", "key", "fits"),
    [
        ("steer", VAE, "runs/digits8"), ("steer", PATTERNS, "runs/digits8"), ("points", DIGITS, "runs/patterns"),
        ("demos/forward", VAE, "runs/digits8"), ("demos/field", DIGITS, "runs/patterns"),
        ("steer", "0" * 12, "runs/digits8"), ("sample", "0" * 12, "runs/digits8"),
    ],
)  # fmt: skip
def test_an_unsuitable_run_is_not_replaced_silently(visit: Visit, place: str, key: str, fits: str) -> None:
    page = visit.page
    visit.go(f"{place}?run={key}")
    alert = page.locator("main [role=alert]")
    alert.wait_for()
    name = {VAE: "runs/vae8", PATTERNS: "runs/patterns", DIGITS: "runs/digits8"}.get(key)
    assert (name or "no longer") in alert.inner_text() and page.locator("main form, main select").count() == 0
    assert f"run={key}" in page.url
    visit.check_accessibility()
    alert.locator(f"button:text-is('{fits}')").click()
    page.wait_for_selector("main select")
    assert page.locator("main [role=alert]").count() == 0 and f"run={path_id(fits)}" in page.url


@browser
def test_steering_a_sample_keeps_its_run(visit: Visit) -> None:
    page = visit.page
    visit.go(f"sample?run={VAE}&n=1")
    page.click("button.main:text-is('Sample')")
    page.click(".inspector a:text-is('Steer')")
    page.wait_for_selector("main [role=alert]")
    assert "runs/vae8" in page.inner_text("main [role=alert]") and f"run={VAE}" in page.url


@browser
@pytest.mark.parametrize(
    ("data", "kind"), [("oscillation", "series"), ("reversal", "pairs"), ("prose", "text"), ("digits8", "images")]
)
def test_the_form_offers_only_families_for_the_data(visit: Visit, data: str, kind: str) -> None:
    page = visit.page
    visit.go(f"train?data={data}")
    page.wait_for_selector(f"text=Kind of data: {kind}")
    names = page.locator("label:text-is('Family') + select option").evaluate_all("all => all.map(o => o.value)")
    assert set(names) - {""} == {name for name, family in FAMILIES.items() if kind in family.kinds}
    sent: list[Any] = []

    def note(route: Any) -> None:
        sent.append(json.loads(route.request.post_data))
        route.fulfill(status=200, content_type="application/json", body=json.dumps({"id": DIGITS}))

    page.route("**/api/trainings", note)
    page.click("text=Start training")
    page.wait_for_selector(".status")
    page.unroute("**/api/trainings")
    assert kind in FAMILIES[sent[0]["options"]["family"]].kinds
    visit.check_accessibility()


@browser
def test_only_equal_measures_share_an_axis(visit: Visit) -> None:
    page = visit.page
    visit.go(f"compare?runs={DIGITS},{AGAIN},{PATTERNS},{SERIES},{FITTED}")
    page.wait_for_selector(".chart canvas")
    titles = page.locator("main > .charts figcaption").all_inner_texts()
    assert len(titles) == len(set(titles)) == 4
    legends = page.locator("main > .charts .chart").evaluate_all(
        "all => all.map(c => [...c.querySelectorAll('.u-label')].slice(1).map(l => l.textContent).filter(Boolean))"
    )
    assert sorted(map(sorted, legends)) == [
        ["runs/again", "runs/digits8"], ["runs/fitted"], ["runs/patterns"], ["runs/series"],
    ]  # fmt: skip
    notes = page.inner_text("main > ul.notes")
    assert all(name in notes for name in ("runs/patterns", "runs/series", "runs/fitted")) and "runs/again" not in notes
    visit.check_accessibility()


@browser
def test_both_plots_have_one_scale(visit: Visit) -> None:
    page = visit.page
    visit.go(f"sample?run={PATTERNS}&n=800&steps=6")
    page.click("button.main:text-is('Sample')")
    page.wait_for_selector("button[type=button]:text-is('Stop')", state="detached")
    page.wait_for_function("document.querySelector('.time output')?.textContent === 't = 0.00'")
    shown = """canvas => {
        const d = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data;
        let blue = 0;
        for (let i = 0; i < d.length; i += 4) blue += d[i + 3] > 80 && d[i + 2] > d[i] + 60;
        return blue; }"""
    pixels = page.locator(".pair .plot2d canvas").evaluate_all(f"all => all.map({shown})")
    assert len(pixels) == 2 and min(pixels) > 700


@browser
def test_a_queued_training_is_shown_and_can_be_cancelled(visit: Visit, many: Path) -> None:
    page = visit.page
    visit.go("runs")
    options = {"steps": 200_000, "network": "mlp:hidden=8", "points": 100}
    start = """async ([names, options]) => {
        for (const name of names) await fetch('/api/trainings', {method: 'POST', headers: {'content-type': 'application/json'},
            body: JSON.stringify({data: 'spiral', name, options})}); }"""
    try:
        page.evaluate(start, [["one", "two", "three"], options])
        visit.go(f"run/{path_id('runs/three')}")
        page.wait_for_selector(".figures b:text-is('queued')")
        visit.check_accessibility()
        page.click("button:text-is('Cancel')")
        page.wait_for_selector("table.runs")
        assert page.locator("a:text-is('runs/three')").count() == 0
    finally:
        stop = "name => fetch(`/api/runs/${name}/stop`, {method: 'POST'})"
        for name in ("one", "two"):
            page.evaluate(stop, path_id(f"runs/{name}"))
