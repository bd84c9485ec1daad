"""Random points and weights for the tests of transport, kernels and divergences."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def cloud(n: int, d: int, seed: int, std: float = 1.0, shift: float = 0.0) -> Tensor:
    return torch.randn(n, d, dtype=torch.float64, generator=generator(seed)) * std + shift


def weights(n: int, seed: int) -> Tensor:
    w = torch.rand(n, dtype=torch.float64, generator=generator(seed)) + 0.05
    return w / w.sum()


def same(a: Any, b: Any, tolerance: float = 1e-8) -> None:
    a, b = (torch.as_tensor(value, dtype=torch.float64) for value in (a, b))  # a Python number would become float32
    torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)
