"""Dependencies of the project: the distributions in pyproject.toml and their dependencies."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, requires
from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).parent.parent
CONSTRAINTS, LOCK = ROOT / "constraints.txt", ROOT / "requirements.lock"


def canonical(name: str) -> str:
    """Return the normalized name of a distribution."""
    return re.sub(r"[-_.]+", "-", name).lower()


def extras() -> dict[str, list[str]]:
    """Return the requirements of the project by extra; those of every installation have the empty name."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    return {"": project["dependencies"], **project["optional-dependencies"]}


def needed(requirements: Iterable[str]) -> set[str]:
    """Return the installed distributions that requirements need, directly or indirectly, on this machine."""
    found: dict[tuple[str, str], None] = {}
    waiting = [(Requirement(text), "") for text in requirements]
    while waiting:
        requirement, extra = waiting.pop()
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": extra}):
            continue
        for inner in ("", *requirement.extras):
            if (key := (canonical(requirement.name), inner)) not in found:
                try:
                    waiting += [(Requirement(text), inner) for text in requires(requirement.name) or ()]
                except PackageNotFoundError:  # of an extra that is not installed
                    break
                found[key] = None
    return {name for name, _ in found}


def constrained() -> dict[str, str]:
    """Return the version of each distribution that constraints.txt names."""
    rows = (line.partition("#")[0].strip() for line in CONSTRAINTS.read_text("utf-8").splitlines())
    return {canonical(name): version for name, mark, version in (row.partition("==") for row in rows) if mark}
