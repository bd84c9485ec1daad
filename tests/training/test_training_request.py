"""Requests for a training are refused, or made to fit into memory, before any image is decoded."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from torch import nn

from reverie import api
from reverie.base.errors import UserError
from reverie.base.spec import build
from reverie.data import Dataset, chunk_size, evaluation_batch_size, image_folder
from reverie.data.fitting import choose_size
from reverie.diffusion.plan import network_for
from reverie.families import FAMILIES
from reverie.nets import NETWORKS
from reverie.training import prepare, training_request
from reverie.training.codec_training import LatentRequest
from reverie.training.memory_use import (
    AllocationCounter,
    NetworkMemory,
    _container,
    available,
    codec_step_memory,
    network_memory,
)
from reverie.training.training_request import TrainingRequest, total_memory
from tests.conftest import TINY

CPU = torch.device("cpu")


def form(channels: int, height: int, width: int, count: int = 100) -> Dataset:
    return Dataset("images", torch.empty(count, channels, height, width, dtype=torch.uint8, device="meta"))


def request(network: str | None = None, **settings: Any) -> TrainingRequest:
    return TrainingRequest(FAMILIES["diffusion"], 10.0, None, {"network": network} if network else {}, settings, CPU)


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    for k in range(20):
        path = tmp_path / "pictures" / f"{k}.png"
        path.parent.mkdir(exist_ok=True)
        Image.new("RGB", (48, 48), (12 * k, 0, 9)).save(path)
    return tmp_path / "pictures"


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"network": "unet:widht=3"}, "did you mean 'width"), ({"network": "unet-tny"}, "did you mean 'unet-tiny'"),
        ({"network": "unet:height=3"}, "height"), ({"target": "foo"}, "unknown target 'foo'"),
        ({"schedule": "linaer"}, "did you mean 'linear'"), ({"schedule": "linear:stpes=3"}, "did you mean 'steps'"),
        ({"weight": "foo"}, "unknown weight"), ({"times": "foo"}, "times"), ({"batch": 0}, "batch"),
        ({"optimizer": "sgd"}, "optimizer"), ({"minuts": 1}, "unknown option of training 'minuts'; did you mean 'minutes'"),
        ({"size": "45"}, "nearest valid size is 44x44"), ({"size": "17x40"}, "nearest valid size is 16x40"),
        ({"network": "unet:stem=2", "size": "50"}, "nearest valid size is 48x48"), ({"size": "0"}, "out of range"),
    ],
)  # fmt: skip
def test_invalid_options_are_refused_before_data_are_read(
    pictures: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any], match: str
) -> None:
    monkeypatch.setattr(prepare, "load_data", None)
    with pytest.raises(UserError, match=match):
        api.begin(str(pictures), pictures.parent / "run", **options)
    assert not (pictures.parent / "run").exists()


def test_a_folder_that_cannot_be_written_is_refused_before_data_are_read(
    pictures: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prepare, "load_data", None)
    with pytest.raises(UserError, match="other files"):
        api.begin(str(pictures), pictures)
    with pytest.raises(UserError, match=r"0\.png is not a folder"):
        api.begin(str(pictures), pictures / "0.png" / "run")


def test_what_does_not_fit_into_memory_is_refused_before_images_are_decoded(
    pictures: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(image_folder, "_decode_all", None)
    monkeypatch.setattr(training_request, "available", lambda device: 4 * 10**9)
    network = "unet:stem=2,attention=false"
    with pytest.raises(UserError, match=r"512x512.* 7\.\d GB.* 4\.0 GB.* --batch 5 --") as no:
        api.begin(str(pictures), size="512", network=network, batch=20)
    assert "\n" not in str(no.value)
    with pytest.raises(UserError, match=r"4\.0 GB.* --size \d+x\d+"):
        api.begin(str(pictures), size="1000", network=network + ",widths=[96,96]")


def test_the_default_batch_is_accumulated_if_memory_is_short(pictures: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    network = request("unet:stem=2").network_memory_for(form(3, 128, 128, 20))
    need = {batch: total_memory(network, form(3, 128, 128, 20), batch) for batch in (20, 10)}
    monkeypatch.setattr(training_request, "available", lambda device: int((need[20] + need[10]) / 2 / 0.9))
    given: dict[str, Any] = {"size": "128", "network": "unet:stem=2", "steps": 1}
    training = api.begin(str(pictures), pictures.parent / "run", **given)
    settings = training.run.config.training
    assert (settings.batch, settings.accumulate) == (10, 2)
    assert any("2 batches of 10" in line and "GB are free" in line for line in training.introduction())
    with pytest.raises(UserError, match="--batch 10 --accumulate 2"):
        api.begin(str(pictures), pictures.parent / "other", batch=20, **given)


def test_the_memory_of_the_autoencoder_is_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    """At 1000 x 1000 a step of the default 16 images takes 10.7 GB (measured)."""
    large = form(3, 1000, 1000, 20)
    latent = LatentRequest(None, {})
    wanted = TrainingRequest(FAMILIES["diffusion"], 10.0, None, {}, {"batch": 1}, CPU, latent.codec, trains_codec=True)
    codec = latent.codec(large)
    assert codec is not None and 9e9 < codec_step_memory(codec, 16) < 12e9
    monkeypatch.setattr(training_request, "available", lambda device: 7 * 10**9)
    wanted.check_memory(large)
    assert wanted.codec_smaller == {"batch": 8, "accumulate": 2}
    assert any("autoencoder" in note and "2 batches of 8" in note for note in wanted.notes)
    monkeypatch.setattr(training_request, "available", lambda device: 5 * 10**8)
    with pytest.raises(UserError, match=r"1000x1000.* 1\d GB.* 0\.5 GB.* --size \d+x\d+"):
        wanted.check_memory(large)
    wanted.check_memory(form(3, 64, 64, 20))
    assert wanted.codec_smaller == {} and wanted.notes == ()


@pytest.mark.parametrize("side", [1, 2, 3, 5, 7, 9, 13, 15, 17, 22, 31, 33, 45, 46, 50, 57, 63, 64])
def test_the_chosen_size_is_valid_for_the_chosen_network(side: int) -> None:
    for own in ((side, side), (64, side), (side, 3 * side)):
        size, _ = choose_size({own: 5})
        request().network_memory_for(form(3, *size))
    size, _ = choose_size({(side, side): 5, (side + 1, 90): 4})
    request().network_memory_for(form(1, *size))


@pytest.mark.parametrize("network", ["unet:stem=2", "unet:stem=1,widths=[8,12,16]", "transformer:dim=32,layers=2"])
def test_estimated_memory_is_that_of_real_tensors(network: str) -> None:
    """Count real tensors: the kernels, and so the tensors that they save, must be the same."""
    spec = network_for((3, 16, 16), 0, network)
    net = build(NETWORKS, spec, "network")
    assert isinstance(net, nn.Module)

    class Count(NetworkMemory):
        def __init__(self) -> None:
            self.steps, self.evaluations, self.level_numbers = {}, {}, 0

        def _peak(self, count: int, work: Any) -> int:
            with AllocationCounter() as counter:
                work(torch.rand(count, 3, 16, 16), torch.rand(count))
            return counter.peak

    real = Count()
    real.net = net
    state = torch.random.get_rng_state()
    estimated = NetworkMemory(spec, (3, 16, 16))
    assert torch.equal(state, torch.random.get_rng_state())
    for batch in (3, 6):
        data = 10 * 4 * batch * 3 * 16 * 16
        for kind in ("step", "evaluation"):
            counted = (getattr(estimated, kind)(batch) - 64 * 2**20) / 1.25 - data
            assert counted == pytest.approx(getattr(real, kind)(batch), rel=0.02)
    grown = estimated.step(64) - estimated.step(32)
    assert estimated.step(128) - estimated.step(96) == pytest.approx(grown, rel=0.02)  # images are alike


def test_memory_of_a_network_is_cached() -> None:
    spec = network_for((1, 8, 8), 0, TINY)
    known = network_memory(spec, (1, 8, 8))
    assert network_memory(dict(spec), (1, 8, 8)) is known and network_memory(spec, (1, 16, 16)) is not known
    assert known.step(3) == known.step(3) == NetworkMemory(spec, (1, 8, 8)).step(3) != known.step(4)
    assert known.evaluation(3) == NetworkMemory(spec, (1, 8, 8)).evaluation(3) < known.step(3)


MEASURE = """
import resource, sys, torch
from reverie.runs.folder import NETWORKS
from reverie.base.spec import build
from reverie.diffusion.plan import network_for
torch.set_num_threads(1)
side, batch = int(sys.argv[2]), int(sys.argv[3])
net = build(NETWORKS, network_for((3, side, side), 0, sys.argv[1]), "network")
start = int(open("/proc/self/statm").read().split()[1]) * resource.getpagesize()
for _ in range(2):
    net(torch.rand(batch, 3, side, side), torch.rand(batch)).sum().backward()
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 - start)
"""


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="memory is read from /proc")
@pytest.mark.parametrize(
    ("network", "side", "batch"),
    [("unet:stem=2", 64, 64), ("unet:stem=2", 128, 16), ("unet-small:stem=2", 96, 16), ("transformer", 64, 64)],
)
def test_memory_is_estimated_within_a_factor(network: str, side: int, batch: int) -> None:
    words = [sys.executable, "-c", MEASURE, network, str(side), str(batch)]
    measured = int(subprocess.run(words, check=True, capture_output=True, text=True).stdout)
    spec = network_for((3, side, side), 0, network)
    estimated = NetworkMemory(spec, (3, side, side)).step(batch)
    assert measured / 1.5 < estimated < 1.5 * measured, (measured, estimated)


def test_what_is_looked_at_together_is_bounded() -> None:
    assert (
        chunk_size((3, 64, 64), 256) == 256 and chunk_size((3, 1000, 1000), 2000) == 5 and chunk_size((4, 16384, 16384), 9) == 1
    )
    assert evaluation_batch_size((3, 64, 64), 256) == 256 and evaluation_batch_size((2,), 1000) == 1000
    assert evaluation_batch_size((3, 128, 128), 256) == 28 and evaluation_batch_size((3, 1000, 1000), 256) == 4
    few = Dataset("large", torch.zeros(40, 3, 1000, 1000, dtype=torch.uint8))
    assert len(few.subsample(2000)) == 5


def test_limits_of_containers_count(tmp_path: Path) -> None:
    assert (available(CPU) or 0) > 10**7
    own = tmp_path / "own"
    own.write_text("0::/outer/inner\n")
    assert _container(tmp_path / "none", own) is None
    for place, limit, used, file in (("outer", "max", 9000, 0), ("outer/inner", "5000", 4000, 500), ("", "8000", 100, 0)):
        (tmp_path / place).mkdir(parents=True, exist_ok=True)
        (tmp_path / place / "memory.max").write_text(f"{limit}\n")
        (tmp_path / place / "memory.current").write_text(f"{used}\n")
        (tmp_path / place / "memory.stat").write_text(f"anon 3\ninactive_file {file}\n")
    assert _container(tmp_path, own) == 1500
