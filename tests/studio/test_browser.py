"""The studio in a real browser: every page is used, without errors in the console."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from reverie.studio.library import path_id
from tests.conftest import TINY
from tests.studio.conftest import DIGITS, HTML, PATTERNS
from tests.studio.served import CHROMIUM, Served, served

if TYPE_CHECKING:
    from playwright.sync_api import Page

AXE = Path(__file__).parent / "axe" / "axe.min.js"
TIMEOUT = 240_000  # milliseconds, for a busy machine
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no chromium; install it with: apt-get install chromium")


class Visit:
    """A page of the studio, with its console errors and its requests."""

    def __init__(self, page: Page, server: Served) -> None:
        self.page, self.server = page, server
        self.wrong: list[str] = []
        self.requested: list[str] = []
        page.set_default_timeout(TIMEOUT)
        page.on("console", lambda m: self.wrong.append(m.text) if m.type in ("error", "warning") else None)
        page.on("pageerror", lambda error: self.wrong.append(str(error)))
        page.on("request", lambda request: self.requested.append(request.url))

    def go(self, place: str) -> None:
        self.page.goto(f"{self.server.origin}/#/{place}")
        self.page.wait_for_selector("main h1")

    def check_accessibility(self) -> None:
        """Assert that axe-core finds no serious or critical violation."""
        self.page.evaluate(AXE.read_text())
        found = self.page.evaluate("axe.run(document, {resultTypes: ['violations']})")
        serious = [v for v in found["violations"] if v["impact"] in ("serious", "critical")]
        assert not serious, [(v["id"], [n["html"][:160] for n in v["nodes"][:3]]) for v in serious]

    def painted(self, selector: str) -> bool:
        """Return whether a canvas shows more than one colour."""
        script = """canvas => {
            const d = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data;
            for (let i = 4; i < d.length; i++) if (d[i] != d[i % 4]) return true;
            return false; }"""
        return bool(self.page.eval_on_selector(selector, script))


@contextmanager
def visiting(folder: Path, **how: Any) -> Iterator[Visit]:
    from playwright.sync_api import sync_playwright

    with served(folder) as server, sync_playwright() as play:
        browser = play.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        visit = Visit(browser.new_page(viewport={"width": 1280, "height": 900}, **how), server)
        visit.page.goto(server.address)
        visit.page.wait_for_selector("main h1")
        yield visit
        assert not visit.wrong
        assert all(url.startswith((server.origin, "data:", "blob:")) for url in visit.requested)
        browser.close()


def test_a_visit(folder: Path, tmp_path: Path) -> None:
    root = tmp_path / "opened"
    shutil.copytree(folder, root)
    with visiting(root, color_scheme="light") as visit:
        begin_training(visit)
        sample(visit)
        inpaint(visit)
        flip_an_illusion(visit)
        move_points(visit)
        open_demos(visit, ("forward", "derivatives"))
        turn_dark(visit)
        see_previews(visit)
    assert visit.server.process.wait(120) == 0


def begin_training(visit: Visit) -> None:
    page = visit.page
    assert "token" not in page.url
    assert page.locator("table.runs tbody tr").count() == 2
    page.click("text=New training")
    page.fill("label:text-is('Run name') + input", "fresh")
    page.fill("label:text-is('Minutes') + input", "")
    page.click("text=Other options")
    page.fill("label:text-is('Steps') + input", "30")
    page.select_option("label:text-is('Network') + select", "unet")
    page.fill("label:text-is('Options of unet') + input", TINY.partition(":")[2])
    page.click("text=Start training")
    page.wait_for_selector(".status")


def see_previews(visit: Visit) -> None:
    page = visit.page
    visit.go("runs")
    page.click("text=runs/fresh")
    page.wait_for_selector("img[alt^='Previews at step']")
    page.wait_for_selector(".chart canvas")
    page.wait_for_selector(".figures b:text-is('finished')")
    assert page.eval_on_selector("img[alt^='Previews at step']", "image => image.naturalWidth") > 50
    visit.check_accessibility()


def sample(visit: Visit) -> None:
    page = visit.page
    visit.go(f"sample?run={DIGITS}&n=4&steps=8&autoguidance=1")
    page.select_option("label:text-is('Label') + select", "3")
    page.click("button.main:text-is('Sample')")
    page.wait_for_selector(".inspector")
    assert visit.painted(".inspector canvas") and "label 3" in page.inner_text(".code pre >> nth=0")
    slider = page.locator("input[aria-label='Time']")
    before = page.eval_on_selector(".tile canvas", "c => c.toDataURL()")
    slider.focus()
    for _ in range(3):
        slider.press("ArrowLeft")
    page.wait_for_function("before => document.querySelector('.tile canvas').toDataURL() !== before", arg=before)
    visit.check_accessibility()
    page.click("button:text-is('Save')")
    page.wait_for_selector(".saved img")
    page.click("text=Nearest training image")
    page.wait_for_selector("text=RMS distance")
    page.reload()
    page.wait_for_selector(".saved img")
    assert page.input_value("label:text-is('Label') + select") == "3"
    assert page.input_value("label:text-is('Steps') + input") == "8"
    visit.go(f"draw?run={DIGITS}&steps=9")  # the old address, in bookmarks and saved images
    page.wait_for_function("document.querySelector('nav a[aria-current]')?.hash.startsWith('#/sample')")
    assert page.input_value("label:text-is('Steps') + input") == "9"


def inpaint(visit: Visit) -> None:
    page = visit.page
    visit.go(f"steer?run={DIGITS}&mode=inpaint&n=2&steps=4&method=replace")
    page.click(".drop button")
    page.wait_for_selector(".brush")
    place = page.locator(".brush").bounding_box()
    assert place is not None
    page.mouse.move(place["x"] + 0.2 * place["width"], place["y"] + 0.3 * place["height"])
    page.mouse.down()
    page.mouse.move(place["x"] + 0.7 * place["width"], place["y"] + 0.6 * place["height"], steps=6)
    page.mouse.up()
    assert visit.painted(".brush canvas:nth-child(2)")
    page.click("button:text-is('Invert')")
    page.click("button:text-is('Undo')")
    page.click("button[type=submit]")
    page.wait_for_selector("img[alt='Standard deviation of the results']")
    visit.check_accessibility()


def flip_an_illusion(visit: Visit) -> None:
    page = visit.page
    visit.go(f"steer?run={DIGITS}&mode=illusion&n=1&steps=4&l0=6&l1=9")
    page.click("button[type=submit]")
    page.wait_for_selector("text=next view: rotate180: 9")
    page.wait_for_timeout(100)
    before = page.eval_on_selector(".flip canvas", "c => c.toDataURL()")
    page.click("button:text-is('Flip')")
    page.wait_for_selector("text=next view: identity: 6")
    assert page.eval_on_selector(".flip canvas", "c => c.toDataURL()") != before


def move_points(visit: Visit) -> None:
    page = visit.page
    visit.go(f"points?run={PATTERNS}&n=500&steps=10")
    page.click("button.main:text-is('Sample')")
    page.wait_for_selector("button[aria-label='Pause']")
    page.wait_for_selector("button[aria-label='Play']")
    first = page.eval_on_selector(".plot2d canvas", "c => c.toDataURL()")
    slider = page.locator("input[aria-label='Time']")
    slider.focus()
    slider.press("Home")
    page.wait_for_function("first => document.querySelector('.plot2d canvas').toDataURL() !== first", arg=first)
    page.click(".tabs button:text-is('Vector fields')")
    page.wait_for_selector(".textlines li")
    assert visit.painted(".plot2d canvas")


def open_demos(visit: Visit, names: tuple[str, ...]) -> None:
    page = visit.page
    for name in names:
        visit.go(f"demos/{name}?run={DIGITS if name != 'field' else PATTERNS}")
        page.wait_for_selector(".formula math")
        page.wait_for_selector(".panels > *")
        change_a_control(page)
    visit.check_accessibility()


def change_a_control(page: Page) -> None:
    """Move the first slider of a demo, or choose another name, and wait until the panels change."""
    drawn = "[...document.querySelectorAll('.panels canvas')].map(c => c.toDataURL()).join()"
    shown = f"document.querySelector('.panels').innerHTML + {drawn}"
    page.wait_for_function("document.querySelector('[aria-busy]')?.getAttribute('aria-busy') === 'false'")
    before = page.evaluate(shown)
    sliders = page.locator(".democontrols input[type=range]")
    if sliders.count():
        sliders.first.focus()
        for _ in range(4):
            sliders.first.press("ArrowRight")
    elif page.locator(".democontrols .matrix button").count():
        page.locator(".democontrols .matrix button").nth(5).click()
    else:
        choice = page.locator(".democontrols select").last
        choice.select_option(index=min(7, choice.locator("option").count() - 1))
    page.wait_for_function(f"before => {shown} !== before", arg=before)


def turn_dark(visit: Visit) -> None:
    page = visit.page
    visit.go("runs")
    light = page.evaluate("getComputedStyle(document.documentElement).backgroundColor")
    page.click("button.theme")
    assert page.evaluate("getComputedStyle(document.documentElement).backgroundColor") != light
    page.reload()
    page.wait_for_selector("table.runs")
    assert page.evaluate("document.documentElement.dataset.theme") == "dark"
    visit.check_accessibility()


@pytest.mark.slow
def test_every_page_in_both_colours_and_on_a_phone(folder: Path) -> None:
    with visiting(folder, color_scheme="light") as visit:
        page = visit.page
        names = [demo["name"] for demo in page.evaluate("fetch('/api/studio').then(r => r.json())")["demos"]]
        for name in names:
            run = PATTERNS if name in ("field", "density", "paths") else DIGITS
            visit.go(f"demos/{name}?run={run}")
            page.wait_for_selector(".panels > *")
            if name != "density":
                change_a_control(page)
            visit.check_accessibility()
        places = (
            "runs", "train", f"run/{DIGITS}", f"sample?run={DIGITS}", f"steer?run={DIGITS}", f"points?run={PATTERNS}",
            "data?data=digits8",
            f"compare?runs={DIGITS},{PATTERNS}",
        )  # fmt: skip
        visit.go(f"data?data={path_id('photos')}")
        page.wait_for_selector(f"text={HTML}")  # as text
        assert page.locator("img[src='x']").count() == 0 and page.locator("text=<b>broken<b>.png").count() >= 1
        for dark in (False, True):
            if dark:
                page.click("button.theme")
            for width in (390, 1400):
                page.set_viewport_size({"width": width, "height": 844})
                for place in places:
                    visit.go(place)
                    page.wait_for_timeout(300)
                    assert page.evaluate("document.documentElement.scrollWidth") <= width, place
                    visit.check_accessibility()
