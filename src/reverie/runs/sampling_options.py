"""Sampling options, and limits of the number and index of samples."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TypedDict

import numpy as np

from reverie.base.errors import UserError

MAX_SAMPLES, MAX_FIRST = 10_000_000, 10**12


class Options(TypedDict, total=False):
    """Sampling options.

    label: a label, "all" for each in turn, or a weighted sum such as "6:1.5,8:-1"; prompt: a text, or a weighted sum such as
    "a seven::1.5, slanted::-0.5"; negative_prompt: a text that guidance moves away from; condition: numbers by name,
    "angle=0.5"; condition_image: an image (each of these for models that were trained with it); guidance: scale, 1 is none;
    guidance_interval: times with guidance, "LOW,HIGH"; guidance_rescale, classifier_guidance: see
    `reverie.diffusion.guidance`, 0 is none; autoguidance: scale, 1 is none, None the default of the run; precision: "fp32", or
    "bf16" for speed and slightly different images, None the faster on this device; seed: image k of a seed is always the same.
    For text: prompt: the text to continue or to answer; temperature: of the softmax, 0 is greedy, default 1, or 0 for answers;
    top_k, top_p: only the k most likely tokens, or the fewest with probability p; length: limit in characters; beams: width of
    the beam search.
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
    """Refuse an invalid number of samples."""
    if not isinstance(n, int) or not 1 <= n <= MAX_SAMPLES:
        raise UserError(f"the number of samples must be an integer from 1 to {MAX_SAMPLES:,}, got {n}")


def check_first(first: int) -> None:
    """Refuse an invalid index of the first sample."""
    if not isinstance(first, int) or not 0 <= first < MAX_FIRST:
        raise UserError(f"the index of the first sample must be an integer from 0 to {MAX_FIRST:,}, got {first}")
