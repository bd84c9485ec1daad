"""Several processes that work together: the first leads, and tells the others what to do.

Only the leader reads options, writes and decides; the others hold the same model and do their share: gradients of their
micro-batches, samples of their numbers, features of their blocks.  Nothing that is sent is ever unpickled.
"""

from __future__ import annotations

import math
import os
import secrets
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from enum import IntEnum

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import PrefixStore, Store
from torch.distributed.rendezvous import rendezvous

from reverie.base.errors import UserError

MAX_WAIT = 600.0  # seconds that a process is waited for; REVERIE_TIMEOUT tells another number
MAX_TEXT_BYTES = 2**24  # bytes of what is told as text
MAX_AXES = 8  # of an array that is sent
RESUME_ADVICE = "begin again, and the training goes on from its last checkpoint: --resume RUN"


def world_size() -> int:
    """Return how many processes torchrun started with this one; 1 where it did not."""
    return int(os.environ.get("WORLD_SIZE", "1")) if "RANK" in os.environ else 1


def rank() -> int:
    """Return the number of this process among them."""
    return int(os.environ.get("RANK", "0")) if world_size() > 1 else 0


def was_restarted() -> bool:
    """Tell whether torchrun started the processes again, because one of them was lost."""
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")) > 0


class TeamError(UserError):
    """What went wrong with another process; the state of the leader is whole, as of the last step."""


class LostError(TeamError):
    """A process that is no longer there, or does not answer."""


class Instruction(IntEnum):
    """What the leader wants: nothing more, or something of training, of sampling, or of measuring."""

    EXIT = 0
    TRAIN = 1  # get ready for a training
    RESTORE = 2  # put the state of the learner back
    STEP = 3
    OPEN_RUN = 4  # get ready to draw samples of a run
    SAMPLE = 5  # draw batches by their numbers
    OPEN_FEATURES = 6  # get ready to compute features
    COMPUTE_FEATURES = 7  # those of a block of images
    SHARD = 8  # share out the state of the learner
    GATHER_WEIGHTS = 9  # give the leader the weights, which are looked at
    SNAPSHOT = 10  # keep the state, which is good
    ROLL_BACK = 11  # go back to the good one
    GATHER_STATE = 12  # give the leader a state, for a file

    @property
    def duty(self) -> str:
        """The verb that the instruction belongs to, a key of the duties of `reverie.training.workers.serve`."""
        return {4: "sample", 5: "sample", 6: "evaluate", 7: "evaluate"}.get(self, "train")


@dataclass(frozen=True)
class StepInstruction:
    """What the leader says before each step.  i: steps done; seed: of what is drawn; fraction, rate: see `loop.fit`."""

    order: Instruction
    i: int = 0
    seed: int = 0
    fraction: float = 0.0
    rate: float = 0.0


def longest_wait() -> float:
    """Return the seconds that another process is waited for."""
    given = os.environ.get("REVERIE_TIMEOUT", str(MAX_WAIT))
    try:
        seconds = float(given)
    except ValueError:
        seconds = -1.0
    if not 0 < seconds < 1e6:
        raise UserError(f"REVERIE_TIMEOUT is seconds above 0, not {given!r}")
    return seconds


def _meet(rank: int, world: int, wait: timedelta) -> Store:
    """Return a place to meet that is new, where all have come.

    The place that torchrun keeps outlives the processes that it starts again, and so do the addresses that lost ones left
    there.  So each follower leaves a word of its own, and the leader answers every such word with the name of the new place.
    """
    store, _, _ = next(iter(rendezvous("env://", rank, world, timeout=wait)))
    if rank:
        word = secrets.token_hex(8)
        store.set(f"reverie/word/{rank}", word)
        name = store.get(f"reverie/answer/{word}").decode()
        store.set(f"reverie/{name}/came/{rank}", "yes")
        return PrefixStore(f"reverie/{name}", store)
    name, missing, end = secrets.token_hex(8), set(range(1, world)), time.monotonic() + wait.total_seconds()
    while missing:
        if time.monotonic() > end:
            raise RuntimeError(f"process {min(missing)} is missing")
        for k in sorted(missing):
            if store.check([f"reverie/{name}/came/{k}"]):
                missing.remove(k)
            elif store.check([f"reverie/word/{k}"]):
                store.set(f"reverie/answer/{store.get(f'reverie/word/{k}').decode()}", name)
        time.sleep(0.01)
    return PrefixStore(f"reverie/{name}", store)


class Team:
    """The processes that work together, as one of them sees it.  advice: what to do where one of them is lost."""

    advice = RESUME_ADVICE

    def __init__(self, rank: int, world: int, device: torch.device) -> None:
        self.rank, self.world = rank, world
        # Plain numbers and text go by the CPU; tensors by the device where they are.
        self.device = device if device.type == "cuda" else torch.device("cpu")
        wait = timedelta(seconds=longest_wait())
        backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
        with self.handle_errors("did not come"):
            dist.init_process_group(backend, store=_meet(rank, world, wait), rank=rank, world_size=world, timeout=wait)

    @contextmanager
    def handle_errors(self, what: str = "was lost, or did not answer") -> Iterator[None]:
        """Say what torch raises where another process is lost in one sentence."""
        try:
            yield
        except (RuntimeError, ValueError) as error:  # what torch raises for closed connections and for its time-outs
            first = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
            raise LostError(
                f"another of the {self.world} processes {what} within {longest_wait():g} seconds ({first[:160]}); {self.advice}"
            ) from None

    def broadcast(self, told: StepInstruction | None = None) -> StepInstruction:
        """Tell the others what to do, as the leader, or hear it."""
        sent = told or StepInstruction(Instruction.EXIT)
        whole = torch.tensor([sent.order, sent.i, sent.seed], dtype=torch.int64)
        parts = torch.tensor([sent.fraction, sent.rate], dtype=torch.float64)
        with self.handle_errors():
            dist.broadcast(whole, 0)
            dist.broadcast(parts, 0)
        order, i, seed = whole.tolist()
        return StepInstruction(Instruction(order), i, seed, *parts.tolist())

    def broadcast_text(self, said: str = "") -> str:
        """Tell the others a text, as the leader, or hear it."""
        raw = torch.frombuffer(bytearray(said.encode()), dtype=torch.uint8) if said else torch.empty(0, dtype=torch.uint8)
        size = torch.tensor([len(raw)])
        with self.handle_errors():
            dist.broadcast(size, 0)
            if not 0 <= int(size) <= MAX_TEXT_BYTES:
                raise LostError("what the leading process says cannot be read; are all of one version of Reverie?")
            raw = raw if self.rank == 0 else torch.empty(int(size), dtype=torch.uint8)
            if len(raw):
                dist.broadcast(raw, 0)
        return bytes(raw.tolist()).decode()

    def raise_any(self, fault: str = "") -> None:
        """Let all go on, or none: a fault of any process is raised in each of them."""
        bad = torch.tensor([int(bool(fault))])
        with self.handle_errors():
            dist.all_reduce(bad)
        if int(bad):
            self._raise(fault)

    def _raise(self, fault: str) -> None:
        """Raise what is wrong, in the words of the first process to which it happened."""
        raw = torch.zeros(4096, dtype=torch.uint8)
        coded = fault.encode()[: len(raw)]
        raw[: len(coded)] = torch.tensor(list(coded), dtype=torch.uint8)
        every = [torch.empty_like(raw) for _ in range(self.world)]
        with self.handle_errors():
            dist.all_gather(every, raw)
        texts = [bytes(t.tolist()).rstrip(b"\0").decode(errors="replace") for t in every]
        rank = next(k for k, text in enumerate(texts) if text)
        raise TeamError(texts[rank] if rank == 0 else f"process {rank} of {self.world}: {texts[rank]}")

    def all_reduce(self, mine: Tensor, fault: str = "") -> Tensor:
        """Return the sum over processes: of mine's shape.  mine: (N,)."""
        row = torch.cat([mine, mine.new_tensor([float(bool(fault))])])
        with self.handle_errors():
            dist.all_reduce(row)
        if row[-1] > 0:
            self._raise(fault)
        return row[:-1]

    def all_gather(self, mine: Tensor, fault: str = "") -> Tensor:
        """Return what all have, (W, ...), of mine's shape each."""
        self.raise_any(fault)
        return torch.stack(self.all_gather_unchecked(mine))

    def all_gather_unchecked(self, mine: Tensor) -> list[Tensor]:
        """Return what each has, where nothing can have gone wrong with any."""
        every = [torch.empty_like(mine) for _ in range(self.world)]
        with self.handle_errors():
            dist.all_gather(every, mine)
        return every

    def broadcast_tensors(self, tensors: dict[str, Tensor]) -> None:
        """Give the others the leader's tensors, in place."""
        with self.handle_errors():
            for name in sorted(tensors):
                t = tensors[name]
                sent = t.to(self.device).contiguous()
                dist.broadcast(sent, 0)
                if self.rank:
                    t.copy_(sent)

    def gather_arrays(self, mine: np.ndarray | None, fault: str = "") -> list[np.ndarray]:
        """Return the arrays of all, of any shapes, as float32 in the leader and nothing elsewhere.  mine: None for none."""
        x = torch.from_numpy(np.ascontiguousarray(np.empty(0) if mine is None else mine, np.float32))
        form = torch.tensor([x.ndim, *x.shape, *[0] * (MAX_AXES - x.ndim)])
        forms = self.all_gather(form, fault).tolist()
        shapes = [form[1 : 1 + form[0]] for form in forms]
        longest = max(math.prod(shape) for shape in shapes)
        padded = torch.zeros(longest)
        padded[: x.numel()] = x.flatten()
        every = [torch.empty_like(padded) for _ in shapes] if self.rank == 0 else None
        with self.handle_errors():
            dist.gather(padded, every, 0)
        return [t[: math.prod(shape)].reshape(shape).numpy() for t, shape in zip(every or (), shapes, strict=False)]

    def scatter(self, parts: Sequence[Tensor], shape: Sequence[int]) -> Tensor:
        """Give each process its part, as the leader, and return one's own.  shape: of the part of this process."""
        with self.handle_errors():
            if self.rank:
                mine = torch.empty(*shape)
                dist.recv(mine, 0)
                return mine
            for k, part in enumerate(parts):
                if k:
                    dist.send(part.float().cpu().contiguous(), k)
        return parts[0]

    def close(self, whole: bool = True) -> None:
        """Leave; the leader tells the others to leave, too, if all of them listen."""
        if self.rank == 0 and whole:
            with suppress(UserError):
                self.broadcast(StepInstruction(Instruction.EXIT))
        if dist.is_initialized():
            with suppress(RuntimeError):
                dist.destroy_process_group()
