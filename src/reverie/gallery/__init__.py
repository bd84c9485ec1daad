"""Figures that illustrate formulas and runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from reverie.base.deprecations import renamed_options
from reverie.base.errors import UserError, unknown

if TYPE_CHECKING:
    from reverie.base.spec import Spec
    from reverie.data.in_memory import DataSource
    from reverie.runs.run import Run
    from reverie.runs.sampling_options import Options

GALLERIES = (
    "alignment", "attention", "autodiff", "autoencoder", "coloring", "cost", "depth", "embeddings", "flow", "forward",
    "gradients", "graphs", "guidance", "kernels", "normal", "samplers", "schedules", "score", "series", "sigma",
    "spiral", "tokens", "transport",
)  # fmt: skip
SHOWS = {"run": "a run", "data": "a dataset"}


@renamed_options
def gallery(
    name: str, out: str | Path, *, run: str | Path | Run | None = None, data: DataSource | None = None,
    schedule: str | Spec | None = None, reading: Mapping[str, Any] | None = None, scales: str | Sequence[float] | None = None,
    runs: Sequence[str | Path | Run] = (), device: str = "auto", **options: Unpack[Options],
) -> list[Path]:  # fmt: skip
    """Draw a gallery and return its files: `gallery("samplers", "sheet.png", run="runs/digits", grid="karras")`.

    Galleries of a run take sampling options, except those that they vary.  scales: for "guidance"; data, schedule, reading
    (options of `load_data`): for "forward"; runs: also shown by "schedules" and "gradients".
    """
    if name not in GALLERIES:
        raise unknown(name, GALLERIES, "gallery")
    draw: Callable[..., list[Path]] = import_module(f"reverie.gallery.{name}").draw
    accepted = signature(draw).parameters
    named = {"run": run, "data": data, "schedule": schedule, "reading": reading, "scales": scales, "runs": runs or None}
    arguments = {**named, **options}
    given = {key: value for key, value in arguments.items() if value is not None}
    if missing := [key for key in SHOWS if key in accepted and key not in given]:
        raise UserError(f"the gallery {name!r} needs {SHOWS[missing[0]]}; give one")
    accepts_sampling = any(parameter.kind is parameter.VAR_KEYWORD for parameter in accepted.values())
    if unsupported := [key for key in given if (key in named or not accepts_sampling) and key not in accepted]:
        raise UserError(f"the gallery {name!r} has no option {unsupported[0]!r}; leave it out")
    inputs = [given.pop(key) for key in SHOWS if key in given]
    return draw(*inputs, Path(out), **({"device": device} if "device" in accepted else {}), **given)
