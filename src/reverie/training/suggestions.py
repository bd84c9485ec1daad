"""What a run could do otherwise: other sizes of its network, and the command that trains it anew with something changed."""

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

GROWS = {"mlp": "hidden", "rbf": "hidden", "transformer": "dim"}  # what makes a network larger where there is no preset
APART = 1.5  # in parameters, from which a network is another size


def format_number(number: float) -> str:
    """Write a number with three digits that count, so that it can be typed again: 10.0087 is 10."""
    return f"{float(f'{number:.3g}'):.10g}"


def _own(network: Spec) -> str:
    """Write a network of a run with its stem, which is planned if not given, and what is neither usual nor told by the data."""
    usual = complete(NETWORKS, {"name": network["name"]}, "network")
    plain = {key: tuple(v) if isinstance(v, list) else v for key, v in network.items()}
    return format_spec({k: v for k, v in plain.items() if k in ("name", "stem") or (k not in DATA_OPTIONS and v != usual[k])})


def _parameters(network: Spec) -> int:
    """Return how many parameters a network has."""
    with torch.device("meta"):
        return sum(p.numel() for p in build(NETWORKS, network, "network").parameters())


def _design(network: Spec) -> dict[str, Any]:
    """Return what makes a network more than larger or smaller: the options that are no numbers."""
    return {key: value for key, value in network.items() if isinstance(value, str | bool)}


def _counts(network: Spec) -> Iterator[tuple[int, str]]:
    """Yield the parameters and names of networks of the same design for the same data, those that can be."""
    shape = tuple(network[key] for key in ("channels", "height", "width") if key in network)
    others = [name for name, preset in PRESETS.items() if preset["name"] == network["name"]]
    if grows := GROWS.get(network["name"]):
        others += [format_spec({"name": network["name"], grows: size}) for size in (network[grows] // 2, network[grows] * 2)]
    for name in others:
        with suppress(UserError):
            full = {**network_for(shape, network.get("labels", 0), name), "cond_dim": network.get("cond_dim", 0)}
            if _design(full) == _design(network):
                yield _parameters({key: full[key] for key in network}), name


def sizes(network: Spec) -> NetworkSizes:
    """Return the next smaller and larger network of the same design, and one that folds fewer pixels."""
    network = complete(NETWORKS, network, "network")  # runs are kept without options that came later
    mine, counts = _parameters(network), list(_counts(network))
    smaller = max((pair for pair in counts if pair[0] * APART < mine), default=(0, None))[1]
    larger = min((pair for pair in counts if pair[0] > APART * mine), default=(0, None))[1]
    stem, unfolded = network.get("stem", 1), None
    for k in range(1, stem):
        if stem % k == 0 and network["channels"] * k**2 <= network["widths"][0]:
            unfolded = _own({**network, "stem": k})
    return NetworkSizes(smaller, larger, unfolded)


def _settings(config: Config) -> dict[str, Any]:
    """Return the settings of a run as words, by the names of the options."""
    family = config.family
    now = {**config.training.model_dump(), **config.data.reading, **dict(family)}
    if isinstance(family, DiffusionSettings):
        now |= {"schedule": format_spec(family.schedule), "network": _own(family.network)}
    return now


def _asked(config: Config) -> dict[str, Any]:
    """Return what was asked for, by the names of the options; what is no option, another family's own, goes with its name."""
    family, asked = config.model_family, dict(config.requested)
    if isinstance(config.family, DiffusionSettings):
        return asked
    own = {key: asked.pop(key) for key in family.option_names if key in asked}
    return {"family": format_spec({"name": family.name, **own}), **asked}


def rerun_settings(path: str | Path) -> dict[str, Any]:
    """Return the settings that begin the training of a run again, by the names of the options of `reverie train`."""
    config = read_config(Path(path))
    minutes, steps = total_length(config)
    length = {"minutes": minutes} if minutes else {"steps": steps}
    source = {} if config.data.source == MEMORY_SOURCE else {"data": config.data.source or config.data.name}
    return {**source, **length, **config.data.reading, **_asked(config)}


def retrain_command(run: Run, findings: Sequence[Finding]) -> str | None:
    """Return the command that trains anew, beside this run, with what the findings advise; None if that changes nothing."""
    config, change = run.config, dict[str, str | None]()
    for finding in findings:
        change = {**finding.change, **change}
    now = _settings(config)
    differing = {
        k for k, v in change.items() if (k in config.requested if v is None else k == "length" or v != str(now.get(k)))
    }
    if not differing:
        return None
    share, (minutes, steps) = float(change.pop("length", None) or 1), total_length(config)
    length = f"--minutes {format_number(minutes * share)}" if minutes else f"--steps {max(1, round((steps or 1) * share))}"
    kept = {**config.data.reading, **_asked(config), **change}
    options = "".join(
        f" --{'no-' * (value is False)}{key.replace('_', '-')}"
        + ("" if isinstance(value, bool) else f" {shlex.quote(str(value))}")
        for key, value in kept.items() if value is not None
    )  # fmt: skip
    if config.data.source == MEMORY_SOURCE:
        return None  # the command line has no way to name the data
    source, out = shlex.quote(config.data.source), shlex.quote(f"{run.path}-mended")
    return f"reverie train {source} --out {out} {length}{options}"
