"""What there is to know without any work: runs, their curves and previews, data, and every name that can be chosen."""

from __future__ import annotations

import re
import time
from dataclasses import asdict
from functools import cached_property
from pathlib import Path
from typing import Any

from reverie import api
from reverie.base.errors import UserError
from reverie.base.files import own_file
from reverie.base.spec import format_spec
from reverie.studio.library import Found, Library
from reverie.studio.mathml import mathml
from reverie.studio.trainings import Trainings

PREVIEW = re.compile(r"step-(\d{7,12})\.png|labels\.png")
MOST_PREVIEW = 2**25  # bytes
MOST_ROWS = 1500  # reports that are sent of one run
CURVES = (
    "i", "seconds", "fraction", "loss", "held_out", "held_out_levels", "train_loss", "per_second", "unit", "preview_score",
)  # fmt: skip


class Facts:
    """Tells what there is."""

    def __init__(self, library: Library, trainings: Trainings) -> None:
        self.library, self.trainings = library, trainings

    @cached_property
    def _fixed(self) -> dict[str, Any]:
        tables = {kind: [_entry(entry) for entry in api.entries(kind)] for kind in api.KINDS}
        lessons = [
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
        return {"folder": str(self.library.root), "tables": tables, "families": families, "lessons": lessons, "form": form}

    def studio(self) -> dict[str, Any]:
        """Return what stays as it is: every table of names, the form of a training, the lessons."""
        return self._fixed

    def runs(self) -> list[dict[str, Any]]:
        """Return a row for every run, those that are being prepared first."""
        rows = []
        found = self.library.runs()
        for run in self.trainings.preparing():
            if run.id not in {one.id for one in found}:
                rows.append({**_name(run), "preparing": True, "age": 0.0, **self.trainings.state(run)})
        for run in found:
            training, previews = api.holder(run.path) is not None, self.previews(run)
            row = {**self.library.overview(run), **_name(run), "training": training, **_size(run.path)}
            rows.append({**row, "queued": self.trainings.queued(run), "preview": previews[-1] if previews else None})
        return rows

    def known(self, key: str) -> Found:
        """Return a run, or one that is being prepared, by its id."""
        started = self.trainings.started.get(key)
        return started.found if started is not None else self.library.run(key)

    def run(self, key: str) -> dict[str, Any]:
        """Return what is known of one run: what it is, what it can do, its options with their defaults."""
        run = self.known(key)
        if not (run.path / "config.toml").exists():
            return {**_name(run), "preparing": True, **self.trainings.state(run)}
        config = api.read_config(run.path)
        family, data = config.model_family, config.data
        settings = {
            key: format_spec(value) if isinstance(value, dict) and "name" in value else value for key, value in config.family
        }
        return {
            **self.library.overview(run), **_name(run), **_size(run.path), **self.trainings.state(run),
            "kind": data.kind, "shape": data.shape, "labels": config.label_names, "label_counts": data.label_counts,
            "columns": data.columns,
            "captions": data.condition is not None and data.condition.length > 0,
            "can": sorted(family.can), "options": sorted(family.options), "likelihood": family.likelihood,
            "measure": family.held_out_measure(config.family), "fingerprint": data.fingerprint or data.name,
            "family": config.family.name, "settings": settings, "training_settings": dict(config.training),
            "learns_by_steps": family.learns_by_steps, "here": str(self.library.shown(run.path)),
            "ready": own_file(run.path, "model.safetensors").is_file(), **self.progress(run),
        }  # fmt: skip

    def progress(self, run: Found) -> dict[str, Any]:
        """Return what changes while a run is trained: its curves, the doctor's findings in words, and its previews."""
        try:
            rows = api.read_metrics(run.path)
            findings = [str(finding) for finding in api.read_findings(run.path)]
        except UserError as error:
            rows, findings = [], [str(error)]
        kept = [{key: row[key] for key in CURVES if key in row} for row in _thinned(rows)]
        return {"rows": kept, "findings": findings, "previews": self.previews(run)}

    def previews(self, run: Found) -> list[str]:
        """Return the names of a run's previews, the last one last."""
        folder = run.path / "previews"
        if folder.is_symlink() or not folder.is_dir():
            return []
        return sorted(path.name for path in folder.iterdir() if PREVIEW.fullmatch(path.name) and path.name != "labels.png")

    def preview(self, key: str, name: str) -> bytes:
        """Return a preview, which is a PNG file of the run's own."""
        if not PREVIEW.fullmatch(name):
            raise UserError("there is no such preview")
        path = own_file(self.library.run(key).path, f"previews/{name}")
        if not path.is_file() or path.stat().st_size > MOST_PREVIEW:
            raise UserError("there is no such preview")
        content = path.read_bytes()
        if not content.startswith(b"\x89PNG\r\n\x1a\n"):
            raise UserError("this preview is no PNG file")
        return content

    def data(self) -> dict[str, Any]:
        """Return the data that can be chosen: those with a name, and those in the folder."""
        return {"named": self._fixed["tables"]["data"], "found": [_name(one) for one in self.library.data()]}

    def kind(self, key: str) -> dict[str, Any]:
        """Return the kind of data, by name or id, or why they cannot be read."""
        source = self.library.source(key)
        try:
            with api.confined(self.library.root):
                return {"kind": api.kind_of_data(source)}
        except UserError as error:
            return {"kind": None, "problem": str(error)}


def _name(found: Found) -> dict[str, str]:
    return {"id": found.id, "name": found.name}


def _entry(entry: Any) -> dict[str, Any]:
    options = {key: None if value is None else str(value) for key, value in entry.options.items()}
    return {"name": entry.name, "about": entry.about, "options": options}


def _size(run: Path) -> dict[str, float]:
    """Return how many bytes a run takes and how many seconds ago something was written to it; links are not followed."""
    files = [path.lstat() for path in run.rglob("*") if not path.is_symlink()]
    return {
        "bytes": float(sum(one.st_size for one in files)),
        "age": time.time() - max((f.st_mtime for f in files), default=0.0),
    }


def _thinned(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Leave reports out where there are very many, but never one with a check."""
    every = -(-len(rows) // MOST_ROWS)
    return [row for k, row in enumerate(rows) if k % every == 0 or "held_out" in row or k == len(rows) - 1]
