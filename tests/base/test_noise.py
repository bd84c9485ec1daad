from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import kstest

from reverie.base.errors import UserError
from reverie.base.noise import Noise, image_seeds, mix_seed, split_mix

# The first outputs of SplitMix64 from the state 1234567, as published for the reference implementation.
KNOWN = [6457827717110365317, 3203168211198807973, 9817491932198370423, 4593380528125082431, 16408922859458223821]


def test_split_mix_matches_published_outputs() -> None:
    outputs = split_mix(torch.tensor(1234567), torch.arange(1, 6))
    assert [int(z) % 2**64 for z in outputs] == KNOWN


def test_derived_seeds_differ() -> None:
    seeds = {mix_seed(s, i) for s in range(20) for i in range(-50, 500)}
    assert len(seeds) == 20 * 550 and all(0 <= s < 2**63 for s in seeds)


@given(start=st.integers(0, 50), count=st.integers(1, 9), shape=st.lists(st.integers(1, 7), min_size=0, max_size=3))
def test_noise_does_not_depend_on_the_batch(start: int, count: int, shape: list[int]) -> None:
    whole, part = Noise(image_seeds(3, 60)), Noise(image_seeds(3, count, start))
    for _ in range(3):
        a, b = whole.like(torch.empty(60, *shape)), part.like(torch.empty(count, *shape))
        assert torch.equal(a[start : start + count], b)


def test_noise_does_not_depend_on_threads() -> None:
    before = torch.get_num_threads()
    draws = []
    for threads in (1, 2):
        torch.set_num_threads(threads)
        draws.append(Noise(image_seeds(5, 300)).like(torch.empty(300, 28, 28)))
    torch.set_num_threads(before)
    assert torch.equal(*draws)


def test_noise_is_standard_normal_and_independent() -> None:
    noise = Noise(image_seeds(0, 500))
    a, b = noise.like(torch.empty(500, 400)), noise.like(torch.empty(500, 400))
    flat = a.flatten().double().numpy()
    assert kstest(flat, "norm").pvalue > 0.01
    limit = 4 / np.sqrt(flat.size)
    assert abs(flat.mean()) < limit
    assert abs(float((a * b).mean())) < limit  # between draws
    assert abs(float((a[1:] * a[:-1]).mean())) < limit  # between images
    assert abs(float((a[:, 1:] * a[:, :-1]).mean())) < limit  # between pixels
    assert abs(float((a[:, :200] * a[:, 200:]).mean())) < limit  # between the two halves of Box-Muller


def test_seeds_differ_and_dtypes_are_kept() -> None:
    x = torch.empty(4, 3, dtype=torch.float64)
    a, b = Noise(image_seeds(0, 4)).like(x), Noise(image_seeds(1, 4)).like(x)
    assert a.dtype == torch.float64 and not torch.equal(a, b)
    torch.testing.assert_close(Noise(image_seeds(0, 4)).like(x.float()), a.float())
    u = torch.stack(Noise(image_seeds(0, 1000)).uniform(10))
    assert float(u.min()) > 0 and float(u.max()) < 1 and float(u.mean()) == pytest.approx(0.5, abs=0.02)


@pytest.mark.parametrize("seed", [-1, 2**31])
def test_a_seed_out_of_range_is_refused(seed: int) -> None:
    with pytest.raises(UserError, match="seed"):
        image_seeds(seed, 1)


def test_a_batch_of_another_size_is_refused() -> None:
    with pytest.raises(ValueError, match="3 seeds"):
        Noise(image_seeds(0, 3)).like(torch.empty(4, 2))
