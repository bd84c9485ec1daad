"""Inpainting and restoration: samples given known pixels or a degraded picture."""

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

RESULTS: dict[Kind, int] = {"points": 500, "images": 6}  # default number of results
DEFAULT_METHOD: dict[Kind, str] = {"points": "moment", "images": "dps"}  # measured in docs/inverse.md
ROUNDING = 1 / 255 / math.sqrt(12)  # std of the rounding noise of 8-bit pictures with values in [0, 1]
LARGE = 1e30  # limit of a known coordinate
PARTICLE_BATCH = 4  # data per batch of a particle method, each with many particles
MODEL_POINTS = 1000  # unconditional samples behind the results
DEGRADE_DRAW = 2**29  # index of the noise of a degraded picture in the random stream of each image


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
    """Fill the masked part of an image n times: `reverie.inpaint("runs/digits", "seven.png", mask="left-half")`.

    White pixels of the mask are filled; the others stay exactly as they are.  image: a file, or an array (H, W), (H, W, C) or
    (C, H, W), of any size, resized as the run's data were, with its mask; mask: a file, a box of rows and columns such as
    10:20,5:25, a half such as top-half, or an array that is true where to fill.  For a run of points, known="x=0.5" fixes
    coordinates instead.  Without a label the known part alone determines the results.  out: short for `.save(out)`.
    """
    if out is not None:
        check_results(out)
    run = run if isinstance(run, Run) else load(run, device)
    run.require("inpaint")
    shape = run.config.data.shape
    if run.kind in WRITTEN:
        raise UserError(f"{run.path} is a run of {run.kind}, not of images; continue a text with `reverie sample RUN --prompt`")
    if run.kind == "series":
        raise UserError(f"{run.path} is a run of series, not of images; `reverie gallery series` continues series")
    if run.kind == "points":
        if image is not None or mask is not None:
            raise UserError(f"{run.path} is a run of points, without image and mask; fix coordinates with --known x=0.5")
        truth, known_mask = _read_known(known, shape[0])
    else:
        if known is not None:
            raise UserError(f"{run.path} is a run of images; use an image and --mask instead of --known")
        if image is None or mask is None:
            raise UserError("inpainting needs an image and a --mask: white where to fill, or a half such as left-half")
        picture = read_picture(image, image_shape(run), "image", run.fit)
        known_mask = torch.from_numpy(read_mask(mask, image_shape(run), picture.size, run.fit).copy())
        picture.warn_if_resized(", as is a mask of its size")
        truth = torch.from_numpy(picture.x)
    n = RESULTS[run.kind] if n is None else n
    figures: dict[str, Any]
    if isinstance(run.model, CompletionModel):
        if method is not None:
            raise UserError(f"the family {run.config.family.name} completes data without a method; leave out --method")
        x, labels, figures = _complete(run, run.model, n, truth, known_mask, options, on_progress)
        method = figures["method"]
    else:
        method = DEFAULT_METHOD[run.kind] if method is None else method
        inpainter = build(INPAINTERS, method, "method")
        model_device = run.diffusion.device
        measure, y = known_part(
            run.diffusion.codec, truth.to(model_device), known_mask.to(model_device), isinstance(inpainter, Replacement)
        )
        x, labels, residuals = _sample(run, n, inpainter, measure, y, 0.0, options, on_progress)
        figures = {"method": method, **_solver(residuals)}
    results = torch.where(known_mask, truth, x)  # exact, independent of units and rounding
    observed = torch.where(known_mask, truth, torch.nan)
    points = run.kind == "points"
    result = Restored(
        _user(results), _user(observed[None])[0], None if points else _user(truth[None])[0], labels,
        run.sample(MODEL_POINTS).x if points else None, _title(run, method, options),
        {**figures, "mean_std": float(results.std(0)[~known_mask].mean()) if n > 1 else None},
    )  # fmt: skip
    if out is not None:
        result.save(out)
    return result


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
    """Restore a degraded image n times: `reverie.restore("runs/digits", "small.png", task="upscale:factor=4")`.

    task: upscale, deblur or colour; image: the degraded picture, or with degrade=True a clean one that is degraded first, to
    measure the results; another size is resized as the run's data were; noise: standard deviation of the noise in the picture
    with values in [0, 1], by default that of rounding to 8 bits; out: short for `.save(out)`.
    """
    if out is not None:
        check_results(out)
    run = run if isinstance(run, Run) else load(run, device)
    run.require("restore")
    shape = image_shape(run)
    degradation = build(MEASUREMENTS, task, "task")
    degraded_shape = degradation.seen(shape)
    posterior = build(POSTERIORS, method, "method")
    if noise is not None and not 0 <= noise <= 1:
        raise UserError(f"--noise must be between 0 and 1, got {noise}")
    picture = read_picture(image, shape if degrade else degraded_shape, "image", run.fit)
    picture.warn_if_resized("" if degrade or degraded_shape[1:] == shape[1:] else f", then restored to {shape[1]}x{shape[2]}")
    original = torch.from_numpy(picture.x) if degrade else None
    seed = options.get("seed", 0)
    if original is not None:
        observed = degradation(original[None])
        if noise:
            observed = observed + noise * Noise(image_seeds(seed, 1), draws=DEGRADE_DRAW).like(observed)
    else:
        observed = torch.from_numpy(picture.x)[None]
    codec = run.diffusion.codec
    encode = codec.units.encode
    scale = float(encode(torch.ones(1)) - encode(torch.zeros(1)))  # of a user unit in model units
    strength = scale * (ROUNDING if noise is None else noise)
    n = RESULTS[run.kind] if n is None else n
    x, labels, residuals = _sample(
        run, n, posterior, lambda z: degradation(codec.picture(z)), encode(observed), strength, options, on_progress
    )
    figures: dict[str, Any] = {"method": method, "task": task, **_solver(residuals)}
    figures["residual"] = float((degradation(x) - observed).square().mean().sqrt())
    if original is not None:
        figures["psnr_each"] = [_psnr(image_result, original) for image_result in x]
        figures["psnr"] = float(np.mean(figures["psnr_each"]))
        figures["psnr_of_mean"] = _psnr(x.mean(0), original)
        figures["psnr_input"] = _psnr(_enlarge(observed, shape)[0], original)
    result = Restored(
        _user(x), _user(observed.clamp(0, 1))[0], None if original is None else _user(original[None])[0], labels,
        title=f"{task}, {_title(run, method, options)}", figures=figures,
    )  # fmt: skip
    if out is not None:
        result.save(out)
    return result


def known_part(codec: Codec, truth: Tensor, known: Tensor, by_replacing: bool) -> tuple[Measurement, Tensor]:
    """Return the measurement in model units of the known numbers of a datum, and its value (1, count).

    With a codec whose codes depend on many numbers each, a gradient method compares the known numbers after decoding; a
    replacement method replaces only the codes of entirely known cells, encoded with 0.5 for unknown numbers.  truth,
    known: of one datum, in user units.
    """
    if not codec.lossy:
        return Keep(known), Keep(known)(codec.encode(truth[None]))
    if not by_replacing:
        keep = Keep(known)
        return lambda z: keep(codec.picture(z)), keep(codec.units.encode(truth[None]))
    cells = Keep(codec.known_cells(known))
    if not cells.known.any():
        raise UserError("the mask leaves no code of the autoencoder entirely known; use --method dps")
    return cells, cells(codec.encode(torch.where(known, truth, 0.5)[None]))


def _complete(
    run: Run, model: CompletionModel, n: int, truth: Tensor, known: Tensor, options: Options, on_progress: OnProgress | None
) -> tuple[Tensor, list[str] | None, dict[str, Any]]:
    """Return n results of a model that completes data itself, in user units, their labels, and metrics."""
    check_count(n)
    run.check_options(options)
    if bool(known.all()):
        raise UserError("the mask has no white pixel, so there is nothing to fill; make a part of it white")
    label, seed, counts = options.get("label"), options.get("seed", 0), run.config.data.label_counts
    exact = model.completes_exactly(known)
    log_prior = (torch.tensor(counts, dtype=torch.float64) / sum(counts)).log() if counts and label is None else None
    size, parts, shares = run.batch_size() if exact else PARTICLE_BATCH, list[Tensor](), list[float]()
    weights = run.weights(options)
    for first in range(0, n, size):
        count = min(size, n - first)
        cond = run.labels(label, count, seed, first) if label is not None else None
        inputs = SamplingInputs(image_seeds(seed, count, first), cond, weights)
        for frame in model.complete(inputs, truth, known, log_prior, shares.append):
            last = frame
            if on_progress:
                on_progress("sampling", first * frame.of + count * (frame.i + 1), n * frame.of)
        parts.append(run.model.decode(last.x0).float().cpu())
    figures = {"method": "exact"} if exact else {"method": "particles", "effective_particle_share": float(np.mean(shares))}
    figures |= {} if model.completes_in_own_order(known) else {"order": "known numbers first"}
    cond = run.labels(label, n, seed) if label is not None else None
    return torch.cat(parts), run.names(cond, options), figures


def _enlarge(degraded: Tensor, shape: Shape) -> Tensor:
    """Return a degraded picture in the shape of the original, the baseline without a model."""
    factor = shape[1] // degraded.shape[-2]
    return degraded.repeat_interleave(factor, -2).repeat_interleave(factor, -1).expand(1, *shape).clamp(0, 1)


def _psnr(x: Tensor, truth: Tensor) -> float:
    """Return the peak signal-to-noise ratio in decibels for values in [0, 1]: -10 log10 of the mean squared error."""
    error = float((x - truth).double().square().mean())
    return -10 * math.log10(max(error, 1e-10))


def _sample(
    run: Run, n: int, method: Method, measure: Measurement, y: Tensor, noise: float, options: Options,
    on_progress: OnProgress | None,
) -> tuple[Tensor, list[str] | None, list[Tensor]]:  # fmt: skip
    """Return n results in user units, their labels, and the residuals of all linear solves."""
    check_count(n)
    chosen = run.unconditional_by_default(options)
    chosen["grid"] = method.grid(options.get("grid"))
    if (options.get("precision") or "fp32") != "fp32" and not isinstance(method, Replacement):
        raise UserError("--precision bf16 is too coarse for the gradients of dps and moment; use fp32, or --method replace")
    device = run.diffusion.device
    residuals: list[Tensor] = []
    steer = method.steer(measure, y.to(device), noise, lambda solved: residuals.append(solved.residual.cpu()))
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
        raise UserError(
            f"the results are not finite; increase --steps, or use a method other than {type(method).__name__.lower()}"
        )
    label = options.get("label")
    cond = run.condition(options, n) if label is not None or has_condition(options) else None
    return x, run.names(cond, options), residuals


def _solver(residuals: list[Tensor]) -> dict[str, float]:
    """Return the mean relative residual of the linear solves of all images and steps."""
    return {"solver_residual": float(torch.cat(residuals).mean())} if residuals else {}


def _read_known(text: str | None, size: int) -> tuple[Tensor, Tensor]:
    """Parse "x=0.5" or "0=0.5,2=1" to the coordinates of a point, (D,), and a mask of the known ones, (D,)."""
    point, is_known = torch.zeros(size), torch.zeros(size, dtype=torch.bool)
    names = {**{str(k): k for k in range(size)}, **{name: k for k, name in enumerate("xyz"[:size])}}
    for part in filter(None, (text or "").replace(" ", "").split(",")):
        match = re.fullmatch(r"(\w+)=([-+.\deE]+)", part)
        try:
            value = float(match[2]) if match else math.nan
        except ValueError:
            value = math.nan
        if match is None or match[1] not in names or not abs(value) < LARGE:
            raise UserError(f"cannot read --known {part!r}; write coordinates like x=0.5, from: {', '.join(names)}")
        if is_known[names[match[1]]]:
            raise UserError(f"--known contains the coordinate {match[1]} twice; set it once")
        point[names[match[1]]], is_known[names[match[1]]] = value, True
    if not is_known.any():
        raise UserError("no coordinate is known; fix at least one, for example --known x=0.5")
    if is_known.all():
        raise UserError(f"all {size} coordinates are known; leave one out of --known")
    return point, is_known


def _title(run: Run, method: str, options: Options) -> str:
    label = options.get("label")
    return f"{run.config.data.name}, {method}" + (f", label {label}" if label else "") + f", seed {options.get('seed', 0)}"


def _user(x: Tensor) -> np.ndarray:
    """Return (N, D), or images as (N, H, W) or (N, H, W, C)."""
    return channels_last(x.numpy())
