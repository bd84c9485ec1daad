"""Text in images: captions in any script, each in a font that has its glyphs; missing glyphs are spelled out."""

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
PLACEHOLDER_FONT = "Last Resort"  # a font with a placeholder box for every character
NON_JOINER = "\N{ZERO WIDTH NON-JOINER}"  # affects how letters join in Persian
MAX_LISTED = 20  # captions listed in the warning if they are drawn as numbers
LEADING = 4  # pixels of a line beyond the font size


@cache
def default_font() -> str:
    """Return the default font file, which covers Latin, Greek, Cyrillic, Arabic, Hebrew and symbols."""
    import matplotlib

    return str(Path(matplotlib.get_data_path(), "fonts", "ttf", "DejaVuSans.ttf"))


@cache
def _characters(font: str) -> frozenset[int]:
    """Return the code points that a font file covers, or none if the file cannot be read."""
    from matplotlib.ft2font import FT2Font

    try:
        return frozenset(FT2Font(font).get_charmap())
    except (RuntimeError, OSError):
        return frozenset()


@cache
def _fonts() -> tuple[str, ...]:
    """Return the default font and the other upright fonts of regular weight on this machine."""
    from matplotlib.font_manager import findSystemFonts, fontManager

    usable = {
        entry.fname
        for entry in fontManager.ttflist
        if entry.style == "normal"
        and entry.weight in (400, "normal", "regular")
        and not entry.name.startswith(PLACEHOLDER_FONT)
    }
    known_files = {entry.fname for entry in fontManager.ttflist}
    unlisted = {font for font in findSystemFonts() if font not in known_files and "lastresort" not in font.lower()}
    return default_font(), *sorted(usable - {default_font()}), *sorted(unlisted)


@cache
def _sized(font: str, size: int) -> ImageFont.FreeTypeFont | None:
    try:
        return ImageFont.truetype(font, size)
    except OSError:  # a bitmap font has few sizes
        return None


def _can_draw(font: str, text: str) -> bool:
    """Return whether a font has all glyphs of a text and draws something."""
    if not {ord(char) for char in text} <= _characters(font):
        return False
    sized = _sized(font, 12)
    return sized is not None and (not text.strip() or sized.getmask(text).getbbox() is not None)


def _is_drawn(char: str) -> bool:
    """Return whether a character belongs on a line; control, direction and variation characters do not."""
    return char == NON_JOINER or not (
        unicodedata.category(char) in ("Cc", "Cf", "Cs") or 0xFE00 <= ord(char) <= 0xFE0F or 0xE0100 <= ord(char) <= 0xE01EF
    )


def _escape_character(char: str) -> str:
    """Return a character in ASCII: `:dragon face:` for a symbol with a name, else an escape such as `\\u4e2d`."""
    name = unicodedata.name(char, "")
    if name and unicodedata.category(char) == "So":
        return f":{name.lower()}:"
    return char.encode("unicode_escape").decode()


def _one_line(text: str) -> str:
    return "".join(filter(_is_drawn, " ".join(unicodedata.normalize("NFC", text).split())))


@lru_cache(maxsize=4096)
def drawable(text: str) -> tuple[str, str]:
    """Return a text as one drawable line, and the font file to draw it with.

    The first font with all glyphs is used; if there is none, the default font, with missing glyphs spelled out.
    """
    line = _one_line(text)
    if not features.check("raqm") and any(unicodedata.bidirectional(char) in ("R", "AL") for char in line):
        warnings.warn(
            "this Pillow lacks raqm, so right-to-left captions are drawn from left to right with unjoined letters",
            ReverieWarning,
            stacklevel=2,
        )
    for font in _fonts():
        if _can_draw(font, line):
            return line, font
    return replace_missing_glyphs(line), default_font()


def replace_missing_glyphs(text: str) -> str:
    """Return a text in which characters without a glyph in the default font are spelled out in ASCII."""
    default_glyphs = _characters(default_font())
    return "".join(char if ord(char) in default_glyphs or char == "\n" else _escape_character(char) for char in text)


def _with_font(text: str, size: int) -> tuple[str, ImageFont.FreeTypeFont]:
    line, font = drawable(text)
    sized = _sized(font, size)
    return (line, sized) if sized is not None else (line, ImageFont.truetype(default_font(), size))


def shorten(text: str, width: int, size: int) -> str:
    """Return a text of at most `width` pixels, truncated with an ellipsis."""
    line, font = _with_font(text, size)
    if font.getlength(line) <= width:
        return line
    low, high = 0, len(line)  # number of characters kept: `low` fit
    while low + 1 < high:
        middle = (low + high) // 2
        low, high = (middle, high) if font.getlength(_truncate(line, middle)) <= width else (low, middle)
    return _truncate(line, low) if low else ""


def _truncate(line: str, count: int) -> str:
    while count and unicodedata.combining(line[count]):  # a combining mark stays with its letter
        count -= 1
    return line[:count].rstrip() + "…"


def wrap(text: str, width: int, size: int, max_lines: int) -> list[str]:
    """Break a text into at most `max_lines` lines of at most `width` pixels; truncate the rest."""
    line, font = _with_font(text, size)
    lines: list[str] = []
    words = line.split()
    while words:
        fitting = next((k for k in range(len(words), 0, -1) if font.getlength(" ".join(words[:k])) <= width), 0)
        if fitting == 0 or len(lines) == max_lines - 1:
            return [*lines, shorten(" ".join(words), width, size)]
        lines.append(" ".join(words[:fitting]))
        words = words[fitting:]
    return lines


def captions(titles: Sequence[str], width: int, size: int, max_lines: int) -> list[list[str]]:
    """Break the captions of a contact sheet into lines, see `wrap`.

    A caption becomes a number, explained in a warning, if no font has its glyphs and its ASCII form does not fit: truncated
    ASCII forms of different captions could be equal.
    """
    lines = {title: wrap(title, width, size, max_lines) for title in dict.fromkeys(titles)}
    unreadable = [
        title for title, drawn in lines.items() if drawable(title)[0] != _one_line(title) and "".join(drawn).endswith("…")
    ]
    lines |= {title: [f"#{k}"] for k, title in enumerate(unreadable, 1)}
    if unreadable:
        _warn_of_numbers(tuple(unreadable))
    return [lines[title] for title in titles]


@cache
def _warn_of_numbers(unreadable: tuple[str, ...]) -> None:
    """Warn once which captions the numbers stand for."""
    named = ", ".join(f"#{k} {title}" for k, title in enumerate(unreadable[:MAX_LISTED], 1)) + (
        ", ..." if unreadable[MAX_LISTED:] else ""
    )
    warnings.warn(
        f"no font on this machine has the glyphs of some captions, so they are drawn as numbers: {named}; install a font that"
        " has them, such as Noto, to see the captions",
        ReverieWarning,
        stacklevel=2,
    )


def strip(lines: list[str], width: int, size: int) -> np.ndarray:
    """Return centred lines of text on white: (lines (size + LEADING), width, 3) uint8."""
    page = Image.new("RGB", (width, len(lines) * (size + LEADING)), "white")
    drawing = ImageDraw.Draw(page)
    for k, text in enumerate(lines):
        line, font = _with_font(text, size)
        drawing.text((width / 2, k * (size + LEADING) + size), line, fill=INK, font=font, anchor="ms")
    return np.asarray(page)
