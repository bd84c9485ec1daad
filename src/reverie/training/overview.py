"""An overview of runs: data, progress and verdict of each, without loading weights."""

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

DEPTH = 3  # depth of the search for runs, in folders


@dataclass(frozen=True)
class Overview:
    """A run.

    fraction: completed part of its length; held_out: the last held-out loss, or NLL if there is a unit; problem: why the run
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
        """Whether the run is complete."""
        return self.fraction == 1

    def as_row(self) -> dict[str, Any]:
        """Return the fields; only path and problem of a run that cannot be used."""
        return asdict(self) if self.problem is None else {"path": self.path, "problem": self.problem}


def runs(where: str | Path = "runs") -> list[Overview]:
    """Return the runs in a folder, or the folder itself if it is a run, ordered by path."""
    return [overview(path) for path in find_runs(Path(where))]


def find_runs(root: Path) -> list[Path]:
    """Return the run folders in a folder, or the folder itself if it is one, ordered by path; links are not followed."""
    if not root.is_dir():
        raise UserError(f"there is no folder {root}; give the folder of the runs, or train one with: reverie train spiral")
    run_folders = []
    for directory, subfolders, files in os.walk(root):
        path = Path(directory)
        if folder.CONFIG in files or folder.WEIGHTS_FILE in files or checkpoints.FOLDER in subfolders:
            run_folders.append(path)
            subfolders.clear()
        elif len(path.relative_to(root).parts) >= DEPTH:
            subfolders.clear()
    return sorted(run_folders)


def overview(path: Path) -> Overview:
    """Return the overview of the run in a folder."""
    try:
        config = folder.read_config(path)
        _check_weights(path)
        rows, findings = folder.read_metrics(path), folder.read_findings(path)
        if not rows and (errors := folder.read_rows(path)[1]):
            raise UserError(f"{folder.METRICS} is damaged: {errors[0]}")
        last: dict[str, Any] = rows[-1] if rows else {"i": 0, "seconds": 0.0, "fraction": 0.0}
        checked: dict[str, Any] = next((row for row in reversed(rows) if "held_out" in row), {})
        return Overview(
            str(path), config.data.name, config.data.count, config.family.name, last["i"],
            float(last["seconds"]), float(last["fraction"]), checked.get("held_out"), checked.get("unit", ""),
            short_verdict(config, rows, findings),
        )  # fmt: skip
    except UserError as error:
        return Overview(str(path), problem=str(error))


def _check_weights(path: Path) -> None:
    """Refuse a run without valid weights; reads only the header."""
    weights = own_file(path, folder.WEIGHTS_FILE)
    if not weights.exists():
        why = "it was stopped before its first checkpoint, or is training now" if not checkpoints.existing(path) else "missing"
        raise UserError(f"no weights in {folder.WEIGHTS_FILE}: {why}")
    read_tensor_specs(weights)
