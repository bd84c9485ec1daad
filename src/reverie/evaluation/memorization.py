"""Memorisation, the samples themselves, and points: the sections that look at data and not at features."""

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
from reverie.evaluation.evaluation_data import EvaluationData, few_held
from reverie.evaluation.metrics.memory import COPY, SAME, left_out, neighbours
from reverie.evaluation.metrics.points import EXACT
from reverie.evaluation.metrics.sampling_error import Figures, alike_at, chance
from reverie.evaluation.report_section import ReportSection
from reverie.evaluation.scores import score
from reverie.evaluation.verdicts import find_faults
from reverie.kernels import mmd, mmd_test
from reverie.transport import sinkhorn_divergence, sliced_wasserstein

SHOWN, PAIRS = 48, 10
HELD = 2000  # held-out data, at most, whose neighbours are looked for
FEW, LEFT_OUT = 50, 500  # held-out data below which training data, at most so many, are left out in turn instead
BLOCKS = 4  # of points, whose Sinkhorn divergences are averaged
BLOCK_POINTS = 500


def png(pixels: np.ndarray) -> bytes:
    """Return (H, W, 3) uint8 as a PNG file."""
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, format="png")
    return buffer.getvalue()


def sheet(images: Tensor, titles: list[str] | None = None, columns: int | None = None) -> bytes:
    """Return images (N, C, H, W) in [0, 1] as a picture."""
    return png(contact_sheet(to_bytes(channels_last(images.numpy())), titles, columns))


def _clouds(samples: Tensor, data: Tensor) -> bytes:
    made = figure(9, 4.6, CLOUDS)
    limits = limits_of(data.numpy())
    for axes, points, title, colour in zip(
        made.subplots(1, 2), (samples, data), ("samples", "data"), (ACCENT, SOFT), strict=True
    ):
        dots(point_axes(axes, limits, title), points[:4000].numpy(), colour)
    return png_bytes(made)


def _repeated(x: Tensor) -> tuple[float, float]:
    """Return the share of data that are the same as another one, and its standard error, which is never 0."""
    coarse = x.mul(255).round() if kind_of(x.shape[1:]) == "images" else x
    same = sum(n for n in Counter(row.numpy().tobytes() for row in coarse).values() if n > 1)
    usual = (same + 1) / (len(x) + 2)
    return same / len(x), (usual * (1 - usual) / len(x)) ** 0.5


def samples_section(samples: Tensor, data: Tensor | None, train: Tensor | None = None) -> ReportSection:
    """The samples as they are, beside data if there are any, and how many are the same, beside as many training data."""
    count = len(samples) if train is None else min(len(samples), len(train))  # more data have more doubles
    repeated = score(*_repeated(samples[:count]), *(_repeated(train[:count]) if train is not None else ()))
    pictures = {}
    if kind_of(samples.shape[1:]) == "images":
        pictures["samples, the first of the seed: not chosen"] = sheet(samples[:SHOWN], columns=12)
        if data is not None:
            pictures["held-out data"] = sheet(data[:SHOWN], columns=12)
    elif kind_of(samples.shape[1:]) == "series":
        pictures["samples, the first of the seed: not chosen"] = png_bytes(lines(samples.numpy(), "samples"))
        if data is not None:
            pictures["held-out data"] = png_bytes(lines(data.numpy(), "held-out data"))
    elif data is not None:
        pictures["samples and data"] = _clouds(samples, data)
    figures = {
        "samples": len(samples),
        "repeated": repeated,
        "repeated_count": count,
        "values": [float(samples.min()), float(samples.max())],
    }
    return ReportSection("samples", "Samples", find_faults("samples", figures), (), figures, pictures)


def _median_error(x: np.ndarray) -> float | None:
    """Return the standard error of a median (Maritz and Jarrett 1978), which is what endless resampling would give.

    Of n data the i-th is the median of resampled ones with the probability I(i / n) - I((i - 1) / n), where I is the
    distribution function of Beta((n + 1) / 2, (n + 1) / 2).
    """
    from scipy.special import betainc

    n = len(x)
    if n < 2:
        return None
    probability = np.diff(betainc((n + 1) / 2, (n + 1) / 2, np.arange(n + 1) / n))
    ordered = np.sort(x).astype(np.float64)
    return math.sqrt(probability @ (ordered - probability @ ordered) ** 2)


def memory_section(m: EvaluationData) -> ReportSection:
    """The nearest training datum of each sample, beside the same for held-out data, and the worst pairs."""
    same = SAME if m.kind == "images" else 1e-6 * float(m.some(m.train).std())
    dtype = torch.float32 if m.kind == "images" else torch.float64  # near points need the precision

    def take(index: Tensor) -> Tensor:
        return m.train.batch(index)[0].to(dtype)

    def passes(what: str) -> Callable[[], Iterable[Tensor]]:
        return lambda: m.blocks(what)

    held = m.held.batch(torch.arange(min(len(m.held), HELD)))[0].to(dtype)
    ours = neighbours(m.samples.to(dtype), passes("neighbours of samples"), take, same)
    few = len(held) < FEW and len(m.train) > 1
    if not few:
        floor_of = "held-out data"
        theirs = neighbours(held, passes("neighbours of held-out data"), take, same)
    else:
        floor_of = "training data, each left out in turn,"
        theirs = left_out(m.some(m.train, LEFT_OUT).to(dtype), same)
    middle = [float(np.median(n.distance)) for n in (ours, theirs)]
    errors = [_median_error(n.distance) for n in (ours, theirs)]
    figures = {
        "copies": score(ours.share, ours.standard_error, theirs.share, theirs.standard_error),
        "nearest": score(middle[0], errors[0], middle[1], errors[1]),
        "floor_of": floor_of, "floor_count": len(theirs.distance),
        "samples": len(m.samples), "held_out_data": len(held), "searched": m.looked_through(), "training_data": len(m.train),
        "worst": [
            {"sample": int(k), "training": int(ours.index[k]), "distance": float(ours.distance[k]),
             "ratio": float(ours.ratio[k])}
            for k in ours.worst(PAIRS) if np.isfinite(ours.ratio[k])
        ],
    }  # fmt: skip
    words = (
        f"A copy is less than {COPY:g} times as far from a training datum as that one is from its own nearest neighbour."
        " Distances are root mean squares of pixel values, from 0 to 1." if m.kind == "images" else
        f"A copy is less than {COPY:g} times as far from a training point as that one is from its own nearest neighbour.",
        f"The nearest of {m.looked_through():,} training data lies at {middle[0]:.3g} (median) for samples and at"
        f" {middle[1]:.3g} for {floor_of.rstrip(',')}.",
        *((f"{few_held(len(held))}, too few to compare with, so the floor is that of {len(theirs.distance)}"
           " training data, each left out in turn and compared with the rest.",) if few else ()),
    )  # fmt: skip
    pictures = {}
    if m.kind == "images":
        worst = ours.worst(PAIRS)
        near = m.train.batch(torch.from_numpy(ours.index[worst]))[0]
        titles = [f"sample {k}" for k in worst] + [f"train, {ours.ratio[k]:.2f}" for k in worst]
        caption = "the samples most like training images, above; the nearest training image with the ratio of distances, below"
        pictures[caption] = sheet(torch.cat([m.samples[worst], near]), titles, len(worst))
    pictures["distance to the nearest training datum"] = _histogram(ours.distance, theirs.distance, floor_of.rstrip(","))
    return ReportSection("memory", "Memorisation", find_faults("memory", figures), words, figures, pictures)


def _histogram(ours: np.ndarray, theirs: np.ndarray, name: str) -> bytes:
    made = figure(7, 2.8, {"left": 0.02, "right": 0.98, "bottom": 0.19, "top": 0.97})
    axes = made.subplots()
    bins = np.linspace(0, float(np.quantile(np.concatenate([ours, theirs]), 0.995)) or 1.0, 50).tolist()
    axes.hist(theirs, bins, density=True, histtype="stepfilled", color=SOFT, alpha=0.6, label=name)
    axes.hist(ours, bins, density=True, histtype="step", color=WARM, lw=1.6, label="samples")
    axes.set(xlabel="distance to the nearest training datum", yticks=[])
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.legend(frameon=False, fontsize=9)
    return png_bytes(made)


def points_section(m: EvaluationData) -> ReportSection:
    """Sliced and Sinkhorn distance and MMD to new data, beside the same between two sets of data; the exact curve if known."""
    samples, data = m.samples.double(), m.some(m.held).double()
    n = min(len(samples), len(data) // 2)
    if n < 2:
        raise UserError(f"it needs 2 samples and 4 held-out points, got {len(samples)} and {len(data)}")
    x, y, other = samples[:n], data[:n], data[n : 2 * n]
    random = torch.Generator().manual_seed(m.seed)

    times = m.effort.resamples // 4
    size = min(BLOCK_POINTS, max(2, n // BLOCKS))
    rows = [slice(k * size, (k + 1) * size) for k in range(BLOCKS) if (k + 1) * size <= n]

    def beside(figure: Figures, rows: slice = slice(n), times: int = times, **how: bool) -> list[float]:
        """Return figure and error of samples, then of real data, the figure being of some of them to as many others."""
        errors = chance(figure, x[rows], other[rows], len(y[rows]), times, random, **how)
        return [float(figure(x[rows])), errors[0], float(figure(other[rows])), errors[1]]

    def scored(value: float, error: float, floor: float, alike: float) -> dict[str, Any]:
        return score(value, error, floor, 2**0.5 * alike, gap_error=2**0.5 * alike)

    m.tell("distances of points", 0, 4)
    sliced = beside(lambda points: float(sliced_wasserstein(points, y, p=1)), times=m.effort.resamples, squared=False)
    figures = {"sliced_wasserstein": scored(*sliced)}
    m.tell("distances of points", 1, 4)
    few = max(2, times // len(rows))

    def sinkhorn_to(block: Tensor) -> Figures:
        return lambda points: sinkhorn_divergence(points, block.expand(*points.shape[:-2], -1, -1), tolerance=1e-4)

    by_block = [beside(sinkhorn_to(y[r]), r, few, at_once=True) for r in rows]
    means, squares = np.mean(by_block, 0), np.mean(np.square(by_block), 0) / len(rows)
    figures["sinkhorn"] = scored(means[0], squares[1] ** 0.5, means[2], squares[3] ** 0.5)
    m.tell("distances of points", 2, 4)
    most = min(n, BLOCKS * BLOCK_POINTS)
    test, floor = mmd_test(x[:most], y[:most], permutations=m.effort.permutations, seed=m.seed), mmd(other[:most], y[:most])
    apart = mmd(x[:most], y[:most])
    alike = floor.error_if_equal * (alike_at(most, most) * most**2 / 8) ** 0.5  # with y as it is
    figures["mmd"] = scored(float(apart.value), apart.error_given_y, float(floor.value), alike) | {
        "p_value": test.p_value, "permutations": test.permutations,
    }  # fmt: skip
    if m.source in EXACT:
        exact = EXACT[m.source]

        def exactly(key: str) -> Callable[[Tensor], float]:
            return lambda points: exact(points.numpy())[key]

        for key in exact(x.numpy()):
            figures[key] = scored(*beside(exactly(key), squared=False))
    m.tell("distances of points", 4, 4)
    words = (
        f"Between {n:,} samples and {n:,} new data; the floor is between two sets of new data. Distances are in data units, the"
        f" Sinkhorn divergence (epsilon 1 % of the mean cost, mean of blocks of {size}) in"
        " squared ones. The p-value is the share of random relabellings with an MMD as large.",
    )
    return ReportSection(
        "points", "Distance to the data", find_faults("points", figures), words, {**figures, "samples": n, "seed": m.seed}
    )
