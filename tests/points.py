"""Random points and weights for the tests of transport, kernels and divergences."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def cloud(n: int, d: int, seed: int, spread: float = 1.0, shift: float = 0.0) -> Tensor:
    return torch.randn(n, d, dtype=torch.float64, generator=generator(seed)) * spread + shift


def weights(n: int, seed: int) -> Tensor:
    w = torch.rand(n, dtype=torch.float64, generator=generator(seed)) + 0.05
    return w / w.sum()


def same(a: Any, b: Any, tolerance: float = 1e-8) -> None:
    torch.testing.assert_close(torch.as_tensor(a), torch.as_tensor(b), rtol=tolerance, atol=tolerance, check_dtype=False)
