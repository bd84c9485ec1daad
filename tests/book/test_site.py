"""The book as a site: it builds without a warning, and opens from disk without network access."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.book.blocks import BOOK
from tests.studio.served import CHROMIUM

ROOT = BOOK.parent.parent


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("book")
    for name in ("docs", "tools", "zensical.toml"):
        (shutil.copytree if (ROOT / name).is_dir() else shutil.copy)(ROOT / name, folder / name)
    command = [sys.executable, "-m", "zensical", "build", "--strict"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder / "site"


def test_formulas_are_mathml(site: Path) -> None:
    for page in (site / "book").glob("*.html"):
        plain = re.sub(r"<(pre|code|script|style)\b.*?</\1>", "", page.read_text(), flags=re.DOTALL)
        assert "$" not in plain, f"{page.name} has LaTeX that was not converted to MathML"
    assert "<math" in (site / "book" / "forward.html").read_text()


def test_bars_in_cells_are_unescaped(site: Path) -> None:
    page = (site / "architecture.html").read_text()
    assert "Finding | None" in page and "\\|" not in page


def test_nothing_is_fetched_from_other_hosts(site: Path) -> None:
    for page in site.rglob("*.html"):
        assert not re.findall(r'<(?:script|link|img|iframe)[^>]+(?:src|href)="(?:https?:)?//[^"]*"', page.read_text()), (
            page.name
        )


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="no chromium; install it with: apt-get install chromium")
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_page_opens_from_disk(site: Path, scheme: str) -> None:
    from playwright.sync_api import sync_playwright

    wrong: list[str] = []
    requests: list[str] = []
    with sync_playwright() as play:
        browser = play.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        page = browser.new_page(color_scheme=scheme)  # type: ignore[arg-type]  # a string of two
        page.set_default_timeout(60_000)
        page.on("console", lambda m: wrong.append(m.text) if m.type in ("error", "warning") else None)
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.on("request", lambda request: requests.append(request.url))
        paper = set()
        for path in sorted(site.rglob("*.html")):
            if path.name != "404.html":  # for servers, with addresses of a server
                page.goto(path.as_uri())
                page.wait_for_selector("article h1")
                paper.add(page.evaluate("getComputedStyle(document.body).backgroundColor"))
        page.goto((site / "index.html").as_uri())
        page.keyboard.press("Control+k")
        page.keyboard.type("langevin")
        page.wait_for_selector(r"text=/^\d+ results?$/")
        browser.close()
    assert not wrong
    assert all(url.startswith(("file:", "data:", "blob:")) for url in requests)
    assert len(paper) == 1
    assert (sum(map(int, re.findall(r"\d+", paper.pop())[:3])) > 384) == (scheme == "light")


def test_formulas_keep_their_form() -> None:
    from tools.formulas import mathml

    assert "<msub><mi>log</mi><mn>2</mn></msub><mspace" in mathml(r"-\log_2 p", "inline")  # the index stays with its name
    assert "<msup><mi>sin</mi><mn>2</mn></msup>" in mathml(r"4 \sin^2 (x)", "inline")
    assert "<mi>log</mi><mspace" in mathml(r"\log p", "inline")
    assert mathml(r"|x|^2", "inline").count('lspace="0"') == 2  # bars are no relations
    assert 'lspace="0"' not in mathml(r"p(x \mid c)", "inline")
