"""Suggestions for unknown options: names that other programs use, initials and spelling mistakes."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

ALIASES: dict[str, str] = {
    "batch-size": "--batch", "bs": "--batch", "lr": "--learning-rate", "n-steps": "--steps", "num-steps": "--steps",
    "max-steps": "--steps", "iterations": "--steps", "num-inference-steps": "--steps", "nfe": "--steps", "epoch": "--epochs",
    "num-epochs": "--epochs", "n-epochs": "--epochs", "time": "--minutes", "num-samples": "-n", "n-samples": "-n", "num": "-n",
    "samples": "-n", "count": "-n", "cfg": "--guidance", "cfg-scale": "--guidance", "guidance-scale": "--guidance",
    "negative": "--negative-prompt", "max-grad-norm": "--gradient-clip", "gradient-clip-val": "--gradient-clip",
    "class": "--label", "output": "--out", "output-dir": "--out", "output-path": "--out",
    "resolution": "--size", "image-size": "--size", "img-size": "--size", "model": "--family", "arch": "--network",
    "architecture": "--network", "scheduler": "--sampler", "random-seed": "--seed", "dropout": "--label-dropout",
    "optim": "--optimizer", "gpu": "--device", "workers": "--processes", "force": "--overwrite",
}  # fmt: skip


def closest_option(option: str, options: Iterable[str]) -> str | None:
    """Return the option closest to an unknown one, by its name in other programs, its initials or its spelling."""
    options, bare = list(options), option.lstrip("-").replace("_", "-").lower()
    if (alias := ALIASES.get(bare)) in options:
        return alias
    for name in options:
        words = name.lstrip("-").split("-")
        if len(words) > 1 and bare == "".join(word[:1] for word in words):
            return name
    close = get_close_matches(f"--{bare}", options, n=1, cutoff=0.7)
    return close[0] if close else None
