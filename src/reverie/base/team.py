"""Processes that work together: rank 0 is the leader and instructs the others.

Only the leader reads options, writes files and makes decisions; the others hold the same model and compute their share:
gradients of micro-batches, samples by number, features of blocks.  No received data is unpickled.
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

MAX_WAIT = 600.0  # seconds to wait for another process; the environment variable REVERIE_TIMEOUT overrides it
MAX_TEXT_BYTES = 2**24  # maximum bytes of a broadcast text
MAX_AXES = 8  # maximum dimensions of a broadcast array
RESUME_ADVICE = "start again, which resumes from the last checkpoint: --resume RUN"


def world_size() -> int:
    """Return the number of processes that torchrun started; 1 without torchrun."""
    return int(os.environ.get("WORLD_SIZE", "1")) if "RANK" in os.environ else 1


def rank() -> int:
    """Return the rank of this process."""
    return int(os.environ.get("RANK", "0")) if world_size() > 1 else 0


def was_restarted() -> bool:
    """Return whether torchrun restarted the processes after one was lost."""
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")) > 0


class TeamError(UserError):
    """An error in another process; the leader keeps its state after the last step."""


class LostError(TeamError):
    """A process ended or does not respond."""


class Instruction(IntEnum):
    """An instruction of the leader to the other processes."""

    EXIT = 0
    TRAIN = 1  # prepare training
    RESTORE = 2  # restore the learner's state
    STEP = 3
    OPEN_RUN = 4  # load a run for sampling
    SAMPLE = 5  # sample batches by number
    OPEN_FEATURES = 6  # load features
    COMPUTE_FEATURES = 7  # of a block of images
    SHARD = 8  # shard the learner's state
    GATHER_WEIGHTS = 9  # give the leader the full weights
    SNAPSHOT = 10  # keep a copy of the state
    ROLL_BACK = 11  # return to that copy
    GATHER_STATE = 12  # give the leader a full state for a file

    @property
    def command(self) -> str:
        """The command that the instruction belongs to: sample, evaluate or train."""
        return {4: "sample", 5: "sample", 6: "evaluate", 7: "evaluate"}.get(self, "train")


@dataclass(frozen=True)
class StepInstruction:
    """An instruction with its numbers.  i: steps done; seed: of the step's noise; fraction, rate: see `loop.fit`."""

    order: Instruction
    i: int = 0
    seed: int = 0
    fraction: float = 0.0
    rate: float = 0.0


def longest_wait() -> float:
    """Return the seconds to wait for another process."""
    setting = os.environ.get("REVERIE_TIMEOUT", str(MAX_WAIT))
    try:
        seconds = float(setting)
    except ValueError:
        seconds = -1.0
    if not 0 < seconds < 1e6:
        raise UserError(f"REVERIE_TIMEOUT is {setting!r}; set a number of seconds above 0")
    return seconds


def _rendezvous(rank: int, world: int, wait: timedelta) -> Store:
    """Return a fresh rendezvous store that all processes have joined.

    The store of torchrun outlives restarted processes, and so do the addresses that lost processes left there.  So each
    other process writes a random token, and the leader replies to each with the name of the new store.
    """
    store, _, _ = next(iter(rendezvous("env://", rank, world, timeout=wait)))
    if rank:
        token = secrets.token_hex(8)
        store.set(f"reverie/word/{rank}", token)
        name = store.get(f"reverie/answer/{token}").decode()
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
    """The process group, as seen by one process.  advice: what to do if a process is lost."""

    advice = RESUME_ADVICE

    def __init__(self, rank: int, world: int, device: torch.device) -> None:
        self.rank, self.world = rank, world
        # Numbers and text are exchanged on the CPU, tensors on their device.
        self.device = device if device.type == "cuda" else torch.device("cpu")
        wait = timedelta(seconds=longest_wait())
        backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
        with self.handle_errors("did not connect"):
            dist.init_process_group(backend, store=_rendezvous(rank, world, wait), rank=rank, world_size=world, timeout=wait)

    @contextmanager
    def handle_errors(self, what: str = "was lost, or did not respond") -> Iterator[None]:
        """Raise torch's errors about lost processes as a LostError."""
        try:
            yield
        except (RuntimeError, ValueError) as error:  # raised by torch for closed connections and time-outs
            first = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
            raise LostError(
                f"another of the {self.world} processes {what} within {longest_wait():g} seconds ({first[:160]}); {self.advice}"
            ) from None

    def broadcast(self, instruction: StepInstruction | None = None) -> StepInstruction:
        """Broadcast an instruction from the leader; return it."""
        sent = instruction or StepInstruction(Instruction.EXIT)
        integers = torch.tensor([sent.order, sent.i, sent.seed], dtype=torch.int64)
        floats = torch.tensor([sent.fraction, sent.rate], dtype=torch.float64)
        with self.handle_errors():
            dist.broadcast(integers, 0)
            dist.broadcast(floats, 0)
        order, i, seed = integers.tolist()
        return StepInstruction(Instruction(order), i, seed, *floats.tolist())

    def broadcast_text(self, text: str = "") -> str:
        """Broadcast a text from the leader; return it."""
        raw = torch.frombuffer(bytearray(text.encode()), dtype=torch.uint8) if text else torch.empty(0, dtype=torch.uint8)
        size = torch.tensor([len(raw)])
        with self.handle_errors():
            dist.broadcast(size, 0)
            if not 0 <= int(size) <= MAX_TEXT_BYTES:
                raise LostError("the text of the leading process is invalid; do all processes run the same version of Reverie?")
            raw = raw if self.rank == 0 else torch.empty(int(size), dtype=torch.uint8)
            if len(raw):
                dist.broadcast(raw, 0)
        return bytes(raw.tolist()).decode()

    def raise_any(self, error: str = "") -> None:
        """Raise an error in all processes if any of them has one."""
        bad = torch.tensor([int(bool(error))])
        with self.handle_errors():
            dist.all_reduce(bad)
        if int(bad):
            self._raise(error)

    def _raise(self, error: str) -> None:
        """Raise the error of the first process that has one."""
        raw = torch.zeros(4096, dtype=torch.uint8)
        coded = error.encode()[: len(raw)]
        raw[: len(coded)] = torch.tensor(list(coded), dtype=torch.uint8)
        gathered = [torch.empty_like(raw) for _ in range(self.world)]
        with self.handle_errors():
            dist.all_gather(gathered, raw)
        texts = [bytes(t.tolist()).rstrip(b"\0").decode(errors="replace") for t in gathered]
        rank = next(k for k, text in enumerate(texts) if text)
        raise TeamError(texts[rank] if rank == 0 else f"process {rank} of {self.world}: {texts[rank]}")

    def all_reduce(self, mine: Tensor, error: str = "") -> Tensor:
        """Return the sum over processes, (N,).  mine: (N,)."""
        values_and_error = torch.cat([mine, mine.new_tensor([float(bool(error))])])
        with self.handle_errors():
            dist.all_reduce(values_and_error)
        if values_and_error[-1] > 0:
            self._raise(error)
        return values_and_error[:-1]

    def all_gather(self, mine: Tensor, error: str = "") -> Tensor:
        """Return the tensors of all processes, stacked: (W, ...)."""
        self.raise_any(error)
        return torch.stack(self.all_gather_unchecked(mine))

    def all_gather_unchecked(self, mine: Tensor) -> list[Tensor]:
        """Return the tensors of all processes, without an exchange of errors."""
        gathered = [torch.empty_like(mine) for _ in range(self.world)]
        with self.handle_errors():
            dist.all_gather(gathered, mine)
        return gathered

    def broadcast_tensors(self, tensors: dict[str, Tensor]) -> None:
        """Broadcast the leader's tensors, in place."""
        with self.handle_errors():
            for name in sorted(tensors):
                t = tensors[name]
                sent = t.to(self.device).contiguous()
                dist.broadcast(sent, 0)
                if self.rank:
                    t.copy_(sent)

    def gather_arrays(self, mine: np.ndarray | None, error: str = "") -> list[np.ndarray]:
        """Return the arrays of all processes, of any shapes, as float32 in the leader and nothing elsewhere.

        mine: None for none.
        """
        x = torch.from_numpy(np.ascontiguousarray(np.empty(0) if mine is None else mine, np.float32))
        layout = torch.tensor([x.ndim, *x.shape, *[0] * (MAX_AXES - x.ndim)])
        layouts = self.all_gather(layout, error).tolist()
        shapes = [layout[1 : 1 + layout[0]] for layout in layouts]
        longest = max(math.prod(shape) for shape in shapes)
        padded = torch.zeros(longest)
        padded[: x.numel()] = x.flatten()
        gathered = [torch.empty_like(padded) for _ in shapes] if self.rank == 0 else None
        with self.handle_errors():
            dist.gather(padded, gathered, 0)
        return [t[: math.prod(shape)].reshape(shape).numpy() for t, shape in zip(gathered or (), shapes, strict=False)]

    def scatter(self, parts: Sequence[Tensor], shape: Sequence[int]) -> Tensor:
        """Send each process its part, as the leader; return this process's own.  shape: of the part of this process."""
        with self.handle_errors():
            if self.rank:
                mine = torch.empty(*shape)
                dist.recv(mine, 0)
                return mine
            for k, part in enumerate(parts):
                if k:
                    dist.send(part.float().cpu().contiguous(), k)
        return parts[0]

    def close(self, responsive: bool = True) -> None:
        """Leave the group; the leader instructs the others to exit if all are responsive."""
        if self.rank == 0 and responsive:
            with suppress(UserError):
                self.broadcast(StepInstruction(Instruction.EXIT))
        if dist.is_initialized():
            with suppress(RuntimeError):
                dist.destroy_process_group()
