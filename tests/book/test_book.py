"""The book is correct: its blocks run, its figures come from recorded commands, its links exist."""

from __future__ import annotations

import json
import re
import shlex
import shutil
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer
from PIL import Image
from tools import figures

from reverie import api
from reverie.cli.main import app
from reverie.runs.run import Run
from tests.book.blocks import BOOK, CHAPTERS, CONSOLE, run_chapter

ROOT = BOOK.parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")
MENTIONED = re.compile(r"^\$? ?(?:OMP_NUM_THREADS=1 )?reverie ((?:.*\\\n)*.*)$", re.MULTILINE)
FENCED = re.compile(r"^```(?!python)\w*\n(.*?)^```$", re.DOTALL | re.MULTILINE)
TYPED = re.compile(r"^(?:\$ )?(?:\w+=\S+ )*(?:torchrun .*-m )?reverie ((?:.*\\\n)*.*)$", re.MULTILINE)
NAMED = {"sampler": "samplers", "grid": "grids", "schedule": "schedules", "family": "families", "network": "networks"}
TABLES = {"problems.md", "figures.md", "errata.md"}  # pages that are not chapters
OTHERS = [page for page in PAGES if page.parent != BOOK and "```python\n" in page.read_text()]


@pytest.fixture
def workshop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spiral_run: Run, digits_run: Run) -> Path:
    """A folder with the files that chapters use: runs, an image, and photos in two classes."""
    for name, run in (("spiral", spiral_run), ("digits", digits_run)):
        shutil.copytree(run.path, tmp_path / "runs" / name)
    random = np.random.default_rng(0)
    for k in range(24):
        folder = tmp_path / "photos" / ("left" if k % 2 else "right")
        folder.mkdir(parents=True, exist_ok=True)
        pixels = random.integers(0, 90, (24, 24, 3), np.uint8)
        pixels[:, 12:] += np.uint8(120 * (k % 2))
        Image.fromarray(pixels).save(folder / f"{k}.png")
    digit = np.zeros((8, 8), np.uint8)
    digit[1, 1:7], digit[2:7, 4] = 255, 255
    Image.fromarray(digit).save(tmp_path / "seven.png")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("chapter", CHAPTERS, ids=lambda path: path.stem)
def test_chapter_runs(chapter: Path, workshop: Path) -> None:
    run_chapter(chapter, slow_too=False)


@pytest.mark.slow
@pytest.mark.parametrize("chapter", [c for c in CHAPTERS if "<!-- slow -->" in c.read_text()], ids=lambda path: path.stem)
def test_slow_commands_run(chapter: Path, workshop: Path) -> None:
    assert run_chapter(chapter, slow_too=True)


def test_a_failing_command_is_reported(workshop: Path) -> None:
    page = workshop / "page.md"
    page.write_text("```console\n$ reverie sample runs/nothing\n```\n")
    with pytest.raises(Exception, match="ended with code 2"):
        run_chapter(page, slow_too=False)


def test_a_failing_python_block_is_reported(workshop: Path) -> None:
    page = workshop / "page.md"
    page.write_text("```python\nassert 1 == 2\n```\n")
    with pytest.raises(AssertionError):
        run_chapter(page, slow_too=False)


@pytest.mark.parametrize("page", [p for p in OTHERS if p.name != "README.md"], ids=lambda path: path.stem)
def test_python_of_other_pages_runs(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert run_chapter(page, slow_too=False)


@pytest.mark.slow
def test_python_of_the_readme_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert run_chapter(ROOT / "README.md", slow_too=False)
    assert (tmp_path / "spiral.png").exists()


@pytest.mark.slow
@pytest.mark.parametrize("notebook", sorted((BOOK / "notebooks").glob("*.ipynb")), ids=lambda path: path.stem)
def test_a_notebook_runs_in_an_empty_folder(notebook: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    for cell in json.loads(notebook.read_text())["cells"]:
        if cell["cell_type"] == "code":
            exec(compile("".join(cell["source"]), notebook.name, "exec"), names)
    assert names


@cache
def _program() -> Any:
    return typer.main.get_command(app)


def _command(words: list[str]) -> tuple[str, Any]:
    """Return the command that words call, with its name, and leave its arguments in words."""
    command = _program()
    name = ["reverie"]
    while words and hasattr(command, "commands") and words[0] in command.commands:
        command = command.commands[words[0]]
        name.append(words.pop(0))
    return " ".join(name), command


def _options(words: list[str]) -> tuple[str, set[str]]:
    """Return the name of the command that words call, and its options."""
    name, command = _command(words)
    return name, {o for p in command.params for o in (*p.opts, *p.secondary_opts)} | {"--help"}


@pytest.mark.parametrize("page", [p for p in PAGES if p.name != "reference.md"], ids=lambda path: path.stem)
def test_commands_on_pages_are_valid(page: Path) -> None:
    """Check every `reverie ...` line of a block: arguments, options with their types, and names."""
    for block in FENCED.finditer(page.read_text()):
        for found in TYPED.finditer(block[1]):
            words = shlex.split(re.split(r"\s+#", found[1].replace("\\\n", " "))[0])
            name, command = _command(words)
            if "--help" in words or "..." in words:
                continue
            params = command.make_context(name, words).params  # raises the error of the program
            for option, kind in NAMED.items():
                if params.get(option):
                    assert str(params[option]).split(":")[0] in api.names_of(kind), f"{page.name}: no {option} {params[option]}"


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.stem)
def test_options_on_pages_exist(page: Path) -> None:
    """Check the names of options on pages whose commands are not run."""
    for found in MENTIONED.finditer(re.sub(r"[|\[\]`]", " ", page.read_text())):
        line = found[1].replace("\\\n", " ").split("  ")[0].split(" #")[0]
        try:
            words = shlex.split(line)
        except ValueError:
            continue
        name, known = _options(words)
        for word in words:
            if word.startswith("--") and len(word) > 2:
                assert word.split("=")[0] in known, f"{page.name}: {name} has no option {word}"


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.stem)
def test_links_exist(page: Path) -> None:
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
    for link in LINK.findall(text):
        target, _, anchor = link.partition("#")
        if "://" in link or link.startswith("mailto:"):
            continue
        there = (page.parent / target).resolve() if target else page
        assert there.exists(), f"{page.name} links to {link}, which does not exist"
        if anchor and there.suffix == ".md":
            headings = re.findall(r"^#+ (.+)$", there.read_text(), re.MULTILINE)
            slugs = {re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", h.replace("`", "")).strip().lower()) for h in headings}
            assert anchor in slugs, f"{page.name} links to {link}, and there is no such heading"


def test_figures_are_small_and_recorded() -> None:
    recorded = figures.recorded()
    used = {Path(link).name for page in CHAPTERS for link in LINK.findall(page.read_text()) if "figures/" in link}
    files = {figures.file_of(name, figure) for name, figure in recorded.items()}
    assert used == {file.name for file in files}, "figures.toml and the pictures in the chapters differ"
    for file in files:
        most = figures.LARGEST_FILM if file.suffix == ".gif" else figures.LARGEST
        assert file.stat().st_size < most, f"{file.name} is larger than {most:,} bytes"


def test_captions_state_the_command() -> None:
    text = "\n".join(page.read_text() for page in CHAPTERS)
    for name, figure in figures.recorded().items():
        file = re.escape(figures.file_of(name, figure).name)
        shown = re.search(rf"^!\[[^\]]+\]\(figures/{file}\)\n\n(.*?)\n\n", text, re.MULTILINE | re.DOTALL)
        assert shown, f"{name} is not shown, or has no caption below it"
        assert f"`{figure['command']}`" in shown[1].replace("\n", " "), f"the caption of {name} lacks its command"


@pytest.mark.parametrize("chapter", [c for c in CHAPTERS if c.name not in TABLES], ids=lambda path: path.stem)
def test_chapters_are_complete(chapter: Path) -> None:
    text = chapter.read_text()
    assert "```python\n" in text or CONSOLE.search(text), "no block of it runs"
    assert "?" in text.split("\n")[2], "it does not begin with its question"
    assert "<details" in text, "it has no exercise with an answer"
    for heading in ("Exercise", "Sources"):
        assert f"\n## {heading}\n" in text, f"it has no section {heading!r}"
    assert not re.search(r"to come|TODO|coming soon", text, re.IGNORECASE)
