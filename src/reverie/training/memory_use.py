"""How much memory a training will take, worked out without taking any, and how much there is."""

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

BYTES = 4  # of a number
WEIGHT_COPIES = 16  # weights, their average and gradients, the optimizer's state, two snapshots of all that, and room to work
LEVEL_COPIES = 5  # logits of a denoiser of levels, what they are made of, their probabilities, and the gradients of these
DATUM_COPIES = 10  # data, noise, their mixture, estimates, the loss and the gradients of these
OVERHEAD, ALLOCATED = 1.25, 64 * 2**20  # what an allocator and the layers' own room to work add: measured on U-Nets


class AllocationCounter(TorchDispatchMode):
    """Keeps count of the bytes of all tensors that live at a time, by their storages."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.now = self.most = 0
        self.known: dict[int, int] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(made):
            if isinstance(tensor, Tensor):
                self._enter(tensor.untyped_storage())
        return made

    def _enter(self, storage: torch.UntypedStorage) -> None:
        key = storage._cdata
        if key not in self.known:
            self.known[key] = storage.nbytes()
            self.now += self.known[key]
            self.most = max(self.most, self.now)
            weakref.finalize(storage, self._leave, key)

    def _leave(self, key: int) -> None:
        self.now -= self.known.pop(key)


class NetworkMemory:
    """The memory that a network for data of a shape takes; its tensors have shapes and no content.

    levels: numbers that a model has beside its network for each number of a datum.  What was worked out once is kept, by the
    number of data.
    """

    def __init__(self, network: Spec, shape: tuple[int, ...], levels: int = 0) -> None:
        self.fake = FakeTensorMode()  # on the meta device other kernels would be chosen, with other needs
        with self.fake:
            self.net: nn.Module = build(NETWORKS, network, "network")
        self.shape = shape
        self.steps, self.looks = dict[int, int](), dict[int, int]()
        self.beside = levels * math.prod(shape)
        self.weights = WEIGHT_COPIES * BYTES * (sum(p.numel() for p in self.net.parameters()) + self.beside)

    def step(self, batch: int) -> int:
        """Return the bytes of a training step."""
        if batch not in self.steps:
            levels = int(OVERHEAD * LEVEL_COPIES * BYTES * batch * self.beside)
            self.steps[batch] = levels + self._peak(batch, lambda x, level: self.net(x, level).sum().backward())
        return self.steps[batch]

    def look(self, count: int) -> int:
        """Return the bytes of evaluating so many data without gradients."""
        if count not in self.looks:
            with torch.no_grad():
                self.looks[count] = self._peak(count, self.net)
        return self.looks[count]

    def _peak(self, count: int, work: Callable[[Tensor, Tensor], Any]) -> int:
        with self.fake, AllocationCounter() as ledger:
            work(torch.empty(count, *self.shape), torch.empty(count))
        data = DATUM_COPIES * BYTES * count * math.prod(self.shape)
        return ALLOCATED + int(OVERHEAD * (ledger.most + data))


def codec_step_memory(codec: Spec, batch: int) -> int:
    """Return the bytes of a step in which the autoencoder of a codec is trained, see `latent_spec`."""
    return _codec_step(json.dumps(codec), batch)


@lru_cache(maxsize=64)
def _codec_step(codec: str, batch: int) -> int:
    spec, fake = json.loads(codec), FakeTensorMode()
    shape = tuple(spec["shape"])
    with fake, AllocationCounter() as ledger:
        model = autoencoder_of(settings_of_autoencoder(spec["autoencoder"]), shape)
        if isinstance(model, Autoencoder) and model.perceptual:
            model.use_perceptual_network(EfficientNetLite0())  # its weights need not be read to know their shapes
        model.loss(torch.empty(batch, *shape), None, 0).mean().backward()
    return ALLOCATED + int(OVERHEAD * ledger.most)


def measure_step_memory(model: TrainedModel, x: Tensor, labels: Tensor | None) -> int:
    """Return the most bytes that the tensors of one training step take at a time, beside the weights, by making one.

    x: (B, ...), a batch in user units; labels: (B,).
    """
    with AllocationCounter() as ledger:
        model.loss(x, labels, 0).mean().backward()
    most: int = ledger.most
    for p in model.parameters():
        p.grad = None
    return most


def network_memory(network: Spec, shape: tuple[int, ...], levels: int = 0) -> NetworkMemory:
    """Return the footprint of a network, the same one as before if it was asked for before."""
    return _footprint(json.dumps(network), shape, levels)


@lru_cache(maxsize=16)
def _footprint(network: str, shape: tuple[int, ...], levels: int) -> NetworkMemory:
    return NetworkMemory(json.loads(network), shape, levels)


def available(device: torch.device) -> int | None:
    """Return the bytes of memory that can still be had, None where the system does not tell."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    found = [bytes_free for bytes_free in (_machine(), _container()) if bytes_free is not None]
    return min(found, default=None)


def _machine() -> int | None:
    """Return what the machine has: as Linux tells it, or the free pages, or half of all pages."""
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
    """Return what is left of the least limit of the control groups that we are in (cgroup v2, or v1's own)."""
    try:
        lines = [line.split(":", 2) for line in own.read_text().splitlines()]
    except OSError:
        return None
    left = []
    for _, controllers, place in (line for line in lines if len(line) == 3):
        names = ("memory.max", "memory.current", "inactive_file") if not controllers else (
            "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"
        )  # fmt: skip
        if controllers and "memory" not in controllers.split(","):
            continue
        base = root / "memory" if controllers else root
        inside = base / place.lstrip("/")
        for folder in (inside, *inside.parents):
            left.append(_left_in(folder, *names))
            if folder == base:
                break
    return min((bytes_free for bytes_free in left if bytes_free is not None), default=None)


def _left_in(folder: Path, limit: str, used: str, reclaimable: str) -> int | None:
    try:
        most, now = int((folder / limit).read_text()), int((folder / used).read_text())
        rows = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
        return max(0, most - now + int(rows.get(reclaimable, 0)))
    except (OSError, ValueError):  # no limit is set ("max"), or there is no such group
        return None
