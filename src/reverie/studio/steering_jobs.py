"""Steering jobs: inpainting, editing, restoration, interpolation and illusions."""

from __future__ import annotations

import base64
import binascii
from typing import Any

import numpy as np

from reverie import api
from reverie.base.errors import UserError
from reverie.studio.jobs import Job
from reverie.studio.open_runs import OpenRuns, atlas, to_uint8
from reverie.studio.requests import (
    EditRequest,
    IllusionRequest,
    ImageRequest,
    InpaintRequest,
    InterpolateRequest,
    RestoreRequest,
    UploadRequest,
    format_command,
    format_value,
)
from reverie.studio.serialize import png_url


def _row(x: np.ndarray) -> str:
    return png_url(atlas(to_uint8(x)))


def _channels_last(x: np.ndarray) -> np.ndarray:
    """Return an image (C, H, W) as (H, W, C), or as (H, W) with one channel."""
    return x[0] if len(x) == 1 else np.moveaxis(x, 0, -1)


def _std_image(std: np.ndarray) -> str:
    """Return standard deviations as an image, white at the maximum.  std: (H, W[, C])."""
    grey = std if std.ndim == 2 else np.sqrt((std**2).mean(-1))
    return png_url(to_uint8(grey / max(float(grey.max()), 1e-3)))


def upload(open_runs: OpenRuns, job: Job, request: UploadRequest) -> dict[str, Any]:
    """Store an image; return it in the size and mode of the run."""
    try:
        content = base64.b64decode(request.content, validate=True)
    except (binascii.Error, ValueError):
        raise UserError("the upload is incomplete; upload the image again") from None
    key, x = open_runs.add_image(open_runs.run(request.run), content)
    return {"id": key, "image": png_url(to_uint8(_channels_last(x)))}


def _inputs(open_runs: OpenRuns, request: ImageRequest, capability: str) -> tuple[api.Run, np.ndarray]:
    run = open_runs.run(request.run)
    run.require(capability)
    return run, open_runs.image(request.image, run)


def inpaint(open_runs: OpenRuns, job: Job, request: InpaintRequest) -> dict[str, Any]:
    """Inpaint the masked pixels n times."""
    run, x = _inputs(open_runs, request, "inpaint")
    height, width = x.shape[1:]
    if len(request.mask) != height * width:
        raise UserError(f"the mask has {len(request.mask)} pixels, the image {height} x {width}; paint the mask again")
    mask = np.frombuffer(request.mask.encode(), np.uint8).reshape(height, width) == ord("1")
    options: Any = request.options()
    results = api.inpaint(
        run, _channels_last(x), mask=mask, n=request.n, method=request.method, on_progress=job.progress, **options
    )
    arguments = [open_runs.library.display_path(run.path), "picture.png", "--mask", "mask.png", "-n", str(request.n)]
    arguments += ["--method", request.method] if request.method else []
    std = results.std
    return {
        "image": _row(results.x), "std": _std_image(std), "max_std": float(std.max()), "metrics": dict(results.figures),
        "command": format_command("inpaint", *arguments, *request.command_options(), "--out", "sheet.png"),
    }  # fmt: skip


def edit(open_runs: OpenRuns, job: Job, request: EditRequest) -> dict[str, Any]:
    """Edit an image n times."""
    run, x = _inputs(open_runs, request, "edit")
    options: Any = request.options()
    results = api.edit(run, _channels_last(x), request.strength, request.n, on_progress=job.progress, **options)
    arguments = [open_runs.library.display_path(run.path), "picture.png", "--strength", format_value(request.strength)]
    arguments += ["-n", str(request.n), *request.command_options(), "--out", "edits.png"]
    return {"image": _row(results.x[0]), "command": format_command("edit", *arguments)}


def restore(open_runs: OpenRuns, job: Job, request: RestoreRequest) -> dict[str, Any]:
    """Degrade an image and restore it n times."""
    run, x = _inputs(open_runs, request, "restore")
    options: Any = request.options()
    results = api.restore(
        run, _channels_last(x), task=request.task, degrade=True, n=request.n, method=request.method,
        on_progress=job.progress, **options,
    )  # fmt: skip
    arguments = [open_runs.library.display_path(run.path), "picture.png", "--task", request.task, "--degrade"]
    arguments += ["--method", request.method, "-n", str(request.n), *request.command_options(), "--out", "sheet.png"]
    metrics = {key: value for key, value in results.figures.items() if key != "psnr_each"}
    return {
        "image": _row(results.x), "degraded": png_url(to_uint8(results.observed)), "std": _std_image(results.std),
        "metrics": metrics, "command": format_command("restore", *arguments),
    }  # fmt: skip


def interpolate(open_runs: OpenRuns, job: Job, request: InterpolateRequest) -> dict[str, Any]:
    """Interpolate between two images or seeds."""
    run = open_runs.run(request.run)
    points = (request.begin, request.end)
    ends = [end if isinstance(end, int) else _channels_last(open_runs.image(end, run)) for end in points]
    options: Any = {key: value for key, value in request.options().items() if key != "seed"}
    results = api.interpolate(run, ends[0], ends[1], request.frames, on_progress=job.progress, **options)
    names = [str(end) if isinstance(end, int) else f"{name}.png" for end, name in zip(points, "ab", strict=True)]
    arguments = [open_runs.library.display_path(run.path), "--from", names[0], "--to", names[1]]
    arguments += ["--frames", str(request.frames), *request.command_options("seed"), "--out", "interpolation.gif"]
    return {"image": _row(results.x), "command": format_command("interpolate", *arguments)}


def illusion(open_runs: OpenRuns, job: Job, request: IllusionRequest) -> dict[str, Any]:
    """Generate illusions: return every view, with its rotation or permutation of pixels."""
    run = open_runs.run(request.run)
    options: Any = request.options()
    results = api.illusion(run, request.views, request.labels or None, request.n, on_progress=job.progress, **options)
    views = [
        {
            "title": title, "image": _row(results.in_view(k)), "rotation": sized_view.view.turn, "sign": sized_view.sign,
            "source": sized_view.source.tolist(),
        }
        for k, (title, sized_view) in enumerate(zip(results.titles, results.views, strict=True))
    ]  # fmt: skip
    arguments = [open_runs.library.display_path(run.path), "--views", ",".join(request.views)]
    arguments += ["--labels", ",".join(request.labels)] if request.labels else []
    arguments += ["-n", str(request.n), *request.command_options(), "--out", "illusion.gif"]
    return {"views": views, "command": format_command("illusion", *arguments)}
