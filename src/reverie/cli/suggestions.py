"""Options that are meant by names which other programs have for them."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

USUAL: dict[str, str] = {
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


def meant(option: str, known: Iterable[str]) -> str | None:
    """Return the option of a command that is meant by one which it does not have: by its usual name, initials, or spelling."""
    known, bare = list(known), option.lstrip("-").replace("_", "-").lower()
    if (usual := USUAL.get(bare)) in known:
        return usual
    for name in known:
        words = name.lstrip("-").split("-")
        if len(words) > 1 and bare == "".join(word[:1] for word in words):
            return name
    close = get_close_matches(f"--{bare}", known, n=1, cutoff=0.7)
    return close[0] if close else None
