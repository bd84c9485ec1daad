"""Write requirements.lock: every distribution of constraints.txt with the SHA-256 of all its files that the index lists.

python -m tools.lock            query the index (https://pypi.org/simple) and write it; also: make lock
python -m tools.lock --check    only check that it has the versions of constraints.txt

torch is left out: machines install different builds of one version (CPU, CUDA, ROCm) from different indexes or from a disk,
with hashes that PyPI does not list. `make` therefore uses constraints.txt, and `make locked` the hashes.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from urllib.request import urlopen

from tools.distributions import CONSTRAINTS, LOCK, constrained

INDEX = "https://pypi.org/simple"
APART = ("torch",)
FILE = re.compile(r'href="[^"]*/([^"/#]+)#sha256=([0-9a-f]{64})"')
OLD = re.compile(r"-(?:cp2\d|cp3\d|cp310|pp\d+|pypy\w*)-(?!abi3)\S*\.whl$")  # wheels of Python before 3.11, or of others
HEAD = f"# Written by python -m tools.lock from {CONSTRAINTS.name}; installed by make locked, torch after it.\n"


def files_of(name: str) -> Iterator[tuple[str, str]]:
    """Yield name and SHA-256 of the files that the index lists."""
    with urlopen(f"{INDEX}/{name}/", timeout=60) as answer:
        yield from FILE.findall(answer.read(2**26).decode())


def hashes_of(name: str, version: str) -> list[str]:
    """Return the hashes of the files of a version that a supported Python can install, sorted."""
    start = re.compile(rf"{name.replace('-', '[-_.]+')}-{re.escape(version)}(-|\.tar\.gz$|\.zip$)", re.IGNORECASE)
    return sorted({digest for file, digest in files_of(name) if start.match(file) and not OLD.search(file)})


def locked() -> dict[str, tuple[str, int]]:
    """Return version and count of hashes of each distribution of the lock."""
    text = LOCK.read_text("utf-8") if LOCK.is_file() else ""
    rows = re.findall(r"^([\w.-]+)==(\S+) \\\n((?:    --hash=sha256:[0-9a-f]{64}(?: \\)?\n)+)", text, re.MULTILINE)
    return {name: (version, hashes.count("--hash")) for name, version, hashes in rows}


def main() -> None:
    """Write the lock or check it."""
    wanted = {name: version for name, version in constrained().items() if name not in APART}
    if "--check" in sys.argv:
        if {name: version for name, (version, _) in locked().items()} != wanted:
            sys.exit(f"error: {LOCK.name} does not have the versions of {CONSTRAINTS.name}; run python -m tools.lock")
        return
    lines = [HEAD]
    for name, version in sorted(wanted.items()):
        hashes = hashes_of(name, version)
        if not hashes:
            sys.exit(f"error: the index lists no file of {name} {version}; correct {CONSTRAINTS.name}")
        marked = " \\\n    ".join([f"{name}=={version}", *(f"--hash=sha256:{digest}" for digest in hashes)])
        lines.append(marked + "\n")
    LOCK.write_text("".join(lines), "utf-8")


if __name__ == "__main__":
    main()
