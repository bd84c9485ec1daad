"""Batches of a dataset with random access, so that a training can resume at any step."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from reverie.base.noise import mix_seed
from reverie.data import Dataset, LazyImages

Batch = tuple[Tensor, Tensor | None]


@dataclass(frozen=True)
class Share:
    """The micro-batches of one of several processes.

    A batch has `micro` micro-batches.  Process `rank` computes those of the `parts` of each step whose number modulo `world` is
    its rank.
    """

    micro: int = 1
    parts: int = 1
    rank: int = 0
    world: int = 1


WHOLE = Share()


def batches(data: Dataset, batch: int, seed: int, first: int = 0, share: Share = WHOLE) -> Iterator[Batch]:
    """Yield batches without end, from number `first` on; the order of each epoch is a function of the seed.

    share: the micro-batches of this process.
    """
    number = first * share.micro
    batch = min(batch, len(data))
    epoch, skipped = divmod(first, len(data) // batch)
    while True:
        order = data.order(torch.Generator().manual_seed(mix_seed(seed, -1 - epoch)))
        for start in range(skipped * batch, len(data) - batch + 1, batch):
            if isinstance(data.x, LazyImages):
                data.x.prefetch(order, start)
            for part in order[start : start + batch].tensor_split(share.micro):
                if number % share.parts % share.world == share.rank:
                    yield data.batch(part)
                number += 1
        epoch, skipped = epoch + 1, 0


def ahead(source: Iterator[Batch], depth: int = 4) -> Iterator[Batch]:
    """Yield the batches of a source, which a thread reads ahead of use."""
    ready: queue.Queue[Batch | BaseException] = queue.Queue(depth)
    stop = threading.Event()

    def put(item: Batch | BaseException) -> None:
        while not stop.is_set():
            try:
                ready.put(item, timeout=0.1)
                return
            except queue.Full:
                continue

    def work() -> None:
        try:
            for item in source:
                put(item)
                if stop.is_set():
                    return
        except BaseException as error:  # raised again in the reading thread
            put(error)

    threading.Thread(target=work, daemon=True).start()
    try:
        while True:
            item = ready.get()
            if isinstance(item, BaseException):
                raise item
            yield item
    finally:
        stop.set()


def reader(data: Dataset, batch: int, seed: int, first: int = 0, share: Share = WHOLE) -> Iterator[Batch]:
    """Yield batches from number `first` on, prefetched if images must be decoded."""
    source = batches(data, batch, seed, first, share)
    return ahead(source) if isinstance(data.x, LazyImages) and not data.x.decoded else source
