"""Estimates of the memory that a training needs, without allocating it, and the memory that is free."""

from __future__ import annotations

import json
import math
import os
import weakref
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from reverie.base.spec import Spec, build
from reverie.families.diffusion.latent_codec import autoencoder_of, settings_of_autoencoder
from reverie.families.model import TrainedModel
from reverie.families.vae.autoencoder import Autoencoder
from reverie.nets import NETWORKS
from reverie.nets.efficientnet import EfficientNetLite0

BYTES = 4  # per number
WEIGHT_COPIES = 16  # weights, EMA, gradients, optimizer state, two snapshots of all these, and workspace
LEVEL_COPIES = 5  # logits of a denoiser of levels, their inputs, probabilities, and the gradients of these
DATUM_COPIES = 10  # clean data, noise, noisy data, estimates, the loss and the gradients of these
OVERHEAD, ALLOCATED = 1.25, 64 * 2**20  # factor and bytes for the allocator and workspace of layers, measured on U-Nets


class AllocationCounter(TorchDispatchMode):
    """Counts the bytes of all live tensors, by their storages: now, and at the peak."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.now = self.peak = 0
        self.sizes: dict[int, int] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(result):
            if isinstance(tensor, Tensor):
                self._add(tensor.untyped_storage())
        return result

    def _add(self, storage: torch.UntypedStorage) -> None:
        key = storage._cdata
        if key not in self.sizes:
            self.sizes[key] = storage.nbytes()
            self.now += self.sizes[key]
            self.peak = max(self.peak, self.now)
            weakref.finalize(storage, self._remove, key)

    def _remove(self, key: int) -> None:
        self.now -= self.sizes.pop(key)


class NetworkMemory:
    """The memory of a network for data of a shape, by fake tensors.

    levels: numbers that the model stores, beyond its network, per number of a datum.  Results are cached by the batch size.
    """

    def __init__(self, network: Spec, shape: tuple[int, ...], levels: int = 0) -> None:
        self.fake = FakeTensorMode()  # the meta device would choose other kernels
        with self.fake:
            self.net: nn.Module = build(NETWORKS, network, "network")
        self.shape = shape
        self.steps, self.evaluations = dict[int, int](), dict[int, int]()
        self.level_numbers = levels * math.prod(shape)
        self.weights = WEIGHT_COPIES * BYTES * (sum(p.numel() for p in self.net.parameters()) + self.level_numbers)

    def step(self, batch: int) -> int:
        """Return the bytes of a training step."""
        if batch not in self.steps:
            levels = int(OVERHEAD * LEVEL_COPIES * BYTES * batch * self.level_numbers)
            self.steps[batch] = levels + self._peak(batch, lambda x, level: self.net(x, level).sum().backward())
        return self.steps[batch]

    def evaluation(self, count: int) -> int:
        """Return the bytes of evaluating `count` data without gradients."""
        if count not in self.evaluations:
            with torch.no_grad():
                self.evaluations[count] = self._peak(count, self.net)
        return self.evaluations[count]

    def _peak(self, count: int, call: Callable[[Tensor, Tensor], Any]) -> int:
        with self.fake, AllocationCounter() as counter:
            call(torch.empty(count, *self.shape), torch.empty(count))
        data = DATUM_COPIES * BYTES * count * math.prod(self.shape)
        return ALLOCATED + int(OVERHEAD * (counter.peak + data))


def codec_step_memory(codec: Spec, batch: int) -> int:
    """Return the bytes of a training step of the autoencoder of a codec, see `latent_spec`."""
    return _codec_step(json.dumps(codec), batch)


@lru_cache(maxsize=64)
def _codec_step(codec: str, batch: int) -> int:
    spec, fake = json.loads(codec), FakeTensorMode()
    shape = tuple(spec["shape"])
    with fake, AllocationCounter() as counter:
        model = autoencoder_of(settings_of_autoencoder(spec["autoencoder"]), shape)
        if isinstance(model, Autoencoder) and model.perceptual:
            model.use_perceptual_network(EfficientNetLite0())  # for its shapes, without reading its weights
        model.loss(torch.empty(batch, *shape), None, 0).mean().backward()
    return ALLOCATED + int(OVERHEAD * counter.peak)


def measure_step_memory(model: TrainedModel, x: Tensor, labels: Tensor | None) -> int:
    """Return the peak bytes of the tensors of a training step, without the weights, by executing one.

    x: (B, ...), a batch in user units; labels: (B,).
    """
    with AllocationCounter() as counter:
        model.loss(x, labels, 0).mean().backward()
    peak: int = counter.peak
    for p in model.parameters():
        p.grad = None
    return peak


def network_memory(network: Spec, shape: tuple[int, ...], levels: int = 0) -> NetworkMemory:
    """Return the memory of a network; cached."""
    return _network_memory(json.dumps(network), shape, levels)


@lru_cache(maxsize=16)
def _network_memory(network: str, shape: tuple[int, ...], levels: int) -> NetworkMemory:
    return NetworkMemory(json.loads(network), shape, levels)


def available(device: torch.device) -> int | None:
    """Return the free bytes of memory; None if the system does not report them."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    limits = [bytes_free for bytes_free in (_machine(), _container()) if bytes_free is not None]
    return min(limits, default=None)


def _machine() -> int | None:
    """Return the free memory of the machine: as reported by Linux, or the free pages, or half of all pages."""
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except (OSError, ValueError, IndexError):
        pass
    for name, share in (("SC_AVPHYS_PAGES", 1.0), ("SC_PHYS_PAGES", 0.5)):
        try:
            return round(share * os.sysconf(name) * os.sysconf("SC_PAGE_SIZE"))
        except (ValueError, OSError, AttributeError):
            continue
    return None


def _container(root: Path = Path("/sys/fs/cgroup"), own: Path = Path("/proc/self/cgroup")) -> int | None:
    """Return the remaining memory within the limits of the control groups of this process (cgroup v2 or v1)."""
    try:
        lines = [line.split(":", 2) for line in own.read_text().splitlines()]
    except OSError:
        return None
    free = []
    for _, controllers, group in (line for line in lines if len(line) == 3):
        names = ("memory.max", "memory.current", "inactive_file") if not controllers else (
            "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"
        )  # fmt: skip
        if controllers and "memory" not in controllers.split(","):
            continue
        base = root / "memory" if controllers else root
        lowest = base / group.lstrip("/")
        for folder in (lowest, *lowest.parents):
            free.append(_left_in(folder, *names))
            if folder == base:
                break
    return min((bytes_free for bytes_free in free if bytes_free is not None), default=None)


def _left_in(folder: Path, limit: str, used: str, reclaimable: str) -> int | None:
    try:
        maximum, current = int((folder / limit).read_text()), int((folder / used).read_text())
        stats = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
        return max(0, maximum - current + int(stats.get(reclaimable, 0)))
    except (OSError, ValueError):  # no limit is set ("max"), or there is no such group
        return None
