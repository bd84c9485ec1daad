"""Parsing of prompts, negative prompts and numbers into condition vectors."""

from __future__ import annotations

import math
import re
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from reverie.base.errors import ReverieWarning, UserError
from reverie.data.conditions import MAX_CAPTION_LENGTH, ConditionForm
from reverie.data.single_image import read_picture
from reverie.diffusion.guidance import check_scale
from reverie.runs.labels import MAX_PARTS

NEGATIVE_GUIDANCE = 2.0  # the default guidance scale with a negative prompt
PART = re.compile(r"\s*(.+?)::\s*([+-]?(?:\d+\.?\d*|\.\d+)(?:e[+-]?\d+)?)\s*(?:,\s*|$)", re.IGNORECASE | re.DOTALL)
CONDITION_OPTIONS = ("prompt", "negative_prompt", "condition", "condition_image")  # in addition to label


def read_prompt(text: str) -> tuple[tuple[str, ...], tuple[float, ...]]:
    """Return the parts of a prompt and their weights: `a seven::1.5, slanted::-0.5`, or the whole text with weight 1."""
    if "::" not in text:
        return (text,), (1.0,)
    parts, rest = [], text
    while rest.strip():
        match = PART.match(rest)
        if match is None:
            raise UserError(f"cannot parse the prompt {text[:200]!r}; weight its parts like 'a seven::1.5, slanted::-0.5'")
        parts.append((match[1].strip(), float(match[2])))
        rest = rest[match.end() :]
    if len(parts) > MAX_PARTS:
        raise UserError(f"at most {MAX_PARTS} prompts can be composed, got {len(parts)}")
    weights = tuple(check_scale(weight, f"the weight of {part[:60]!r}") for part, weight in parts)
    return tuple(part for part, _ in parts), weights


def read_conditions(text: str | Mapping[str, float] | None) -> dict[str, float]:
    """Read numbers by name: `angle=0.5,age=3`."""
    if text is None or not isinstance(text, str):
        return dict(text or {})
    numbers = {}
    for part in text.split(","):
        name, equals, value = part.partition("=")
        try:
            numbers[name.strip().lower()] = float(value)
        except ValueError:
            equals = ""
        if not equals or not math.isfinite(numbers[name.strip().lower()]):
            raise UserError(
                f"cannot parse {part.strip()[:80]!r} of --condition; write numbers by name, such as angle=0.5,age=3"
            )
    return numbers


def has_condition(options: Mapping[str, Any]) -> bool:
    """Return whether options contain a condition other than a label."""
    return any(options.get(key) is not None for key in CONDITION_OPTIONS)


def composition_weights(options: Mapping[str, Any]) -> tuple[float, ...]:
    """Return the weights of the `condition_vectors`.

    The negative prompt replaces the null condition: s c + (1 - s) a for a scale s is, in the form of
    `ClassifierFree`, a weight of (1 - s) / s.
    """
    prompt, negative = options.get("prompt"), options.get("negative_prompt")
    weights = read_prompt(prompt)[1] if prompt is not None else (1.0,)
    if negative is None:
        return weights
    scale = options.get("guidance", 1.0)
    return (*weights, (1 - scale * sum(weights)) / scale)


def with_guidance(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return options with the default guidance scale of a negative prompt, if none was given."""
    if options.get("negative_prompt") is None or options.get("guidance", 1.0) != 1:
        if options.get("negative_prompt") is not None and options["guidance"] <= 1:
            raise UserError(
                f"--negative-prompt needs guidance, but --guidance is {options['guidance']}; use one above 1, or omit it"
            )
        return dict(options)
    return {**options, "guidance": NEGATIVE_GUIDANCE}


def condition_vectors(form: ConditionForm, options: Mapping[str, Any], fit: str) -> Tensor:
    """Return the condition vectors of options, one for each part of the prompt, and last the negative prompt: (K, R)."""
    prompt, negative, image = options.get("prompt"), options.get("negative_prompt"), options.get("condition_image")
    texts: Sequence[str] = read_prompt(prompt)[0] if prompt is not None else ("",)
    if (prompt is not None or negative is not None) and not form.length:
        raise UserError("the model was trained without captions; omit --prompt and --negative-prompt")
    if image is not None and form.image is None:
        raise UserError("the model was trained without an image as condition; omit --condition-image")
    texts = (*texts, negative_prompt(form, texts[0], negative)) if negative is not None else texts
    picture = _picture(image, form.image, fit) if image is not None and form.image is not None else None
    numbers = read_conditions(options.get("condition"))
    for text in texts:
        if form.length and (len(text) > MAX_CAPTION_LENGTH or not form.tokens(text)[1]):
            warnings.warn(
                f"the prompt is longer than the training captions; only its first {form.length} tokens are used",
                ReverieWarning,
                stacklevel=2,
            )
    if unknown := [word for text in texts for word in form.unknown_words(text)]:
        warnings.warn(
            f"the training captions contain these words at most once: {', '.join(dict.fromkeys(unknown))[:200]}; samples will"
            " not show them",
            ReverieWarning,
            stacklevel=2,
        )
    return torch.stack([form.vector(text, numbers, picture) for text in texts])


def negative_prompt(form: ConditionForm, prompt: str, negative: str) -> str:
    """Return the text that guidance moves away from: prompt and negative prompt, or only the latter if both are too long.

    A model of a small dataset learns whole captions: the difference between "a thin seven slanted" and "a thin seven" is
    clearer than "slanted" alone.
    """
    joined = f"{prompt} {negative}"
    return joined if form.tokens(joined)[1] else negative


def _picture(image: str | Path | np.ndarray, shape: tuple[int, int, int], fit: str) -> Tensor:
    picture = read_picture(image, shape, "image", fit)
    picture.warn_if_resized()
    return torch.from_numpy(picture.x)
