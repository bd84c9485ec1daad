"""Fine-tuning: transfers weights of a run to a new model, by names of labels and conditions, and reports the rest."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from reverie.base.errors import UserError
from reverie.base.spec import Spec
from reverie.base.visible import storable
from reverie.data import Dataset
from reverie.data.augment import conditioned_entries
from reverie.data.kind import describe_shape, kind_of
from reverie.families.diffusion.clusters import cluster_names
from reverie.families.diffusion.family import CLUSTERS_PREFIX, DATA_OPTIONS, NETWORK_PREFIX
from reverie.families.diffusion.model import Diffusion
from reverie.families.diffusion.settings import settings_of
from reverie.families.model import Family, Model
from reverie.runs.adapters import weights_hash
from reverie.runs.config import Config, StartConfig
from reverie.runs.run import Run, load

LABELS = f"{NETWORK_PREFIX}label.table"  # keys of state dicts
CONDITIONING = f"{NETWORK_PREFIX}told.weight"  # keys of state dicts
BIAS = f"{NETWORK_PREFIX}tell.2.bias"  # keys of state dicts
EXAMPLES = "examples"  # conditions of the training data, taken from the new data
CENTRES, COUNTS = f"{CLUSTERS_PREFIX}centres", f"{CLUSTERS_PREFIX}counts"
MIN_FITTING = 0.5  # minimum share of the weights that fit
RATE = 0.5  # learning rate relative to the default
FOR_LORA = {"optimizer": "adamw", "learning_rate": 4e-3}  # the factors are small and start at zero, so they can change fast
MAX_LISTED = 6  # largest number of listed names


def open_start(path: str | Path, family: Family[Any]) -> Run:
    """Open the run with the initial weights; refuse other families, and families whose weights cannot be transferred."""
    run = load(path, "cpu")
    if "start" not in family.capabilities:
        why = "sets its own initial weights" if family.learns_by_steps else "is fitted without steps"
        raise UserError(f"the family {family.name} {why} and cannot start from a run; omit --from")
    if run.config.family.name != family.name:
        raise UserError(f"{run.path} is a run of the family {run.config.family.name}, not {family.name}; omit --from")
    return run


def network_of(run: Run) -> Spec:
    """Return the network of a run without the options set by its data."""
    return {key: value for key, value in run.diffusion_settings.network.items() if key not in DATA_OPTIONS}


def options_of(run: Run, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the family options with those that belong to the weights of a run: network, target, schedule and units."""
    settings, target = run.diffusion_settings, options.get("target")
    if target not in (None, settings.target):
        raise UserError(f"{run.path} was trained with the target {settings.target!r}; omit --target {target}")
    learned = run.kind == "points" or settings.codec["name"] == "latent"
    units = {"sigma_data": settings.sigma_data} | ({"codec": settings.codec} if learned else {})
    clusters = 0 if options.get("purpose") == "likelihood" else settings.clusters
    own = {"network": network_of(run), "schedule": settings.schedule, "variance": settings.variance, "clusters": clusters}
    return {**own, **options, **units, "target": settings.target}


def reason(run: Run) -> str:
    """Describe the initial weights."""
    rows = run.metrics()
    after = f" after {rows[-1]['i']:,} steps" if rows else ""
    return f"initial weights: {run.path}{after} on {run.config.data.name}"


def size_of(run: Run, dataset: Dataset) -> str | None:
    """Return the --size that gives images the size of the run; None if they have it or are not images."""
    height, width = run.config.data.shape[1:] or (0, 0)
    if dataset.kind != "images" or not height or dataset.shape[1:] == (height, width):
        return None
    return str(height) if height == width else f"{height}x{width}"


def check_shape(run: Run, dataset: Dataset) -> None:
    """Refuse data that do not fit the network of a run; images of another size are resized."""
    data_shape, run_shape = dataset.shape, tuple(run.config.data.shape)
    if len(data_shape) == len(run_shape) and data_shape[0] == run_shape[0]:
        return
    if kind_of(run_shape) == "points":
        raise UserError(
            f"{run.path} is a run of points of {run_shape[0]} coordinates, and {dataset.name} contains"
            f" {describe_shape(data_shape)}; omit --from"
        )
    if kind_of(data_shape) == "points":
        contents = f"{dataset.name} contains {describe_shape(data_shape)}"
        raise UserError(f"{run.path} is a run of {describe_shape(run_shape)}, and {contents}; omit --from")
    raise UserError(
        f"{run.path} is a run of {describe_shape(run_shape)}, and {dataset.name} contains {describe_shape(data_shape)};"
        f" add --size {run_shape[1]}{f'x{run_shape[2]}' if run_shape[1] != run_shape[2] else ''} --channels {run_shape[0]}"
    )


def record(run: Run) -> StartConfig:
    """Return the reference to a run: its path and a hash of its weights."""
    return StartConfig(run=storable(str(Path(run.path).resolve())), weights=weights_hash(run.path))


def restore_start(model: Model, config: Config, train: Dataset) -> None:
    """Transfer the initial weights of a training again, if they are those of a run."""
    if config.start is None:
        return
    run = load(config.start.run, "cpu")
    if record(run).weights != config.start.weights:
        raise UserError(f"the weights of {run.path} have changed since this run started; train a new run with --from")
    transfer(run, model, config, train)


@torch.no_grad()
def transfer(run: Run, model: Model, config: Config, train: Dataset) -> tuple[str, ...]:
    """Copy the weights of a run to a new model, and return notes about weights that did not fit.

    Embeddings of labels and columns of augmentations are matched by name.  A new label starts as the null label.  A model
    without labels starts as the label with the name of the data, or as the null label.  If the number of clusters is equal, the
    clusters of the run are kept, with counts of the new training data.
    """
    old, new = run.model.state_dict(), model.state_dict()
    old_labels, new_labels = run.config.data.labels, config.data.labels
    notes: list[str] = []
    special = {LABELS, CONDITIONING, EXAMPLES, COUNTS}
    fitting = [name for name in new if name not in special and name in old and old[name].shape == new[name].shape]
    share = sum(new[name].numel() for name in fitting) / max(1, sum(t.numel() for n, t in new.items() if n not in special))
    if share < MIN_FITTING:
        raise UserError(
            f"only {share:.0%} of the weights of this network fit those of {run.path};"
            " omit --network to use the network of that run"
        )
    for name in fitting:
        new[name].copy_(old[name])
    if missing := [name for name in new if name not in special and name not in fitting]:
        names = _listed(name.removeprefix(NETWORK_PREFIX) for name in missing)
        notes.append(f"{len(missing)} of {len(new)} tensors do not fit and are initialized: {names}")
    if LABELS in new and new[LABELS].shape[1:] == old.get(LABELS, new[LABELS]).shape[1:]:
        table = old.get(LABELS, torch.zeros_like(new[LABELS][:1]))
        new[LABELS].copy_(table[[1 + old_labels.index(name) if name in old_labels else 0 for name in (None, *new_labels)]])
    if old_labels or new_labels:
        notes.extend(_label_notes(old_labels, new_labels, config.data.name))
    if LABELS in old and LABELS not in new and BIAS in fitting:
        new[BIAS].add_(old[LABELS][1 + old_labels.index(config.data.name) if config.data.name in old_labels else 0])
    if CONDITIONING in new:
        old_settings, new_settings = run.diffusion_settings, settings_of(config.family)
        old_names, new_names = (
            conditioned_entries(s.augment, config.data.shape) + cluster_names(s.clusters) for s in (old_settings, new_settings)
        )
        new_names = (
            new_names if old_settings.clusters == new_settings.clusters else new_names[: len(new_names) - new_settings.clusters]
        )
        new[CONDITIONING].copy_(_columns(old.get(CONDITIONING), old_names, new_names, new[CONDITIONING]))
    model.load_state_dict(new)
    if isinstance(model, Diffusion) and model.clusters is not None and CENTRES in fitting:
        model.clusters.count(train)
    return tuple(notes)


def _columns(old: Tensor | None, old_names: Sequence[str], new_names: Sequence[str], like: Tensor) -> Tensor:
    """Return the columns with these names, and zeros for unknown names."""
    columns = torch.zeros_like(like)
    if old is not None and len(old) == len(like):
        for k, name in enumerate(new_names):
            if name in old_names:
                columns[:, k] = old[:, old_names.index(name)]
    return columns


def _label_notes(old_labels: Sequence[str], new_labels: Sequence[str], name: str) -> list[str]:
    """Describe which labels are known, new and dropped."""
    if not new_labels:
        return [f"the data continue its label {name!r}" if name in old_labels else "its labels are dropped"]
    known = [label for label in new_labels if label in old_labels]
    new = [label for label in new_labels if label not in old_labels]
    dropped = [label for label in old_labels if label not in new_labels]
    parts = [
        f"{state}: {_listed(labels)}" for state, labels in (("known", known), ("new", new), ("dropped", dropped)) if labels
    ]
    return ["labels " + "; ".join(parts)]


def _listed(names: Any) -> str:
    names = list(names)
    return ", ".join(names[:MAX_LISTED]) + (f" and {len(names) - MAX_LISTED} more" if len(names) > MAX_LISTED else "")
