"""Suggestions for a run: networks of other sizes, and the command that trains it again with changed options."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from reverie.base.errors import UserError
from reverie.base.spec import Spec, build, complete, format_spec
from reverie.data.in_memory import MEMORY_SOURCE
from reverie.diffusion.plan import PRESETS, network_for
from reverie.families.diffusion.family import DATA_OPTIONS
from reverie.families.diffusion.settings import DiffusionSettings
from reverie.nets import NETWORKS
from reverie.runs.config import Config
from reverie.runs.finding import Finding
from reverie.runs.folder import read_config
from reverie.runs.run import Run
from reverie.training.codec_training import total_length
from reverie.training.diagnosis import NetworkSizes

WIDTHS = {"mlp": "hidden", "rbf": "hidden", "transformer": "dim"}  # the option that scales a network without presets
MIN_RATIO = 1.5  # minimum ratio of the parameters of networks that differ in size


def format_number(number: float) -> str:
    """Format a number with three significant digits: 10.0087 becomes 10."""
    return f"{float(f'{number:.3g}'):.10g}"


def _format_network(network: Spec) -> str:
    """Format the network of a run: its stem and the options that are neither defaults nor set by the data."""
    defaults = complete(NETWORKS, {"name": network["name"]}, "network")
    plain = {key: tuple(v) if isinstance(v, list) else v for key, v in network.items()}
    return format_spec(
        {k: v for k, v in plain.items() if k in ("name", "stem") or (k not in DATA_OPTIONS and v != defaults[k])}
    )


def _parameters(network: Spec) -> int:
    """Return the number of parameters of a network."""
    with torch.device("meta"):
        return sum(p.numel() for p in build(NETWORKS, network, "network").parameters())


def _design(network: Spec) -> dict[str, Any]:
    """Return the options that are not numbers, which define the design of a network apart from its size."""
    return {key: value for key, value in network.items() if isinstance(value, str | bool)}


def _counts(network: Spec) -> Iterator[tuple[int, str]]:
    """Yield the number of parameters and the name of each valid network of the same design for the same data."""
    shape = tuple(network[key] for key in ("channels", "height", "width") if key in network)
    others = [name for name, preset in PRESETS.items() if preset["name"] == network["name"]]
    if width := WIDTHS.get(network["name"]):
        others += [format_spec({"name": network["name"], width: size}) for size in (network[width] // 2, network[width] * 2)]
    for name in others:
        with suppress(UserError):
            full = {**network_for(shape, network.get("labels", 0), name), "cond_dim": network.get("cond_dim", 0)}
            if _design(full) == _design(network):
                yield _parameters({key: full[key] for key in network}), name


def sizes(network: Spec) -> NetworkSizes:
    """Return the next smaller and larger network of the same design, and one with a smaller stem."""
    network = complete(NETWORKS, network, "network")  # older runs lack newer options
    own_count, counts = _parameters(network), list(_counts(network))
    smaller = max((pair for pair in counts if pair[0] * MIN_RATIO < own_count), default=(0, None))[1]
    larger = min((pair for pair in counts if pair[0] > MIN_RATIO * own_count), default=(0, None))[1]
    stem, unfolded = network.get("stem", 1), None
    for k in range(1, stem):
        if stem % k == 0 and network["channels"] * k**2 <= network["widths"][0]:
            unfolded = _format_network({**network, "stem": k})
    return NetworkSizes(smaller, larger, unfolded)


def _settings(config: Config) -> dict[str, Any]:
    """Return the settings of a run by the names of the options."""
    family = config.family
    settings = {**config.training.model_dump(), **config.data.reading, **dict(family)}
    if isinstance(family, DiffusionSettings):
        settings |= {"schedule": format_spec(family.schedule), "network": _format_network(family.network)}
    return settings


def _requested(config: Config) -> dict[str, Any]:
    """Return the options given by the user; those of a family other than diffusion become part of --family."""
    family, requested = config.model_family, dict(config.requested)
    if isinstance(config.family, DiffusionSettings):
        return requested
    own = {key: requested.pop(key) for key in family.option_names if key in requested}
    return {"family": format_spec({"name": family.name, **own}), **requested}


def rerun_settings(path: str | Path) -> dict[str, Any]:
    """Return the options of `reverie train` that repeat the training of a run."""
    config = read_config(Path(path))
    minutes, steps = total_length(config)
    length = {"minutes": minutes} if minutes else {"steps": steps}
    source = {} if config.data.source == MEMORY_SOURCE else {"data": config.data.source or config.data.name}
    return {**source, **length, **config.data.reading, **_requested(config)}


def retrain_command(run: Run, findings: Sequence[Finding]) -> str | None:
    """Return the command that trains a new run with the changes that the findings advise; None if they change nothing."""
    config, changes = run.config, dict[str, str | None]()
    for finding in findings:
        changes = {**finding.change, **changes}
    current = _settings(config)
    differing = {
        k for k, v in changes.items() if (k in config.requested if v is None else k == "length" or v != str(current.get(k)))
    }
    if not differing:
        return None
    share, (minutes, steps) = float(changes.pop("length", None) or 1), total_length(config)
    length = f"--minutes {format_number(minutes * share)}" if minutes else f"--steps {max(1, round((steps or 1) * share))}"
    settings = {**config.data.reading, **_requested(config), **changes}
    options = "".join(
        f" --{'no-' * (value is False)}{key.replace('_', '-')}"
        + ("" if isinstance(value, bool) else f" {shlex.quote(str(value))}")
        for key, value in settings.items() if value is not None
    )  # fmt: skip
    if config.data.source == MEMORY_SOURCE:
        return None  # the command line cannot refer to data in memory
    source, out = shlex.quote(config.data.source), shlex.quote(f"{run.path}-retrained")
    return f"reverie train {source} --out {out} {length}{options}"
