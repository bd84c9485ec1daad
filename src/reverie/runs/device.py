"""The device of a run."""

from __future__ import annotations

import os

import torch

from reverie.base.errors import UserError
from reverie.base.team import world_size


def choose_device(name: str = "auto") -> torch.device:
    """Return a device by name; "auto" is CUDA, MPS or the CPU, the first that is available."""
    usable = ["cpu"]
    if torch.backends.mps.is_available():
        usable.insert(0, "mps")
    if torch.cuda.is_available():
        usable.insert(0, "cuda")
    if name == "auto":
        return torch.device(usable[0])
    if name.partition(":")[0] not in usable:
        raise UserError(f"the device {name!r} is not available; choose from: auto, {', '.join(usable)}")
    try:
        return torch.device(name)
    except RuntimeError:
        raise UserError(f"cannot parse the device {name!r}; use a name like cpu, cuda or cuda:0") from None


def device_for(name: str = "auto") -> torch.device:
    """Return the device of this process; with several processes, each has its own GPU."""
    device = choose_device(name)
    if device.type == "cuda" and world_size() > 1:
        return torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
    return device
