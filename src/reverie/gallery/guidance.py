"""The same seeds with growing guidance: one row per label or prompt, one column per scale."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from textwrap import fill
from typing import Literal, Unpack

import numpy as np

from reverie.base.errors import UserError
from reverie.data.kind import Kind
from reverie.diffusion.guidance import MAX_GUIDANCE, read_numbers
from reverie.draw.picture import (
    INK,
    SOFT,
    axis_limits,
    check_picture,
    colours,
    contact_sheet,
    dots,
    figure,
    matplotlib_text,
    save,
    to_bytes,
)
from reverie.runs.run import Run, load
from reverie.runs.sampling_options import Options

SCALES = "0,1,2,4,8"
SHOWN: dict[Kind, int] = {"points": 300, "images": 4}  # samples in a cell
MAX_LABELS, MAX_SCALES = 12, 12
LINE = 24  # characters per line of a prompt next to its row


def draw(
    run: str | Path | Run,
    out: Path,
    *,
    scales: str | Sequence[float] = SCALES,
    prompts: str | None = None,
    device: str = "auto",
    **options: Unpack[Options],
) -> list[Path]:
    """Draw the sheet and return its file; prompts: separated by |, one row each; options: seed, sampler, steps and others."""
    if options.get("label") is not None or "guidance" in options:
        raise UserError("this gallery shows all labels and scales; give the scales, and leave label and guidance out")
    check_picture(out)
    run = run if isinstance(run, Run) else load(run, device)
    key: Literal["label", "prompt"] = "label" if prompts is None else "prompt"
    names: Sequence[str] = run.config.data.labels[:MAX_LABELS] if prompts is None else _prompts(prompts)
    if not names and run.config.data.condition is not None:
        raise UserError(f"the run {run.path} was trained with captions; give --prompts 'a thin seven|a thick seven'")
    if not names:
        raise UserError(f"the run {run.path} was trained without labels, which guidance needs; give another run")
    values = read_numbers(scales, "the scales")
    if len(values) > MAX_SCALES or max(map(abs, values)) > MAX_GUIDANCE:
        raise UserError(f"at most {MAX_SCALES} scales between -{MAX_GUIDANCE} and {MAX_GUIDANCE} are allowed, got {scales}")
    images = run.kind == "images"
    n = SHOWN[run.kind]
    cells = [[run.sample(n, **_option(options, key, name, scale)).x for scale in values] for name in names]
    limits = None if images else axis_limits(np.concatenate([x[:, :2] for x in cells[0]] + [row[0][:, :2] for row in cells]))
    cell_width, cell_height = (0.62 * n, 0.7) if images else (1.7, 1.7)
    fig = figure(cell_width * len(values) + 1.2, cell_height * len(names) + 0.7)
    panels = fig.subplots(len(names), len(values), squeeze=False)
    tints = colours([str(k) for k in range(len(names))], len(names))
    for row, name in enumerate(names):
        for column, scale in enumerate(values):
            axes, x = panels[row, column], cells[row][column]
            axes.set(xticks=[], yticks=[])
            axes.spines[:].set_visible(False)
            if limits is None:
                axes.imshow(contact_sheet(to_bytes(x), columns=n), interpolation="nearest", aspect="equal")
            else:
                dots(axes, x, tints[row])
                axes.set(xlim=limits, ylim=limits, aspect="equal")
            if row == 0:
                heading = {0.0: "0: unconditional", 1.0: "1: none"}.get(scale, f"{scale:g}")
                axes.set_title(heading, fontsize=10, color=INK)
            if column == 0:
                row_label = matplotlib_text(fill(name, LINE))
                axes.set_ylabel(row_label, rotation=0, ha="right", va="center", fontsize=10, color=INK, labelpad=8)
    fig.suptitle(
        f"{matplotlib_text(run.config.data.name)}: guidance scale across, seed {options.get('seed', 0)} in every cell",
        fontsize=10,
        color=SOFT,
    )
    save(fig, out)
    return [out]


def _prompts(text: str) -> list[str]:
    names = [part.strip() for part in text.split("|")]
    if not all(names) or len(names) > MAX_LABELS:
        raise UserError(f"give 1 to {MAX_LABELS} prompts separated by |, got {text[:200]!r}")
    return names


def _option(options: Options, key: Literal["label", "prompt"], name: str, scale: float) -> Options:
    chosen: Options = {**options, key: name, "guidance": scale}  # type: ignore[misc]  # a key of two
    if scale == 1:  # without guidance, limits and rescaling have no effect
        chosen["guidance_interval"], chosen["guidance_rescale"] = None, 0.0
    return chosen
