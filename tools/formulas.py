"""An extension of Python-Markdown that turns $inline$ and $$displayed$$ LaTeX into MathML when the book is built.

Browsers render MathML, so the pages need no scripts and no fonts from other hosts. Zensical loads this module by its name.
"""

from __future__ import annotations

import re
import xml.etree.ElementTree as etree
from functools import cache
from typing import Any

from latex2mathml.converter import convert
from markdown import Markdown
from markdown.blockprocessors import BlockProcessor
from markdown.extensions import Extension
from markdown.inlinepatterns import InlineProcessor

DISPLAYED = re.compile(r"\A\s*\$\$(?P<formula>.+?)\$\$\s*\Z", re.DOTALL)
INLINE = r"(?<![\\$\w])\$(?P<formula>[^\s$](?:[^$]*?[^\s$\\])?)\$(?![\w$])"
PLAIN = {
    "<mi>&#x0007E;</mi>": "<mo>&#x0223C;</mo>",
    "<mo>&#x02205;</mo>": "<mi>&#x02205;</mi>",
    '<mn mathvariant="bold">1</mn>': "<mn>&#x1D7CF;</mn>",
}  # ~ is a relation, the empty set is not; bold digits have characters of their own
SPACE = '<mspace width="0.17em"/>'
NAME = "<m[io]>(?:log|exp|sin|cos|tanh|det|min|max)</m[io]>"
INDEXED = rf"<(msu[bp])>{NAME}<m[in]>[^<]*</m[in]></\1>"  # log_2, sin^2
SPACED = re.compile(rf"(?:{INDEXED}|(?<!<msu[bp]>){NAME})(?P<next><m(?!o|space))?")
BAR = re.compile(r'<mo(?: stretchy="false")?>(?:\||&#x0007C;)</mo>')  # of an absolute value, not a relation, so without space


@cache
def mathml(formula: str, display: str) -> str:
    """Return a formula as MathML; display: inline or block."""
    made = str(convert(formula.strip(), display=display))
    for old, new in PLAIN.items():
        made = made.replace(old, new)
    return BAR.sub('<mo stretchy="false" lspace="0" rspace="0">|</mo>', SPACED.sub(_name, made))


def _name(found: re.Match[str]) -> str:
    """Return a name such as log with a thin space before it and before its argument."""
    before = found.string[: found.start()].endswith(
        ("</mi>", "</mn>", "</mrow>", "</msub>", "</msup>", "</mfrac>", "</mstyle>")
    )
    after = found["next"] or ""
    return before * SPACE + found[0].removesuffix(after) + (SPACE + after if after else "")


class Displayed(BlockProcessor):  # type: ignore[misc]  # Python-Markdown has no types
    """A paragraph that is one formula between $$ and $$."""

    def test(self, parent: etree.Element, block: str) -> bool:
        """Return whether a block is such a paragraph."""
        return DISPLAYED.match(block) is not None

    def run(self, parent: etree.Element, blocks: list[str]) -> None:
        """Replace the block by the displayed formula."""
        found = DISPLAYED.match(blocks.pop(0))
        assert found
        made = etree.SubElement(parent, "div", {"class": "formula"})
        made.text = self.parser.md.htmlStash.store(mathml(found["formula"], "block"))


class Inline(InlineProcessor):  # type: ignore[misc]  # Python-Markdown has no types
    """A formula between $ and $ in a line of text."""

    def handleMatch(self, m: re.Match[str], data: str) -> tuple[str, int, int]:
        """Return the formula and its range in the text."""
        return self.md.htmlStash.store(mathml(m["formula"], "inline")), m.start(0), m.end(0)


class Formulas(Extension):  # type: ignore[misc]  # Python-Markdown has no types
    """Formulas as MathML."""

    def extendMarkdown(self, md: Markdown) -> None:
        """Register both processors before all others, so that no other processor reads formulas."""
        md.parser.blockprocessors.register(Displayed(md.parser), "displayed_formula", 200)
        md.inlinePatterns.register(Inline(INLINE, md), "inline_formula", 189)


def makeExtension(**options: Any) -> Formulas:
    """Return the extension; Python-Markdown requires this name."""
    return Formulas(**options)
