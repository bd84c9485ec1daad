"""Sampling jobs: frames of a trajectory as they are computed, samples as files, and nearest training samples."""

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
from reverie.studio.jobs import Job
from reverie.studio.open_runs import OpenRuns, atlas, to_uint8
from reverie.studio.requests import MAX_IMAGES, NearestRequest, SampleFileRequest, SampleRequest, format_command
from reverie.studio.serialize import pack_floats, png_url

MAX_FRAMES = 60  # of one trajectory
FRAME_SHARE = 0.25  # maximum share of the sampling time spent on frames
BLOCK = 4096  # training samples per distance computation
MIME = {"png": "image/png", "gif": "image/gif", "mp4": "video/mp4", "npy": "application/octet-stream"}


def _check(run: api.Run, request: SampleRequest) -> None:
    check_kind(run)
    if run.kind == "images" and request.n > MAX_IMAGES:
        raise UserError(f"too many images: {request.n}; the studio shows at most {MAX_IMAGES} at once")


def check_kind(run: api.Run) -> None:
    """Raise UserError for kinds of data that the studio cannot show."""
    if run.kind not in ("images", "points"):
        out = "" if run.kind in ("text", "pairs") else " --out samples.png"
        raise UserError(f"the studio cannot show {run.kind}; run: reverie sample {run.path}{out}")


def equivalents(open_runs: OpenRuns, run: api.Run, request: SampleRequest, out: str = "samples.png") -> dict[str, str]:
    """Return the command and the Python code that generate the same samples."""
    path = open_runs.library.display_path(run.path)
    first = f", first={request.first}" if request.first else ""
    call = f"run.sample({request.n}{first}{request.python_arguments()})"
    return {
        "command": format_command("sample", path, "-n", str(request.n), *request.command_options(), "--out", out),
        "python": f'import reverie\n\nrun = reverie.load("{path}")\nsamples = {call}',
    }


def sample(open_runs: OpenRuns, job: Job, request: SampleRequest) -> dict[str, Any]:
    """Generate samples; send frames with x_t and the predicted x0, limited to FRAME_SHARE of the time."""
    run = open_runs.run(request.run)
    _check(run, request)
    options: Any = request.options()
    job.send("start", {**equivalents(open_runs, run, request), "kind": run.kind, "shape": run.config.data.shape})
    start, frame_time, count = time.monotonic(), 0.0, 0
    with few_threads_when_busy() as adapt_threads:
        for frame in run.frames(request.n, request.first, **options):
            job.check()
            adapt_threads()
            now = time.monotonic()
            is_due = frame.i * MAX_FRAMES >= count * frame.of and frame_time <= FRAME_SHARE * (now - start)
            if is_due or frame.i in (0, frame.of - 1):
                progress = {"step": frame.i, "steps": frame.of, "t": float(frame.t)}
                job.send("frame", {**progress, **_frame_data(run, run.decode(frame.x), run.decode(frame.x0))}, droppable=True)
                count, frame_time = count + 1, frame_time + time.monotonic() - now
            last = frame
    x = run.decode_final(last)
    cond = run.condition(options, request.n, request.first)
    final = {"image": png_url(atlas(to_uint8(x)))} if run.kind == "images" else {"points": pack_floats(x)}
    return {
        **final, "samples": open_runs.add_samples(request.run, x), "labels": run.names(cond, options),
        "seconds": time.monotonic() - start, "seed": request.seed, "first": request.first,
    }  # fmt: skip


def _frame_data(run: api.Run, x: np.ndarray, x0: np.ndarray) -> dict[str, Any]:
    """Return x_t and the predicted x0: images as an atlas of two rows, points as numbers."""
    if run.kind == "images":
        return {"image": png_url(atlas(to_uint8(x), to_uint8(x0)))}
    return {"x": pack_floats(x), "x0": pack_floats(x0)}


def sample_file(open_runs: OpenRuns, job: Job, request: SampleFileRequest) -> dict[str, Any]:
    """Generate samples as a file and return it as a data URL."""
    run = open_runs.run(request.run)
    _check(run, request)
    options: Any = request.options()
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / f"reverie.{request.format}"
        api.sample_to(run, request.n, out, request.first, on_progress=job.progress, **options)
        content = out.read_bytes()
    url = f"data:{MIME[request.format]};base64,{base64.b64encode(content).decode()}"
    return {"url": url, "name": f"{run.path.name}-{request.seed}.{request.format}"}


def nearest(open_runs: OpenRuns, job: Job, request: NearestRequest) -> dict[str, Any]:
    """Return the nearest training sample of each generated sample, and their root-mean-square distance."""
    import torch

    from reverie.base.distances import nearest as find_nearest

    key, samples = open_runs.samples(request.samples)
    run, data = open_runs.run(key), open_runs.data(key)
    x = torch.from_numpy(np.moveaxis(samples, -1, 1) if samples.ndim == 4 else samples).float().flatten(1)
    parts = torch.arange(len(data)).split(BLOCK)

    def blocks() -> Any:
        for k, part in enumerate(parts):
            job.progress("searching the training data", k, len(parts))
            yield data.batch(part)[0].flatten(1)

    distance, index = find_nearest(x, blocks())
    neighbours, labels = data.batch(index)
    distances = distance.tolist()
    names = data.describe_conditions(index) if labels is not None else None
    if run.kind == "points":
        return {"points": pack_floats(neighbours.numpy()), "distances": distances, "labels": names}
    images = neighbours.numpy()
    images = images[:, 0] if images.shape[1] == 1 else np.moveaxis(images, 1, -1)
    return {"image": png_url(atlas(to_uint8(images))), "distances": distances, "labels": names}
