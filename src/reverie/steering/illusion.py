"""Optical illusions: one picture that matches a condition in each of several views, as a sheet or as a film."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Unpack

import numpy as np
import torch
from PIL import Image

from reverie.base.errors import UserError
from reverie.base.files import atomic, write_array
from reverie.base.progress import OnProgress
from reverie.diffusion.condition import NULL
from reverie.diffusion.denoiser import Denoiser
from reverie.diffusion.views import Illusion, SizedView, read_views
from reverie.draw.lettering import strip, wrap
from reverie.draw.picture import HEADING, coloured, to_bytes, with_heading, write_film
from reverie.runs.labels import read_labels
from reverie.runs.prompts import has_condition
from reverie.runs.run import Run
from reverie.runs.samples import describe_samples
from reverie.runs.sampling_options import Options, check_count
from reverie.steering.edit_results import check_suffix
from reverie.steering.view_transitions import interpolate_views

SUFFIXES = (".png", ".gif", ".mp4", ".npy")
DEFAULTS: Options = {"guidance": 3.0}
GAP = 4  # pixels between images
FILM_WIDTH = 320  # approximate width of a film in pixels
MAX_FILMED = 16  # maximum number of pictures in a film
MOVING, STILL = 36, 18  # frames of a transition and of a view, at 15 per second


@dataclass(frozen=True, repr=False)
class Illusions:
    """Pictures and their views.  x: (N, H, W) or (N, H, W, C) in [0, 1]; titles: the condition of each view."""

    x: np.ndarray
    views: Sequence[SizedView]
    titles: Sequence[str]

    def __len__(self) -> int:
        return len(self.x)

    def __repr__(self) -> str:
        return f"Illusions({describe_samples(self.x)} in the views {', '.join(self.titles)})"

    def in_view(self, k: int) -> np.ndarray:
        """Return the pictures in view k, in the shape of x."""
        z = torch.from_numpy(np.moveaxis(self.x, -1, 1) if self.x.ndim == 4 else self.x)
        shown = ((self.views[k](2 * z - 1) + 1) / 2).numpy()
        return np.moveaxis(shown, 1, -1) if self.x.ndim == 4 else shown

    def sheet(self) -> np.ndarray:
        """Return every picture with its views side by side, (H', W', 3) uint8."""
        factor = max(1, 84 // max(self.x.shape[1:3]))
        view_images = [coloured(to_bytes(self.in_view(k)), factor) for k in range(len(self.views))]
        strips = [np.concatenate([_framed(part[i], GAP // 2) for part in view_images], axis=1) for i in range(len(self))]
        strips = [_framed(strip, GAP) for strip in strips]
        square = (len(self) * strips[0].shape[0] / strips[0].shape[1]) ** 0.5  # columns of a square sheet
        columns = min(range(1, len(self) + 1), key=lambda k: abs(math.log(k / square)) + 0.3 * (len(self) % k > 0))
        rows = [np.concatenate(strips[k : k + columns], axis=1) for k in range(0, len(strips), columns)]
        width = rows[0].shape[1]
        rows = [np.pad(row, ((0, 0), (0, width - row.shape[1]), (0, 0)), constant_values=255) for row in rows]
        return np.concatenate(
            [strip(wrap(" | ".join(self.titles), width - 2 * GAP, HEADING, len(self.titles)), width, HEADING), *rows]
        )

    def frames(self) -> Iterator[np.ndarray]:
        """Yield the frames of a film that goes from view to view and back to the first, (H', W', 3) uint8."""
        count = min(len(self), MAX_FILMED)
        columns = int(np.ceil(np.sqrt(count)))
        factor = max(1, FILM_WIDTH // (columns * max(self.x.shape[1:3])))
        x = self.x[:count] if self.x.ndim == 4 else self.x[:count, ..., None]
        order = [*range(len(self.views)), 0]
        for a, b in pairwise(order):
            yield from [_page(interpolate_views(x, self.views[a], self.views[a], 0.0, factor), columns, self.titles[a])] * STILL
            for k in range(1, MOVING + 1):
                fraction = k / MOVING
                moved = interpolate_views(x, self.views[a], self.views[b], fraction * fraction * (3 - 2 * fraction), factor)
                yield _page(moved, columns, self.titles[b] if k == MOVING else "")

    def save(self, path: str | Path) -> list[Path]:
        """Write the sheet (.png), the film (.gif, .mp4) or the pictures themselves (.npy); return the files written."""
        path = check_suffix(path, SUFFIXES)
        match path.suffix.lower():
            case ".png":
                with atomic(path) as temporary:
                    Image.fromarray(self.sheet()).save(temporary, format="png")
            case ".npy":
                write_array(path, self.x)
            case _:
                write_film(path, self.frames())
        return [path]


def _framed(image: np.ndarray, gap: int) -> np.ndarray:
    return np.pad(image, ((gap, gap), (gap, gap), (0, 0)), constant_values=255)


def _page(images: np.ndarray, columns: int, title: str) -> np.ndarray:
    """Arrange frames of pictures in rows under a title.  images: (N, H, W, 3) uint8."""
    blank = np.full_like(images[0], 255)
    cells = [*images, *[blank] * (-len(images) % columns)]
    rows = [
        np.concatenate([_framed(cell, GAP // 2) for cell in cells[k : k + columns]], 1) for k in range(0, len(cells), columns)
    ]
    return with_heading(np.concatenate(rows), title)


def illusion(
    run: Run,
    views: str | Sequence[str],
    labels: str | Sequence[str] | None = None,
    n: int = 1,
    *,
    on_progress: OnProgress | None = None,
    **options: Unpack[Options],
) -> Illusions:
    """Sample n pictures that match one label in each view: `illusion(run, "identity,rotate180", "6,9")`.

    Without labels every view is unconditional.  The default guidance scale is 3, as the views compete.
    """
    check_count(n)
    run.require("illusion")
    if run.diffusion.lossy:
        raise UserError(
            f"{run.path} samples the codes of an autoencoder, whose views are not those of pixels; train with --no-latent"
        )
    sized_views = read_views(views, run.config.data.shape)
    if labels is not None and not run.conditional:
        raise UserError(f"the run {run.path} was trained without labels; leave out --labels")
    conditions, titles = _conditions(run, labels, len(sized_views))
    if options.get("label") is not None or has_condition(options):
        raise UserError("an illusion has one label per view; use --labels instead of --label and --prompt")
    if labels is None and run.conditional and (options.get("guidance", 1.0) != 1 or options.get("classifier_guidance")):
        raise UserError("guidance needs one label per view; add --labels")
    request: Options = {**(DEFAULTS if labels is not None else {}), **options, "label": None}
    size = max(1, run.batch_size() // len(sized_views))
    parts = []
    for first in range(0, n, size):
        count = min(size, n - first)
        conds = None if conditions is None else conditions[:, None].expand(-1, count, *conditions.shape[1:])

        def steer(denoiser: Denoiser, conds: torch.Tensor | None = conds) -> Denoiser:
            return Illusion(denoiser, list(sized_views.values()), conds)

        for frame in run.frames(count, first, steer=steer, **request):
            if on_progress:
                on_progress("sampling", first * frame.of + (frame.i + 1) * count, n * frame.of)
            last = frame
        parts.append(run.decode_final(last))
    view_titles = (
        list(sized_views) if labels is None else [f"{view}: {title}" for view, title in zip(sized_views, titles, strict=True)]
    )
    return Illusions(np.concatenate(parts), list(sized_views.values()), view_titles)


def _conditions(run: Run, labels: str | Sequence[str] | None, views: int) -> tuple[torch.Tensor | None, list[str]]:
    """Return the condition of each view, (V,) labels or (V, R) vectors, by default the null condition, and their names."""
    form, names = run.config.data.condition, run.config.data.labels
    if form is not None:
        texts = [""] * views if labels is None else read_texts(labels)
        conditions, titles = torch.stack([form.vector(text) for text in texts]), texts
    else:
        numbers = read_labels(labels, names) if labels is not None else (NULL,) * views if names else None
        if numbers is None:
            return None, []
        conditions, titles = torch.tensor(numbers), [names[k] for k in numbers if k != NULL]
    if len(conditions) != views:
        raise UserError(f"{views} views need {views} labels in --labels, got {len(conditions)}")
    return conditions, titles


def read_texts(texts: str | Sequence[str]) -> list[str]:
    """Split prompts at | or else at commas."""
    parts = texts.split("|" if "|" in texts else ",") if isinstance(texts, str) else texts
    return [str(part).strip() for part in parts]
