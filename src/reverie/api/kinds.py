"""The names that commands take, by kind, with descriptions and sources."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from reverie.api.sources import split_source
from reverie.base.errors import pick
from reverie.base.name_tables import NameEntry, NameTable, describe_entry

METRICS = (
    NameEntry("kid", "KID: unbiased squared MMD of features under a cubic kernel (arXiv:1801.01401)."),
    NameEntry("frechet", "Fréchet distance of Gaussians fitted to features (arXiv:1706.08500)."),
    NameEntry("detail", "Energy of fine detail relative to real images; best near the value of real data."),
    NameEntry("mean_distance", "Mean distance of points to the curve of the spiral."),
    NameEntry("coverage_ks", "Kolmogorov-Smirnov distance of positions along the spiral (Kolmogorov 1933)."),
    NameEntry("sliced_wasserstein", "Sliced Wasserstein distance (Bonneel et al. 2015)."),
    NameEntry("sinkhorn", "Sinkhorn divergence (arXiv:1706.00292)."),
    NameEntry("mmd", "Squared maximum mean discrepancy (Gretton et al. 2012)."),
    NameEntry("energy", "Energy distance (Székely and Rizzo 2013)."),
    NameEntry("precision", "Share of samples in the neighbourhoods of real data (arXiv:1904.06991)."),
    NameEntry("recall", "Share of real data in the neighbourhoods of samples (arXiv:1904.06991)."),
    NameEntry("density", "Mean number of real neighbourhoods that contain a sample, over k (arXiv:2002.09797)."),
    NameEntry("coverage", "Share of real neighbourhoods that contain a sample (arXiv:2002.09797)."),
    NameEntry("diversity", "Mean distance between samples; best near the value of real data."),
    NameEntry("two_sample_accuracy", "Accuracy of a classifier of samples against real data (arXiv:1610.06545)."),
    NameEntry("label_accuracy", "Share of samples that a classifier assigns to their label (arXiv:1905.10887)."),
    NameEntry("copies", "Share of samples closer to training data than held-out data are (arXiv:2212.03860)."),
    NameEntry("nearest_distance", "Mean distance to the nearest training datum; best near the value of real data."),
    NameEntry("exact_match", "Share of unseen pairs answered exactly."),
    NameEntry("exact_match_longer", "Share of pairs longer than in training answered exactly."),
    NameEntry("longest", "Length of the longest passage copied from the training text."),
    NameEntry("novel_8", "Share of 8-grams that the training text does not contain."),
    NameEntry("novel_16", "Share of 16-grams that the training text does not contain."),
    NameEntry("exact", "Exact negative log-likelihood of held-out data (Shannon 1948)."),
    NameEntry("dequantised", "Negative log-likelihood of dequantised held-out data (arXiv:1511.01844)."),
    NameEntry("bound", "Upper bound on the negative log-likelihood of held-out data, by the ELBO (arXiv:2107.00630)."),
    NameEntry("flow", "Negative log-likelihood of held-out data by the probability flow (arXiv:2011.13456)."),
)

# Kind of name -> single names and tables of names.
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
    "features": (NameEntry("auto", "Chosen for the data."), NameTable("evaluation.metrics.features", "FEATURES")),
    "augmentations": (
        NameEntry("auto", "Chosen for the data."), NameEntry("none", "No augmentation."),
        NameTable("data.augment", "AUGMENTATIONS"),
    ),
    "views": (NameTable("diffusion.views", "VIEWS"),),
    "tasks": (NameTable("diffusion.measurements", "MEASUREMENTS"),),
    "inpainters": (NameTable("diffusion.known", "INPAINTERS"),),
    "posteriors": (NameTable("diffusion.known", "POSTERIORS"),),
    "metrics": METRICS,
    "checks": (NameTable("training.checks", "CHECKS"),),
}  # fmt: skip

# Kind of name -> chapter about its entries without a paper.
CHAPTERS = {
    "data": "quickstart.md", "families": "families.md", "schedules": "forward.md", "targets": "networks.md",
    "losses": "training.md", "weights": "training.md", "times": "training.md", "tokenizers": "text.md",
    "networks": "networks.md", "samplers": "samplers.md", "grids": "samplers.md", "features": "measuring.md",
    "augmentations": "training.md", "views": "guidance.md", "tasks": "guidance.md", "inpainters": "guidance.md",
    "posteriors": "guidance.md", "metrics": "measuring.md", "checks": "training.md",
}  # fmt: skip


def names() -> dict[str, list[str]]:
    """Return the names of each kind, without importing torch."""
    return {kind: names_of(kind) for kind in KINDS}


def names_of(kind: str) -> list[str]:
    """Return the names of one kind."""
    parts = pick(KINDS, kind, "kind of name")
    return [name for part in parts for name in ([part.name] if isinstance(part, NameEntry) else part.names())]


def entries(kind: str) -> list[NameEntry]:
    """Return the names of one kind with description, source, and options with their defaults."""
    result: list[NameEntry] = []
    for part in pick(KINDS, kind, "kind of name"):
        if isinstance(part, NameEntry):
            result.append(_with_source(kind, part))
        else:
            result += [_entry(kind, name, component) for name, component in part.load().items()]
    return result


def _entry(kind: str, name: str, component: Any) -> NameEntry:
    from reverie.families.diffusion.family import DATA_OPTIONS
    from reverie.nets import NETWORKS

    if kind == "families":
        fields = {key: component.settings.model_fields[key] for key in component.option_names}
        planned = any(field.is_required() for field in fields.values())  # then a plan for the data chooses all of them
        entry = NameEntry(name, component.summary, {key: None if planned else field.default for key, field in fields.items()})
    else:
        entry = describe_entry(name, component, DATA_OPTIONS if kind == "networks" else ())
    entry = _with_source(kind, entry)
    if isinstance(component, Mapping) and kind == "networks":  # a preset of another network
        return replace(entry, source=_entry(kind, component["name"], NETWORKS[component["name"]]).source)
    return entry


def _with_source(kind: str, entry: NameEntry) -> NameEntry:
    about, source = split_source(entry.about)
    return replace(entry, about=about, source=source or f"docs/book/{CHAPTERS[kind]}")


def families_by_kind() -> dict[str, list[str]]:
    """Return the families that take each kind of data, the default first."""
    from reverie.data.kind import KINDS as DATA
    from reverie.families import FAMILIES

    supporting = {kind: [name for name, family in FAMILIES.items() if kind in family.kinds] for kind in DATA}
    return {kind: sorted(names, key=lambda name: kind not in FAMILIES[name].default_for) for kind, names in supporting.items()}
