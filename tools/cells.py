r"""An extension of Python-Markdown for code in cells of tables, where a bar must be written \| and should be shown as |."""

from __future__ import annotations

import xml.etree.ElementTree as etree
from typing import Any

from markdown import Markdown
from markdown.extensions import Extension
from markdown.treeprocessors import Treeprocessor
from markdown.util import AtomicString


class Bars(Treeprocessor):  # type: ignore[misc]  # Python-Markdown has no types
    """Removes the backslash."""

    def run(self, root: etree.Element) -> None:
        """Change the code of all cells."""
        for cell in (*root.iter("td"), *root.iter("th")):
            for code in cell.iter("code"):
                code.text = AtomicString((code.text or "").replace("\\|", "|"))


class Cells(Extension):  # type: ignore[misc]  # Python-Markdown has no types
    """The extension."""

    def extendMarkdown(self, md: Markdown) -> None:
        """Register after the processor of inline text, which creates the code elements."""
        md.treeprocessors.register(Bars(md), "bars", 5)


def makeExtension(**options: Any) -> Cells:
    """Return the extension; Python-Markdown requires this name."""
    return Cells(**options)
