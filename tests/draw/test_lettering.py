"""Captions in any script: no missing glyphs, and never wider than the image."""

from __future__ import annotations

import pytest
from PIL import ImageFont, features

from reverie.base.errors import ReverieWarning
from reverie.draw import lettering
from reverie.draw.lettering import default_font, drawable, replace_missing_glyphs, shorten, strip, wrap
from reverie.draw.picture import figure, pixels, set_suptitle, set_title

TEXTS = ("cat", "گربه\u200cی سفید", "αλεπού", "猫が好き", "🐉 and 😀", "שלום", "\U0001d400\U0001d401", "日\u202e\x07\ufe0f")


@pytest.mark.parametrize("text", TEXTS)
def test_drawn_glyphs_are_in_the_font(text: str) -> None:
    line, font = drawable(text)
    assert {ord(letter) for letter in line} <= lettering._characters(font) and line


def test_glyphs_without_a_font_are_escaped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lettering, "_fonts", lambda: (default_font(),))
    drawable.cache_clear()
    try:
        assert drawable("猫 cat") == ("\\u732b cat", default_font())
        assert drawable("🐉") == (":dragon:", default_font()) and drawable("αλφα") == ("αλφα", default_font())
        assert drawable("a\u202eb\n c") == ("ab c", default_font())  # no bidirectional or line-break characters
        assert replace_missing_glyphs("猫$") == "\\u732b$"
    finally:
        drawable.cache_clear()


def test_undrawable_captions_become_numbers_with_a_legend(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lettering, "_fonts", lambda: (default_font(),))
    drawable.cache_clear()
    titles = ["猫が好き", "猫が嫌い", "cat", "🐉", "猫が好き", "", "a caption that is far too long for its image"]
    try:
        with pytest.warns(ReverieWarning, match="#1 猫が好き, #2 猫が嫌い"):
            lines = lettering.captions(titles, 60, 10, 2)
        assert [lines[k] for k in (0, 1, 2, 4, 5)] == [["#1"], ["#2"], ["cat"], ["#1"], []] and lines[6][-1].endswith("…")
        spelled_out = replace_missing_glyphs("猫が好き")
        assert lettering.captions(["猫が好き"], 400, 10, 2) == [[spelled_out]]
    finally:
        drawable.cache_clear()


def test_unlisted_fonts_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("matplotlib.font_manager.findSystemFonts", lambda: ["/fonts/new.ttf", "/fonts/LastResort.otf"])
    lettering._fonts.cache_clear()
    try:
        assert lettering._fonts()[0] == default_font() and lettering._fonts()[-1] == "/fonts/new.ttf"
    finally:
        lettering._fonts.cache_clear()


def test_fallback_fonts() -> None:
    """Matplotlib's own font has mathematical letters, which the default font lacks."""
    assert 0x1D400 not in lettering._characters(default_font())
    line, font = drawable("\N{MATHEMATICAL BOLD CAPITAL A}")
    assert line == "\N{MATHEMATICAL BOLD CAPITAL A}" and font != default_font()
    assert (strip([line], 40, 12) < 128).any()


@pytest.mark.skipif(not features.check("raqm"), reason="this Pillow has raqm, which joins letters")
def test_persian_is_joined_and_right_to_left() -> None:
    font = ImageFont.truetype(default_font(), 24)
    apart = sum(font.getlength(letter) for letter in "گربه")
    assert font.getlength("گربه") < 0.9 * apart
    ink = strip(["اسسس"], 200, 24)[..., 0] < 128
    tall = ink.sum(0)[ink.any(0)]
    assert tall[-6:].max() > 1.5 * tall[:6].max()  # the first letter, an upright stroke, is on the right


def test_without_raqm_a_warning_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(features, "check", lambda name: False)
    drawable.cache_clear()
    with pytest.warns(UserWarning, match="raqm"):
        drawable("گربه")
    drawable.cache_clear()


@pytest.mark.parametrize(
    "text", ["a" * 40, "گربه\u200cی سفید " * 4, "猫" * 40, "People and Body and all the rest of it", "e\u0301" * 40]
)
@pytest.mark.parametrize("width", [32, 64, 200])
def test_long_captions_are_shortened_to_the_width(text: str, width: int) -> None:
    short = shorten(text, width, 11)
    font = ImageFont.truetype(drawable(text)[1], 11)
    assert font.getlength(short) <= width and short.endswith("…") and len(short) > 1
    lines = wrap(text, width, 11, 2)
    assert 1 <= len(lines) <= 2 and all(font.getlength(line) <= width for line in lines)
    assert shorten("a", 64, 11) == "a" and wrap("a b", 64, 11, 2) == ["a b"] and wrap("", 64, 11, 2) == []


def test_figure_titles_have_no_missing_glyphs(recwarn: pytest.WarningsRecorder) -> None:
    made = figure(2, 2)
    set_title(made.subplots(), "猫 🐉 گربه $x$ and something much longer than the width", 8, 150)
    set_suptitle(made, "猫 🐉 $^$" * 20)
    pixels(made)
    assert not [w for w in recwarn if "Glyph" in str(w.message)]
