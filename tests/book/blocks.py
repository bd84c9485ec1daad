"""Run the Python blocks of a chapter and its lines that begin with `$ reverie`, in order.

A comment above a block changes this: `<!-- slow -->` runs it only in `make test-all`, `<!-- short: A => B -->` replaces A by B.
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
CONSOLE = re.compile(r"^(?P<options>(?:<!--.*?-->\n)*)```console\n(?P<lines>.*?)^```$", re.DOTALL | re.MULTILINE)
COMMAND = re.compile(r"^\$ reverie (?P<arguments>(?:.*\\\n)*.*)$", re.MULTILINE)
SHORT = re.compile(r"<!-- short: (.*?) => (.*?) -->")


def commands(document: Document) -> Iterator[Region]:
    """Return a region for each command of a chapter."""
    for block in CONSOLE.finditer(document.text):
        for found in COMMAND.finditer(block["lines"]):
            words = found["arguments"].replace("\\\n", " ").split("   #")[0]
            for old, new in SHORT.findall(block["options"]):
                words = words.replace(old, new)
            start = block.start("lines") + found.start()
            end = block.start("lines") + found.end()
            yield Region(start, end, (words, "<!-- slow -->" in block["options"]), run_command)


def run_command(example: Example) -> str | None:
    """Run a command in this process; return an error message, or None."""
    words, slow = example.parsed
    if slow and not example.namespace["slow_too"]:
        return None
    old, sys.argv = sys.argv, ["reverie", *shlex.split(words)]
    try:
        with pytest.raises(SystemExit) as end:
            main()
    finally:
        sys.argv = old
    return None if end.value.code in (0, None) else f"`reverie {words}` ended with code {end.value.code}"


def run_chapter(chapter: Path, slow_too: bool) -> int:
    """Run a chapter in the current folder; return the count of blocks and commands."""
    document = Sybil([PythonCodeBlockParser(), commands]).parse(chapter)
    document.namespace["slow_too"] = slow_too
    examples = list(document.examples())
    for example in examples:
        example.evaluate()
    return len(examples)
