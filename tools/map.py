"""Draw docs/map.svg: the rooms of the package and the arrows between them, read from the source.

python -m tools.map            draw it
python -m tools.map --check    only tell whether the picture is that of the source; part of `make lint`

The order of the rooms is that of the contract in pyproject.toml, their words are the first paragraph of their docstrings.
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
LANE, PORT, GAP = 17, 9.5, 8  # between lanes, between arrows into one room, between rooms
LEAST, LINE = 36, 17  # height of a room, of a line of its words
NAMES, WORDS = 136, 96  # width of the names; letters of a line of words
INK, SOFT, PAPER, PALE = "#1f2a37", "#5b6b7d", "#ffffff", "#f4f6f9"
COLOURS = (
    "#b3402e", "#d08a1d", "#5e8f2c", "#15807c", "#2b72b9", "#5a4fb3", "#9a4aa6", "#b23a6b", "#8a5f3c", "#5d6b7c",
)  # fmt: skip
FONT = "font-family='Inter, Segoe UI, Helvetica Neue, Helvetica, Arial, sans-serif'"

Arrows = dict[str, list[str]]


def floors() -> list[list[str]]:
    """Return the rooms from the top of the house to its ground, those of one floor together, as the contract has them."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    layers = next(contract["layers"] for contract in contracts if contract["type"] == "layers")
    return [[name.strip() for name in layer.split("|")] for layer in layers]


def arrows(rooms: list[str]) -> Arrows:
    """Return which rooms each room imports, in the order of the rooms."""
    graph = grimp.build_graph(PACKAGE, cache_dir=None)
    found: dict[str, set[str]] = {room: set() for room in rooms}
    for module in graph.modules:
        for other in graph.find_modules_directly_imported_by(module):
            ours, theirs = (name.split(".")[1:2] for name in (module, other))
            if ours and theirs and ours != theirs and ours[0] in found:
                found[ours[0]].add(theirs[0])
    return {room: [other for other in rooms if other in found[room]] for room in rooms}


def words(room: str) -> list[str]:
    """Return the first paragraph of a room's docstring in lines."""
    place = ROOT / "src" / PACKAGE / room
    file = place / "__init__.py" if place.is_dir() else place.with_suffix(".py")
    paragraph = (ast.get_docstring(ast.parse(file.read_text())) or "").split("\n\n")[0].rstrip(".")
    return textwrap.wrap(" ".join(paragraph.replace("`", "").split()), WORDS)


def draw() -> str:
    """Return the picture: each room is a floor, and a line of its colour leads from it to every room that it imports."""
    levels = floors()
    rooms = [room for level in levels for room in level]
    imports = arrows(rooms)
    ground, texts = rooms[-1], {room: words(room) for room in rooms}
    if all(ground in imports[room] for room in rooms[:-1]):  # said once in words instead of by an arrow from everywhere
        imports = {room: [other for other in others if other != ground] for room, others in imports.items()}
        texts[ground].append("Every room imports it")
    into = {room: [other for other in rooms if room in imports[other]] for room in rooms}
    outgoing = [room for room in rooms if imports[room]]
    lanes = {room: MARGIN + LANE * k for k, room in enumerate(outgoing)}
    colours = {room: COLOURS[k % len(COLOURS)] for k, room in enumerate(outgoing)}
    left, boxes, bands, y = MARGIN + LANE * len(outgoing) + 22, {}, [], float(TOP)
    for level in levels:
        first = y
        for room in level:
            height = max(LEAST, 14 + LINE * len(texts[room]), 12 + PORT * (len(into[room]) + (room in lanes)))
            boxes[room] = (y, height)
            y += height + GAP
        if len(level) > 1:
            bands.append((first, y - GAP - first))
    right, high = WIDTH - MARGIN, y - GAP + MARGIN

    def ports(room: str) -> dict[str, float]:
        """Return where on a room's edge its own line leaves it (under its own name) and those of others arrive."""
        names = [*([room] if room in lanes else []), *into[room]]
        begin = boxes[room][0] + (boxes[room][1] - PORT * (len(names) - 1)) / 2
        return {name: begin + PORT * k for k, name in enumerate(names)}

    at = {room: ports(room) for room in rooms}
    out = [
        f"<svg xmlns='http://www.w3.org/2000/svg' width='{WIDTH}' height='{high:.0f}' viewBox='0 0 {WIDTH} {high:.0f}' {FONT}>",
        f"<rect width='{WIDTH}' height='{high:.0f}' rx='14' fill='{PAPER}'/>",
        f"<text x='{MARGIN}' y='46' font-size='24' font-weight='700' fill='{INK}'>The rooms of {PACKAGE}</text>",
        f"<text x='{MARGIN}' y='70' font-size='14' fill='{SOFT}'>A room imports only rooms below it. A line of its colour leads"
        " from it to each of them.</text>",
    ]
    for top, height in bands:
        out.append(f"<rect x='{left - 7}' y='{top - 6:.1f}' width='{right - left + 14}' height='{height + 12:.1f}' rx='12'"
                   " fill='#e9eef5'/>")  # fmt: skip
    for room in reversed(outgoing):  # the lines of higher rooms cross over those of lower ones
        lane, ends = lanes[room], [at[other][room] for other in imports[room]]
        begin, end, round_ = at[room][room], max(ends), 6
        lines = [f"M{left} {begin:.1f}H{lane + round_}Q{lane} {begin:.1f} {lane} {begin + round_:.1f}V{end - round_:.1f}"]
        lines += [f"M{lane} {y - round_:.1f}Q{lane} {y:.1f} {lane + round_} {y:.1f}H{left - 7}" for y in ends]
        path = "".join(lines)
        out.append(f"<path d='{path}' fill='none' stroke='{PAPER}' stroke-width='3.4'/>")
        out.append(f"<path d='{path}' fill='none' stroke='{colours[room]}' stroke-width='1.6'/>")
        out += [f"<path d='M{left - 1} {y:.1f}l-8 -3.6v7.2z' fill='{colours[room]}'/>" for y in ends]
    for room in rooms:
        (y, height), lines = boxes[room], texts[room]
        edge, fill = colours.get(room, INK), "#dfe6ef" if room == ground else PALE
        out.append(
            f"<rect x='{left}' y='{y:.1f}' width='{right - left}' height='{height:.1f}' rx='7' fill='{fill}'"
            f" stroke='#cfd8e3'/><rect x='{left}' y='{y:.1f}' width='5' height='{height:.1f}' rx='2.5' fill='{edge}'/>"
        )
        middle = y + height / 2
        out.append(f"<text x='{left + 20}' y='{middle + 5.5:.1f}' font-size='16' font-weight='700' fill='{INK}'>{room}</text>")
        for k, text in enumerate(lines):
            place = middle + 5 + LINE * (k - (len(lines) - 1) / 2)
            out.append(f"<text x='{left + NAMES}' y='{place:.1f}' font-size='13' fill='{SOFT}'>{escape(text)}</text>")
    return "\n".join([*out, "</svg>", ""])


def main() -> None:
    """Write the picture, or with --check leave with code 1 where it is not that of the source."""
    picture = draw()
    if "--check" not in sys.argv[1:]:
        PICTURE.write_text(picture)
    elif not PICTURE.is_file() or PICTURE.read_text() != picture:
        sys.exit(f"{PICTURE.relative_to(ROOT)} does not show the source as it is; draw it anew: python -m tools.map")


if __name__ == "__main__":
    main()
