"""Editing: noising and denoising an image, inversion to its noise, and interpolation between two images."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, Unpack

import numpy as np
import torch
from torch import Tensor

from reverie.base.errors import UserError, unknown
from reverie.base.noise import Noise, image_seeds
from reverie.base.progress import OnProgress
from reverie.base.scalar import sqrt
from reverie.base.spec import build, parse
from reverie.data.single_image import Shape, read_picture
from reverie.diffusion.denoiser import Denoiser, WithCondition
from reverie.diffusion.guidance import read_numbers
from reverie.diffusion.pair import Pair
from reverie.diffusion.samplers import GRIDS, SAMPLERS, Frame, Sampler, start, trajectory
from reverie.diffusion.schedule import Schedule
from reverie.draw.picture import channels_last
from reverie.families.diffusion.clusters import WithClusters
from reverie.runs.prompts import has_condition
from reverie.runs.run import Run
from reverie.runs.sampling_options import Options
from reverie.steering.edit_results import Edits, Inversion

INVERTIBLE = ("ddim", "heun")
DEFAULT_INVERSION = ("heun", 50, "uniform")
MAX_STRENGTHS, MAX_EDITS, MAX_FRAMES = 32, 64, 1000


def image_shape(run: Run) -> Shape:
    """Return the shape of a run's images, (C, H, W); refuse runs of other data."""
    shape = run.config.data.shape
    if run.kind != "images":
        raise UserError(f"{run.path} is a run of {run.kind}; this needs a run of images")
    return shape[0], shape[1], shape[2]


def encode_image(run: Run, image: str | Path | np.ndarray | Tensor) -> Tensor:
    """Return an image in model units, (1, C, H, W), resized as the training data were."""
    source = image if isinstance(image, str | Path) else np.asarray(image)
    picture = read_picture(source, image_shape(run), "image", run.fit)
    picture.warn_if_resized()
    device = run.diffusion.device
    return run.diffusion.codec.encode(torch.from_numpy(picture.x)[None].to(device))


def check_strengths(strength: str | float | Sequence[float], t_min: float) -> tuple[float, ...]:
    """Return strengths as a tuple; refuse values that are not times of the schedule."""
    strengths = read_numbers(strength, "the strength")
    for value in strengths:
        if not 0 < value <= 1:
            raise UserError(f"a strength must be above 0 (the image itself) and at most 1 (a new image), got {value:g}")
        if value <= t_min:
            raise UserError(f"a strength must be above t_min = {t_min:g} of the schedule, got {value:g}")
    if len(strengths) > MAX_STRENGTHS:
        raise UserError(f"at most {MAX_STRENGTHS} strengths fit on a sheet, got {len(strengths)}")
    return strengths


def edit(
    run: Run,
    image: str | Path | np.ndarray | Tensor,
    strength: str | float | Sequence[float] = 0.6,
    n: int = 1,
    *,
    on_progress: OnProgress | None = None,
    **options: Unpack[Options],
) -> Edits:
    """Edit an image n times per strength (SDEdit, arXiv:2108.01073): noise it to the time t = strength, then denoise it.

    At strength 1 the result is independent of the image.  Without a label or a prompt the model is unconditional.
    """
    run.require("edit")
    origin = encode_image(run, image)
    strengths = check_strengths(strength, run.diffusion.denoiser.schedule.t_min)
    if n > MAX_EDITS:
        raise UserError(f"at most {MAX_EDITS} edits fit on a sheet, got {n}; use other seeds for more")
    request = run.unconditional_by_default(options)
    _, steps, spacing = run.chosen_sampling(request, steered=True)
    results = []
    for k, value in enumerate(strengths):
        run.sampling(request)  # refuses invalid options
        times = build(GRIDS, _with_start(parse(spacing), value), "grid")(run.diffusion.denoiser.schedule, steps)
        for frame in run.frames(n, origin=origin if value < 1 else None, times=times, **request):
            if on_progress:
                on_progress("sampling", k * frame.of + frame.i + 1, len(strengths) * frame.of)
            last = frame
        results.append(run.decode_final(last))
    label = options.get("label")
    condition = label if label is not None else options.get("prompt")
    caption = f"edited to {condition}" if condition is not None else ""
    return Edits(run.decode(origin)[0], np.stack(results), strengths, caption)


def _with_start(grid: dict[str, Any], t: float) -> dict[str, Any]:
    if grid["name"] in ("zigzag", "level"):
        raise UserError(f"the grid {grid['name']} cannot start at a strength; use --grid uniform or another decreasing grid")
    return {**grid, "start": t}


def guided_denoiser(run: Run, options: Options, n: int, clusters: Tensor | None = None) -> Denoiser:
    """Return the guided denoiser of a run, unconditional without a label or prompt.  clusters: conditions, (n, K)."""
    label, request = options.get("label"), run.unconditional_by_default(options)
    if label == "all" and "all" not in run.config.data.labels:
        raise UserError("--label all is not possible here; name one label, or none")
    cond = run.condition(options, n) if label is not None or has_condition(options) else None
    denoiser, device = run.diffusion.denoiser, run.diffusion.device
    guided = run.guidance(request)(denoiser if clusters is None else WithClusters(denoiser, clusters))
    return WithCondition(guided, cond.to(device) if cond is not None else None)


def invert_to_noise(denoise: Denoiser, sampler: Sampler, x0: Tensor, grid: Tensor) -> Iterator[Frame]:
    """Integrate the probability flow from data to noise, the reverse of a sampler (DDIM inversion, arXiv:2010.02502).

    The first x is alpha x0 + sigma eps, with eps estimated at alpha x0; the steps are those of the sampler.  x0: (B, ...);
    grid: (n,) ascending, from sigma > 0.
    """
    times = grid.tolist()
    alpha, sigma = denoise.schedule(times[0])
    x = Pair(x0, denoise(alpha * x0, times[0]).eps).mix(alpha, sigma)
    noise = Noise(torch.zeros(len(x), dtype=torch.int64))
    for i, (t, s) in enumerate(pairwise(times)):
        frame = Frame(i, len(times), t, x, denoise(x, t))
        yield frame
        x, _ = sampler.step(denoise, frame, s, noise, None)
    yield Frame(len(times) - 1, len(times), times[-1], x, denoise(x, times[-1]))


def unit_noise(schedule: Schedule, x: Tensor, t: float) -> Tensor:
    """Return the unit noise from which the trajectory starts at x at time t."""
    alpha, sigma = schedule(t)
    return x / sqrt(alpha**2 + sigma**2)


def inversion_sampler(run: Run, options: Options) -> tuple[Sampler, Tensor]:
    """Return the sampler and the decreasing times of an inversion, by default Heun with 50 uniform times."""
    sampler_option, steps_option, grid_option = options.get("sampler"), options.get("steps"), options.get("grid")
    sampler_name, steps, grid_name = DEFAULT_INVERSION
    request: Options = {
        **options,
        "sampler": sampler_name if sampler_option is None else sampler_option,
        "steps": steps if steps_option is None else steps_option,
        "grid": grid_name if grid_option is None else grid_option,
    }
    name = parse(str(request["sampler"]))["name"]
    if name not in SAMPLERS:
        raise unknown(name, INVERTIBLE, "sampler")
    sampler, grid = run.sampling(request)
    if name not in INVERTIBLE or sampler.order is None:
        raise UserError(f"inversion needs --sampler {' or '.join(INVERTIBLE)} without noise, got {request['sampler']}")
    if any(s >= t for t, s in pairwise(grid.tolist())) or len(grid) < 2:
        raise UserError("inversion needs a decreasing grid of at least 2 times; use --grid uniform")
    return sampler, grid


def _unit_frames(denoise: Denoiser, sampler: Sampler, eps: Tensor, grid: Tensor) -> Iterator[Frame]:
    x = start(denoise.schedule, float(grid[0]), eps)
    return trajectory(denoise, sampler, x, grid, Noise(torch.zeros(len(eps), dtype=torch.int64)))


@torch.no_grad()
def invert(
    run: Run,
    image: str | Path | np.ndarray | Tensor,
    *,
    on_progress: OnProgress | None = None,
    **options: Unpack[Options],
) -> Inversion:
    """Invert an image to the noise from which the model samples it, and reconstruct it, by DDIM or Heun."""
    run.require("invert")
    x0 = encode_image(run, image)
    sampler, grid = inversion_sampler(run, options)
    denoise = guided_denoiser(run, options, 1)
    calls = 0

    def count(*_: object) -> None:
        nonlocal calls
        calls += 1

    hook = run.diffusion.denoiser.register_forward_hook(count)
    try:
        for frame in invert_to_noise(denoise, sampler, x0, grid.flip(0)):
            if on_progress:
                on_progress("inverting", frame.i + 1, 2 * frame.of)
        eps = unit_noise(denoise.schedule, frame.x, frame.t)
        for frame in _unit_frames(denoise, sampler, eps, grid):
            if on_progress:
                on_progress("inverting", frame.of + frame.i + 1, 2 * frame.of)
    finally:
        hook.remove()
    original, reconstruction = run.decode(x0)[0], run.decode_final(frame)[0]
    noise = eps[0].float().cpu()
    noise_image = channels_last(noise[None].numpy())[0]
    error = float(np.sqrt(((original - reconstruction) ** 2).mean()))
    return Inversion(original, noise_image, reconstruction, error, float(noise.mean()), float(noise.std()), calls)


def slerp(a: Tensor, b: Tensor, share: Tensor) -> Tensor:
    """Return points on the arc between two vectors: uniform rotation of the direction, linear change of the norm.

    (sin((1 - w) angle) a / |a| + sin(w angle) b / |b|) / sin(angle) (Shoemake 1985), times (1 - w) |a| + w |b|.
    a, b: of one shape; share: (n,) -> (n, ...).
    """
    flat_a, flat_b, w = a.flatten().double(), b.flatten().double(), share.double().to(a.device)[:, None]
    size_a, size_b = flat_a.norm(), flat_b.norm()
    unit_a, unit_b = flat_a / size_a, flat_b / size_b
    angle = 2 * torch.atan2((unit_a - unit_b).norm(), (unit_a + unit_b).norm())  # accurate for small and for large angles
    if angle < 1e-9:
        direction = (1 - w) * unit_a + w * unit_b
    elif angle > math.pi - 1e-9:
        raise UserError("the two ends are opposite, so the arc between them is not unique; use another seed")
    else:
        direction = (((1 - w) * angle).sin() * unit_a + (w * angle).sin() * unit_b) / angle.sin()
    arc: Tensor = ((1 - w) * size_a + w * size_b) * direction
    return arc.to(a.dtype).reshape(len(share), *a.shape)


def _end(run: Run, end: str | int | Path | np.ndarray, options: Options) -> tuple[Tensor, Tensor | None]:
    """Return the unit noise of an end, (C, H, W), and its cluster condition, (K,) or None.

    A seed has the cluster of its sample.  Unconditional samples have none; nor have images, which are inverted without one.
    """
    if isinstance(end, int) or (isinstance(end, str) and end.strip().isdecimal()):
        device, seeds = run.diffusion.device, image_seeds(int(end), 1)
        noise = Noise(seeds).like(torch.empty(1, *run.diffusion.model_shape, device=device))[0]
        cond = run.condition(options, 1)
        unlabelled = options.get("label") is None if run.conditional else False
        composed = cond is not None and cond.ndim > 1
        clusters = None if unlabelled or composed else run.diffusion.sample_clusters(seeds, cond)
        return noise, None if clusters is None else clusters[0]
    x0 = encode_image(run, end)
    sampler, grid = inversion_sampler(run, options)
    denoise = guided_denoiser(run, options, 1)
    (last,) = deque(invert_to_noise(denoise, sampler, x0, grid.flip(0)), maxlen=1)
    return unit_noise(denoise.schedule, last.x, last.t)[0], None


def _between(a: Tensor | None, b: Tensor | None, share: Tensor) -> Tensor | None:
    """Return the cluster conditions between two ends, (n, K), weighted by share; None if neither end has one."""
    parts = [w[:, None].to(end) * end for w, end in ((1 - share, a), (share, b)) if end is not None]
    return torch.stack(parts).sum(0) if parts else None


@torch.no_grad()
def interpolate(
    run: Run,
    begin: str | int | Path | np.ndarray,
    end: str | int | Path | np.ndarray,
    frames: int = 60,
    *,
    on_progress: OnProgress | None = None,
    **options: Unpack[Options],
) -> np.ndarray:
    """Interpolate between two images along the arc between their noises: (frames, H, W[, C]).

    An end is an image, which is inverted, or a seed, for its first sample.  A label applies to all frames; without one the
    model is unconditional.
    """
    run.require("interpolate")
    image_shape(run)
    if not 2 <= frames <= MAX_FRAMES:
        raise UserError(f"--frames must be from 2 to {MAX_FRAMES:,}, got {frames}")
    sampler, grid = inversion_sampler(run, options)
    (a, clusters_a), (b, clusters_b) = (_end(run, endpoint, options) for endpoint in (begin, end))
    share = torch.linspace(0, 1, frames, dtype=torch.float64)
    noises, clusters = slerp(a, b, share), _between(clusters_a, clusters_b, share)
    images, size = [], run.batch_size()
    for k, part in enumerate(noises.split(size)):
        part_clusters = None if clusters is None else clusters[k * size : k * size + len(part)]
        for frame in _unit_frames(guided_denoiser(run, options, len(part), part_clusters), sampler, part, grid):
            if on_progress:
                on_progress("sampling", k * size * frame.of + (frame.i + 1) * len(part), frames * frame.of)
        images.append(run.decode_final(frame))
    return np.concatenate(images)
