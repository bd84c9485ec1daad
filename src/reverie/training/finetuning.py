"""Starting from the weights of another run: what fits is carried over, by name where names say it, and the rest is told."""

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

LABELS, TOLD, BIAS = f"{NETWORK_PREFIX}label.table", f"{NETWORK_PREFIX}told.weight", f"{NETWORK_PREFIX}tell.2.bias"
EXAMPLES = "examples"  # conditions of the training data, which are those of the new data
CENTRES, COUNTS = f"{CLUSTERS_PREFIX}centres", f"{CLUSTERS_PREFIX}counts"
LEAST_FITTING = 0.5  # of the weights must fit, or the run is no start
RATE = 0.5  # of the usual learning rate
FOR_LORA = {"optimizer": "adamw", "learning_rate": 4e-3}  # the factors begin at zero and are small, so they may move fast
SHOWN = 6  # names listed one by one


def open_start(path: str | Path, family: Family[Any]) -> Run:
    """Open the run to start from; refuse one of another family, or a family whose weights cannot be carried over."""
    run = load(path, "cpu")
    if "start" not in family.can:
        why = "begins with weights of its own" if family.learns_by_steps else "is fitted anew each time"
        raise UserError(f"the family {family.name} {why}, so it cannot start from a run; leave --from out")
    if run.config.family.name != family.name:
        raise UserError(f"{run.path} is a run of the family {run.config.family.name}, not {family.name}; start without --from")
    return run


def network_of(run: Run) -> Spec:
    """Return the network of a run without what its data decided."""
    return {key: value for key, value in run.diffusion_settings.network.items() if key not in DATA_OPTIONS}


def wished_of(run: Run, wished: Mapping[str, Any]) -> dict[str, Any]:
    """Return what is wished for with what belongs to the weights of a run: network, target, schedule and units."""
    settings, target = run.diffusion_settings, wished.get("target")
    if target not in (None, settings.target):
        raise UserError(
            f"{run.path} was trained to predict {settings.target!r}, which its weights know; leave --target {target} out"
        )
    learned = run.kind == "points" or settings.codec["name"] == "latent"
    units = {"sigma_data": settings.sigma_data} | ({"codec": settings.codec} if learned else {})
    clusters = 0 if wished.get("purpose") == "likelihood" else settings.clusters
    own = {"network": network_of(run), "schedule": settings.schedule, "variance": settings.variance, "clusters": clusters}
    return {**own, **wished, **units, "target": settings.target}


def reason(run: Run) -> str:
    """Say whose weights are the first ones."""
    rows = run.metrics()
    after = f" after {rows[-1]['i']:,} steps" if rows else ""
    return f"start: the weights of {run.path}{after} on {run.config.data.name}"


def size_of(run: Run, dataset: Dataset) -> str | None:
    """Return the size to read images with to have them as the run knows them; None where they are, or are no images."""
    height, width = run.config.data.shape[1:] or (0, 0)
    if dataset.kind != "images" or not height or dataset.shape[1:] == (height, width):
        return None
    return str(height) if height == width else f"{height}x{width}"


def check_shape(run: Run, dataset: Dataset) -> None:
    """Refuse data that the network of a run cannot be for; images of another size are none such."""
    ours, theirs = dataset.shape, tuple(run.config.data.shape)
    if len(ours) == len(theirs) and ours[0] == theirs[0]:
        return
    if kind_of(theirs) == "points":
        raise UserError(
            f"{run.path} is a run of points of {theirs[0]} coordinates, and {dataset.name} holds {describe_shape(ours)}"
        )
    if kind_of(ours) == "points":
        held = f"{dataset.name} holds {describe_shape(ours)}"
        raise UserError(f"{run.path} is a run of {describe_shape(theirs)}, and {held}; start without --from")
    raise UserError(
        f"{run.path} is a run of {describe_shape(theirs)}, and {dataset.name} holds {describe_shape(ours)};"
        f" read them alike with --size {theirs[1]}{f'x{theirs[2]}' if theirs[1] != theirs[2] else ''} --channels {theirs[0]}"
    )


def record(run: Run) -> StartConfig:
    """Return what a run says of the one it started from: where it was, and a hash of its weights."""
    return StartConfig(run=storable(str(Path(run.path).resolve())), weights=weights_hash(run.path))


def carry_again(model: Model, config: Config, train: Dataset) -> None:
    """Give a model the weights that its training was begun with, if it was begun with those of a run."""
    if config.start is None:
        return
    run = load(config.start.run, "cpu")
    if record(run).weights != config.start.weights:
        raise UserError(f"{run.path} has other weights than when this run was begun with them; train a new run with --from")
    carry(run, model, config, train)


@torch.no_grad()
def carry(run: Run, model: Model, config: Config, train: Dataset) -> tuple[str, ...]:
    """Give a new model the weights of a run, and return what there is to say of those that it did not have or did not take.

    Rows of labels and columns of augmentations go by their names.  A label that is new starts as no label; where the new
    model has no labels, it starts as the label of the data's name, or as no label.  Where there are as many clusters, they are
    those of the run, of which the network knows something, and the training data are counted in them.
    """
    old, new = run.model.state_dict(), model.state_dict()
    before, now = run.config.data.labels, config.data.labels
    notes: list[str] = []
    special = {LABELS, TOLD, EXAMPLES, COUNTS}
    fitting = [name for name in new if name not in special and name in old and old[name].shape == new[name].shape]
    share = sum(new[name].numel() for name in fitting) / max(1, sum(t.numel() for n, t in new.items() if n not in special))
    if share < LEAST_FITTING:
        raise UserError(
            f"only {share:.0%} of this network's weights are in {run.path}, which has another network;"
            " leave --network out to take its network"
        )
    for name in fitting:
        new[name].copy_(old[name])
    if other := [name for name in new if name not in special and name not in fitting]:
        names = _listed(name.removeprefix(NETWORK_PREFIX) for name in other)
        notes.append(f"{len(other)} of {len(new)} tensors do not fit and start anew: {names}")
    if LABELS in new and new[LABELS].shape[1:] == old.get(LABELS, new[LABELS]).shape[1:]:
        table = old.get(LABELS, torch.zeros_like(new[LABELS][:1]))
        new[LABELS].copy_(table[[1 + before.index(name) if name in before else 0 for name in (None, *now)]])
    if before or now:
        notes.extend(_about_labels(before, now, config.data.name))
    if LABELS in old and LABELS not in new and BIAS in fitting:
        new[BIAS].add_(old[LABELS][1 + before.index(config.data.name) if config.data.name in before else 0])
    if TOLD in new:
        before_it, now_it = run.diffusion_settings, settings_of(config.family)
        known, wanted = (
            conditioned_entries(s.augment, config.data.shape) + cluster_names(s.clusters) for s in (before_it, now_it)
        )
        wanted = wanted if before_it.clusters == now_it.clusters else wanted[: len(wanted) - now_it.clusters]
        new[TOLD].copy_(_columns(old.get(TOLD), known, wanted, new[TOLD]))
    model.load_state_dict(new)
    if isinstance(model, Diffusion) and model.clusters is not None and CENTRES in fitting:
        model.clusters.count(train)
    return tuple(notes)


def _columns(old: Tensor | None, known: Sequence[str], wanted: Sequence[str], like: Tensor) -> Tensor:
    """Return the columns of a map that have these names, and zeros for names it does not know."""
    made = torch.zeros_like(like)
    if old is not None and len(old) == len(like):
        for k, name in enumerate(wanted):
            if name in known:
                made[:, k] = old[:, known.index(name)]
    return made


def _about_labels(before: Sequence[str], now: Sequence[str], name: str) -> list[str]:
    """Say which labels are known, which are new, and which are left behind."""
    if not now:
        return [f"these data are what it knows as the label {name!r}" if name in before else "its labels are left behind"]
    known, new = [label for label in now if label in before], [label for label in now if label not in before]
    left = [label for label in before if label not in now]
    parts = [f"{what}: {_listed(labels)}" for what, labels in (("known", known), ("new", new), ("left behind", left)) if labels]
    return ["labels " + "; ".join(parts)]


def _listed(names: Any) -> str:
    names = list(names)
    return ", ".join(names[:SHOWN]) + (f" and {len(names) - SHOWN} more" if len(names) > SHOWN else "")
