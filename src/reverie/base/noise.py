"""Seeded noise, one stream per image: the same image at any batch size, thread count or device."""

from __future__ import annotations

import hashlib
import math

import torch
from torch import Tensor

from reverie.base.errors import UserError

# SplitMix64 (Steele, Lea and Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014).
_STEP = 0x9E3779B97F4A7C15
_FIRST, _SECOND = 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
_LOW = 2**32 - 1


def _signed(a: int) -> int:
    """Return the int64 with the 64-bit pattern of a."""
    return (a + 2**63) % 2**64 - 2**63


def _fold(z: Tensor, shift: int) -> Tensor:
    """Return z xor (z >> shift) for unsigned z."""
    upper: Tensor = (z >> shift) & (2 ** (64 - shift) - 1)
    return z ^ upper


def split_mix(state: Tensor, count: Tensor) -> Tensor:
    """Return the count-th output, from 1, of the SplitMix64 generator with this state, as 64-bit patterns in int64.

    z = state + count step;  z = (z ^ z >> 30) m1;  z = (z ^ z >> 27) m2;  z ^ z >> 31, modulo 2^64, with constants m1 and m2.
    It is a pure function, so that any part of a stream can be computed without the rest.  The arguments broadcast.
    """
    z = state + count * _signed(_STEP)
    z = _fold(z, 30) * _signed(_FIRST)
    z = _fold(z, 27) * _signed(_SECOND)
    return _fold(z, 31)


def mix_seed(seed: int, i: int) -> int:
    """Return the i-th derived seed, an integer below 2^63, by hashing seed and i."""
    return int.from_bytes(hashlib.blake2b(f"{seed}/{i}".encode(), digest_size=8).digest()) >> 1


def check_seed(seed: int) -> int:
    """Refuse a seed outside 0 .. 2^31 - 1."""
    if not 0 <= seed < 2**31:
        raise UserError(f"the seed must be a whole number from 0 to {2**31 - 1}, got {seed}")
    return seed


def image_seeds(seed: int, n: int, start: int = 0) -> Tensor:
    """Return the seeds of n images from index start, (n,) int64: the run's seed in the upper half, the index in the lower."""
    return (check_seed(seed) << 32) + torch.arange(start, start + n, dtype=torch.int64)


class Noise:
    """Streams of standard normal noise, one per image.

    Draw number d of image seed s is a pure function of (s, d): images share nothing, and the only state is the number of
    draws.  Each image's stream starts at the SplitMix64 output of its seed.  seeds: (B,) int64.
    """

    def __init__(self, seeds: Tensor, draws: int = 0) -> None:
        self.seeds = seeds
        self.draws = draws

    def bits(self, count: int, device: torch.device) -> Tensor:
        """Return the next draw as 64-bit patterns: (B, count) int64."""
        seeds = self.seeds.to(device)
        state = split_mix(seeds, torch.ones_like(seeds))[:, None]
        first = (self.draws << 32) + 1
        self.draws += 1
        return split_mix(state, torch.arange(first, first + count, device=device))

    def uniform(self, count: int, device: torch.device | None = None) -> tuple[Tensor, Tensor]:
        """Return the next draw as two independent sets of uniforms in (0, 1): (B, count) each."""
        device = device or torch.device("cpu")
        # Float64 if supported: rounding to float32 afterwards hides last-digit differences between devices.
        dtype = torch.float32 if device.type == "mps" else torch.float64
        bits = self.bits(count, device)
        return (((bits >> 32) & _LOW).to(dtype) + 0.5) * 2.0**-32, ((bits & _LOW).to(dtype) + 0.5) * 2.0**-32

    def like(self, x: Tensor) -> Tensor:
        """Return the next draw as standard normals of x's shape, dtype and device (Box-Muller).  x: (B, ...)."""
        if len(x) != len(self.seeds):
            raise ValueError(f"{len(self.seeds)} seeds do not match a batch of {len(x)}")
        count = math.prod(x.shape[1:])
        half = -(-count // 2)
        u, v = self.uniform(half, x.device)
        radius, angle = u.log_().mul_(-2).sqrt_(), v.mul_(2 * math.pi)
        normal = x.new_empty(len(x), 2 * half)
        normal[:, :half] = angle.cos().mul_(radius)
        normal[:, half:] = angle.sin_().mul_(radius)
        return normal[:, :count].reshape(x.shape)
