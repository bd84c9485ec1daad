"""Sampling of the next token from logits: temperature, top-k and top-p."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from reverie.base.errors import UserError

# Options of sampling text, with defaults.
OPTIONS: Mapping[str, Any] = {"prompt": None, "temperature": None, "top_k": None, "top_p": 1.0, "length": None}
PAIR_OPTIONS: Mapping[str, Any] = {**OPTIONS, "beams": None}  # of sequence-to-sequence models
MAX_TEMPERATURE = 100.0


@dataclass(frozen=True)
class TokenSampling:
    """p_i ~ exp(y_i / temperature) among the k most likely tokens, and of these the smallest set with probability p.

    (arXiv:1805.04833 and arXiv:1904.09751.)  A temperature of 0 selects the most likely token.
    """

    temperature: float = 1.0
    top_k: int | None = None
    top_p: float = 1.0

    @classmethod
    def of(cls, options: Mapping[str, Any], default: float = 1.0) -> TokenSampling:
        """Return the sampling of these options; raise a UserError for invalid values.  default: of the temperature."""
        temperature = options.get("temperature")
        sampling = cls(default if temperature is None else temperature, options.get("top_k"), options.get("top_p", 1.0))
        if not 0 <= sampling.temperature <= MAX_TEMPERATURE:
            raise UserError(f"--temperature must be between 0 (greedy) and {MAX_TEMPERATURE:g}, got {sampling.temperature}")
        if sampling.top_k is not None and sampling.top_k < 1:
            raise UserError(f"--top-k must be at least 1, got {sampling.top_k}")
        if not 0 < sampling.top_p <= 1:
            raise UserError(f"--top-p must be above 0 and at most 1, got {sampling.top_p}")
        return sampling

    def probabilities(self, y: Tensor) -> Tensor:
        """Return the probability of each token.  y: (B, V) -> (B, V)."""
        y = y.float()
        if self.temperature == 0:
            return torch.zeros_like(y).scatter(1, y.argmax(1, keepdim=True), 1.0)
        y = y / self.temperature
        if self.top_k is not None and self.top_k < y.shape[1]:
            y = y.masked_fill(y < y.topk(self.top_k, 1).values[:, -1:], -torch.inf)
        p = y.softmax(1)
        if self.top_p < 1:
            ordered, order = p.sort(1, descending=True)
            in_nucleus = ordered.cumsum(1) - ordered < self.top_p  # always keeps the first
            p = torch.zeros_like(p).scatter(1, order, ordered * in_nucleus)
            p = p / p.sum(1, keepdim=True)
        return p

    def __call__(self, y: Tensor, u: Tensor) -> Tensor:
        """Return the token of each row by inversion of a uniform number: (B,).  u: (B, 1)."""
        p = self.probabilities(y)
        cumulative = p.to(u.dtype).cumsum(1)
        chosen = (cumulative <= u * cumulative[:, -1:]).sum(1)
        # rounding may lead past the last token with positive probability
        last = p.shape[1] - 1 - (p > 0).flip(1).to(torch.int8).argmax(1)
        return torch.minimum(chosen, last)
