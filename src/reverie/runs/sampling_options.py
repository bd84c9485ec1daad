"""How to sample: the options, and which and how many samples a seed has."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TypedDict

import numpy as np

from reverie.base.errors import UserError

MOST_SAMPLES, MOST_FIRST = 10_000_000, 10**12


class Options(TypedDict, total=False):
    """How to sample.

    label: a name, "all" for each in turn, or weighted names such as "6:1.5,8:-1"; prompt: a text, or weighted ones such as
    "a seven::1.5, slanted::-0.5"; negative_prompt: a text that guidance moves away from; condition: numbers by name,
    "angle=0.5"; condition_image: a picture, each for a model that was trained with it; guidance: 1 is none;
    guidance_interval: the times it is limited to, "LOW,HIGH"; guidance_rescale, classifier_guidance: see
    `reverie.diffusion.guidance`, 0 is none; autoguidance: its scale, 1 is none, None what the training chose;
    precision: "fp32", or "bf16" for faster and slightly other images, None the one that is quick here; seed: image k of a
    seed is always the same image.
    Of text: prompt: what it goes on from, or what is answered; temperature: 1 as it was learned, less surer, 0 always the
    likeliest, if not given 1 and of answers 0; top_k, top_p: only the k likeliest tokens, or the fewest whose share is p;
    length: characters, at most; beams: answers that a search keeps at a time.
    """

    label: str | None
    prompt: str | None
    negative_prompt: str | None
    condition: str | Mapping[str, float] | None
    condition_image: str | Path | np.ndarray | None
    guidance: float
    guidance_interval: str | tuple[float, float] | None
    guidance_rescale: float
    classifier_guidance: float
    autoguidance: float | None
    precision: str | None
    seed: int
    sampler: str | None
    steps: int | None
    grid: str | None
    temperature: float | None
    top_k: int | None
    top_p: float
    length: int | None
    beams: int | None


def check_count(n: int) -> None:
    """Refuse a number of samples that cannot be drawn."""
    if not isinstance(n, int) or not 1 <= n <= MOST_SAMPLES:
        raise UserError(f"the number of samples must be a whole number, at least 1 and at most {MOST_SAMPLES:,}, got {n}")


def check_first(first: int) -> None:
    """Refuse a number of the first sample that a seed does not have."""
    if not isinstance(first, int) or not 0 <= first < MOST_FIRST:
        raise UserError(f"the number of the first sample must be a whole number from 0 up to {MOST_FIRST:,}, got {first}")
