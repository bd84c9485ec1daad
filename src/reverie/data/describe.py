"""Descriptions of datasets: text and pictures."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from PIL import Image

from reverie.base.files import atomic
from reverie.data.dataset import Dataset, evenly_spaced_indices
from reverie.data.kind import WRITTEN
from reverie.draw.bars import count_bars
from reverie.draw.picture import channels_last, contact_sheet, save, to_bytes
from reverie.draw.scatter import scatter
from reverie.draw.series_plot import lines

MAX_IMAGES = 64  # images on a contact sheet
MAX_NAMES = 20  # columns listed by name


def draw_data(dataset: Dataset, out: Path) -> None:
    """Draw a contact sheet of images, a scatter plot of points, line plots of series, or the common words of text."""
    if dataset.kind in WRITTEN:
        save(count_bars(dataset.report["common_words"], f"the most common words of {dataset.name}"), out)
        return
    count = MAX_IMAGES if dataset.kind == "images" else 10_000
    chosen = evenly_spaced_indices(len(dataset), count)
    x, names = dataset.batch(chosen)[0], dataset.describe_conditions(chosen) or None
    if dataset.kind == "series":
        save(lines(x.numpy(), dataset.name, dataset.columns), out)
        return
    if dataset.kind != "images":
        save(scatter(x.numpy(), names, dataset.name, dataset.columns), out)
        return
    with atomic(out) as temporary:
        Image.fromarray(contact_sheet(to_bytes(channels_last(x.numpy())), names)).save(temporary)


def _counts(counts: Mapping[str, int], limit: int = 6) -> str:
    """Format counts, the most common first."""
    ordered = sorted(counts.items(), key=lambda pair: -pair[1])
    rest = f" and {len(ordered) - limit} more" if len(ordered) > limit else ""
    return ", ".join(f"{name} {count:,}" for name, count in ordered[:limit]) + rest


def describe_dataset(dataset: Dataset) -> Iterator[str]:
    """Describe a dataset, one fact per line: sizes, modes, classes, range, duplicates, then its notes."""
    report = dataset.report
    if "table" in report:
        yield f"table of {report['table']}"
    if dataset.columns:
        rest = f" and {len(dataset.columns) - MAX_NAMES} more" if len(dataset.columns) > MAX_NAMES else ""
        yield f"columns: {', '.join(dataset.columns[:MAX_NAMES])}{rest}"
    if dataset.kind == "images":
        low, high = report["range"]
        yield f"{len(dataset):,} images; sizes {_counts(report['sizes'])}; modes {_counts(report['modes'])}"
        yield f"values {low} to {high}; {report['duplicates']:,} duplicates"
    if dataset.label_names:
        counts = dict(zip(dataset.label_names, dataset.label_counts(), strict=True))
        yield f"{len(counts)} classes: {_counts(counts, 12)}"
    if dataset.conditions is not None:
        yield f"conditions: {dataset.conditions.describe()}"
    yield from dataset.notes
