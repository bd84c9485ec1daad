"""Summaries that are read from files without loading a model: runs, curves, previews, datasets, and tables of names."""

from __future__ import annotations

import re
import time
from dataclasses import asdict
from functools import cached_property
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from reverie import api
from reverie.base.errors import UserError
from reverie.base.files import own_file
from reverie.base.spec import format_spec
from reverie.studio.library import Library, LibraryItem
from reverie.studio.mathml import mathml
from reverie.studio.trainings import Trainings

PREVIEW = re.compile(r"step-(\d{7,12})\.png|labels\.png")
MAX_PREVIEW = 2**25  # bytes
MAX_ROWS = 1500  # rows of metrics sent per run
CURVES = (
    "i", "seconds", "fraction", "loss", "held_out", "held_out_levels", "train_loss", "per_second", "unit", "preview_score",
)  # fmt: skip


class Summaries:
    """Summarizes the runs and data of a library and its trainings."""

    def __init__(self, library: Library, trainings: Trainings) -> None:
        self.library, self.trainings = library, trainings

    @cached_property
    def _constants(self) -> dict[str, Any]:
        tables = {kind: [_entry(entry) for entry in api.entries(kind)] for kind in api.KINDS}
        demos = [
            {
                **demo.describe(),
                "name": name,
                "formula": mathml(demo.formula),
                "more_formulas": [mathml(f) for f in demo.more_formulas],
            }
            for name, demo in api.DEMOS.items()
        ]
        form = [asdict(field) for field in self.trainings.form]
        families = api.families_by_kind()
        return {"folder": str(self.library.root), "tables": tables, "families": families, "demos": demos, "form": form}

    def studio(self) -> dict[str, Any]:
        """Return the constant data of the page: the tables of names, the training form, the demos."""
        return self._constants

    def runs(self) -> list[dict[str, Any]]:
        """Return a row for every run, starting with those that are being prepared."""
        rows = []
        items = self.library.runs()
        for run in self.trainings.preparing():
            if run.id not in {item.id for item in items}:
                rows.append({**_name(run), "preparing": True, "age": 0.0, **self.trainings.state(run)})
        for run in items:
            training, previews = api.holder(run.path) is not None, self.previews(run)
            row = {**self.library.overview(run), **_name(run), "training": training, **_size(run.path)}
            rows.append({**row, "queued": self.trainings.queued(run), "preview": previews[-1] if previews else None})
        return rows

    def known_run(self, key: str) -> LibraryItem:
        """Return a run by its id, including runs that are being prepared."""
        started = self.trainings.started.get(key)
        return started.run if started is not None else self.library.run(key)

    def run(self, key: str) -> dict[str, Any]:
        """Return the details of a run: its data, its capabilities, its options with defaults, and its progress."""
        run = self.known_run(key)
        if not (run.path / "config.toml").exists():
            return {**_name(run), "preparing": True, **self.trainings.state(run)}
        config = api.read_config(run.path)
        family, data = config.model_family, config.data
        settings = {key: _setting(value) for key, value in config.family}
        return {
            **self.library.overview(run), **_name(run), **_size(run.path), **self.trainings.state(run),
            "kind": data.kind, "shape": data.shape, "labels": config.label_names, "label_counts": data.label_counts,
            "columns": data.columns,
            "has_captions": data.condition is not None and data.condition.length > 0,
            "abilities": sorted(family.capabilities), "options": sorted(family.options), "likelihood": family.likelihood,
            "measure": family.held_out_measure(config.family), "fingerprint": data.fingerprint or data.name,
            "family": config.family.name, "settings": settings, "training_settings": dict(config.training),
            "learns_by_steps": family.learns_by_steps, "path": str(self.library.display_path(run.path)),
            "has_weights": own_file(run.path, "model.safetensors").is_file(), **self.progress(run),
        }  # fmt: skip

    def progress(self, run: LibraryItem) -> dict[str, Any]:
        """Return the progress of training: the metrics, the doctor's findings, and the previews."""
        try:
            rows = api.read_metrics(run.path)
            findings = [str(finding) for finding in api.read_findings(run.path)]
        except UserError as error:
            rows, findings = [], [str(error)]
        metrics = [{key: row[key] for key in CURVES if key in row} for row in _subsample(rows)]
        return {"metrics": metrics, "findings": findings, "previews": self.previews(run)}

    def previews(self, run: LibraryItem) -> list[str]:
        """Return the file names of a run's previews in order."""
        folder = run.path / "previews"
        if folder.is_symlink() or not folder.is_dir():
            return []
        return sorted(path.name for path in folder.iterdir() if PREVIEW.fullmatch(path.name) and path.name != "labels.png")

    def preview(self, key: str, name: str) -> bytes:
        """Return the content of a preview, a PNG file in the run folder."""
        if not PREVIEW.fullmatch(name):
            raise UserError("no such preview; reload the page of the run")
        path = own_file(self.library.run(key).path, f"previews/{name}")
        if not path.is_file() or path.stat().st_size > MAX_PREVIEW:
            raise UserError(f"no such preview: {name}; reload the page of the run")
        content = path.read_bytes()
        if not content.startswith(b"\x89PNG\r\n\x1a\n"):
            raise UserError(f"the preview is not a PNG file: {name}; delete it")
        return content

    def data(self) -> dict[str, Any]:
        """Return the datasets to choose from: built-in ones, and those in the folder."""
        return {"builtin": self._constants["tables"]["data"], "local": [_name(item) for item in self.library.data()]}

    def data_kind(self, key: str) -> dict[str, Any]:
        """Return the kind of a dataset, by name or id, or the reason why it cannot be read."""
        source = self.library.source(key)
        try:
            with api.confined(self.library.root):
                return {"kind": api.kind_of_data(source)}
        except UserError as error:
            return {"kind": None, "problem": str(error)}


def _name(item: LibraryItem) -> dict[str, str]:
    return {"id": item.id, "name": item.name}


def _setting(value: Any) -> Any:
    if isinstance(value, BaseModel):
        return value.model_dump()
    return format_spec(value) if isinstance(value, dict) and "name" in value else value


def _entry(entry: Any) -> dict[str, Any]:
    options = {key: None if value is None else str(value) for key, value in entry.options.items()}
    return {"name": entry.name, "about": entry.about, "options": options}


def _size(run: Path) -> dict[str, float]:
    """Return the bytes of a run and the seconds since its last change; links are not followed."""
    files = [path.lstat() for path in run.rglob("*") if not path.is_symlink()]
    return {
        "bytes": float(sum(file.st_size for file in files)),
        "age": time.time() - max((file.st_mtime for file in files), default=0.0),
    }


def _subsample(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return about MAX_ROWS rows of metrics, with all held-out checks among them."""
    stride = -(-len(rows) // MAX_ROWS)
    return [row for k, row in enumerate(rows) if k % stride == 0 or "held_out" in row or k == len(rows) - 1]
