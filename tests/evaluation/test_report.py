"""Reports: complete, self-contained, and safe with hostile names."""

from __future__ import annotations

import base64
from html.parser import HTMLParser
from pathlib import Path

import pytest

from reverie.base.errors import UserError
from reverie.draw.picture import figure, png_bytes
from reverie.evaluation.compare import Comparison
from reverie.evaluation.html_report import report, write_report
from reverie.evaluation.report_section import ReportSection
from reverie.evaluation.reports import Evaluation
from reverie.evaluation.scores import score
from reverie.evaluation.verdicts import assess

VOID = {"meta", "img"}


class Page(HTMLParser):
    """Reads a page, checks that every tag is closed in order, and keeps tags, attributes and text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(text)
        self.close()
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


HOSTILE = """</style><script>alert(1)</script>"'><img src=x onerror=alert(1)> &amp; \x1b[31m\u202etxt\x00 \ud800"""


def full(text: str) -> list[ReportSection]:
    made = figure(1, 1)
    return [
        ReportSection(
            text, text, (text,), (text,),
            {
                text: text, "bits": {"value": 1.25, "error": 0.01, "unit": text, "n": 2000, "seed": 1234},
                "rows": [{text: 1, "b": text}, {text: 22_000, "b": None}], "group": {"inner": {text: [1, 2]}, "more": [text]},
                "gone": {"not_computable": text}, "flag": True, "path": Path("a") / "b",
            },
            {text: png_bytes(made)},
        ),
        ReportSection("b", "Second", figures={"not_computable": text}),
    ]  # fmt: skip


def test_hostile_text_is_escaped() -> None:
    page = Page(report(HOSTILE, {HOSTILE: HOSTILE, "path": HOSTILE}, full(HOSTILE)))
    assert "script" not in {tag for tag, _ in page.tags}
    assert not any(key.startswith("on") for _, attributes in page.tags for key in attributes)
    assert "<script>alert(1)</script>" in page.text
    assert not set("\x1b\u202e\x00\ud800") & set(page.text)


def test_a_report_has_no_external_resources() -> None:
    page = Page(report("A report", {}, full("plain")))
    for tag, attributes in page.tags:
        assert tag not in ("script", "link", "iframe", "object", "base")
        for key in ("src", "href"):
            value = attributes.get(key) or "#"
            assert value.startswith(("#", "data:image/png;base64,")), (tag, value)
    source = next(attributes["src"] for tag, attributes in page.tags if tag == "img")
    assert source is not None and base64.b64decode(source.partition(",")[2]).startswith(b"\x89PNG")


def test_links_have_targets_and_figures_have_counts_seeds_and_units() -> None:
    page = Page(report("A report", {"samples": 2000, "seed": 1234}, full("plain")))
    ids = {f"#{attributes['id']}" for _, attributes in page.tags if "id" in attributes}
    assert {attributes["href"] for tag, attributes in page.tags if tag == "a"} == ids
    assert "1.25 ± 0.01 plain (n = 2,000, seed = 1234)" in page.text
    assert "Not computable: plain" in page.text and "not computable: plain" in page.text
    assert "22,000" in page.text and "yes" in page.text


def test_the_file_appears_whole_or_not_at_all(tmp_path: Path) -> None:
    out = write_report(tmp_path / "new" / "report.html", HOSTILE, {}, full(HOSTILE))
    assert Page(out.read_text(encoding="utf-8")).tags[0][0] == "html"
    broken = ReportSection("a", "A", pictures={"not a picture": b"text"})
    before = out.read_bytes()
    with pytest.raises(ValueError, match="neither PNG"):
        write_report(out, "title", {}, [broken])
    assert out.read_bytes() == before and [p.name for p in out.parent.iterdir()] == ["report.html"]


@pytest.mark.parametrize("name", ["report.pdf", "report", "."])
def test_a_report_is_an_html_file(name: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"\.html"):
        write_report(tmp_path / name, "title", {}, [])


def test_a_figure_and_its_floor_are_on_one_line() -> None:
    figure = {"value": 2.0, "error": 0.1, "floor": 1.0, "floor_error": 0.2, "samples": 256}
    page = Page(report("A report", {}, [ReportSection("a", "A", ("Shown once.",), figures={"frechet": figure})]))
    assert "2 ± 0.1 (real data 1 ± 0.2, samples = 256)" in page.text
    assert page.text.count("Shown once.") == 1  # in the box above the first section


def test_runs_without_figures_are_not_called_equal() -> None:
    lost = {"not_computable": "the data are missing"}
    sections = tuple(ReportSection(name, name, figures=lost) for name in ("quality", "precision_recall", "memorization"))
    found = Comparison(tuple(Evaluation({"run": f"runs/{name}"}, sections, (), ()) for name in "ab")).verdict()
    assert found[0].startswith("nothing to compare")
    for line, name in zip(found[1:3], "ab", strict=True):
        assert f" {name} " in line and "the data are missing" in line


@pytest.mark.parametrize(("precision", "good"), [(0.707, False), (0.93, True)])
def test_a_clearly_lower_precision_prevents_a_good_verdict(precision: float, good: bool) -> None:
    """A run with precision 0.707 against 1.000 was once called good."""
    alike = {name: score(1.0, 0.01, 1.0, 0.01) for name in ("recall", "density", "coverage")}
    sections = [
        ReportSection("quality", "q", figures={"kid": score(0.0, 0.01, 0.0, 0.01)}),
        ReportSection("precision_recall", "v", figures={"precision": score(precision, 0.01, 1.0, 0.01), **alike}),
    ]
    flags, verdict = assess(sections)
    assert not flags and f"{precision:.3f}" in verdict[0] and verdict[0].startswith("good") == good
