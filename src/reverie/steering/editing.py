"""Editing: an image noised part of the way and drawn again, taken to its own noise and back, or led over into another."""

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
USUAL_INVERSION = ("heun", 50, "uniform")
MOST_STRENGTHS, MOST_ROWS, MOST_FRAMES = 32, 64, 1000


def image_shape(run: Run) -> Shape:
    """Return the shape of a run's images, (C, H, W), and refuse a run of points."""
    shape = run.config.data.shape
    if run.kind != "images":
        raise UserError(f"{run.path} is a run of points; this is done with images only")
    return shape[0], shape[1], shape[2]


def encode_image(run: Run, image: str | Path | np.ndarray | Tensor) -> Tensor:
    """Return an image in model units, (1, C, H, W), fitted as the training data were."""
    given = image if isinstance(image, str | Path) else np.asarray(image)
    picture = read_picture(given, image_shape(run), "image", run.fit)
    picture.warn_if_resized()
    device = run.diffusion.device
    return run.diffusion.codec.encode(torch.from_numpy(picture.x)[None].to(device))


def check_strengths(strength: str | float | Sequence[float], t_min: float) -> tuple[float, ...]:
    """Refuse what is no time to noise an image to."""
    strengths = read_numbers(strength, "the strength")
    for value in strengths:
        if not 0 < value <= 1:
            raise UserError(f"a strength must lie above 0 (the image itself) and be at most 1 (a new one), got {value:g}")
        if value <= t_min:
            raise UserError(f"a strength of {value:g} is below t = {t_min:g}, where the model's knowledge ends")
    if len(strengths) > MOST_STRENGTHS:
        raise UserError(f"at most {MOST_STRENGTHS} strengths can be shown at once, got {len(strengths)}")
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
    """Draw an image again (arXiv:2108.01073): it is noised to the time t = strength and denoised from there.

    A strength of 1 forgets the image.  Without a label the model goes by no condition.
    """
    run.require("edit")
    origin = encode_image(run, image)
    strengths = check_strengths(strength, run.diffusion.denoiser.schedule.t_min)
    if n > MOST_ROWS:
        raise UserError(f"an edit is drawn at most {MOST_ROWS} times at once, got {n}; other seeds give others")
    asked = run.unconditional_by_default(options)
    _, steps, spaced = run.chosen_sampling(asked, steered=True)
    rows = []
    for k, value in enumerate(strengths):
        run.sampling(asked)  # says what is wrong with the options before the grid is moved
        times = build(GRIDS, _started(parse(spaced), value), "grid")(run.diffusion.denoiser.schedule, steps)
        for frame in run.frames(n, origin=origin if value < 1 else None, times=times, **asked):
            if on_progress:
                on_progress("sampling", k * frame.of + frame.i + 1, len(strengths) * frame.of)
            last = frame
        rows.append(run.decode_final(last))
    label = options.get("label")
    asked_for = label if label is not None else options.get("prompt")
    caption = f"drawn again as {asked_for}" if asked_for is not None else ""
    return Edits(run.decode(origin)[0], np.stack(rows), strengths, caption)


def _started(grid: dict[str, Any], t: float) -> dict[str, Any]:
    if grid["name"] in ("zigzag", "level"):
        raise UserError(f"the grid {grid['name']} has no start to be moved; edit with uniform or another falling grid")
    return {**grid, "start": t}


def guided_denoiser(run: Run, options: Options, n: int, told: Tensor | None = None) -> Denoiser:
    """Return the denoiser of a run under the options; without a label, under no condition.  told: of clusters, (n, K)."""
    label, asked = options.get("label"), run.unconditional_by_default(options)
    if label == "all" and "all" not in run.config.data.labels:
        raise UserError("here everything is of one label; give its name with --label, or none")
    cond = run.condition(options, n) if label is not None or has_condition(options) else None
    denoiser, device = run.diffusion.denoiser, run.diffusion.device
    guided_one = run.guidance(asked)(denoiser if told is None else WithClusters(denoiser, told))
    return WithCondition(guided_one, cond.to(device) if cond is not None else None)


def invert_to_noise(denoise: Denoiser, sampler: Sampler, x0: Tensor, grid: Tensor) -> Iterator[Frame]:
    """Take data up a rising grid along the probability flow, to the noise that a sampler brings back (arXiv:2010.02502).

    The first x is alpha x0 + sigma eps with the eps estimated at alpha x0; each step is the sampler's own, upwards.
    x0: (B, ...); grid: (n,) ascending, from above sigma = 0.
    """
    times = grid.tolist()
    alpha, sigma = denoise.schedule(times[0])
    x = Pair(x0, denoise(alpha * x0, times[0]).eps).mix(alpha, sigma)
    noise = Noise(torch.zeros(len(x), dtype=torch.int64))
    for i, (t, s) in enumerate(pairwise(times)):
        now = Frame(i, len(times), t, x, denoise(x, t))
        yield now
        x, _ = sampler.step(denoise, now, s, noise, None)
    yield Frame(len(times) - 1, len(times), times[-1], x, denoise(x, times[-1]))


def unit_noise(schedule: Schedule, x: Tensor, t: float) -> Tensor:
    """Return the unit noise that a trajectory would start from to be at x at its first time."""
    alpha, sigma = schedule(t)
    return x / sqrt(alpha**2 + sigma**2)


def inversion_sampler(run: Run, options: Options) -> tuple[Sampler, Tensor]:
    """Return the sampler and the falling times to invert with: Heun and 50 uniform ones if nothing is said."""
    named, counted, spaced = options.get("sampler"), options.get("steps"), options.get("grid")
    sampler_name, steps, grid_name = USUAL_INVERSION
    asked: Options = {
        **options,
        "sampler": sampler_name if named is None else named,
        "steps": steps if counted is None else counted,
        "grid": grid_name if spaced is None else spaced,
    }
    name = parse(str(asked["sampler"]))["name"]
    if name not in SAMPLERS:
        raise unknown(name, INVERTIBLE, "sampler")
    sampler, grid = run.sampling(asked)
    if name not in INVERTIBLE or sampler.order is None:
        raise UserError(f"an image is taken to noise by {' or '.join(INVERTIBLE)} without fresh noise, got {asked['sampler']}")
    if any(s >= t for t, s in pairwise(grid.tolist())) or len(grid) < 2:
        raise UserError("an image is taken to noise along a grid of at least 2 times that only falls, such as uniform")
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
    """Take an image to the noise that the model draws it from, and back, by DDIM or Heun."""
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
    before, back = run.decode(x0)[0], run.decode_final(frame)[0]
    noise = eps[0].float().cpu()
    shown = channels_last(noise[None].numpy())[0]
    error = float(np.sqrt(((before - back) ** 2).mean()))
    return Inversion(before, shown, back, error, float(noise.mean()), float(noise.std()), calls)


def slerp(a: Tensor, b: Tensor, share: Tensor) -> Tensor:
    """Return points on the arc between two vectors: directions turn evenly, and norms change linearly.

    (sin((1 - w) angle) a / |a| + sin(w angle) b / |b|) / sin(angle) (Shoemake 1985), times (1 - w) |a| + w |b|.
    a, b: any one shape; share: (n,) -> (n, ...).
    """
    flat_a, flat_b, w = a.flatten().double(), b.flatten().double(), share.double().to(a.device)[:, None]
    size_a, size_b = flat_a.norm(), flat_b.norm()
    one, two = flat_a / size_a, flat_b / size_b
    angle = 2 * torch.atan2((one - two).norm(), (one + two).norm())  # exact for small and for large angles
    if angle < 1e-9:
        direction = (1 - w) * one + w * two
    elif angle > math.pi - 1e-9:
        raise UserError("the two ends are opposite to each other, so there is no one way between them")
    else:
        direction = (((1 - w) * angle).sin() * one + (w * angle).sin() * two) / angle.sin()
    way: Tensor = ((1 - w) * size_a + w * size_b) * direction
    return way.to(a.dtype).reshape(len(share), *a.shape)


def _end(run: Run, end: str | int | Path | np.ndarray, options: Options) -> tuple[Tensor, Tensor | None]:
    """Return the unit noise of one end, (C, H, W), and what is told of its cluster, (K,) or None: a seed's own, or an image's.

    Nothing is told of images, which are taken to noise without, nor where the model goes by no label.
    """
    if isinstance(end, int) or (isinstance(end, str) and end.strip().isdecimal()):
        device, seeds = run.diffusion.device, image_seeds(int(end), 1)
        noise = Noise(seeds).like(torch.empty(1, *run.diffusion.model_shape, device=device))[0]
        cond = run.condition(options, 1)
        alone = options.get("label") is None if run.conditional else False
        told = None if alone or (cond is not None and cond.ndim > 1) else run.diffusion.sample_clusters(seeds, cond)
        return noise, None if told is None else told[0]
    x0 = encode_image(run, end)
    sampler, grid = inversion_sampler(run, options)
    denoise = guided_denoiser(run, options, 1)
    (last,) = deque(invert_to_noise(denoise, sampler, x0, grid.flip(0)), maxlen=1)
    return unit_noise(denoise.schedule, last.x, last.t)[0], None


def _between(a: Tensor | None, b: Tensor | None, share: Tensor) -> Tensor | None:
    """Return what is told on the way from one end to the other, a share of each: (n, K), None where neither tells anything."""
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
    """Draw the way from one image to another along the arc between their noises: (frames, H, W[, C]).

    An end is a seed or an image: a seed's first image, or an image that is taken to its noise.  With a label all of the
    way is of that label; without, the model goes by none.
    """
    run.require("interpolate")
    image_shape(run)
    if not 2 <= frames <= MOST_FRAMES:
        raise UserError(f"a way needs from 2 to {MOST_FRAMES:,} frames, got {frames}")
    sampler, grid = inversion_sampler(run, options)
    (a, told_a), (b, told_b) = (_end(run, which, options) for which in (begin, end))
    share = torch.linspace(0, 1, frames, dtype=torch.float64)
    noises, told = slerp(a, b, share), _between(told_a, told_b, share)
    drawn, size = [], run.batch_size()
    for k, part in enumerate(noises.split(size)):
        kinds = None if told is None else told[k * size : k * size + len(part)]
        for frame in _unit_frames(guided_denoiser(run, options, len(part), kinds), sampler, part, grid):
            if on_progress:
                on_progress("sampling", k * size * frame.of + (frame.i + 1) * len(part), frames * frame.of)
        drawn.append(run.decode_final(frame))
    return np.concatenate(drawn)
