"""Detection of the kind of data without reading them, to select the families that support it."""

from __future__ import annotations

from reverie.data import load_data
from reverie.data.dataset import Dataset
from reverie.data.kind import Kind
from reverie.data.named_datasets import DATASETS, KIND_OF


class _KindFound(Exception):
    """Ends reading as soon as the kind is known."""

    def __init__(self, kind: Kind) -> None:
        super().__init__(kind)
        self.kind = kind


def kind_of_data(source: str) -> Kind:
    """Return the kind of data of a name or path, without reading pixels."""
    if source in DATASETS:
        return KIND_OF.get(source, "images")

    def stop(dataset: Dataset) -> None:
        raise _KindFound(dataset.kind)

    try:
        return load_data(source, on_shape=stop).kind
    except _KindFound as found:
        return found.kind
