"""Sections computed on raw data instead of features: the samples, memorization, and distances of points."""

from __future__ import annotations

import io
import math
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from reverie.base.errors import UserError
from reverie.data.kind import kind_of
from reverie.draw.picture import (
    ACCENT,
    CLOUDS,
    SOFT,
    WARM,
    channels_last,
    contact_sheet,
    dots,
    figure,
    png_bytes,
    to_bytes,
)
from reverie.draw.scatter import limits_of, point_axes
from reverie.draw.series_plot import lines
from reverie.evaluation.evaluation_data import EvaluationData, describe_held_out
from reverie.evaluation.metrics.neighbours import COPY, SAME, leave_one_out, neighbours
from reverie.evaluation.metrics.points import EXACT
from reverie.evaluation.metrics.sampling_error import Figures, null_variance, sampling_errors
from reverie.evaluation.report_section import ReportSection
from reverie.evaluation.scores import score
from reverie.evaluation.verdicts import find_faults
from reverie.kernels import mmd, mmd_test
from reverie.transport import sinkhorn_divergence, sliced_wasserstein

SHOWN, PAIRS = 48, 10
MAX_HELD_OUT = 2000  # maximum number of held-out data whose neighbours are searched
MIN_HELD_OUT, LEFT_OUT = 50, 500  # with fewer held-out data, the floor is leave-one-out on at most LEFT_OUT training data
BLOCKS = 4  # blocks of points, whose Sinkhorn divergences are averaged
BLOCK_POINTS = 500


def png(pixels: np.ndarray) -> bytes:
    """Return (H, W, 3) uint8 as a PNG file."""
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, format="png")
    return buffer.getvalue()


def sheet(images: Tensor, titles: list[str] | None = None, columns: int | None = None) -> bytes:
    """Return a contact sheet of images, (N, C, H, W) in [0, 1], as a PNG file."""
    return png(contact_sheet(to_bytes(channels_last(images.numpy())), titles, columns))


def _scatter(samples: Tensor, data: Tensor) -> bytes:
    fig = figure(9, 4.6, CLOUDS)
    limits = limits_of(data.numpy())
    for axes, points, title, colour in zip(
        fig.subplots(1, 2), (samples, data), ("samples", "data"), (ACCENT, SOFT), strict=True
    ):
        dots(point_axes(axes, limits, title), points[:4000].numpy(), colour)
    return png_bytes(fig)


def _repeated(x: Tensor) -> tuple[float, float]:
    """Return the share of data that are identical to another datum, and its standard error, which is never 0."""
    rounded = x.mul(255).round() if kind_of(x.shape[1:]) == "images" else x
    same = sum(n for n in Counter(row.numpy().tobytes() for row in rounded).values() if n > 1)
    smoothed = (same + 1) / (len(x) + 2)
    return same / len(x), (smoothed * (1 - smoothed) / len(x)) ** 0.5


def samples_section(samples: Tensor, data: Tensor | None, train: Tensor | None = None) -> ReportSection:
    """The first samples and data as pictures, and the share of identical samples, with training data as the floor."""
    count = len(samples) if train is None else min(len(samples), len(train))  # the share grows with the count
    repeated = score(*_repeated(samples[:count]), *(_repeated(train[:count]) if train is not None else ()))
    pictures = {}
    if kind_of(samples.shape[1:]) == "images":
        pictures["the first samples of the seed"] = sheet(samples[:SHOWN], columns=12)
        if data is not None:
            pictures["held-out data"] = sheet(data[:SHOWN], columns=12)
    elif kind_of(samples.shape[1:]) == "series":
        pictures["the first samples of the seed"] = png_bytes(lines(samples.numpy(), "samples"))
        if data is not None:
            pictures["held-out data"] = png_bytes(lines(data.numpy(), "held-out data"))
    elif data is not None:
        pictures["samples and data"] = _scatter(samples, data)
    figures = {
        "samples": len(samples),
        "repeated": repeated,
        "repeated_count": count,
        "value_range": [float(samples.min()), float(samples.max())],
    }
    return ReportSection("samples", "Samples", find_faults("samples", figures), (), figures, pictures)


def _median_error(x: np.ndarray) -> float | None:
    """Return the standard error of a median, the limit of the bootstrap (Maritz and Jarrett 1978).

    Order statistic i of n is the median of a bootstrap sample with probability I(i / n) - I((i - 1) / n), where I is the
    distribution function of Beta((n + 1) / 2, (n + 1) / 2).
    """
    from scipy.special import betainc

    n = len(x)
    if n < 2:
        return None
    probability = np.diff(betainc((n + 1) / 2, (n + 1) / 2, np.arange(n + 1) / n))
    ordered = np.sort(x).astype(np.float64)
    return math.sqrt(probability @ (ordered - probability @ ordered) ** 2)


def memorization_section(m: EvaluationData) -> ReportSection:
    """The nearest training datum of each sample, with held-out data as the floor, and the pairs most like copies."""
    same = SAME if m.kind == "images" else 1e-6 * float(m.subset(m.train).std())
    dtype = torch.float32 if m.kind == "images" else torch.float64  # distances of close points need the precision

    def take(index: Tensor) -> Tensor:
        return m.train.batch(index)[0].to(dtype)

    def passes(what: str) -> Callable[[], Iterable[Tensor]]:
        return lambda: m.train_blocks(what)

    held = m.held.batch(torch.arange(min(len(m.held), MAX_HELD_OUT)))[0].to(dtype)
    of_samples = neighbours(m.samples.to(dtype), passes("neighbours of samples"), take, same)
    too_few = len(held) < MIN_HELD_OUT and len(m.train) > 1
    if not too_few:
        floor_source = "held-out data"
        of_floor = neighbours(held, passes("neighbours of held-out data"), take, same)
    else:
        floor_source = "training data (leave-one-out)"
        of_floor = leave_one_out(m.subset(m.train, LEFT_OUT).to(dtype), same)
    medians = [float(np.median(n.distance)) for n in (of_samples, of_floor)]
    errors = [_median_error(n.distance) for n in (of_samples, of_floor)]
    figures = {
        "copies": score(of_samples.share, of_samples.standard_error, of_floor.share, of_floor.standard_error),
        "nearest_distance": score(medians[0], errors[0], medians[1], errors[1]),
        "floor_source": floor_source, "floor_count": len(of_floor.distance),
        "samples": len(m.samples), "held_out_data": len(held),
        "training_data_searched": m.searched_count(), "training_data": len(m.train),
        "worst": [
            {"sample": int(k), "training": int(of_samples.index[k]), "distance": float(of_samples.distance[k]),
             "ratio": float(of_samples.ratio[k])}
            for k in of_samples.worst(PAIRS) if np.isfinite(of_samples.ratio[k])
        ],
    }  # fmt: skip
    notes = (
        f"A copy is less than {COPY:g} times as far from its nearest training datum as that one is from its own nearest"
        " neighbour." + (" Distances are root mean squares over pixels in [0, 1]." if m.kind == "images" else ""),
        f"The median distance to the nearest of {m.searched_count():,} training data is {medians[0]:.3g} for samples and"
        f" {medians[1]:.3g} for {floor_source}.",
        *((f"{describe_held_out(len(held))}, too few for a floor; it is the leave-one-out figure of {len(of_floor.distance)}"
           " training data.",) if too_few else ()),
    )  # fmt: skip
    pictures = {}
    if m.kind == "images":
        worst = of_samples.worst(PAIRS)
        near = m.train.batch(torch.from_numpy(of_samples.index[worst]))[0]
        titles = [f"sample {k}" for k in worst] + [f"train, {of_samples.ratio[k]:.2f}" for k in worst]
        caption = "top: the samples most like training images; bottom: the nearest training image, with the ratio of distances"
        pictures[caption] = sheet(torch.cat([m.samples[worst], near]), titles, len(worst))
    pictures["distance to the nearest training datum"] = _histogram(of_samples.distance, of_floor.distance, floor_source)
    return ReportSection("memorization", "Memorization", find_faults("memorization", figures), notes, figures, pictures)


def _histogram(samples: np.ndarray, floor: np.ndarray, name: str) -> bytes:
    fig = figure(7, 2.8, {"left": 0.02, "right": 0.98, "bottom": 0.19, "top": 0.97})
    axes = fig.subplots()
    bins = np.linspace(0, float(np.quantile(np.concatenate([samples, floor]), 0.995)) or 1.0, 50).tolist()
    axes.hist(floor, bins, density=True, histtype="stepfilled", color=SOFT, alpha=0.6, label=name)
    axes.hist(samples, bins, density=True, histtype="step", color=WARM, lw=1.6, label="samples")
    axes.set(xlabel="distance to the nearest training datum", yticks=[])
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.legend(frameon=False, fontsize=9)
    return png_bytes(fig)


def points_section(m: EvaluationData) -> ReportSection:
    """Sliced Wasserstein, Sinkhorn and MMD to held-out data, with floors; exact metrics of known distributions."""
    samples, data = m.samples.double(), m.subset(m.held).double()
    n = min(len(samples), len(data) // 2)
    if n < 2:
        raise UserError(f"this needs 2 samples and 4 held-out points, got {len(samples)} and {len(data)}")
    x, y, other = samples[:n], data[:n], data[n : 2 * n]
    random = torch.Generator().manual_seed(m.seed)

    times = m.limits.resamples // 4
    size = min(BLOCK_POINTS, max(2, n // BLOCKS))
    rows = [slice(k * size, (k + 1) * size) for k in range(BLOCKS) if (k + 1) * size <= n]

    def with_floor(figure: Figures, rows: slice = slice(n), times: int = times, **options: bool) -> list[float]:
        """Return figure and error of samples, then of real data, on the same rows."""
        errors = sampling_errors(figure, x[rows], other[rows], len(y[rows]), times, random, **options)
        return [float(figure(x[rows])), errors[0], float(figure(other[rows])), errors[1]]

    def scored(value: float, error: float, floor: float, null: float) -> dict[str, Any]:
        return score(value, error, floor, 2**0.5 * null, gap_error=2**0.5 * null)

    m.on_progress("distances of points", 0, 4)
    sliced = with_floor(lambda points: float(sliced_wasserstein(points, y, p=1)), times=m.limits.resamples, squared=False)
    figures = {"sliced_wasserstein": scored(*sliced)}
    m.on_progress("distances of points", 1, 4)
    block_times = max(2, times // len(rows))

    def sinkhorn_to(block: Tensor) -> Figures:
        return lambda points: sinkhorn_divergence(points, block.expand(*points.shape[:-2], -1, -1), tolerance=1e-4)

    by_block = [with_floor(sinkhorn_to(y[r]), r, block_times, batched=True) for r in rows]
    means, squares = np.mean(by_block, 0), np.mean(np.square(by_block), 0) / len(rows)
    figures["sinkhorn"] = scored(means[0], squares[1] ** 0.5, means[2], squares[3] ** 0.5)
    m.on_progress("distances of points", 2, 4)
    count = min(n, BLOCKS * BLOCK_POINTS)
    test, floor = mmd_test(x[:count], y[:count], permutations=m.limits.permutations, seed=m.seed), mmd(other[:count], y[:count])
    estimate = mmd(x[:count], y[:count])
    null = floor.error_if_equal * (null_variance(count, count) * count**2 / 8) ** 0.5  # with y fixed
    figures["mmd"] = scored(float(estimate.value), estimate.error_given_y, float(floor.value), null) | {
        "p_value": test.p_value, "permutations": test.permutations,
    }  # fmt: skip
    if m.source in EXACT:
        exact = EXACT[m.source]

        def exactly(key: str) -> Callable[[Tensor], float]:
            return lambda points: exact(points.numpy())[key]

        for key in exact(x.numpy()):
            figures[key] = scored(*with_floor(exactly(key), squared=False))
    m.on_progress("distances of points", 4, 4)
    notes = (
        f"{n:,} samples against {n:,} held-out points; the floor compares two sets of held-out points. Distances are in data"
        f" units, the Sinkhorn divergence (epsilon 1% of the mean cost, mean of blocks of {size}) in squared data units. The"
        " p-value is the share of random permutations with an MMD as large.",
    )
    return ReportSection(
        "points", "Distance to the data", find_faults("points", figures), notes, {**figures, "samples": n, "seed": m.seed}
    )
