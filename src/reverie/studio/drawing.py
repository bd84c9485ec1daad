"""Drawing for the page: frames as they come, films as files, and the nearest training data."""

from __future__ import annotations

import base64
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from reverie import api
from reverie.base.busy import few_threads_when_busy
from reverie.base.errors import UserError
from reverie.studio.opened import Opened, atlas, shown
from reverie.studio.plain import packed, png
from reverie.studio.wishes import MOST_IMAGES, DrawWish, FilmWish, NearestWish, command
from reverie.studio.work import Job

FRAMES = 60  # that are shown of one drawing, at most
SHOWING = 0.25  # of the time, at most, goes into showing what is on the way
BLOCK = 4096  # training data that are looked through at a time
MIME = {"png": "image/png", "gif": "image/gif", "mp4": "video/mp4", "npy": "application/octet-stream"}


def _check(run: api.Run, wish: DrawWish) -> None:
    check_kind(run)
    if run.kind == "images" and wish.n > MOST_IMAGES:
        raise UserError(f"the page shows at most {MOST_IMAGES} images at once, got {wish.n}")


def check_kind(run: api.Run) -> None:
    """Refuse data that the page cannot show yet."""
    if run.kind not in ("images", "points"):
        written = run.kind in ("text", "pairs")
        how, out = ("write it with", "") if written else ("draw them with", " --out samples.png")
        raise UserError(f"the page cannot show {run.kind} yet; {how}: reverie sample {run.path}{out}")


def spoken(opened: Opened, run: api.Run, wish: DrawWish, out: str = "samples.png") -> dict[str, str]:
    """Return the command and the lines of Python that draw the same."""
    path = opened.library.shown(run.path)
    first = f", first={wish.first}" if wish.first else ""
    lines = f'import reverie\n\nrun = reverie.load("{path}")\nsamples = run.sample({wish.n}{first}{wish.arguments()})'
    return {"command": command("sample", path, "-n", str(wish.n), *wish.words(), "--out", out), "python": lines}


def draw(opened: Opened, job: Job, wish: DrawWish) -> dict[str, Any]:
    """Draw, and show x and the estimate of x0 on the way, as far as that costs little time."""
    run = opened.run(wish.run)
    _check(run, wish)
    options: Any = wish.options()
    job.send("start", {**spoken(opened, run, wish), "kind": run.kind, "shape": run.config.data.shape})
    began, showing, count = time.monotonic(), 0.0, 0
    with few_threads_when_busy() as mind_threads:
        for frame in run.frames(wish.n, wish.first, **options):
            job.check()
            mind_threads()
            now = time.monotonic()
            due = frame.i * FRAMES >= count * frame.of and showing <= SHOWING * (now - began)
            if due or frame.i in (0, frame.of - 1):
                shape = {"i": frame.i, "of": frame.of, "t": float(frame.t)}
                job.send("frame", {**shape, **_both(run, run.decode(frame.x), run.decode(frame.x0))}, droppable=True)
                count, showing = count + 1, showing + time.monotonic() - now
            last = frame
    x = run.decode_final(last)
    cond = run.condition(options, wish.n, wish.first)
    final = {"image": png(atlas(shown(x)))} if run.kind == "images" else {"points": packed(x)}
    return {
        **final, "drawing": opened.keep_drawing(wish.run, x), "labels": run.names(cond, options),
        "seconds": time.monotonic() - began, "seed": wish.seed, "first": wish.first,
    }  # fmt: skip


def _both(run: api.Run, x: np.ndarray, x0: np.ndarray) -> dict[str, Any]:
    """Return a moment as it is sent: images in two rows, x above; points as numbers."""
    if run.kind == "images":
        return {"image": png(atlas(shown(x), shown(x0)))}
    return {"x": packed(x), "x0": packed(x0)}


def film(opened: Opened, job: Job, wish: FilmWish) -> dict[str, Any]:
    """Draw the same into a file and return it."""
    run = opened.run(wish.run)
    _check(run, wish)
    options: Any = wish.options()
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / f"reverie.{wish.form}"
        api.sample_to(run, wish.n, out, wish.first, on_progress=job.progress, **options)
        content = out.read_bytes()
    address = f"data:{MIME[wish.form]};base64,{base64.b64encode(content).decode()}"
    return {"file": address, "name": f"{run.path.name}-{wish.seed}.{wish.form}"}


def nearest(opened: Opened, job: Job, wish: NearestWish) -> dict[str, Any]:
    """Return, for each of what was drawn, the training datum that is nearest, and how far: the root mean square."""
    import torch

    from reverie.base.distances import nearest as nearest_of

    key, drawn = opened.drawing(wish.drawing)
    run, data = opened.run(key), opened.data(key)
    x = torch.from_numpy(np.moveaxis(drawn, -1, 1) if drawn.ndim == 4 else drawn).float().flatten(1)
    parts = torch.arange(len(data)).split(BLOCK)

    def blocks() -> Any:
        for k, part in enumerate(parts):
            job.progress("looking through the data", k, len(parts))
            yield data.batch(part)[0].flatten(1)

    distance, index = nearest_of(x, blocks())
    found, labels = data.batch(index)
    off = distance.tolist()
    names = data.describe_conditions(index) if labels is not None else None
    if run.kind == "points":
        return {"points": packed(found.numpy()), "off": off, "labels": names}
    pictures = found.numpy()
    pictures = pictures[:, 0] if pictures.shape[1] == 1 else np.moveaxis(pictures, 1, -1)
    return {"image": png(atlas(shown(pictures))), "off": off, "labels": names}
