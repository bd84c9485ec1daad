"""Runs at a glance: what each was trained on, how far, and how it went, without loading any weights."""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from reverie.base.errors import UserError
from reverie.base.files import own_file
from reverie.base.tensors import read_tensor_specs
from reverie.runs import folder
from reverie.training import checkpoints
from reverie.training.summary import short_verdict

DEPTH = 3  # folders below the one that is given


@dataclass(frozen=True)
class Overview:
    """One run.

    fraction: how much of its length is done; held_out: the last held-out loss, or cost, which has a unit; problem: why it
    cannot be used.
    """

    path: str
    data: str = ""
    count: int = 0
    family: str = ""
    steps: int = 0
    seconds: float = 0.0
    fraction: float = 0.0
    held_out: float | None = None
    unit: str = ""
    verdict: str = ""
    problem: str | None = None

    @property
    def finished(self) -> bool:
        """Tell whether the whole length is done."""
        return self.fraction == 1

    def as_row(self) -> dict[str, Any]:
        """Return what is known: of a run that cannot be used, where it is and why."""
        return asdict(self) if self.problem is None else {"path": self.path, "problem": self.problem}


def runs(where: str | Path = "runs") -> list[Overview]:
    """Return the runs in a folder, or the run that it is, by their paths; one that is broken says why."""
    return [overview(path) for path in find_runs(Path(where))]


def find_runs(root: Path) -> list[Path]:
    """Return the folders of the runs in a folder, or its own, by their paths; links are not followed."""
    if not root.is_dir():
        raise UserError(f"there is no folder {root}; say where the runs are, or train one with: reverie train spiral")
    found = []
    for place, inner, files in os.walk(root):
        path = Path(place)
        if folder.CONFIG in files or folder.WEIGHTS_FILE in files or checkpoints.FOLDER in inner:
            found.append(path)
            inner.clear()
        elif len(path.relative_to(root).parts) >= DEPTH:
            inner.clear()
    return sorted(found)


def overview(path: Path) -> Overview:
    """Return what there is to say of the run in a folder; of one that is broken, why."""
    try:
        config = folder.read_config(path)
        _check_weights(path)
        rows, findings = folder.read_metrics(path), folder.read_findings(path)
        if not rows and (wrong := folder.read_rows(path)[1]):
            raise UserError(f"{folder.METRICS} is damaged: {wrong[0]}")
        last: dict[str, Any] = rows[-1] if rows else {"i": 0, "seconds": 0.0, "fraction": 0.0}
        held: dict[str, Any] = next((row for row in reversed(rows) if "held_out" in row), {})
        return Overview(
            str(path), config.data.name, config.data.count, config.family.name, last["i"],
            float(last["seconds"]), float(last["fraction"]), held.get("held_out"), held.get("unit", ""),
            short_verdict(config, rows, findings),
        )  # fmt: skip
    except UserError as error:
        return Overview(str(path), problem=str(error))


def _check_weights(path: Path) -> None:
    """Refuse a run without weights, or with a file that is no such one; only its head is read."""
    weights = own_file(path, folder.WEIGHTS_FILE)
    if not weights.exists():
        why = "it was stopped before its first checkpoint, or is training now" if not checkpoints.existing(path) else "missing"
        raise UserError(f"no weights in {folder.WEIGHTS_FILE}: {why}")
    read_tensor_specs(weights)
