"""Descriptions of datasets and runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from reverie.base.errors import UserError
from reverie.base.noise import check_seed
from reverie.data import DATASETS, Dataset, load_data
from reverie.data.describe import draw_data
from reverie.data.in_memory import DataSource, is_in_memory
from reverie.data.kind import WRITTEN
from reverie.diffusion.plan import largest_colour_side, small_for_the_budget
from reverie.draw.curves import loss_curve
from reverie.draw.picture import check_picture, save
from reverie.runs.device import choose_device
from reverie.runs.folder import CONFIG
from reverie.runs.run import Run, load
from reverie.runs.weights import is_finished
from reverie.training.summary import meaning_of, purpose_of, verdict


def inspect_data(dataset: Dataset, out: str | Path | None) -> dict[str, Any]:
    """Describe a dataset; with `out`, also draw it."""
    if out is not None:
        draw_data(dataset, Path(out))
    if dataset.kind in WRITTEN:
        return {"data": dataset.name, **dataset.report, "fingerprint": dataset.fingerprint(), "notes": list(dataset.notes)}
    x = dataset.subsample(2000)
    axes = {"images": (0, 2, 3), "series": (0, 1), "points": (0,)}[dataset.kind]
    return {
        "data": dataset.name,
        **{key: value for key, value in dataset.report.items() if key != "classes"},
        "count": len(dataset),
        "shape": list(dataset.shape),
        "range": [float(x.min()), float(x.max())],
        "mean": x.mean(axes).tolist(),
        "std": x.std(axes).tolist(),
        "labels": dict(zip(dataset.label_names, dataset.label_counts(), strict=True)),
        **({"condition": dataset.conditions.describe()} if dataset.conditions is not None else {}),
        "fingerprint": dataset.fingerprint(),
        "notes": list(dataset.notes),
    }


def _purpose(run: Run) -> list[str]:
    """Return the purpose of a training and the meaning of its figures; nothing for families that fit in closed form."""
    if not run.config.model_family.learns_by_steps:
        return []
    return [text for text in (f"trained {purpose_of(run.config)}", meaning_of(run.config)) if text]


def inspect_run(run: Run, out: str | Path | None) -> dict[str, Any]:
    """Describe a run; with `out`, also plot its losses."""
    rows = run.metrics()
    run.model.warn()
    if out is not None and rows:
        save(loss_curve(rows), Path(out))
    summary = verdict(run)
    check: Mapping[str, Any] = next((row for row in reversed(rows) if "held_out" in row), {})
    return {
        "run": str(run.path),
        "data": run.config.data.name,
        "shape": list(run.config.data.shape),
        "labels": list(run.label_names),
        **({"condition": run.config.data.condition.describe()} if run.config.data.condition is not None else {}),
        "family": run.config.family.name,
        **({"purpose": ": ".join(purpose)} if (purpose := _purpose(run)) else {}),
        **run.model.facts(),
        **{key: value for key, value in dict(run.config.family).items() if key in ("network", "target", "schedule")},
        "steps": rows[-1]["i"] if rows else 0,
        "seconds": rows[-1]["seconds"] if rows else 0.0,
        "finished": is_finished(run.path),
        "training_loss": (check.get("train_loss") if "unit" in check else rows[-1]["loss"]) if rows else None,
        "held_out_loss": check.get("held_out"),
        **({"unit": check["unit"]} if "unit" in check else {}),
        "held_out_loss_by_noise": check.get("held_out_levels", []),
        "training_loss_by_noise": check.get("train_levels", []),
        "least_training_loss_by_noise": check.get("optimum_levels", []),
        "linear_filter_loss_by_noise": check.get("linear_levels", []),
        "held_out_noise_error_by_noise": check.get("noise_error_levels", []),
        "verdict": list(summary.lines),
        "findings": [asdict(finding) for finding in summary.findings],
        "commands": summary.commands,
    }


def inspect(
    what: DataSource,
    *,
    out: str | Path | None = None,
    seed: int = 0,
    device: str = "auto",
    minutes: float | None = None,
    reading: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Describe a run folder or a dataset, by name, by path or in memory: `reverie.inspect("digits")["count"]`.

    out: a picture to draw it to; minutes: length of a planned training (default: its usual length), which determines the size
    of color images; reading: options of `load_data`.
    """
    if minutes is not None and not minutes > 0:
        raise UserError(f"--minutes must be positive, got {minutes}")
    if out is not None:
        check_picture(Path(out))
    if not is_in_memory(what) and str(what) not in DATASETS and (Path(str(what)) / CONFIG).exists():
        return inspect_run(load(str(what), device), out)
    options, largest = reading or {}, largest_colour_side(minutes, None, choose_device(device).type)
    dataset = load_data(what, seed=check_seed(seed), largest_colour=largest, **options)
    if not options.get("size") and (note := small_for_the_budget(dataset, largest, minutes)):
        dataset = replace(dataset, notes=(*dataset.notes, note))
    return inspect_data(dataset, out)
