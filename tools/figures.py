"""Make the figures of the book with the commands in docs/book/figures/figures.toml.

python -m tools.figures FOLDER [NAME...]    run the commands in a folder with the runs that they name

Pictures are reduced to at most 1,000 pixels of width and to fewer colours, below 210 kB; films to fewer greys, below 400 kB.
"""

from __future__ import annotations

import shlex
import subprocess
import sys
import tomllib
from io import BytesIO
from pathlib import Path
from typing import TypedDict

from PIL import Image, ImageSequence

FIGURES = Path(__file__).parent.parent / "docs" / "book" / "figures"
WIDEST, LARGEST, LARGEST_FILM = 1000, 210_000, 400_000


class Figure(TypedDict):
    """command: makes the figure; picture: the file that it writes; before: commands that must run first."""

    command: str
    picture: str
    before: list[str]


def recorded() -> dict[str, Figure]:
    """Return the figures by name."""
    found: dict[str, Figure] = tomllib.loads((FIGURES / "figures.toml").read_text())
    return found


def small(picture: Path) -> bytes:
    """Return a picture as PNG below the size limit."""
    image = Image.open(picture).convert("RGB")
    for width in (WIDEST, 850, 700, 560, 460):
        size = min(width, image.width), image.height * min(width, image.width) // image.width
        scaled = image.resize(size, Image.Resampling.LANCZOS) if size != image.size else image
        for colours in (256, 64, 32, 16):
            file = BytesIO()
            scaled.quantize(colours, method=Image.Quantize.MEDIANCUT).save(file, "PNG", optimize=True)
            if file.tell() < LARGEST:
                return file.getvalue()
    raise SystemExit(f"{picture} stays above {LARGEST:,} bytes")


def small_film(film: Path) -> bytes:
    """Return a film in greys as GIF below the size limit, with its frame durations."""
    image = Image.open(film)
    frames = [frame.copy().convert("L") for frame in ImageSequence.Iterator(image)]
    times = [int(frame.info["duration"]) for frame in ImageSequence.Iterator(image)]
    for greys in (32, 16, 8):
        ramp = Image.new("P", (1, 1))
        ramp.putpalette([v for k in range(greys) for v in [255 * k // (greys - 1)] * 3])
        plain = [frame.convert("RGB").quantize(palette=ramp, dither=Image.Dither.NONE) for frame in frames]
        file = BytesIO()
        plain[0].save(file, "GIF", save_all=True, append_images=plain[1:], duration=times, loop=0, optimize=True)
        if file.tell() < LARGEST_FILM:
            return file.getvalue()
    raise SystemExit(f"{film} stays above {LARGEST_FILM:,} bytes")


def file_of(name: str, figure: Figure) -> Path:
    """Return the path of a figure: .png for a picture, .gif for a film."""
    return FIGURES / f"{name}{Path(figure['picture']).suffix}"


def main() -> None:
    """Make the named figures, or all."""
    folder, names = Path(sys.argv[1]), sys.argv[2:]
    done: set[str] = set()  # a command that makes several figures is run once
    for name, figure in recorded().items():
        if names and name not in names:
            continue
        for command in (*figure.get("before", []), figure["command"]):
            trained = command.startswith("reverie train") and (folder / command.split("--out ")[1].split()[0]).exists()
            if not trained and command not in done:
                subprocess.run([sys.executable, "-m", *shlex.split(command)], cwd=folder, check=True)
            done.add(command)
        made = file_of(name, figure)
        made.write_bytes((small_film if made.suffix == ".gif" else small)(folder / figure["picture"]))
        print(f"made {made.name}")


if __name__ == "__main__":
    main()
