"""Lettering: captions in any writing, in a font that has their letters; a letter that no font has is told, never a box."""

from __future__ import annotations

import unicodedata
import warnings
from collections.abc import Sequence
from functools import cache, lru_cache
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFont, features

from reverie.base.errors import ReverieWarning

INK = "#1b2733"
BOXES_ONLY = "Last Resort"  # a font that has a box for every letter there is
NON_JOINER = "\N{ZERO WIDTH NON-JOINER}"  # says in Persian how letters are joined
LEGEND = 20  # captions that are named, at most, where they are drawn as numbers
LEADING = 4  # pixels of a line beyond the size of its letters


@cache
def usual_font() -> str:
    """Return the font file that captions are drawn with: it has Latin, Greek, Cyrillic, Arabic, Hebrew and symbols."""
    import matplotlib

    return str(Path(matplotlib.get_data_path(), "fonts", "ttf", "DejaVuSans.ttf"))


@cache
def _letters(font: str) -> frozenset[int]:
    """Return the numbers of the letters that a font file has, none of one that cannot be read."""
    from matplotlib.ft2font import FT2Font

    try:
        return frozenset(FT2Font(font).get_charmap())
    except (RuntimeError, OSError):
        return frozenset()


@cache
def _fonts() -> tuple[str, ...]:
    """Return the usual font and the others of this machine, upright ones of ordinary weight."""
    from matplotlib.font_manager import findSystemFonts, fontManager

    found = {
        entry.fname
        for entry in fontManager.ttflist
        if entry.style == "normal" and entry.weight in (400, "normal", "regular") and not entry.name.startswith(BOXES_ONLY)
    }
    listed = {entry.fname for entry in fontManager.ttflist}
    newer = {font for font in findSystemFonts() if font not in listed and "lastresort" not in font.lower()}  # its list is kept
    return usual_font(), *sorted(found - {usual_font()}), *sorted(newer)


@cache
def _sized(font: str, size: int) -> ImageFont.FreeTypeFont | None:
    try:
        return ImageFont.truetype(font, size)
    except OSError:  # a font of bitmaps has some sizes only
        return None


def _draws(font: str, text: str) -> bool:
    """Tell whether a font draws a text: it has all of its letters, and leaves ink."""
    if not {ord(letter) for letter in text} <= _letters(font):
        return False
    sized = _sized(font, 12)
    return sized is not None and (not text.strip() or sized.getmask(text).getbbox() is not None)


def _kept(letter: str) -> bool:
    """Tell whether a letter belongs on a line: signs of control, direction and variation do not."""
    return letter == NON_JOINER or not (
        unicodedata.category(letter) in ("Cc", "Cf", "Cs")
        or 0xFE00 <= ord(letter) <= 0xFE0F
        or 0xE0100 <= ord(letter) <= 0xE01EF
    )


def _told(letter: str) -> str:
    """Return a letter in plain ones: `:dragon face:` for a symbol that has a name, else an escape such as `\\u4e2d`."""
    name = unicodedata.name(letter, "")
    if name and unicodedata.category(letter) == "So":
        return f":{name.lower()}:"
    return letter.encode("unicode_escape").decode()


def _one_line(text: str) -> str:
    return "".join(filter(_kept, " ".join(unicodedata.normalize("NFC", text).split())))


@lru_cache(maxsize=4096)
def drawable(text: str) -> tuple[str, str]:
    """Return a text as one line that can be drawn, and the font file to draw it with.

    That is the first font that has all the letters; where none has, those that the usual one lacks are told.
    """
    line = _one_line(text)
    if not features.check("raqm") and any(unicodedata.bidirectional(letter) in ("R", "AL") for letter in line):
        warnings.warn(
            "this Pillow is without raqm, so captions from right to left are drawn from left to right with letters not joined",
            ReverieWarning,
            stacklevel=2,
        )
    for font in _fonts():
        if _draws(font, line):
            return line, font
    return told(line), usual_font()


def told(text: str) -> str:
    """Return a text in which the letters that the usual font lacks are told in plain ones."""
    usual = _letters(usual_font())
    return "".join(letter if ord(letter) in usual or letter == "\n" else _told(letter) for letter in text)


def _measured(text: str, size: int) -> tuple[str, ImageFont.FreeTypeFont]:
    line, font = drawable(text)
    sized = _sized(font, size)
    return (line, sized) if sized is not None else (line, ImageFont.truetype(usual_font(), size))


def shorten(text: str, width: int, size: int) -> str:
    """Return a text of at most this width in pixels, what is too long cut off and an ellipsis put in its place."""
    line, font = _measured(text, size)
    if font.getlength(line) <= width:
        return line
    low, high = 0, len(line)  # letters that are kept: `low` fit
    while low + 1 < high:
        middle = (low + high) // 2
        low, high = (middle, high) if font.getlength(_cut(line, middle)) <= width else (low, middle)
    return _cut(line, low) if low else ""


def _cut(line: str, count: int) -> str:
    while count and unicodedata.combining(line[count]):  # a mark stays with its letter
        count -= 1
    return line[:count].rstrip() + "…"


def wrap(text: str, width: int, size: int, most: int) -> list[str]:
    """Break a text between words into at most so many lines of at most this width; what is over is shortened."""
    line, font = _measured(text, size)
    lines: list[str] = []
    words = line.split()
    while words:
        fitting = next((k for k in range(len(words), 0, -1) if font.getlength(" ".join(words[:k])) <= width), 0)
        if fitting == 0 or len(lines) == most - 1:
            return [*lines, shorten(" ".join(words), width, size)]
        lines.append(" ".join(words[:fitting]))
        words = words[fitting:]
    return lines


def captions(titles: Sequence[str], width: int, size: int, most: int) -> list[list[str]]:
    """Break the captions of a sheet into lines, see `wrap`.

    Where no font has the letters of one, and what they are told by does not fit either, it becomes a number, which a warning
    explains: the beginnings of two such captions could be the same.
    """
    lines = {title: wrap(title, width, size, most) for title in dict.fromkeys(titles)}
    lost = [title for title, drawn in lines.items() if drawable(title)[0] != _one_line(title) and "".join(drawn).endswith("…")]
    lines |= {title: [f"#{k}"] for k, title in enumerate(lost, 1)}
    if lost:
        _explain(tuple(lost))
    return [lines[title] for title in titles]


@cache
def _explain(lost: tuple[str, ...]) -> None:
    """Say, once, what the numbers of a sheet stand for."""
    named = ", ".join(f"#{k} {title}" for k, title in enumerate(lost[:LEGEND], 1)) + (", ..." if lost[LEGEND:] else "")
    warnings.warn(
        f"no font of this machine has the letters of some captions, so they are drawn as numbers: {named}; install a font that"
        " has them, such as one of Noto, for the names themselves",
        ReverieWarning,
        stacklevel=2,
    )


def strip(lines: list[str], width: int, size: int) -> np.ndarray:
    """Return lines of text, each in the middle, on white: (lines (size + LEADING), width, 3) uint8."""
    page = Image.new("RGB", (width, len(lines) * (size + LEADING)), "white")
    drawing = ImageDraw.Draw(page)
    for k, text in enumerate(lines):
        line, font = _measured(text, size)
        drawing.text((width / 2, k * (size + LEADING) + size), line, fill=INK, font=font, anchor="ms")
    return np.asarray(page)
