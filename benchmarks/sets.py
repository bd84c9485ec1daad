"""Make the colour images of the benchmarks from public packages: `python -m benchmarks.sets FOLDER`.

FOLDER/emoji: 1,906 images of Google's Noto emoji in nine folders (npm emoji-datasource-google 16.0.0, 64 x 64, no skin tones).
FOLDER/photos: 432 squares of 24 photographs (Debian's plasma-workspace-wallpapers and mate-backgrounds), each cut into 3 x 6
tiles of 256 x 256.  Both are downloaded by npm and apt-get.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import tarfile
import tempfile
from pathlib import Path

from PIL import Image

EMOJI = "emoji-datasource-google@16.0.0"
WALLPAPERS = ("plasma-workspace-wallpapers", "mate-backgrounds")
PHOTOGRAPHS = ("usr/share/backgrounds/mate/nature/*.jpg", "usr/share/wallpapers/*/contents/images/2560x1600.jpg")
NO_EMOJI = "Component"  # the category of skin tones
DOWN, ACROSS, SIDE = 3, 6, 256


def make_emoji(folder: Path, temporary: Path) -> int:
    """Sort the emoji of the package into folders by category; return their count."""
    subprocess.run(["npm", "pack", "--silent", EMOJI], cwd=temporary, check=True, stdout=subprocess.DEVNULL)
    with tarfile.open(next(temporary.glob("emoji-datasource-google-*.tgz"))) as archive:
        archive.extractall(temporary, filter="data")
    images, count = temporary / "package" / "img" / "google" / "64", 0
    for emoji in json.loads((temporary / "package" / "emoji.json").read_text("utf-8")):
        if emoji["category"] == NO_EMOJI or not emoji["has_img_google"]:
            continue
        place = folder / emoji["category"].replace("&", "and")
        place.mkdir(parents=True, exist_ok=True)
        (place / emoji["image"]).write_bytes((images / emoji["image"]).read_bytes())
        count += 1
    return count


def make_photos(folder: Path, temporary: Path) -> int:
    """Cut the photographs of the packages into squares; return their count."""
    subprocess.run(["apt-get", "download", *WALLPAPERS], cwd=temporary, check=True, capture_output=True)
    for package in temporary.glob("*.deb"):
        subprocess.run(["dpkg-deb", "-x", package, temporary], check=True)
    folder.mkdir(parents=True, exist_ok=True)
    count = 0
    for path in sorted(path for pattern in PHOTOGRAPHS for path in temporary.glob(pattern)):
        name = path.stem if path.parent.name == "nature" else path.parts[-4]
        with Image.open(path) as photo:
            side = min(photo.width // ACROSS, photo.height // DOWN)
            left, top = (photo.width - ACROSS * side) // 2, (photo.height - DOWN * side) // 2
            for k in range(DOWN * ACROSS):
                x, y = left + side * (k % ACROSS), top + side * (k // ACROSS)
                piece = photo.convert("RGB").crop((x, y, x + side, y + side)).resize((SIDE, SIDE), Image.Resampling.LANCZOS)
                piece.save(folder / f"{name}-{k:02}.png")
                count += 1
    return count


def main() -> None:
    """Make both folders."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
    for name, make in (("emoji", make_emoji), ("photos", make_photos)):
        with tempfile.TemporaryDirectory() as temporary:
            print(f"{folder / name}: {make(folder / name, Path(temporary)):,} images")


if __name__ == "__main__":
    main()
