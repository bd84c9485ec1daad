"""Every name that the commands take, by kind."""

from __future__ import annotations

from typing import Any

from reverie.base.errors import pick
from reverie.base.name_tables import NameEntry, NameTable, describe_entry

# Every kind of name that the commands take: words that mean something by themselves, and tables.
KINDS: dict[str, tuple[NameEntry | NameTable, ...]] = {
    "data": (NameTable("data.named_datasets", "DATASETS"),),
    "families": (NameTable("families", "FAMILIES"),),
    "schedules": (NameTable("diffusion.schedules", "SCHEDULES"),),
    "targets": (NameTable("diffusion.pair", "TARGETS"),),
    "losses": (NameTable("diffusion.loss", "LOSSES"),),
    "weights": (NameTable("diffusion.loss", "WEIGHTS"),),
    "times": (NameTable("diffusion.loss", "TIMES"),),
    "tokenizers": (NameTable("text.learn", "TOKENIZERS"),),
    "networks": (NameTable("nets", "NETWORKS"), NameTable("diffusion.plan", "PRESETS")),
    "samplers": (NameTable("diffusion.samplers", "SAMPLERS"),),
    "grids": (NameTable("diffusion.samplers", "GRIDS"),),
    "features": (NameEntry("auto", "What suits the data."), NameTable("evaluation.metrics.features", "FEATURES")),
    "augmentations": (
        NameEntry("auto", "What suits the data."), NameEntry("none", "No changes."), NameTable("data.augment", "AUGMENTATIONS"),
    ),
    "views": (NameTable("diffusion.views", "VIEWS"),),
    "tasks": (NameTable("diffusion.measurements", "MEASUREMENTS"),),
    "inpainters": (NameTable("diffusion.known", "INPAINTERS"),),
    "posteriors": (NameTable("diffusion.known", "POSTERIORS"),),
    "checks": (NameTable("training.checks", "CHECKS"),),
}  # fmt: skip


def names() -> dict[str, list[str]]:
    """Return every name that the commands take, by kind; torch is not loaded for it."""
    return {kind: names_of(kind) for kind in KINDS}


def names_of(kind: str) -> list[str]:
    """Return the names of one kind."""
    parts = pick(KINDS, kind, "kind of name")
    return [name for part in parts for name in ([part.name] if isinstance(part, NameEntry) else part.names())]


def entries(kind: str) -> list[NameEntry]:
    """Return the names of one kind with what each is, and its options with their defaults."""
    found: list[NameEntry] = []
    for part in pick(KINDS, kind, "kind of name"):
        if isinstance(part, NameEntry):
            found.append(part)
        else:
            found += [_entry(kind, name, thing) for name, thing in part.load().items()]
    return found


def _entry(kind: str, name: str, thing: Any) -> NameEntry:
    from reverie.families.diffusion.family import DATA_OPTIONS

    if kind == "families":
        fields = {key: thing.settings.model_fields[key] for key in thing.option_names}
        planned = any(field.is_required() for field in fields.values())  # then a plan for the data chooses all of them
        return NameEntry(name, thing.summary, {key: None if planned else field.default for key, field in fields.items()})
    return describe_entry(name, thing, DATA_OPTIONS if kind == "networks" else ())


def families_by_kind() -> dict[str, list[str]]:
    """Return the families that take each kind of data, the default first."""
    from reverie.data.kind import KINDS as DATA
    from reverie.families import FAMILIES

    able = {kind: [name for name, family in FAMILIES.items() if kind in family.kinds] for kind in DATA}
    return {kind: sorted(names, key=lambda name: kind not in FAMILIES[name].default_for) for kind, names in able.items()}
