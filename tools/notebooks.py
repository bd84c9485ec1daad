"""Write notebooks of five chapters: the same text, with each Python block as a cell.

python -m tools.notebooks            write them to docs/book/notebooks/
python -m tools.notebooks --check    only check that they match the chapters; part of `make lint`
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

BOOK = Path(__file__).parent.parent / "docs" / "book"
CHAPTERS = ("forward", "reverse", "samplers", "score", "embeddings")  # chapters that need no run, except for single lines
BLOCK = re.compile(r"^```python\n(.*?)^```$\n?", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"\]\((?!https?:|#)")
LOADED = re.compile(r'reverie\.load\("(runs/([a-z0-9-]+))"\)')  # a run that has the name of its data set
TRAINED = """# The run that a cell below loads; trained once, in some seconds.
from pathlib import Path

import reverie

if not Path("{path}").exists():
    reverie.train("{data}", "{path}", steps=1000, seed=0)
"""


def _lines(text: str) -> list[str]:
    return text.strip("\n").splitlines(keepends=True)


def notebook(chapter: str) -> str:
    """Return a chapter as the text of a notebook (nbformat 4.5)."""
    text = (BOOK / f"{chapter}.md").read_text().replace("<details markdown>", "<details>")
    cells: list[dict[str, Any]] = []
    parts = BLOCK.split(text)
    runs = dict.fromkeys(LOADED.findall(text))
    parts[1:1] = [part for path, data in runs for part in (TRAINED.format(path=path, data=data), "")]
    for k, part in enumerate(parts):
        if not part.strip():
            continue
        if k % 2:
            kind: dict[str, Any] = {"cell_type": "code", "execution_count": None, "outputs": []}
        else:
            kind = {"cell_type": "markdown"}
            part = re.sub(r"<!--.*?-->\n", "", LINK.sub("](../", part))
        cells.append({"id": f"{chapter}-{k}", "metadata": {}, "source": _lines(part), **kind})
    metadata = {"kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"}}
    return (
        json.dumps({"cells": cells, "metadata": metadata, "nbformat": 4, "nbformat_minor": 5}, indent=1, ensure_ascii=False)
        + "\n"
    )


def main() -> None:
    """Write the notebooks, or check them."""
    folder = BOOK / "notebooks"
    folder.mkdir(exist_ok=True)
    for chapter in CHAPTERS:
        file, made = folder / f"{chapter}.ipynb", notebook(chapter)
        if "--check" not in sys.argv:
            file.write_text(made)
        elif not file.exists() or file.read_text() != made:
            raise SystemExit(f"{file.name} does not match the chapter; run: python -m tools.notebooks")


if __name__ == "__main__":
    main()
