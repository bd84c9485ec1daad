"""Where a run computes."""

from __future__ import annotations

import os

import torch

from reverie.base.errors import UserError
from reverie.base.team import world_size


def choose_device(name: str = "auto") -> torch.device:
    """Return the device asked for; "auto" is CUDA, else MPS, else the CPU."""
    usable = ["cpu"]
    if torch.backends.mps.is_available():
        usable.insert(0, "mps")
    if torch.cuda.is_available():
        usable.insert(0, "cuda")
    if name == "auto":
        return torch.device(usable[0])
    if name.partition(":")[0] not in usable:
        raise UserError(f"the device {name!r} is not usable on this machine; choose from: auto, {', '.join(usable)}")
    try:
        return torch.device(name)
    except RuntimeError:
        raise UserError(f"cannot read the device {name!r}; write it like cpu, cuda or cuda:0") from None


def device_for(name: str = "auto") -> torch.device:
    """Return where this process works: each has a GPU of its own where there are several processes."""
    where = choose_device(name)
    return torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0"))) if where.type == "cuda" and world_size() > 1 else where
