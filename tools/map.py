"""Draw docs/map.svg: the packages of the source and their imports.

python -m tools.map            draw it
python -m tools.map --check    only check that the picture matches the source; part of `make lint`

The packages are ordered by the contract in pyproject.toml; their texts are the first paragraphs of their docstrings.
"""

from __future__ import annotations

import ast
import sys
import textwrap
import tomllib
from html import escape
from pathlib import Path

import grimp

ROOT = Path(__file__).parent.parent
PACKAGE, PICTURE = "reverie", ROOT / "docs" / "map.svg"

WIDTH, MARGIN, TOP = 1080, 28, 92
LANE, PORT, GAP = 17, 9.5, 8  # between lanes, between arrows into one package, between packages
LEAST, LINE = 36, 17  # least height of a package, of a line of its text
NAMES, WORDS = 136, 96  # width of the names; letters of a line of text
INK, SOFT, PAPER, PALE = "#1f2a37", "#5b6b7d", "#ffffff", "#f4f6f9"
COLOURS = (
    "#b3402e", "#d08a1d", "#5e8f2c", "#15807c", "#2b72b9", "#5a4fb3", "#9a4aa6", "#b23a6b", "#8a5f3c", "#5d6b7c",
)  # fmt: skip
FONT = "font-family='Inter, Segoe UI, Helvetica Neue, Helvetica, Arial, sans-serif'"

Arrows = dict[str, list[str]]


def layers() -> list[list[str]]:
    """Return the packages from the highest layer to the lowest, those of one layer together, as in the contract."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    found = next(contract["layers"] for contract in contracts if contract["type"] == "layers")
    return [[name.strip() for name in layer.split("|")] for layer in found]


def arrows(packages: list[str]) -> Arrows:
    """Return the packages that each package imports, in their order."""
    graph = grimp.build_graph(PACKAGE, cache_dir=None)
    found: dict[str, set[str]] = {package: set() for package in packages}
    for module in graph.modules:
        for other in graph.find_modules_directly_imported_by(module):
            ours, theirs = (name.split(".")[1:2] for name in (module, other))
            if ours and theirs and ours != theirs and ours[0] in found:
                found[ours[0]].add(theirs[0])
    return {package: [other for other in packages if other in found[package]] for package in packages}


def words(package: str) -> list[str]:
    """Return the lines of the first paragraph of a package's docstring."""
    place = ROOT / "src" / PACKAGE / package
    file = place / "__init__.py" if place.is_dir() else place.with_suffix(".py")
    paragraph = (ast.get_docstring(ast.parse(file.read_text())) or "").split("\n\n")[0].rstrip(".")
    return textwrap.wrap(" ".join(paragraph.replace("`", "").split()), WORDS)


def draw() -> str:
    """Return the picture: a line in the color of each package connects it to every package that it imports."""
    levels = layers()
    packages = [package for level in levels for package in level]
    imports = arrows(packages)
    ground, texts = packages[-1], {package: words(package) for package in packages}
    if all(ground in imports[package] for package in packages[:-1]):  # stated once in text instead of by arrows
        imports = {package: [other for other in others if other != ground] for package, others in imports.items()}
        texts[ground].append("Every package imports it")
    into = {package: [other for other in packages if package in imports[other]] for package in packages}
    outgoing = [package for package in packages if imports[package]]
    lanes = {package: MARGIN + LANE * k for k, package in enumerate(outgoing)}
    colours = {package: COLOURS[k % len(COLOURS)] for k, package in enumerate(outgoing)}
    left, boxes, bands, y = MARGIN + LANE * len(outgoing) + 22, {}, [], float(TOP)
    for level in levels:
        first = y
        for package in level:
            height = max(LEAST, 14 + LINE * len(texts[package]), 12 + PORT * (len(into[package]) + (package in lanes)))
            boxes[package] = (y, height)
            y += height + GAP
        if len(level) > 1:
            bands.append((first, y - GAP - first))
    right, high = WIDTH - MARGIN, y - GAP + MARGIN

    def ports(package: str) -> dict[str, float]:
        """Return the positions on the edge of a package where its own line starts (under its name) and those of others end."""
        names = [*([package] if package in lanes else []), *into[package]]
        begin = boxes[package][0] + (boxes[package][1] - PORT * (len(names) - 1)) / 2
        return {name: begin + PORT * k for k, name in enumerate(names)}

    at = {package: ports(package) for package in packages}
    out = [
        f"<svg xmlns='http://www.w3.org/2000/svg' width='{WIDTH}' height='{high:.0f}' viewBox='0 0 {WIDTH} {high:.0f}' {FONT}>",
        f"<rect width='{WIDTH}' height='{high:.0f}' rx='14' fill='{PAPER}'/>",
        f"<text x='{MARGIN}' y='46' font-size='24' font-weight='700' fill='{INK}'>The packages of {PACKAGE}</text>",
        f"<text x='{MARGIN}' y='70' font-size='14' fill='{SOFT}'>A package imports only packages below it; lines in its color"
        " lead to them.</text>",
    ]
    for top, height in bands:
        out.append(f"<rect x='{left - 7}' y='{top - 6:.1f}' width='{right - left + 14}' height='{height + 12:.1f}' rx='12'"
                   " fill='#e9eef5'/>")  # fmt: skip
    for package in reversed(outgoing):  # the lines of higher packages cross over those of lower ones
        lane, ends = lanes[package], [at[other][package] for other in imports[package]]
        begin, end, round_ = at[package][package], max(ends), 6
        lines = [f"M{left} {begin:.1f}H{lane + round_}Q{lane} {begin:.1f} {lane} {begin + round_:.1f}V{end - round_:.1f}"]
        lines += [f"M{lane} {y - round_:.1f}Q{lane} {y:.1f} {lane + round_} {y:.1f}H{left - 7}" for y in ends]
        path = "".join(lines)
        out.append(f"<path d='{path}' fill='none' stroke='{PAPER}' stroke-width='3.4'/>")
        out.append(f"<path d='{path}' fill='none' stroke='{colours[package]}' stroke-width='1.6'/>")
        out += [f"<path d='M{left - 1} {y:.1f}l-8 -3.6v7.2z' fill='{colours[package]}'/>" for y in ends]
    for package in packages:
        (y, height), lines = boxes[package], texts[package]
        edge, fill = colours.get(package, INK), "#dfe6ef" if package == ground else PALE
        out.append(
            f"<rect x='{left}' y='{y:.1f}' width='{right - left}' height='{height:.1f}' rx='7' fill='{fill}'"
            f" stroke='#cfd8e3'/><rect x='{left}' y='{y:.1f}' width='5' height='{height:.1f}' rx='2.5' fill='{edge}'/>"
        )
        middle = y + height / 2
        out.append(
            f"<text x='{left + 20}' y='{middle + 5.5:.1f}' font-size='16' font-weight='700' fill='{INK}'>{package}</text>"
        )
        for k, text in enumerate(lines):
            place = middle + 5 + LINE * (k - (len(lines) - 1) / 2)
            out.append(f"<text x='{left + NAMES}' y='{place:.1f}' font-size='13' fill='{SOFT}'>{escape(text)}</text>")
    return "\n".join([*out, "</svg>", ""])


def main() -> None:
    """Write the picture, or with --check exit with code 1 if it does not match the source."""
    picture = draw()
    if "--check" not in sys.argv[1:]:
        PICTURE.write_text(picture)
    elif not PICTURE.is_file() or PICTURE.read_text() != picture:
        sys.exit(f"{PICTURE.relative_to(ROOT)} does not match the source; run: python -m tools.map")


if __name__ == "__main__":
    main()
