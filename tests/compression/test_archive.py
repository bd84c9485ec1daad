"""Compression: what comes out is what went in, in as many bits as the bound says."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

import reverie
from reverie.base.errors import UserError
from reverie.base.noise import image_seeds
from reverie.compression.archive import _initial_bits, compress, decompress
from reverie.compression.chain import LEARNED_VARIANCE, Chain, choose_chain
from reverie.compression.coder import ChainCoder, deterministic, stack_of
from reverie.compression.container import groups, read
from reverie.compression.images import read_lossless
from reverie.diffusion.pair import Pair
from reverie.runs.run import Run

STEPS = 8


def test_images_come_back_bit_for_bit_and_take_what_the_bound_says(run: Run, images: Tensor, tmp_path: Path) -> None:
    made = compress(run, images, tmp_path / "x.rvi", steps=STEPS)
    assert torch.equal(decompress(run, made.path).x, images) and made.size == made.path.stat().st_size
    assert made.coded is not None and made.promised is not None
    assert made.coded == pytest.approx(made.promised, rel=0.01)
    # the same bound by its other form, with other noise: the KL of each step
    few = images.float() / 255
    nats = choose_chain(run.diffusion, few, image_seeds(9, len(few)), STEPS, made.end)[1]
    assert made.coded == pytest.approx(nats / (64 * math.log(2)), rel=0.03)
    assert (
        made.bits < 1.03 * made.promised and len(images) == 100
    )  # the first images are stored without the model, and the header has 26 bytes
    assert max(groups(read(made.path)[0], _initial_bits(run.diffusion), 64))[0] > 4  # later ones go together
    assert made.size < made.others["zlib"] < made.others["png"]


def test_a_model_of_all_256_levels_codes_as_well(digits_run: Run, images: Tensor, tmp_path: Path) -> None:
    made = compress(digits_run, images[:24], tmp_path / "x.rvi", steps=8)
    assert torch.equal(decompress(digits_run, made.path).x, images[:24])
    assert made.coded is not None and made.promised is not None and made.plain < 24
    assert made.coded == pytest.approx(made.promised, rel=0.03)


def test_popping_leaves_the_stack_as_it_was_and_numbers_far_from_their_mean_come_back(run: Run, images: Tensor) -> None:
    x = images[:8].float() / 255
    with deterministic():
        coder = ChainCoder(run.diffusion, choose_chain(run.diffusion, x, image_seeds(0, len(x)), 6, 0.1)[0])
        words = np.random.default_rng(0).integers(0, 2**32, 9000, dtype=np.uint32)
        stack = stack_of(words, seal=True)
        coder.push(stack, x)
        assert torch.equal(coder.pop(stack, len(x)), x)
        assert np.array_equal(stack.get_compressed(unseal=True), words)
    t = coder.times[0]
    far = torch.tensor([0.0, 9.9, -30.0, 1e4, -1e5]) * coder.fineness * coder.bins[t]
    coder._push_number(stack, t, far, torch.zeros(5), coder.sigma)
    torch.testing.assert_close(coder._pop_number(stack, t, torch.zeros(5), coder.sigma), far, rtol=0, atol=coder.bins[t] / 2)


def test_the_chosen_variance_is_the_best_there_is(run: Run, digits_run: Run, images: Tensor) -> None:
    x, seeds = images[:16].float() / 255, image_seeds(0, 16)
    for made, names in ((run, ("posterior", "forward", "learned")), (digits_run, ("posterior", "forward"))):
        chain, cost = choose_chain(made.diffusion, x, seeds, STEPS, 0.1)
        grid = chain.grid(made.diffusion.denoiser.schedule)
        others = {name: float(made.diffusion.bound(x, None, seeds, grid, name).nats.mean()) for name in names}
        assert cost <= min(others.values()) * (1 + 1e-6), (cost, others)
        assert (chain.between == LEARNED_VARIANCE) == ("learned" in others)
    guess = Pair(x, x)
    schedule = digits_run.diffusion.denoiser.schedule
    low, middle, high = (Chain(STEPS, chain.end, k).variance(schedule, 0.6, 0.5, guess) for k in (0, 100, 254))
    assert float(low) < float(middle) < float(high)


def folder_of(images: Tensor, place: Path) -> list[str]:
    names = [f"{'ab'[k % 2]}/{k}.{('png', 'bmp', 'gif')[k % 3]}" for k in range(len(images))]
    for name, pixels in zip(names, images, strict=True):
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels[0].numpy()).save(place / name)
    return names


def test_a_folder_comes_back_by_its_names(run: Run, images: Tensor, command: Any, tmp_path: Path) -> None:
    names, file = folder_of(images[:9], tmp_path / "in"), tmp_path / "x.rvi"
    code, out, _ = command("compress", run.path, tmp_path / "in", "--out", file, "--steps", 4, "--json")
    report = json.loads(out)
    assert code == 0 and report["count"] == 9 and report["size"] == file.stat().st_size and report["names"] > 0
    code, _, err = command("decompress", run.path, file, "--out", tmp_path / "out/")
    assert code == 0, err
    for name in names:
        before, after = (
            np.asarray(Image.open(p).convert("L"))
            for p in (tmp_path / "in" / name, (tmp_path / "out" / name).with_suffix(".png"))
        )
        assert np.array_equal(before, after)
    code, _, err = command("decompress", run.path, file, "--out", tmp_path / "out/")
    assert code == 2 and "0.png" in err and "--out" in err
    assert command("decompress", run.path, file, "--out", tmp_path / "x.npy")[0] == 0
    array = np.load(tmp_path / "x.npy")
    assert array.dtype == np.float32 and array.shape == (9, 8, 8) and array.max() == 1
    assert command("decompress", run.path, file, "--out", tmp_path / "sheet.png")[0] == 0
    assert len(reverie.decompress(run, file).samples) == 9
    code, _, err = command("decompress", run.path, file, "--out", tmp_path / "x.gif")
    assert code == 2 and ".npy or .png" in err


def test_images_that_would_have_to_be_changed_are_refused(run: Run, images: Tensor, tmp_path: Path) -> None:
    shape, place = (1, 8, 8), tmp_path / "in"
    folder_of(images[:3], place)
    grey = Image.fromarray(images[0, 0].numpy())
    colour, deep = Image.new("RGB", (8, 8), (1, 2, 3)), Image.fromarray(np.full((8, 8), 300, np.uint16))
    for image, message in (
        (grey.resize((9, 8)), "8x9 pixels"),
        (colour, "coloured"),
        (deep, "16-bit"),
        (grey.convert("LA"), "transparent"),
    ):
        image.save(place / "z.png")
        with pytest.raises(UserError, match=message):
            read_lossless(place, shape)
    (place / "z.png").write_bytes(b"none")
    with pytest.raises(UserError, match=r"z\.png cannot be compressed"):
        read_lossless(place, shape)
    x = images[:3, 0].numpy()
    found, names = read_lossless(x.astype(np.float32) / 255, shape)
    assert torch.equal(found, images[:3]) and names is None
    with pytest.raises(UserError, match="256 levels"):
        read_lossless(x.astype(np.float32) / 256, shape)
    with pytest.raises(UserError, match="sizes 9x8"):
        read_lossless(np.full((3, 9, 8), 9, np.uint8), shape)
    with pytest.raises(UserError, match="images"):
        read_lossless("spiral", shape)
    with pytest.raises(UserError, match="never had"):
        compress(run, torch.full((3, 1, 8, 8), 7, dtype=torch.uint8), tmp_path / "x.rvi")
    (tmp_path / "x.rvi").write_text("a letter")
    with pytest.raises(UserError, match="not replaced"):
        compress(run, images, tmp_path / "x.rvi")


def test_an_interrupted_compression_leaves_nothing(run: Run, images: Tensor, tmp_path: Path) -> None:
    def stop(what: str, done: int, of: int) -> None:
        if what in ("compressing", "writing") and done > 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        compress(run, images[:9], tmp_path / "new" / "x.rvi", steps=3, end=0.1, on_progress=stop)
    assert not list(tmp_path.iterdir())
    made = compress(run, images[:9], tmp_path / "x.rvi", steps=3, end=0.1)
    with pytest.raises(KeyboardInterrupt):
        decompress(run, made.path, out=tmp_path / "new" / "out", on_progress=stop)
    assert list(tmp_path.iterdir()) == [made.path]
