"""Images of shards by index: order, batches that do not depend on the rank, training and resuming."""

from __future__ import annotations

from itertools import islice
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import reverie
from reverie import api
from reverie.base.errors import UserError
from reverie.data import Dataset, LazyImages, load_data
from reverie.data.shards import shard_images
from reverie.data.shards.index import INDEX, read_index
from reverie.data.shards.shard_images import ShardImages
from reverie.training.loader import Share, batches


def same_weights(one: Path, other: Path) -> bool:
    a, b = (load_file(path / "model.safetensors") for path in (one, other))
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def lazy(shards: Path | str) -> Dataset:
    data = load_data(shards)
    assert isinstance(data.x, ShardImages)
    return data


def test_index_and_folder_have_the_same_order(photos: Path, shards: Path) -> None:
    data, near, index = lazy(shards), load_data(photos), read_index(shards / INDEX, "")
    assert isinstance(near.x, torch.Tensor) and isinstance(data.x, LazyImages) and near.labels is not None
    assert len(list(shards.glob("*.tar"))) > 5 and index.facts.blocks > 10
    assert [index.name(k) for k in range(len(index))] == [str(p.relative_to(photos)) for p in sorted(photos.rglob("*.png"))]
    some = torch.tensor([119, 0, 64, 64, 7])
    assert torch.equal(data.x.take(some), near.x[some]) and torch.equal(data.x.take(torch.arange(120)), near.x)
    assert data.labels is not None and torch.equal(data.labels, near.labels) and data.label_names == near.label_names
    assert torch.equal(data.split(3)[1].batch(torch.arange(6))[0], near.split(3)[1].batch(torch.arange(6))[0])


def test_epochs_visit_each_image_once_group_by_group(shards: Path) -> None:
    x = lazy(shards).x
    assert isinstance(x, ShardImages)
    order = x.order(torch.Generator().manual_seed(5))
    assert sorted(order.tolist()) == list(range(120))
    block = x._block[order.numpy()]
    reach = {b: (int((block == b).nonzero()[0][0]), int((block == b).nonzero()[0][-1])) for b in set(block.tolist())}
    assert max(last - first for first, last in reach.values()) < 45  # a block is finished soon after it is started
    assert sum(abs(int(k) - i) for i, k in enumerate(order)) > 120 * 20  # and the order is still random
    assert not torch.equal(order, x.order(torch.Generator().manual_seed(6)))


def test_single_groups_are_fully_shuffled(photos: Path, shards: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shard_images, "GROUP", 2**30)
    ours, theirs = batches(lazy(shards), 32, 7), batches(load_data(photos), 32, 7)
    assert all(torch.equal(a, b) for (a, _), (b, _) in islice(zip(ours, theirs, strict=True), 8))


@pytest.mark.parametrize("world", [2, 3])
def test_batches_do_not_depend_on_the_rank(shards: Path, world: int) -> None:
    data = lazy(shards)
    alone = list(islice(batches(data, 24, 1, share=Share(6, 6)), 30))
    shared = [list(islice(batches(lazy(shards), 24, 1, share=Share(6, 6, r, world)), 30 // world)) for r in range(world)]
    for k, (x, labels) in enumerate(alone):
        theirs = shared[k % 6 % world][k // 6 * (6 // world) + k % 6 // world]
        assert torch.equal(x, theirs[0]) and labels is not None and torch.equal(labels, theirs[1])


def test_batches_resume_within_a_shard(shards: Path) -> None:
    whole = list(islice(batches(lazy(shards), 7, 2), 40))  # 17 batches per epoch, so this reaches the third
    for first in (1, 11, 18, 33):
        again = list(islice(batches(lazy(shards), 7, 2, first), 40 - first))
        assert all(torch.equal(a, b) for (a, _), (b, _) in zip(whole[first:], again, strict=True))


SHORT = {"steps": 12, "batch": 16, "seed": 1, "family": "autoencoder", "progress": False, "device": "cpu"}


def interrupted(shards: Path, run: Path) -> None:
    """Train until a shard has changed, and resume after it is restored."""
    training = api.prepare(shards, run, **{key: value for key, value in SHORT.items() if key != "progress"})
    shard = sorted(shards.glob("*.tar"))[4]
    good = shard.read_bytes()
    with pytest.raises(UserError, match=rf"{shard.name} has changed since it was indexed; restore the shard"):
        for step in training:
            if step.i >= 4:
                shard.write_bytes(bytes(byte ^ 1 for byte in good))
    training.close()
    shard.write_bytes(good)
    api.train(resume=run, progress=False)


def test_packed_images_train_to_the_same_weights_even_after_a_failure(
    photos: Path, shards: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shard_images, "GROUP", 2**30)  # one group, so that the order equals the folder's
    reverie.train(photos, tmp_path / "folder", **SHORT)
    interrupted(shards, tmp_path / "shards-run")
    assert same_weights(tmp_path / "folder", tmp_path / "shards-run")


@pytest.mark.slow
def test_runs_resume_within_a_shard_bit_for_bit(shards: Path, tmp_path: Path) -> None:
    reverie.train(shards, tmp_path / "whole", **SHORT)
    interrupted(shards, tmp_path / "interrupted")
    assert same_weights(tmp_path / "whole", tmp_path / "interrupted")


@pytest.mark.slow
def test_two_processes_train_on_a_million_images_to_the_same_weights(photos: Path, tmp_path: Path) -> None:
    from benchmarks.shards import repeat

    reverie.pack(photos, tmp_path / "few", shard_size="30KB")
    repeat(tmp_path / "few", tmp_path / "many", 12_000)
    assert len(lazy(tmp_path / "many")) == 1_440_000
    for processes in (1, 2):
        reverie.train(tmp_path / "many", tmp_path / str(processes), exact=True, processes=processes, **SHORT)
    assert same_weights(tmp_path / "1", tmp_path / "2")
