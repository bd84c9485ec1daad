"""Results of inpainting and restoration: arrays with plots and files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import DTypeLike

from reverie.base.errors import UserError
from reverie.data.kind import kind_of_samples
from reverie.draw.picture import (
    ACCENT,
    DPI,
    INK,
    SOFT,
    WARM,
    dots,
    figure,
    over_white,
    png_bytes,
    save,
    set_suptitle,
    set_title,
    to_bytes,
)
from reverie.draw.scatter import limits_of, point_axes
from reverie.runs.destinations import check_output, is_folder
from reverie.runs.outputs import Manifest, sample_folder
from reverie.runs.samples import Samples, describe_samples

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FILL = np.array([0.80, 0.86, 0.95])  # the colour of unknown pixels
MAX_SHOWN, MAX_COLUMNS = 32, 10  # results on a sheet, and panels in a row
PANEL = 1.25  # width in inches


@dataclass(frozen=True, repr=False)
class Restored:
    """Results in user units, one per seed, with the observed picture and, if known, the original.

    x: (N, D), (N, H, W) or (N, H, W, C) float32; observed: a picture or a point, NaN where unknown; original: a picture;
    model_points: unconditional samples for comparison; figures: metrics of the results.
    """

    x: np.ndarray
    observed: np.ndarray
    original: np.ndarray | None = None
    labels: Sequence[str] | None = None
    model_points: np.ndarray | None = None
    title: str = ""
    figures: Mapping[str, Any] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.x)

    def __array__(self, dtype: DTypeLike | None = None, copy: bool | None = None) -> np.ndarray:
        return np.array(self.x, dtype=dtype)

    def __repr__(self) -> str:
        return f"Restored({describe_samples(self.x)}, {self.title})"

    @property
    def std(self) -> np.ndarray:
        """The standard deviation of each number over the results; 0 for a single result."""
        return np.asarray(self.x.std(0, ddof=1 if len(self.x) > 1 else 0))

    def sheet(self) -> Figure:
        """Draw the original, the observed picture, the results and their std; for points, the results over model points."""
        return self._pictures() if kind_of_samples(self.x.shape) == "images" else self._plane()

    def _repr_png_(self) -> bytes:
        return png_bytes(self.sheet())

    def save(self, path: str | Path, overwrite: bool = False) -> list[Path]:
        """Write the sheet (.png), the results as an array (.npy), or a folder of result files with the sheet.

        overwrite: as in `Samples.save`.
        """
        check_results(path, overwrite)
        out = Path(path)
        if not is_folder(path):
            if out.suffix.lower() == ".npy":
                return Samples(self.x, self.labels).save(out, overwrite)
            save(self.sheet(), out)
            return [out]
        if kind_of_samples(self.x.shape) == "images":
            files = Samples(self.x, self.labels).save(f"{out}/", overwrite)
            save(self.sheet(), out / "sheet.png")
        else:
            with sample_folder(out, Manifest(), overwrite) as files:
                files += Samples(self.x, self.labels).save(out / "points.npy")
                save(self.sheet(), out / "sheet.png")
        return [*files, out / "sheet.png"]

    def _pictures(self) -> Figure:
        scores = self.figures.get("psnr_each", ())
        panels: list[tuple[str, Any]] = [("original", self.original)] if self.original is not None else []
        name = "masked" if np.isnan(self.observed).any() else "input"
        panels.append((f"{name}, {self.figures['psnr_input']:.1f} dB" if scores else name, self.observed))
        for k, image in enumerate(self.x[:MAX_SHOWN]):
            parts = [*([f"label {self.labels[k]}"] if self.labels else []), *([f"{scores[k]:.1f} dB"] if scores else [])]
            panels.append((", ".join(parts) or f"result {k}", image))
        rows = -(-(len(panels) + 1) // MAX_COLUMNS)
        columns = -(-(len(panels) + 1) // rows)
        fig = figure(PANEL * columns, 1.6 * rows + 0.35)
        grid = fig.subplots(rows, columns, squeeze=False).ravel()
        for axes in grid:
            axes.set_axis_off()
        for axes, (title, image) in zip(grid, panels, strict=False):
            axes.imshow(_shown(image), interpolation="nearest")
            set_title(axes, title, 8, round(PANEL * DPI) - 6)
        last = grid[len(panels)]
        std = self.std if self.std.ndim == 2 else np.sqrt((self.std**2).mean(-1))
        shown = last.imshow(std, cmap="magma", vmin=0, vmax=max(float(std.max()), 1e-3), interpolation="nearest")
        last.set_title("standard deviation", fontsize=8, color=INK)
        bar = fig.colorbar(shown, cax=last.inset_axes((0.0, -0.11, 1.0, 0.06)), orientation="horizontal")
        bar.ax.tick_params(labelsize=6, length=2, colors=INK)
        bar.outline.set_visible(False)
        set_suptitle(fig, self.title)
        return fig

    def _plane(self) -> Figure:
        fig = figure(5, 5)
        others = self.model_points if self.model_points is not None else self.x
        axes: Axes = point_axes(fig.subplots(), limits_of(np.concatenate([others, self.x])), self.title)
        dots(axes, others, "#c3ccd6")
        dots(axes, self.x, ACCENT)
        lines = (axes.axvline, axes.axhline)
        for draw, value in zip(lines, self.observed[:2], strict=False):
            if np.isfinite(value):
                draw(value, color=WARM, lw=0.8, zorder=0)
        axes.scatter([], [], s=20, c="#c3ccd6", label="unconditional")
        axes.scatter([], [], s=20, c=ACCENT, label="given known coordinates")
        axes.legend(fontsize=8, loc="upper right", framealpha=0.9, labelcolor=INK, edgecolor=SOFT)
        return fig


def check_results(out: str | Path, overwrite: bool = False) -> None:
    """Refuse an output path that results cannot be written to."""
    if not is_folder(out) and Path(out).suffix.lower() not in (".png", ".npy"):
        raise UserError(f"cannot write {out}: use a name that ends in .png or .npy, or a folder")
    check_output(out, overwrite)


def _shown(image: np.ndarray) -> np.ndarray:
    """Return a picture as (H, W, 3) uint8, with unknown pixels coloured and transparency composited on white."""
    pixels = image[..., None] if image.ndim == 2 else image
    unknown = np.isnan(pixels).any(-1)
    if pixels.shape[-1] == 4:
        pixels = over_white(pixels)
    rgb = np.broadcast_to(pixels, (*pixels.shape[:2], 3))
    return to_bytes(np.where(unknown[..., None], FILL, np.nan_to_num(rgb)))
