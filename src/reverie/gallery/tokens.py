"""Tokens: merges of byte-pair encoding, compression by vocabulary size, and splits of a word."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from reverie.base.errors import UserError
from reverie.base.files import check_folder
from reverie.data import load_data
from reverie.data.in_memory import DataSource
from reverie.data.text_windows import TextWindows
from reverie.draw.curves import label_axes
from reverie.draw.picture import CYCLE, INK, SOFT, figure, matplotlib_text, save
from reverie.text.bpe import Pair, merges, split
from reverie.text.learn import learn_tokenizer
from reverie.text.merges import CharacterBPETokenizer

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MAX_TRAINING = 200_000  # characters that train the tokenizers
SIZES = (300, 500, 1000, 2000, 4000, 8000)  # of vocabularies
MAX_MERGES, ROWS = 32, 16  # merges in the table, and its rows
EXAMPLE = "abracadabra"
WORD = "Wherefore art thou?"
MAX_WORD = 60


def book_example() -> list[str]:
    """Return the merges of abracadabra, one per line; merged pairs become one letter."""
    learned, lines, letters = list[Pair](), [f"{EXAMPLE}  ({len(EXAMPLE)} tokens)"], "XYZ"
    names: dict[str, str] = {}
    for (pair, count), letter in zip(merges([EXAMPLE], len(letters)), letters, strict=False):
        learned.append(pair)
        names["".join(pair)] = letter
        parts = split(EXAMPLE, learned)
        spelled = "".join(names.get(part, part) for part in parts)
        merged = "".join(names.get(part, part) for part in pair)
        lines.append(f"{letter} = {merged}, {count} times:  {spelled}  ({len(parts)} tokens)")
    return lines


def _table(out: Path, words: Sequence[str]) -> None:
    learned = list(merges(words, MAX_MERGES))
    fig = figure(9, 4.9)
    axes = fig.subplots()
    axes.set_axis_off()
    axes.set(xlim=(0, 3), ylim=(ROWS + 1, -1.2))
    for k, ((a, b), count) in enumerate(learned):
        x, y = k // ROWS, k % ROWS
        text = f"{k + 1:>2}.  {_visible(a)} + {_visible(b)}  \u2192  {_visible(a + b)}"
        axes.text(x, y, matplotlib_text(text), fontsize=9, color=INK, family="monospace", va="center")
        axes.text(x + 0.9, y, f"{count:,}", fontsize=8, color=SOFT, ha="right", va="center")
    axes.text(0, -1, "the first merges, with the frequency of each pair", fontsize=10, color=INK, va="center")
    axes.text(2.02, -1, "textbook example", fontsize=10, color=INK, va="center")
    for k, line in enumerate(book_example()):
        axes.text(2.02, 1.2 * k, matplotlib_text(line), fontsize=8, color=INK, family="monospace", va="center")
    save(fig, out)


def _visible(part: str) -> str:
    """Return a token with visible spaces and line ends."""
    return part.replace(" ", "\u00b7").replace("\n", "\u21b5").replace("\t", "\u2192")


def _lengths(out: Path, text: str) -> None:
    fig = figure(7, 3.8)
    axes = fig.subplots()
    for k, name in enumerate(("bpe", "byte-bpe")):
        points = []
        for size in SIZES:
            tokenizer = learn_tokenizer([text], f"{name}:size={size}")
            points.append((tokenizer.size, len(tokenizer.encode(text)) / len(text)))
        axes.plot(*zip(*points, strict=True), "o-", color=CYCLE[k], lw=1.6, ms=4, label=name)
    for k, name in enumerate(("characters", "bytes"), 2):
        tokenizer = learn_tokenizer([text], name)
        axes.plot([tokenizer.size], [len(tokenizer.encode(text)) / len(text)], "s", color=CYCLE[k], label=name)
    axes.set_xscale("log")
    axes.set_ylim(bottom=0)
    label_axes(axes, "Larger vocabularies shorten texts", "tokens in the vocabulary", "tokens per character")
    axes.legend(fontsize=8, frameon=False)
    save(fig, out)


def _boxes(axes: Axes, y: float, parts: Sequence[str]) -> None:
    x = 0.0
    for k, part in enumerate(parts):
        width = max(1, len(part))
        axes.barh(y, width - 0.12, left=x + 0.06, height=0.72, color=CYCLE[k % len(CYCLE)], alpha=0.25)
        axes.text(
            x + width / 2,
            y,
            matplotlib_text(_visible(part)),
            ha="center",
            va="center",
            fontsize=9,
            color=INK,
            family="monospace",
        )
        x += width


def _splits(out: Path, text: str, word: str) -> None:
    rows: dict[str, list[str]] = {"characters": list(word)}
    for size in SIZES:
        tokenizer = learn_tokenizer([text], f"bpe:size={size}")
        rows[f"bpe, {tokenizer.size:,} tokens"] = _spelled(tokenizer, word)
    fig = figure(9, 0.8 + 0.42 * len(rows))
    axes = fig.subplots()
    for y, (name, parts) in enumerate(rows.items()):
        _boxes(axes, y, parts)
        axes.text(-0.4, y, f"{name}: {len(parts)}", ha="right", va="center", fontsize=8, color=INK)
    axes.set(xlim=(-0.2, max(sum(max(1, len(p)) for p in parts) for parts in rows.values())), ylim=(len(rows) - 0.5, -0.7))
    axes.set_axis_off()
    axes.set_title("Tokens of a text", fontsize=10, color=INK)
    save(fig, out)


def _spelled(tokenizer: Any, word: str) -> list[str]:
    """Return the tokens of a word as strings."""
    return [tokenizer.spelled(int(k)).replace("half a byte, ", "\u00bd") for k in tokenizer.encode(word)]


def draw(data: DataSource, out: Path, prompt: str = WORD, reading: Mapping[str, Any] | None = None) -> list[Path]:
    """Draw merges, lengths and splits of a text's tokens into a folder.  prompt: text to split."""
    if not 0 < len(prompt) <= MAX_WORD:
        raise UserError(f"--prompt must have 1 to {MAX_WORD} characters, got {len(prompt)}")
    check_folder(out)
    dataset = load_data(data, **(reading or {}))
    if not isinstance(dataset.x, TextWindows):
        raise UserError(f"this gallery needs text, and {dataset.name} has {dataset.kind}; give a .txt file")
    text = "\n".join(dataset.x.texts())[:MAX_TRAINING]
    tokenizer = learn_tokenizer([text], "bpe:size=64")
    assert isinstance(tokenizer, CharacterBPETokenizer)
    files = [out / name for name in ("merges.png", "lengths.png", "splits.png")]
    _table(files[0], tokenizer.words(text))
    _lengths(files[1], text)
    _splits(files[2], text, prompt)
    return files
