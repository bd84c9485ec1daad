"""The verbs inpaint and restore: draw what is missing, as often as wanted, given what is there."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any, Unpack

import numpy as np
import torch
from torch import Tensor

from reverie.base.deprecations import renamed_options
from reverie.base.errors import UserError
from reverie.base.noise import Noise, image_seeds
from reverie.base.progress import OnProgress
from reverie.base.spec import build
from reverie.data.codec import Codec
from reverie.data.kind import WRITTEN, Kind
from reverie.data.single_image import Shape, read_mask, read_picture
from reverie.diffusion.known import INPAINTERS, POSTERIORS, Method, Replacement
from reverie.diffusion.measurements import MEASUREMENTS, Keep, Measurement
from reverie.draw.picture import channels_last
from reverie.families.model import CompletionModel, SamplingInputs
from reverie.runs.prompts import has_condition
from reverie.runs.run import Run, load
from reverie.runs.sampling_options import Options, check_count
from reverie.steering.editing import image_shape
from reverie.steering.restoration_results import Restored, check_results

Picture = str | Path | np.ndarray

RESULTS: dict[Kind, int] = {"points": 500, "images": 6}  # when no number is given
# How to inpaint when nothing is said; docs/inverse.md has the measurement.
DEFAULT_METHOD: dict[Kind, str] = {"points": "moment", "images": "dps"}
ROUNDING = 1 / 255 / math.sqrt(12)  # the noise of 8-bit pictures, whose values run from 0 to 1
LARGE = 1e30  # of a known coordinate
PARTICLES_OF = 4  # data that are completed at once where each takes many particles
OTHERS = 1000  # points of the model that are drawn behind the results
DEGRADE_DRAW = 2**29  # the number of the draw, of each image's own stream, that is the noise of a degraded picture


@renamed_options
def inpaint(
    run: str | Path | Run,
    image: Picture | None = None,
    *,
    mask: str | Path | np.ndarray | None = None,
    known: str | None = None,
    n: int | None = None,
    method: str | None = None,
    out: str | Path | None = None,
    device: str = "auto",
    on_progress: OnProgress | None = None,
    **options: Unpack[Options],
) -> Restored:
    """Draw what a mask hides of an image, n times: `reverie.inpaint("runs/digits", "seven.png", mask="left-half")`.

    White pixels of the mask are filled; the others come back exactly as they are.  image: a file, or an array (H, W),
    (H, W, C) or (C, H, W), of any size: it is fitted as the run's data were, and its mask with it; mask: a file, a box of the
    image's rows and columns like 10:20,5:25, a half such as top-half, or an array that is true where to fill.  For a run of
    points, known="x=0.5" fixes coordinates instead.  A labelled run draws without a label unless one is given: what is
    known decides.  out: short for `.save(out)`.
    """
    if out is not None:
        check_results(out)
    run = run if isinstance(run, Run) else load(run, device)
    run.require("inpaint")
    shape = run.config.data.shape
    if run.kind in WRITTEN:
        raise UserError(
            f"{run.path} is a run of {run.kind}, which has no picture; `reverie sample RUN --prompt` goes on with one"
        )
    if run.kind == "series":
        raise UserError(f"{run.path} is a run of series, which have no picture; `reverie gallery series` continues them")
    if run.kind == "points":
        if image is not None or mask is not None:
            raise UserError(
                f"{run.path} is a run of points, which have no picture and no mask; fix coordinates by --known x=0.5"
            )
        truth, seen = _read_known(known, shape[0])
    else:
        if known is not None:
            raise UserError(f"{run.path} is a run of images; give an image and a mask instead of --known")
        if image is None or mask is None:
            raise UserError("inpainting needs an image and a --mask that is white where to fill, or a half such as left-half")
        picture = read_picture(image, image_shape(run), "image", run.fit)
        seen = torch.from_numpy(read_mask(mask, image_shape(run), picture.size, run.fit).copy())
        picture.warn_if_resized(", as is a mask of its size")
        truth = torch.from_numpy(picture.x)
    n = RESULTS[run.kind] if n is None else n
    figures: dict[str, Any]
    if isinstance(run.model, CompletionModel):
        if method is not None:
            raise UserError(f"the family {run.config.family.name} draws what is missing by itself, so it takes no --method")
        x, labels, figures = _completed(run, run.model, n, truth, seen, options, on_progress)
        method = figures["method"]
    else:
        method = DEFAULT_METHOD[run.kind] if method is None else method
        way = build(INPAINTERS, method, "method")
        there = run.diffusion.device
        measure, y = known_part(run.diffusion.codec, truth.to(there), seen.to(there), isinstance(way, Replacement))
        x, labels, left = _draw(run, n, way, measure, y, 0.0, options, on_progress)
        figures = {"method": method, **_solver(left)}
    results = torch.where(seen, truth, x)  # to the bit, whatever units and rounding lie between
    shown = torch.where(seen, truth, torch.nan)
    points = run.kind == "points"
    made = Restored(
        _user(results), _user(shown[None])[0], None if points else _user(truth[None])[0], labels,
        run.sample(OTHERS).x if points else None, _title(run, method, options),
        {**figures, "mean_spread": float(results.std(0)[~seen].mean()) if n > 1 else None},
    )  # fmt: skip
    if out is not None:
        made.save(out)
    return made


@renamed_options
def restore(
    run: str | Path | Run,
    image: Picture,
    *,
    task: str,
    degrade: bool = False,
    noise: float | None = None,
    n: int | None = None,
    method: str = "moment",
    out: str | Path | None = None,
    device: str = "auto",
    on_progress: OnProgress | None = None,
    **options: Unpack[Options],
) -> Restored:
    """Undo what was done to an image, n times: `reverie.restore("runs/digits", "small.png", task="upscale:factor=4")`.

    task: upscale, deblur or colour; image: the degraded picture, or a clean one that is first degraded (degrade=True), which
    tells how good the results are; of another size it is fitted as the run's data were; noise: standard deviation of the noise
    in the picture, whose values run from 0 to 1; if not given, that of rounding to 8 bits; out: short for `.save(out)`.
    """
    if out is not None:
        check_results(out)
    run = run if isinstance(run, Run) else load(run, device)
    run.require("restore")
    shape = image_shape(run)
    action = build(MEASUREMENTS, task, "task")
    small = action.seen(shape)
    way = build(POSTERIORS, method, "method")
    if noise is not None and not 0 <= noise <= 1:
        raise UserError(f"the noise must lie between 0 and 1, the range of the pixels, got {noise}")
    given = read_picture(image, shape if degrade else small, "image", run.fit)
    given.warn_if_resized("" if degrade or small[1:] == shape[1:] else f", of which {shape[1]}x{shape[2]} are made")
    original = torch.from_numpy(given.x) if degrade else None
    seed = options.get("seed", 0)
    if original is not None:
        seen = action(original[None])
        if noise:
            seen = seen + noise * Noise(image_seeds(seed, 1), draws=DEGRADE_DRAW).like(seen)
    else:
        seen = torch.from_numpy(given.x)[None]
    codec = run.diffusion.codec
    encode = codec.units.encode
    size = float(encode(torch.ones(1)) - encode(torch.zeros(1)))  # of one unit in model units
    strength = size * (ROUNDING if noise is None else noise)
    n = RESULTS[run.kind] if n is None else n
    x, labels, left = _draw(run, n, way, lambda z: action(codec.picture(z)), encode(seen), strength, options, on_progress)
    figures: dict[str, Any] = {"method": method, "task": task, **_solver(left)}
    figures["residual"] = float((action(x) - seen).square().mean().sqrt())
    if original is not None:
        figures["psnr_each"] = [_psnr(one, original) for one in x]
        figures["psnr"] = float(np.mean(figures["psnr_each"]))
        figures["psnr_of_mean"] = _psnr(x.mean(0), original)
        figures["psnr_given"] = _psnr(_enlarged(seen, shape)[0], original)
    made = Restored(
        _user(x), _user(seen.clamp(0, 1))[0], None if original is None else _user(original[None])[0], labels,
        title=f"{task}, {_title(run, method, options)}", figures=figures,
    )  # fmt: skip
    if out is not None:
        made.save(out)
    return made


def known_part(codec: Codec, truth: Tensor, seen: Tensor, by_replacing: bool) -> tuple[Measurement, Tensor]:
    """Return what is measured of a datum in model units where some of its numbers are known, and what was found: (1, count).

    Through a codec whose codes are of many numbers each, a method that follows gradients sees the known numbers by the
    decoder; one that replaces numbers can only replace codes that are known altogether, of the data with the rest at a
    middle value.  truth, seen: of one datum, in user units.
    """
    if not codec.lossy:
        return Keep(seen), Keep(seen)(codec.encode(truth[None]))
    if not by_replacing:
        keep = Keep(seen)
        return lambda z: keep(codec.picture(z)), keep(codec.units.encode(truth[None]))
    cells = Keep(codec.known_cells(seen))
    if not cells.known.any():
        raise UserError("nothing of the image is known by whole codes of the autoencoder; take --method dps")
    return cells, cells(codec.encode(torch.where(seen, truth, 0.5)[None]))


def _completed(
    run: Run, model: CompletionModel, n: int, truth: Tensor, seen: Tensor, options: Options, on_progress: OnProgress | None
) -> tuple[Tensor, list[str] | None, dict[str, Any]]:
    """Draw n results of a model that completes data itself: return them in user units, their labels, and figures."""
    check_count(n)
    run.check_options(options)
    if bool(seen.all()):
        raise UserError("the mask hides nothing, so there is nothing to draw; make some of it white")
    label, seed, counts = options.get("label"), options.get("seed", 0), run.config.data.label_counts
    exact = model.completes_exactly(seen)
    log_prior = (torch.tensor(counts, dtype=torch.float64) / sum(counts)).log() if counts and label is None else None
    size, parts, shares = run.batch_size() if exact else PARTICLES_OF, list[Tensor](), list[float]()
    weights = run.weights(options)
    for first in range(0, n, size):
        count = min(size, n - first)
        cond = run.labels(label, count, seed, first) if label is not None else None
        wanted = SamplingInputs(image_seeds(seed, count, first), cond, weights)
        for frame in model.complete(wanted, truth, seen, log_prior, shares.append):
            last = frame
            if on_progress:
                on_progress("sampling", first * frame.of + count * (frame.i + 1), n * frame.of)
        parts.append(run.model.decode(last.x0).float().cpu())
    figures = {"method": "exact"} if exact else {"method": "particles", "effective": float(np.mean(shares))}
    figures |= {} if model.completes_in_own_order(seen) else {"order": "known numbers first"}
    cond = run.labels(label, n, seed) if label is not None else None
    return torch.cat(parts), run.names(cond, options), figures


def _enlarged(seen: Tensor, shape: Shape) -> Tensor:
    """Return what was seen in the size and with the channels of the original: what there is without a model."""
    factor = shape[1] // seen.shape[-2]
    return seen.repeat_interleave(factor, -2).repeat_interleave(factor, -1).expand(1, *shape).clamp(0, 1)


def _psnr(x: Tensor, truth: Tensor) -> float:
    """Return the peak signal-to-noise ratio in decibels for values from 0 to 1: -10 log10 of the mean squared error."""
    error = float((x - truth).double().square().mean())
    return -10 * math.log10(max(error, 1e-10))


def _draw(
    run: Run, n: int, way: Method, measure: Measurement, y: Tensor, noise: float, options: Options,
    on_progress: OnProgress | None,
) -> tuple[Tensor, list[str] | None, list[Tensor]]:  # fmt: skip
    """Draw n results in batches: return them in user units, their labels, and the residuals of all solves."""
    check_count(n)
    chosen = run.unconditional_by_default(options)
    chosen["grid"] = way.grid(options.get("grid"))
    if (options.get("precision") or "fp32") != "fp32" and not isinstance(way, Replacement):
        raise UserError("dps and moment follow gradients, which bf16 does not carry; take fp32, or the method replace")
    device = run.diffusion.device
    left: list[Tensor] = []
    steer = way.steer(measure, y.to(device), noise, lambda solved: left.append(solved.residual.cpu()))
    parts, size = [], run.batch_size()
    firsts = range(0, n, size)
    for k, first in enumerate(firsts):
        for frame in run.frames(min(size, n - first), first, steer=steer, **chosen):
            last = frame
            if on_progress:
                on_progress("sampling", k * frame.of + frame.i + 1, len(firsts) * frame.of)
        parts.append(run.diffusion.codec.decode(last.x0).float().cpu())
    x = torch.cat(parts)
    if not torch.isfinite(x).all():
        raise UserError(f"the results are not finite; take more --steps, or another method than {type(way).__name__.lower()}")
    label = options.get("label")
    cond = run.condition(options, n) if label is not None or has_condition(options) else None
    return x, run.names(cond, options), left


def _solver(left: list[Tensor]) -> dict[str, float]:
    """Return how far the linear systems were solved: the mean relative residual, of all images and steps."""
    return {"unsolved": float(torch.cat(left).mean())} if left else {}


def _read_known(text: str | None, size: int) -> tuple[Tensor, Tensor]:
    """Read "x=0.5" or "0=0.5,2=1" as the coordinates of a point, (D,), and which of them are known, (D,)."""
    point, seen = torch.zeros(size), torch.zeros(size, dtype=torch.bool)
    names = {**{str(k): k for k in range(size)}, **{name: k for k, name in enumerate("xyz"[:size])}}
    for part in filter(None, (text or "").replace(" ", "").split(",")):
        match = re.fullmatch(r"(\w+)=([-+.\deE]+)", part)
        try:
            value = float(match[2]) if match else math.nan
        except ValueError:
            value = math.nan
        if match is None or match[1] not in names or not abs(value) < LARGE:
            raise UserError(f"cannot read {part!r}; write known coordinates like x=0.5, from: {', '.join(names)}")
        if seen[names[match[1]]]:
            raise UserError(f"the coordinate {match[1]} is given twice; say once what is known of it")
        point[names[match[1]]], seen[names[match[1]]] = value, True
    if not seen.any():
        raise UserError("nothing is known of the point; fix at least one coordinate, like --known x=0.5")
    if seen.all():
        raise UserError(f"all {size} coordinates are known, so there is nothing to draw; leave one out")
    return point, seen


def _title(run: Run, method: str, options: Options) -> str:
    label = options.get("label")
    return f"{run.config.data.name}, {method}" + (f", label {label}" if label else "") + f", seed {options.get('seed', 0)}"


def _user(x: Tensor) -> np.ndarray:
    """Return (N, D), or images as (N, H, W) or (N, H, W, C)."""
    return channels_last(x.numpy())
