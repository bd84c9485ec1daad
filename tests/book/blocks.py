"""What of a chapter is run: its Python, and its lines that begin with `$ reverie`, in the order in which they stand.

A comment above a block says how it is run: `<!-- slow -->` only by `make test-all`, `<!-- short: A => B -->` with B for A.
"""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from sybil import Document, Example, Region, Sybil
from sybil.parsers.markdown import PythonCodeBlockParser

from reverie.cli.main import main

BOOK = Path(__file__).parent.parent.parent / "docs" / "book"
CHAPTERS = sorted(path for path in BOOK.glob("*.md") if path.name != "reference.md")
CONSOLE = re.compile(r"^(?P<how>(?:<!--.*?-->\n)*)```console\n(?P<lines>.*?)^```$", re.DOTALL | re.MULTILINE)
COMMAND = re.compile(r"^\$ reverie (?P<words>(?:.*\\\n)*.*)$", re.MULTILINE)
SHORT = re.compile(r"<!-- short: (.*?) => (.*?) -->")


def commands(document: Document) -> Iterator[Region]:
    """Return a region for each command of a chapter."""
    for block in CONSOLE.finditer(document.text):
        for found in COMMAND.finditer(block["lines"]):
            words = found["words"].replace("\\\n", " ").split("   #")[0]
            for old, new in SHORT.findall(block["how"]):
                words = words.replace(old, new)
            start = block.start("lines") + found.start()
            end = block.start("lines") + found.end()
            yield Region(start, end, (words, "<!-- slow -->" in block["how"]), run_command)


def run_command(example: Example) -> str | None:
    """Run a command in this process; return what went wrong, if anything did."""
    words, slow = example.parsed
    if slow and not example.namespace["slowly"]:
        return None
    old, sys.argv = sys.argv, ["reverie", *shlex.split(words)]
    try:
        with pytest.raises(SystemExit) as end:
            main()
    finally:
        sys.argv = old
    return None if end.value.code in (0, None) else f"`reverie {words}` ended with code {end.value.code}"


def run_chapter(chapter: Path, slowly: bool) -> int:
    """Run all of a chapter in the present folder; return how many blocks and commands there were."""
    document = Sybil([PythonCodeBlockParser(), commands]).parse(chapter)
    document.namespace["slowly"] = slowly
    examples = list(document.examples())
    for example in examples:
        example.evaluate()
    return len(examples)
