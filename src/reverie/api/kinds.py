"""Every name that the commands take, by kind."""

from __future__ import annotations

from typing import Any

from reverie.base.errors import pick
from reverie.base.tables import Entry, Table, described

# Every kind of name that the commands take: words that mean something by themselves, and tables.
KINDS: dict[str, tuple[Entry | Table, ...]] = {
    "data": (Table("data.names", "DATASETS"),),
    "families": (Table("families", "FAMILIES"),),
    "schedules": (Table("diffusion.schedules", "SCHEDULES"),),
    "targets": (Table("diffusion.pair", "TARGETS"),),
    "losses": (Table("diffusion.loss", "LOSSES"),),
    "weights": (Table("diffusion.loss", "WEIGHTS"),),
    "times": (Table("diffusion.loss", "TIMES"),),
    "tokenizers": (Table("text.learn", "TOKENIZERS"),),
    "networks": (Table("nets", "NETWORKS"), Table("diffusion.plan", "PRESETS")),
    "samplers": (Table("diffusion.samplers", "SAMPLERS"),),
    "grids": (Table("diffusion.samplers", "GRIDS"),),
    "features": (Entry("auto", "What suits the data."), Table("evaluation.metrics.features", "FEATURES")),
    "augmentations": (
        Entry("auto", "What suits the data."), Entry("none", "No changes."), Table("data.augment", "AUGMENTATIONS"),
    ),
    "views": (Table("diffusion.views", "VIEWS"),),
    "tasks": (Table("diffusion.measurements", "MEASUREMENTS"),),
    "inpainters": (Table("diffusion.known", "INPAINTERS"),),
    "posteriors": (Table("diffusion.known", "POSTERIORS"),),
    "checks": (Table("training.checks", "CHECKS"),),
}  # fmt: skip


def names() -> dict[str, list[str]]:
    """Return every name that the commands take, by kind; torch is not loaded for it."""
    return {kind: names_of(kind) for kind in KINDS}


def names_of(kind: str) -> list[str]:
    """Return the names of one kind."""
    parts = pick(KINDS, kind, "kind of name")
    return [name for part in parts for name in ([part.name] if isinstance(part, Entry) else part.names())]


def entries(kind: str) -> list[Entry]:
    """Return the names of one kind with what each is, and its options with their defaults."""
    found: list[Entry] = []
    for part in pick(KINDS, kind, "kind of name"):
        if isinstance(part, Entry):
            found.append(part)
        else:
            found += [_entry(kind, name, thing) for name, thing in part.load().items()]
    return found


def _entry(kind: str, name: str, thing: Any) -> Entry:
    from reverie.families.diffusion.family import OF_THE_DATA

    if kind == "families":
        fields = {key: thing.settings.model_fields[key] for key in thing.option_names}
        planned = any(field.is_required() for field in fields.values())  # then a plan for the data chooses all of them
        return Entry(name, thing.summary, {key: None if planned else field.default for key, field in fields.items()})
    return described(name, thing, OF_THE_DATA if kind == "networks" else ())


def families_by_kind() -> dict[str, list[str]]:
    """Return the families that take each kind of data, the default first."""
    from reverie.data.kind import KINDS as DATA
    from reverie.families import FAMILIES

    able = {kind: [name for name, family in FAMILIES.items() if kind in family.kinds] for kind in DATA}
    return {kind: sorted(names, key=lambda name: kind not in FAMILIES[name].default_for) for kind, names in able.items()}
