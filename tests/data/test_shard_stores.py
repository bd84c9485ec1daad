"""Shards on a server or an object store: the same images, few requests, and a clear error for each failure."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import pytest
import torch

from reverie.base.errors import UserError
from reverie.data import load_data
from reverie.data.shards import build, store
from reverie.data.shards.index import INDEX
from reverie.data.shards.shard_images import ShardImages
from reverie.training.loader import batches
from tests.data.served import Server, serving


@pytest.fixture
def server(shards: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    for name, value in (("READ_TIMEOUT", 0.5), ("RETRIES", 2), ("FIRST_PAUSE", 0.02), ("MAX_PAUSE", 0.05)):
        monkeypatch.setattr(store, name, value)
    with serving(shards.parent) as server:
        yield server


def first_shard(shards: Path) -> str:
    return min(path.name for path in shards.glob("*.tar"))


def test_remote_batches_equal_local_ones(server: Server, shards: Path) -> None:
    near, far = load_data(shards), load_data(f"{server.address}/shards")
    assert isinstance(far.x, ShardImages) and far.name == "shards" and far.fingerprint() == near.fingerprint()
    server.requests.clear()
    for (a, one), (b, other) in islice(zip(batches(near, 10, 4), batches(far, 10, 4), strict=True), 12):
        assert torch.equal(a, b) and one is not None and torch.equal(one, other)
    blocks = far.x.blocks.index.facts.blocks
    assert sum(server.requests.values()) == blocks < 40  # an epoch of 120 images requests each block once


def test_a_bucket_is_listed_indexed_and_read(server: Server, shards: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"ENDPOINT_URL": server.address, "ACCESS_KEY_ID": "a", "SECRET_ACCESS_KEY": "b", "REGION": "c"}.items():
        monkeypatch.setenv(f"AWS_{name}", value)
    (shards.parent / "bucket").mkdir()
    for path in shards.glob("*.tar"):
        shutil.copy(path, shards.parent / "bucket")
    data = load_data("s3://bucket")
    assert torch.equal(data.split(0)[1].batch(torch.arange(6))[0], load_data(shards).split(0)[1].batch(torch.arange(6))[0])
    server.requests.clear()
    monkeypatch.setattr(build, "examine", None)  # the index is cached, so that nothing is decoded again
    assert load_data("s3://bucket").fingerprint() == data.fingerprint()
    with pytest.raises(UserError, match="0 shards found in s3://empty"):
        load_data("s3://empty")


def test_failed_requests_are_repeated(server: Server, shards: Path) -> None:
    far, near, every = load_data(f"{server.address}/shards"), load_data(shards), torch.arange(120)
    server.failing[first_shard(shards)] = 2
    server.cut[sorted(path.name for path in shards.glob("*.tar"))[1]] = 1
    assert torch.equal(far.batch(every)[0], near.batch(every)[0])


@pytest.mark.parametrize(
    ("fault", "message"),
    [("failing", "the server answers 503 Service Unavailable"), ("stalled", "the server does not answer"),
     ("cut", "the connection was cut off"), ("gone", r"there is no such file \(404\)")],
)  # fmt: skip
def test_failing_shards_are_named_and_read_later(server: Server, shards: Path, fault: str, message: str) -> None:
    far, name = load_data(f"{server.address}/shards"), first_shard(shards)
    match fault:
        case "failing":
            server.failing[name] = 99
        case "stalled":
            server.stalled.add(name)
        case "cut":
            server.cut[name] = 99
        case "gone":
            (shards / name).rename(shards / "temporary")
    with pytest.raises(UserError, match=rf"^http://.*/shards/{name} cannot be read: {message}$"):
        list(islice(batches(far, 10, 4), 12))
    server.failing.clear(), server.stalled.clear(), server.cut.clear()
    if fault == "gone":
        (shards / "temporary").rename(shards / name)
    near = load_data(shards)
    assert all(torch.equal(a, b) for (a, _), (b, _) in islice(zip(batches(near, 10, 4), batches(far, 10, 4), strict=True), 12))


def test_named_shards(server: Server, shards: Path) -> None:
    count = len(list(shards.glob("*.tar")))
    every = load_data(f"{server.address}/shards/{{000000..{count - 1:06d}}}.tar")
    assert len(every) == 120 and every.name == "shards"
    assert 0 < len(load_data(f"{server.address}/shards/000001.tar")) < 120
    with pytest.raises(UserError, match=f"there is no .*{count:06d}.tar"):
        load_data(f"{server.address}/shards/{{000000..{count:06d}}}.tar")
    (shards / INDEX).unlink()
    with pytest.raises(UserError, match=r"does not list files; put index.safetensors there"):
        load_data(f"{server.address}/shards")


def test_rewritten_shards_are_detected_by_tag(server: Server, shards: Path) -> None:
    address = f"{server.address}/shards/000001.tar"
    load_data(address)
    shard = shards / "000001.tar"
    content = shard.read_bytes()
    shard.write_bytes(content[:-1] + b"\1")
    assert len(load_data(address)) > 0  # indexed again, because its tag differs
    shard.write_bytes(content[: len(content) // 2])
    with pytest.raises(UserError, match=r"000001.tar is not a complete tar file"):
        load_data(address)


@pytest.mark.parametrize("address", ["https://me:secret@host/shards", "https://host/shards?token=1", "s3://bucket/a#b"])
def test_addresses_with_secrets_are_refused(address: str) -> None:
    with pytest.raises(UserError, match="a password, a question mark"):
        load_data(address)


def test_missing_extras_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "obstore", None)
    with pytest.raises(UserError, match=r"needs obstore; install it with: pip install 'reverie\[remote\]'"):
        load_data("s3://bucket/data")
