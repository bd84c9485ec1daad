"""Previews: samples of the same seeds during training, and their statistics."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from reverie.base.distances import energy_distance, nearest
from reverie.base.errors import ReverieWarning
from reverie.base.files import atomic, own_file
from reverie.base.noise import image_seeds
from reverie.data import Dataset, LazyImages, chunk_size, evaluation_batch_size
from reverie.data.appearance import AppearanceStats, appearance_stats
from reverie.data.kind import Kind
from reverie.draw.picture import (
    CLOUDS,
    channels_last,
    contact_sheet,
    dots,
    figure,
    save,
    to_bytes,
    with_heading,
    write_film,
)
from reverie.draw.scatter import NAMED_CLOUDS, limits_of, point_axes
from reverie.draw.series_plot import lines
from reverie.families.model import SamplingInputs
from reverie.runs.run import Run
from reverie.runs.sampling_options import Options

FOLDER, FILM, LABELS = "previews", "film.gif", "labels.png"
DRAWN: dict[Kind, int] = {"points": 1000, "series": 64, "images": 32}  # samples of a preview
SHOWN, STEPS = 12, 12  # images on the sheet, and sampling steps
HUGE, HUGE_DRAWN = 2**20, 2  # image size above which a preview has fewer samples, and how many
BLOCK, MAX_LAZY = 4096, 4096  # training data searched at a time, and in total if read from files
MAX_READ = 2**29  # total size of those from files
SAME = 1 / 510  # distance, relative to the data's range, below which a neighbor is a duplicate
REFERENCE = 256  # number of data for comparison: held-out data, then training data
LABEL_ROWS, LABEL_COLUMNS = 20, 8
FILM_PRICE = 0.3  # duration of writing the film, in previews


def preview_options(run: Run) -> Options:
    """Return sampling options of previews: few steps, without autoguidance."""
    options = run.config.model_family.options
    quick: Options = {"steps": STEPS} if "steps" in options and not run.distilled else {}
    if "autoguidance" in options:
        quick["autoguidance"] = 1.0
    return quick


def preview_samples(run: Run, n: int) -> Tensor:
    """Return n samples of fixed seeds in the units of `Model.picture`: (n, ...)."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ReverieWarning)  # `prepare` has warned already
        for frame in run.frames(n, **preview_options(run)):
            last = frame
    return run.model.picture(last.x0)


def _sheet(path: Path) -> np.ndarray | None:
    """Return an earlier sheet, (H, W, 3) uint8, or None if the file is damaged."""
    try:
        with Image.open(path, formats=["PNG"]) as image:
            return np.asarray(image.convert("RGB"))
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError):
        return None


class Previews:
    """Writes previews into the run folder and compares them with the data."""

    def __init__(self, run: Run, raw: Run, train: Dataset, held_out: Dataset) -> None:
        self.run, self.raw, self.train = run, raw, train
        most = chunk_size(train.shape, REFERENCE)
        self.held = self._encode(held_out, torch.arange(min(most, len(held_out))))
        few = min(most - len(self.held), len(train))
        self.reference = torch.cat([self.held, self._encode(train, torch.arange(few))]) if few > 0 else self.held
        self.low, self.high = float(self.held.min()), float(self.held.max())
        self.truth = appearance_stats(self.held, self._neighbors(self.held)[0], self.low, self.high)

    def _encode(self, data: Dataset, index: Tensor) -> Tensor:
        model = self.run.model
        return model.units.encode(data.batch(index)[0].to(model.device))

    def _neighbors(self, z: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the relative distance to the nearest training datum, its index, and the distance: (n,) each.

        The relative distance is divided by that of the training datum to its own nearest neighbor, as plain images, such as
        skies, lie close to each other without being copies.
        """
        distance, index = nearest(z, self._blocks())
        own_distance, _ = nearest(self._encode(self.train, index.cpu()), self._blocks(), beyond=SAME * (self.high - self.low))
        is_isolated = own_distance.isinf() | (own_distance == 0)  # a datum without neighbors, or with duplicates only
        return torch.where(is_isolated, distance, distance / own_distance), index, distance

    def _blocks(self) -> Iterator[Tensor]:
        count = len(self.train)
        if isinstance(self.train.x, LazyImages):
            count = min(count, MAX_LAZY, max(1, MAX_READ // math.prod(self.train.shape)))
        for part in torch.arange(count).split(chunk_size(self.train.shape, BLOCK)):
            yield self._encode(self.train, part)

    def take(self, i: int) -> tuple[AppearanceStats, float]:
        """Write the preview of step i; return its statistics and its energy distance to data."""
        few = HUGE_DRAWN if math.prod(self.train.shape) > HUGE else DRAWN[self.train.kind]
        z = preview_samples(self.run, evaluation_batch_size(self.train.shape, few))
        raw = preview_samples(self.raw, min(SHOWN, len(z)) if self.train.kind == "images" else len(z))
        ratio, index, distance = self._neighbors(z)
        path = own_file(self.run.path, f"{FOLDER}/step-{i:07d}.png")
        if self.train.kind == "images":
            self._sheet(path, z[:SHOWN], raw, index[:SHOWN], distance[:SHOWN])
        elif self.train.kind == "series":
            save(lines(self.run.decode(z), "EMA weights", self.train.columns), path)
        else:
            self._clouds(path, z, raw)
        return appearance_stats(z, ratio, self.low, self.high), energy_distance(z, self.reference)

    def _sheet(self, path: Path, z: Tensor, raw: Tensor, index: Tensor, distance: Tensor) -> None:
        closest = self._encode(self.train, index.cpu())
        rows = [channels_last(self.run.model.units.decode(part).float().cpu().numpy()) for part in (z, raw, closest)]
        titles = [["EMA"] * len(z), ["raw"] * len(z), [f"train {d:.2f}" for d in distance.tolist()]]
        sheet = contact_sheet(to_bytes(np.concatenate(rows)), [t for row in titles for t in row], columns=len(z))
        with atomic(path) as temporary:
            Image.fromarray(sheet).save(temporary)

    def _clouds(self, path: Path, z: Tensor, raw: Tensor) -> None:
        count = min(len(self.train), len(z))
        data = self.train.batch(torch.arange(count))[0].numpy()
        data = data[np.isfinite(data).all(1)]
        names = self.train.columns[:2]
        fig = figure(9, 3.3, NAMED_CLOUDS if names else CLOUDS)
        limits = limits_of(data, bool(names))
        panels = zip(fig.subplots(1, 3), (self.run.decode(z), self.run.decode(raw), data), strict=True)
        for (axes, points), title in zip(panels, ("EMA weights", "raw weights", "training data"), strict=True):
            dots(point_axes(axes, limits, title, names), points)
        save(fig, path)

    def finish_share(self) -> float:
        """Return the estimated duration of `finish`, in previews."""
        if self.train.kind != "images":
            return FILM_PRICE
        data_config = self.run.config.data
        count = LABEL_ROWS if data_config.condition is not None else LABEL_COLUMNS * len(data_config.labels[:LABEL_ROWS])
        return FILM_PRICE + count / (DRAWN["images"] + SHOWN)

    def finish(self) -> None:
        """Write a film of the previews, and a sheet of samples with labels or captions of a conditional run."""
        run = self.run.path
        paths = [own_file(run, f"{FOLDER}/{path.name}") for path in sorted((run / FOLDER).glob("step-*.png"))]
        read = [(path, sheet) for path in paths if (sheet := _sheet(path)) is not None]
        sheets = [with_heading(sheet, f"step {path.stem.removeprefix('step-').lstrip('0') or 0}") for path, sheet in read]
        if len(sheets) > 1 and len({s.shape for s in sheets}) == 1:
            write_film(own_file(run, f"{FOLDER}/{FILM}"), sheets, per_second=3)
        names = self.run.label_names[:LABEL_ROWS]
        if self.train.kind == "images" and names:
            titles = [name for name in names for _ in range(LABEL_COLUMNS)]
            with atomic(own_file(run, f"{FOLDER}/{LABELS}")) as temporary:
                Image.fromarray(contact_sheet(to_bytes(self._label_samples(len(names))), titles, columns=LABEL_COLUMNS)).save(
                    temporary
                )

        if self.train.kind == "images" and self.run.config.data.condition is not None:
            samples = self.run.sample(LABEL_ROWS, **preview_options(self.run))
            with atomic(own_file(run, f"{FOLDER}/{LABELS}")) as temporary:
                Image.fromarray(contact_sheet(to_bytes(samples.x), samples.labels)).save(temporary)

    def _label_samples(self, labels: int) -> np.ndarray:
        """Return images of the first labels, all from the same noise."""
        seeds, cond = image_seeds(0, LABEL_COLUMNS).repeat(labels), torch.arange(labels).repeat_interleave(LABEL_COLUMNS)
        options = preview_options(self.run)
        parts = []
        for part in torch.arange(len(seeds)).split(self.run.batch_size()):
            *_, last = self.run.model.frames(SamplingInputs(seeds[part], cond[part], options=options))
            parts.append(self.run.decode_final(last))
        return np.concatenate(parts)
