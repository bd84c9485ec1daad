"""An autoencoder: reconstructions, codes, interpolation, and its error compared with PCA."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from matplotlib.figure import Figure
from torch import Tensor

from reverie.base.errors import UserError
from reverie.base.files import check_folder
from reverie.data import Dataset, chunk_size
from reverie.draw.picture import ACCENT, WARM, channels_last, coloured, colours, dots, figure, legend, save, to_bytes
from reverie.families.diffusion.latent_codec import LatentCodec
from reverie.families.diffusion.model import Diffusion
from reverie.families.vae.autoencoder import Autoencoder
from reverie.families.vae.model import VAE
from reverie.runs.run import Run, load
from reverie.runs.source_data import load_source_data

SHOWN, PATHS, PER_PATH = 10, 3, 9  # reconstructions; interpolations, and images of each
MAX_CODES = 1000  # images whose codes are shown
GRID = 12  # decoded codes along a side of the grid
EDGE = 0.02  # fraction of the codes outside the grid on each side


@dataclass(frozen=True)
class Coder:
    """An autoencoder with its images.  x: (N, C, H, W) in user units, the `held` held-out ones first; labels: (N,) or None."""

    to_latent: Callable[[Tensor], Tensor]
    from_latent: Callable[[Tensor], Tensor]
    x: Tensor
    labels: list[str] | None
    held: int

    @classmethod
    def of(cls, run: Run) -> Coder:
        """Return the autoencoder of a run, including runs of latent diffusion."""
        model = run.model
        if isinstance(model, Diffusion) and isinstance(model.codec, LatentCodec):
            model = model.codec.autoencoder
        if run.kind != "images" or not isinstance(model, Autoencoder | VAE):
            raise UserError(
                f"{run.path} is a run of {run.config.family.name} on {run.kind}; give a run of an autoencoder or"
                " vae on images, or one trained with --latent"
            )
        if isinstance(model, VAE) and model.label_count:
            raise UserError(f"the autoencoder of {run.path} needs labels; give one trained without labels")
        train, held = load_source_data(run.config.data, folder=run.path).split(run.config.data.seed)
        (x, labels), (train_x, train_labels) = _first(held, MAX_CODES // 2), _first(train, MAX_CODES // 2)
        all_labels = [*(labels if labels is not None else ()), *(train_labels if train_labels is not None else ())]
        names = [run.config.data.labels[int(k)] for k in all_labels] if run.config.data.labels and all_labels else None
        return cls(model.to_latent, model.from_latent, torch.cat([x, train_x]).to(model.device), names, len(x))

    @torch.no_grad()
    def codes(self) -> Tensor:
        """Return the codes of all images: (N, L)."""
        return torch.cat([self.to_latent(part).flatten(1) for part in self.x.split(64)])

    @torch.no_grad()
    def reconstructions(self) -> Tensor:
        """Return the reconstructions of all images."""
        return torch.cat([self.from_latent(self.to_latent(part)) for part in self.x.split(64)])


def _first(data: Dataset, most: int) -> tuple[Tensor, Tensor | None]:
    return data.batch(torch.arange(min(len(data), chunk_size(data.shape, most))))


def _rows(rows: list[tuple[str, Tensor]]) -> Figure:
    """Draw named rows of images."""
    images = torch.cat([x for _, x in rows]).clamp(0, 1)
    pictures = coloured(to_bytes(channels_last(images.cpu().numpy())))
    columns = len(rows[0][1])
    fig = figure(max(6.0, 0.8 * columns + 1.4), 0.85 * len(rows) + 0.2)
    for k, (name, _) in enumerate(rows):
        for j in range(columns):
            axes = fig.add_subplot(len(rows), columns, k * columns + j + 1)
            axes.imshow(pictures[k * columns + j], interpolation="nearest")
            axes.set(xticks=[], yticks=[])
            axes.spines[:].set_visible(False)
            if j == 0:
                axes.set_ylabel(name, rotation=0, ha="right", va="center", fontsize=8)
    return fig


def reconstructions(coder: Coder) -> Figure:
    """Draw held-out images above their reconstructions."""
    x = coder.x[: min(SHOWN, coder.held)]
    with torch.no_grad():
        reconstructed = coder.from_latent(coder.to_latent(x))
    return _rows([("held out", x), ("reconstructed", reconstructed), ("difference", 0.5 + (reconstructed - x))])


def codes(coder: Coder) -> Figure:
    """Draw two principal components of codes, coloured by label; for two-dimensional codes, a decoded grid."""
    latents = coder.codes().double().cpu()
    fig = figure(6.5, 5.5)
    axes = fig.subplots()
    if latents.shape[1] == 2:
        low, high = latents.quantile(EDGE, 0), latents.quantile(1 - EDGE, 0)
        first, second = (torch.linspace(float(a), float(b), GRID) for a, b in zip(low, high, strict=True))
        z = torch.stack(torch.meshgrid(first, second.flip(0), indexing="xy"), -1).flatten(0, 1).to(coder.x)
        with torch.no_grad():
            images = to_bytes(channels_last(coder.from_latent(z).clamp(0, 1).cpu().numpy()))
        tiles = coloured(images).reshape(GRID, GRID, *coloured(images).shape[1:])
        sheet = np.concatenate([np.concatenate(list(row), 1) for row in tiles])
        axes.imshow(sheet, extent=(float(low[0]), float(high[0]), float(low[1]), float(high[1])), aspect="auto")
        axes.set(xlabel="first dimension", ylabel="second dimension", title="decoded codes")
        return fig
    centred = latents - latents.mean(0)
    _, values, components = torch.linalg.svd(centred, full_matrices=False)
    shares = values[:2] ** 2 / (values**2).sum()
    dots(axes, (centred @ components[:2].T).numpy(), colours(coder.labels, len(latents)))
    legend(axes, coder.labels)
    xlabel, ylabel = (f"component, {float(share):.0%} of the variance" for share in shares)
    axes.set(
        xlabel=f"first {xlabel}", ylabel=f"second {ylabel}", title=f"{len(latents):,} codes of {latents.shape[1]:,} dimensions"
    )
    return fig


def interpolation(coder: Coder) -> Figure:
    """Draw linear interpolations between two images in code space, above those in pixel space."""
    w = torch.linspace(0, 1, PER_PATH, device=coder.x.device).reshape(-1, 1, 1, 1)
    rows = []
    for k in range(min(PATHS, coder.held // 2)):
        a, b = coder.x[2 * k : 2 * k + 1], coder.x[2 * k + 1 : 2 * k + 2]
        with torch.no_grad():
            ends = coder.to_latent(torch.cat([a, b]))
            steps = w.reshape(-1, *[1] * (ends.ndim - 1))
            rows.append(("codes", coder.from_latent((1 - steps) * ends[:1] + steps * ends[1:])))
        rows.append(("pixels", (1 - w) * a + w * b))
    if not rows:
        raise UserError("interpolation needs two held-out images, and the run has fewer; train with more data")
    return _rows(rows)


def _pca_errors(train: Tensor, test: Tensor) -> Tensor:
    """Return the error (MSE) on test data of 1, 2, ... principal components of training data: (k,).  train, test: (N, D)."""
    if len(train) < 2 or not len(test):
        return torch.empty(0)
    mean = train.mean(0)
    axes = torch.linalg.svd(train - mean, full_matrices=False).Vh
    explained = ((test - mean) @ axes.T).square().sum(0).cumsum(0)
    residual: Tensor = (test - mean).square().sum() - explained
    return residual.clamp_min(0) / test.numel()


def spectrum(coder: Coder) -> Figure:
    """Draw the error of the best linear map of rank k, sum over j > k of s_j² (Eckart and Young 1936), and the autoencoder's.

    With as many components as images its error is 0, so the error on one half, with components of the other, is drawn too.
    """
    x = coder.x.flatten(1).double().cpu()
    values = torch.linalg.svdvals(x - x.mean(0))
    errors = (values**2).flip(0).cumsum(0).flip(0) / x.numel()
    error = float((coder.reconstructions().flatten(1).double().cpu() - x).square().mean())
    dimensions = coder.codes().shape[1]
    fig = figure(9, 3.8)
    spectrum_axes, error_axes = fig.subplots(1, 2)
    spectrum_axes.semilogy(np.arange(1, len(values) + 1), values.clamp_min(1e-12).numpy(), color=ACCENT)
    spectrum_axes.set(xlabel="k", ylabel="singular value", title=f"spectrum of {len(x):,} images")
    error_axes.loglog(np.arange(1, len(errors)), errors[1:].numpy(), color=ACCENT, label="best linear map of rank k")
    new = _pca_errors(x[::2], x[1::2])
    error_axes.loglog(np.arange(1, len(new) + 1), new.numpy(), "--", color=ACCENT, label="the same, on held-out images")
    error_axes.plot([dimensions], [error], "o", color=WARM, label=f"this autoencoder, {dimensions:,} dimensions")
    lowest = min(error, float(new.min()) if len(new) else error) / 10
    error_axes.set(xlabel="dimensions of a code", ylabel="mean squared error", title="reconstruction error")
    error_axes.set_ylim(max(lowest, 1e-12), None)
    error_axes.legend(fontsize=8, frameon=False)
    for axes in (spectrum_axes, error_axes):
        axes.spines[["top", "right"]].set_visible(False)
    return fig


PICTURES = {"reconstructions": reconstructions, "codes": codes, "interpolation": interpolation, "spectrum": spectrum}


def draw(run: str | Path | Run, out: Path, device: str = "auto") -> list[Path]:
    """Draw all four figures into a folder and return the files."""
    check_folder(out)
    coder = Coder.of(run if isinstance(run, Run) else load(run, device))
    files = [out / f"{name}.png" for name in PICTURES]
    for path, make in zip(files, PICTURES.values(), strict=True):
        save(make(coder), path)
    return files
