"""Seeded noise, one stream per image: the same image at any batch size, thread count or device."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from reverie.errors import UserError

# Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011).
_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_WEYL = (0x9E3779B9, 0xBB67AE85)
_ROUNDS = 10
_MASK = 0xFFFFFFFF


def philox(counter: tuple[Tensor, Tensor, Tensor, Tensor], key: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return four 32-bit random words for each counter and key.

    Words are held in int64: a product wraps modulo 2^64 and a shift with a mask gives its upper half.
    All tensors broadcast; each holds values in [0, 2^32).
    """
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for i in range(_ROUNDS):
        p0, p1 = c0 * _MULTIPLIERS[0], c2 * _MULTIPLIERS[1]
        c0, c1, c2, c3 = (
            ((p1 >> 32) & _MASK) ^ c1 ^ ((k0 + i * _WEYL[0]) & _MASK),
            p1 & _MASK,
            ((p0 >> 32) & _MASK) ^ c3 ^ ((k1 + i * _WEYL[1]) & _MASK),
            p0 & _MASK,
        )
    return c0, c1, c2, c3


def image_seeds(seed: int, n: int, start: int = 0) -> Tensor:
    """Return the seeds of images start..start+n-1 of a run's seed: (n,) int64, seed in the upper, image in the lower half."""
    if not 0 <= seed < 2**31:
        raise UserError(f"the seed must be a whole number from 0 to {2**31 - 1}, got {seed}")
    return (seed << 32) + torch.arange(start, start + n, dtype=torch.int64)


class Noise:
    """Streams of standard normal noise, one per image.

    Draw number d of image seed s is a pure function of (s, d): nothing is shared between images, and no state but
    the number of draws is kept.  seeds: (B,) int64.
    """

    def __init__(self, seeds: Tensor, draws: int = 0) -> None:
        self.seeds = seeds
        self.draws = draws

    def words(self, count: int, device: torch.device) -> Tensor:
        """Return the next draw as random 32-bit words: (B, count) int64."""
        blocks = -(-count // 4)
        seeds = self.seeds.to(device)[:, None]
        block = torch.arange(blocks, device=device)[None, :]
        draw = torch.full_like(block[:, :1], self.draws)
        zero = torch.zeros_like(draw)
        self.draws += 1
        words = philox((block, zero, draw, zero), (seeds & _MASK, (seeds >> 32) & _MASK))
        return torch.stack(torch.broadcast_tensors(*words), dim=-1).flatten(1)[:, :count]

    def uniform(self, count: int, device: torch.device | None = None) -> Tensor:
        """Return the next draw as uniforms in (0, 1): (B, count)."""
        device = device or torch.device("cpu")
        # Float64 where the device has it: rounding to float32 afterwards hides last-digit differences between devices.
        dtype = torch.float32 if device.type == "mps" else torch.float64
        return (self.words(count, device).to(dtype) + 0.5) * 2.0**-32

    def like(self, x: Tensor) -> Tensor:
        """Return the next draw as standard normals of x's shape, dtype and device (Box-Muller).  x: (B, ...)."""
        if len(x) != len(self.seeds):
            raise ValueError(f"{len(self.seeds)} seeds cannot give noise for a batch of {len(x)}")
        count = math.prod(x.shape[1:])
        half = -(-count // 2)
        u = self.uniform(2 * half, x.device)
        radius = (-2 * u[:, :half].log()).sqrt()
        angle = 2 * math.pi * u[:, half:]
        normal = torch.cat([radius * angle.cos(), radius * angle.sin()], dim=1)[:, :count]
        return normal.to(x.dtype).reshape(x.shape)
