"""Steering for the page: masks, strengths, ways between images, illusions, and what was done to a picture undone."""

from __future__ import annotations

import base64
import binascii
from typing import Any

import numpy as np

from reverie import api
from reverie.base.errors import UserError
from reverie.studio.opened import Opened, atlas, shown
from reverie.studio.plain import png
from reverie.studio.wishes import (
    EditWish,
    IllusionWish,
    InpaintWish,
    InterpolateWish,
    PictureWish,
    RestoreWish,
    SendWish,
    command,
    plain,
)
from reverie.studio.work import Job


def _pictures(x: np.ndarray) -> str:
    return png(atlas(shown(x)))


def _last(x: np.ndarray) -> np.ndarray:
    """Return one picture with its channels last, or without them where there is one.  x: (C, H, W)."""
    return x[0] if len(x) == 1 else np.moveaxis(x, 0, -1)


def _heat(spread: np.ndarray) -> np.ndarray:
    """Return a spread as a picture, white where it is largest.  spread: (H, W[, C])."""
    flat = spread if spread.ndim == 2 else np.sqrt((spread**2).mean(-1))
    return shown(flat / max(float(flat.max()), 1e-3))


def send(opened: Opened, job: Job, wish: SendWish) -> dict[str, Any]:
    """Keep a picture, and return it as the run sees it."""
    try:
        content = base64.b64decode(wish.content, validate=True)
    except (binascii.Error, ValueError):
        raise UserError("the picture did not arrive whole; send it again") from None
    key, x = opened.take(opened.run(wish.run), content)
    return {"picture": key, "image": png(shown(_last(x)))}


def _given(opened: Opened, wish: PictureWish, ability: str) -> tuple[api.Run, np.ndarray]:
    run = opened.run(wish.run)
    run.require(ability)
    return run, opened.picture(wish.picture, run)


def inpaint(opened: Opened, job: Job, wish: InpaintWish) -> dict[str, Any]:
    """Fill what the mask covers, n times."""
    run, x = _given(opened, wish, "inpaint")
    height, width = x.shape[1:]
    if len(wish.mask) != height * width:
        raise UserError(f"the mask has {len(wish.mask)} pixels, and the picture {height} x {width}; paint it again")
    mask = np.frombuffer(wish.mask.encode(), np.uint8).reshape(height, width) == ord("1")
    options: Any = wish.options()
    made = api.inpaint(run, _last(x), mask=mask, n=wish.n, method=wish.method, on_progress=job.progress, **options)
    words = [opened.library.shown(run.path), "picture.png", "--mask", "mask.png", "-n", str(wish.n)]
    said = command("inpaint", *words, *(["--method", wish.method] if wish.method else []), *wish.words(), "--out", "sheet.png")
    spread = made.spread
    return {
        "image": _pictures(made.x), "spread": png(_heat(spread)), "most": float(spread.max()), "figures": dict(made.figures),
        "command": said,
    }  # fmt: skip


def edit(opened: Opened, job: Job, wish: EditWish) -> dict[str, Any]:
    """Draw a picture again, n times."""
    run, x = _given(opened, wish, "edit")
    options: Any = wish.options()
    made = api.edit(run, _last(x), wish.strength, wish.n, on_progress=job.progress, **options)
    words = [opened.library.shown(run.path), "picture.png", "--strength", plain(wish.strength), "-n", str(wish.n)]
    return {"image": _pictures(made.x[0]), "command": command("edit", *words, *wish.words(), "--out", "edits.png")}


def restore(opened: Opened, job: Job, wish: RestoreWish) -> dict[str, Any]:
    """Degrade a picture and restore it, n times."""
    run, x = _given(opened, wish, "restore")
    options: Any = wish.options()
    made = api.restore(
        run, _last(x), task=wish.task, degrade=True, n=wish.n, method=wish.method, on_progress=job.progress, **options
    )
    words = [opened.library.shown(run.path), "picture.png", "--task", wish.task, "--degrade", "--method", wish.method]
    said = command("restore", *words, "-n", str(wish.n), *wish.words(), "--out", "sheet.png")
    figures = {key: value for key, value in made.figures.items() if key != "psnr_each"}
    return {
        "image": _pictures(made.x), "given": png(shown(made.seen)), "spread": png(_heat(made.spread)), "figures": figures,
        "command": said,
    }  # fmt: skip


def interpolate(opened: Opened, job: Job, wish: InterpolateWish) -> dict[str, Any]:
    """Draw the way between two pictures or seeds."""
    run = opened.run(wish.run)
    ends = [end if isinstance(end, int) else _last(opened.picture(end, run)) for end in (wish.begin, wish.end)]
    options: Any = {key: value for key, value in wish.options().items() if key != "seed"}
    made = api.interpolate(run, ends[0], ends[1], wish.frames, on_progress=job.progress, **options)
    names = [
        str(end) if isinstance(end, int) else f"{name}.png" for end, name in zip((wish.begin, wish.end), "ab", strict=True)
    ]
    words = [opened.library.shown(run.path), "--from", names[0], "--to", names[1], "--frames", str(wish.frames)]
    return {"image": _pictures(made.x), "command": command("interpolate", *words, *wish.words("seed"), "--out", "way.gif")}


def illusion(opened: Opened, job: Job, wish: IllusionWish) -> dict[str, Any]:
    """Draw pictures that are something else in every view, with what moves where from view to view."""
    run = opened.run(wish.run)
    options: Any = wish.options()
    made = api.illusion(run, wish.views, wish.labels or None, wish.n, on_progress=job.progress, **options)
    views = [
        {
            "title": title, "image": _pictures(made.seen(k)), "turn": placed.view.turn, "sign": placed.sign,
            "source": placed.source.tolist(),
        }
        for k, (title, placed) in enumerate(zip(made.titles, made.views, strict=True))
    ]  # fmt: skip
    words = [opened.library.shown(run.path), "--views", ",".join(wish.views)]
    words += ["--labels", ",".join(wish.labels)] if wish.labels else []
    return {"views": views, "command": command("illusion", *words, "-n", str(wish.n), *wish.words(), "--out", "illusion.gif")}
