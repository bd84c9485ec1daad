"""The kind of data before they are used, for a choice of the families that take them."""

from __future__ import annotations

from reverie.data import load_data
from reverie.data.dataset import Dataset
from reverie.data.kind import Kind
from reverie.data.named_datasets import DATASETS, KIND_OF


class _Known(Exception):
    """The kind is known, so that nothing more is read."""

    def __init__(self, kind: Kind) -> None:
        super().__init__(kind)
        self.kind = kind


def kind_of_data(source: str) -> Kind:
    """Return the kind of data of a name or path; the pixels of images are not read."""
    if source in DATASETS:
        return KIND_OF.get(source, "images")

    def stop(form: Dataset) -> None:
        raise _Known(form.kind)

    try:
        return load_data(source, on_shape=stop).kind
    except _Known as known:
        return known.kind
