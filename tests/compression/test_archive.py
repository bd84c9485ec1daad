"""Compression: what comes out is what went in, in as many bits as the bound says; other files are refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

from reverie.base.errors import UserError
from reverie.base.noise import image_seeds
from reverie.compression.archive import compress, decompress
from reverie.compression.coder import VARIANCE
from reverie.data import load_data
from reverie.diffusion.likelihood.steps import even_times
from reverie.runs.run import Run
from tests.training.test_image_runs import TINY

STEPS = 16


@pytest.fixture(scope="module")
def run(trained: Callable[..., Run]) -> Run:
    return trained("digits8-likelihood", "digits8", steps=40, network=TINY, purpose="likelihood")


@pytest.fixture(scope="module")
def images() -> Tensor:
    return load_data("digits8").split(0)[1].batch(torch.arange(60))[0]


def test_images_come_back_bit_for_bit_and_take_what_the_bound_says(run: Run, images: Tensor, tmp_path: Path) -> None:
    made = compress(run, images, tmp_path / "x.rvi", steps=STEPS)
    assert torch.equal(decompress(run, made.path), images) and made.size == made.path.stat().st_size
    grid = even_times(run.diffusion.denoiser.schedule, STEPS, 1e-6)
    bits = run.diffusion.bound(images, None, image_seeds(0, len(images)), grid, VARIANCE).bits
    assert float(bits.mean()) == pytest.approx(made.coded, rel=0.05)
    assert made.bits < 1.3 * float(bits.mean())  # the first few stand there as zlib left them


def test_a_model_of_all_256_levels_codes_as_well(digits_run: Run, images: Tensor, tmp_path: Path) -> None:
    end = 0.05
    made = compress(digits_run, images[:12], tmp_path / "x.rvi", steps=8, end=end)
    assert torch.equal(decompress(digits_run, made.path), images[:12])


def test_other_files_and_other_runs_are_refused(run: Run, digits_run: Run, images: Tensor, tmp_path: Path) -> None:
    path = compress(run, images[:20], tmp_path / "x.rvi", steps=4).path
    whole = path.read_bytes()
    with pytest.raises(UserError, match="another model"):
        decompress(digits_run, path)
    line = whole.index(b"\n", whole.index(b"\n") + 1)
    for damaged in (
        whole[:-4],
        whole[:30],
        b"",
        whole.replace(b'"steps":4', b'"steps":1'),
        whole.replace(b'"count":20', b'"count":21'),
    ):
        path.write_bytes(damaged)
        with pytest.raises(UserError, match=r"damaged|no file of images"):
            decompress(run, path)
    for k in range(line + 1, len(whole), 37):
        path.write_bytes(whole[:k] + bytes([whole[k] ^ 4]) + whole[k + 1 :])
        with pytest.raises(UserError, match="damaged"):
            decompress(run, path)
    with pytest.raises(UserError, match="the run models"):
        compress(run, torch.zeros(3, 1, 9, 9), path)
    with pytest.raises(UserError, match="never had"):
        compress(run, torch.full((3, 1, 8, 8), 7 / 255), path)
