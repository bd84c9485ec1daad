"""Pictures that show a formula at work."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import import_module
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Unpack

from reverie.base.errors import UserError, unknown

if TYPE_CHECKING:
    from reverie.runs.run import Options, Run

GALLERIES = ("autodiff", "coloring", "embeddings", "guidance", "kernels", "samplers", "spiral", "transport")


def gallery(
    name: str, out: str | Path, *, run: str | Path | Run | None = None, scales: str | Sequence[float] | None = None,
    device: str = "auto", **options: Unpack[Options],
) -> list[Path]:  # fmt: skip
    """Draw a gallery and return its files: `gallery("samplers", "sheet.png", run="runs/digits", grid="karras")`.

    Those of a run take the options of sampling, without those that they vary themselves; scales: of guidance, for that gallery.
    """
    if name not in GALLERIES:
        raise unknown(name, GALLERIES, "gallery")
    draw: Callable[..., list[Path]] = import_module(f"reverie.gallery.{name}").draw
    takes = signature(draw).parameters
    given = {key: value for key, value in {"run": run, "scales": scales, **options}.items() if value is not None}
    if "run" in takes:
        if run is None:
            raise UserError(f"the gallery {name!r} shows a run; say which one")
        return draw(given.pop("run"), Path(out), device=device, **given)
    if wrong := [key for key in given if key not in takes]:
        raise UserError(f"the gallery {name!r} takes no {wrong[0]}")
    return draw(Path(out), **given)
