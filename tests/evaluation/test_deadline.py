"""Evaluations that keep to a time limit, scale with the number of samples, and keep what they have when interrupted."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from reverie import api
from reverie.base.deadline import Deadline, OutOfTime, PacedProgress
from reverie.base.progress import silent
from reverie.data import classifiers
from reverie.evaluation.report_section import ReportSection
from reverie.evaluation.reports import EvaluationStopped, evaluate_run
from reverie.evaluation.sample_metrics import MEASURES
from reverie.evaluation.section_plan import PlannedSection, measure_planned
from reverie.runs.run import Run


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))  # no classifier is there


def ticking(seconds: float) -> Callable[[], float]:
    """A clock on which so many seconds pass whenever somebody looks at it."""
    ticks = itertools.count()
    return lambda: seconds * next(ticks)


def interrupt(*_: object) -> None:
    raise KeyboardInterrupt


def left_out(found: api.Evaluation) -> set[str]:
    return {s.name for s in found.sections if "not_computable" in s.figures}


def test_a_section_beyond_the_deadline_is_stopped() -> None:
    now = 0.0
    progress = PacedProgress(silent, Deadline(10.0, lambda: now))
    progress("first", 0, 4)
    now = 2.0
    progress("first", 1, 4)  # needs 6 s of the 8 s left
    now = 6.0
    with pytest.raises(OutOfTime):  # needs 6 s, but 4 s are left
        progress("first", 2, 4)
    progress.begin()
    progress("first", 0, 100)  # another task with the same name has its own speed
    now = 6.01
    progress("first", 1, 100)
    assert Deadline().left == float("inf") and not Deadline().limited


def test_sections_are_measured_by_priority_and_shown_in_the_order_of_the_plan() -> None:
    now, order = 0.0, list[str]()

    def takes(name: str, seconds: float) -> PlannedSection:
        def measure() -> ReportSection:
            nonlocal now
            now += seconds
            order.append(name)
            return ReportSection(name, name)

        return PlannedSection(name, name, measure, lambda: seconds)

    plan = [takes("distances", 5.0), takes("likelihood", 8.0), takes("quality", 6.0)]
    deadline = Deadline(12.0, lambda: now)
    sections, whole = measure_planned(plan, deadline, PacedProgress(silent, deadline))
    assert order == ["quality", "distances"] and whole  # the likelihood is worth more, but does not fit
    assert [s.name for s in sections] == ["distances", "likelihood", "quality"]
    assert "12 s" in sections[1].figures["not_computable"] and now <= deadline.seconds


@pytest.mark.parametrize("run", ["digits_run", "spiral_run"])
def test_an_evaluation_ends_in_time_and_names_what_did_not_fit(run: str, request: pytest.FixtureRequest) -> None:
    deadline = Deadline(60.0, ticking(0.5))
    found = evaluate_run(request.getfixturevalue(run), 400, quick=True, features="pixels", deadline=deadline)
    lost = left_out(found)
    assert lost and "network_evaluations" in lost and "samples" not in lost  # what is worth least goes first
    assert deadline.elapsed < 61.0
    titles = [s.title[0].lower() + s.title[1:] for s in found.sections if s.name in lost]
    assert all(any(title in line for line in found.verdict) for title in titles)
    assert not found.partial and found.figures()["partial"] is False


def test_samples_that_do_not_fit_are_not_drawn(digits_run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Run, "batch_size", lambda self: 20)
    found = evaluate_run(digits_run, 400, quick=True, features="pixels", deadline=Deadline(60.0, ticking(4.0)))
    drawn = found.facts["samples"]
    assert 0 < drawn < 400 and any(f"{drawn} of 400" in line for line in found.verdict)


def test_few_samples_are_little_work_and_need_no_classifier(digits_run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(classifiers, "train_classifier", lambda *_, **__: pytest.fail("no classifier is needed"))
    found = api.evaluate(digits_run, 10, quick=True, features="pixels", seconds=600.0)
    sections = found["sections"]
    assert sections["network_evaluations"]["samples"] == 10 and sections["likelihood"]["flow"]["n"] <= 10
    assert sections["quality"]["training_data"] <= 500
    assert left_out(found) == {"labels"} and "classifier" in sections["labels"]["not_computable"]


def test_progress_names_the_sections(digits_run: Run) -> None:
    heard: list[str] = []
    api.evaluate(digits_run, 10, quick=True, features="pixels", on_progress=lambda what, *_: heard.append(what))
    order = [heard.index(title) for title in ("distance to the data", "memorization", "likelihood of held-out data")]
    assert order == sorted(order)


@pytest.fixture
def interrupted(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setitem(MEASURES["images"], "memorization", interrupt)
    yield


@pytest.mark.usefixtures("interrupted")
def test_what_was_measured_before_an_interrupt_is_kept(command, digits_run: Run, tmp_path: Path) -> None:
    words = ("evaluate", digits_run.path, "--quick", "-n", 20, "--steps", 4, "--features", "pixels")
    code, out, _ = command(*words, "--json", "--out", tmp_path / "report.html")
    figures = json.loads(out)
    assert code == 130 and figures["partial"] is True and figures["kid"] and "value" in figures["sections"]["quality"]["kid"]
    assert figures["sections"]["likelihood"] == {"not_computable": "interrupted"} and "partial" in figures["verdict"][0]
    page = (tmp_path / "report.html").read_text()
    assert figures["verdict"][0] in page and "KID" in page
    code, out, _ = command(*words)
    assert code == 130 and "KID" in out and out.startswith("partial")
    with pytest.raises(EvaluationStopped) as stopped:
        api.evaluate(digits_run, 20, quick=True, steps=4, features="pixels")
    assert stopped.value.evaluation.partial and isinstance(stopped.value, KeyboardInterrupt)
