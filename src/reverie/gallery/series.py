"""A run on time series: data next to samples, a continuation as a fan chart, and autocovariances."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from matplotlib.figure import Figure
from torch import Tensor

from reverie.base.errors import UserError
from reverie.base.files import check_folder
from reverie.base.noise import image_seeds
from reverie.data import chunk_size
from reverie.draw.picture import save
from reverie.draw.series_plot import autocovariances, fan, lines
from reverie.families.fitted import FittedDensity
from reverie.families.linear_series import SeriesModel
from reverie.families.model import CompletionModel, SamplingInputs
from reverie.runs.run import Run, load
from reverie.runs.source_data import load_source_data

LAGS = 40
SAMPLES = 200  # samples, and sampled continuations
SHOWN = 6
BANDS = {"95 %": 1.959964, "50 %": 0.674490}  # intervals of continuations, with normal quantiles


def sample_autocovariance(x: Tensor, most: int) -> tuple[Tensor, Tensor]:
    """Return gamma(k) of the first channel for k = 0 .. most, and standard errors over series: (most + 1,) each.

    From pairs at lag k within a series, centred by the overall mean.  x: (N, T, C).
    """
    d = x[..., 0].double()
    d = d - d.mean()
    per_series = torch.stack([(d[:, k:] * d[:, : d.shape[1] - k]).mean(1) for k in range(most + 1)], 1)  # (N, K)
    return per_series.mean(0), per_series.std(0) / len(per_series) ** 0.5


def continuation(run: Run, x: Tensor, given: int) -> tuple[np.ndarray, dict[str, tuple[np.ndarray, np.ndarray]]]:
    """Return the expected continuation of the first channel and bands around it.  x: (T, C); given: known time steps."""
    model = run.model
    if isinstance(model, FittedDensity) and isinstance(model.density, SeriesModel):
        mean, deviation = (part[:, 0].numpy() for part in model.density.predict(x[:given], len(x) - given))
        return mean, {name: (mean - width * deviation, mean + width * deviation) for name, width in BANDS.items()}
    if not isinstance(model, CompletionModel):
        raise UserError(f"the family {run.config.family.name} cannot continue series; give a run of ar1, ar, rnn or lstm")
    known = (torch.arange(len(x)) < given)[:, None].expand_as(x)
    *_, last = model.complete(SamplingInputs(image_seeds(0, SAMPLES)), x, known, None, lambda share: None)
    samples = run.decode(last.x0)[:, given:, 0]
    coverages = {"95 %": 0.95, "50 %": 0.5}
    bands = {name: tuple(np.quantile(samples, [(1 - h) / 2, (1 + h) / 2], axis=0)) for name, h in coverages.items()}
    return samples.mean(0), {name: (band[0], band[1]) for name, band in bands.items()}


def draw(run: str | Path | Run, out: Path, device: str = "auto") -> list[Path]:
    """Draw all three figures into a folder and return the files."""
    run = run if isinstance(run, Run) else load(run, device)
    if run.kind != "series":
        raise UserError(f"{run.path} is a run of {run.kind}; this gallery needs a run of series")
    check_folder(out)
    train, held = load_source_data(run.config.data, folder=run.path).split(run.config.data.seed)
    x = held.batch(torch.arange(min(len(held), chunk_size(held.shape, SHOWN))))[0]
    samples = run.sample(SAMPLES).x
    data, lags = train.subsample(4096), min(LAGS, train.shape[0] - 1)
    expected, error = sample_autocovariance(data, lags)
    curves = {"training data": expected.numpy(), "samples": sample_autocovariance(torch.from_numpy(samples), lags)[0].numpy()}
    if isinstance(run.model, FittedDensity) and isinstance(run.model.density, SeriesModel):
        curves["the model"] = run.model.density.autocovariance(lags)[:, 0, 0].numpy()
    given = max(1, x.shape[1] // 2)
    mean, bands = continuation(run, x[0], given)
    stacked = np.concatenate([x.numpy(), samples[: len(x)]])
    paired = stacked.reshape(2, len(x), *stacked.shape[1:]).swapaxes(0, 1).reshape(stacked.shape)
    figures: dict[str, Figure] = {
        "series": lines(paired, "held-out series (left), samples (right)"),
        "continuation": fan(x[0, :given, 0].numpy(), x[0, given:, 0].numpy(), bands, mean),
        "autocovariance": autocovariances(curves, error.numpy()),
    }
    files = [out / f"{name}.png" for name in figures]
    for path, fig in zip(files, figures.values(), strict=True):
        save(fig, path)
    return files
