"""The gradient of a step: the sum over micro-batches, each a function of the seed and its number."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from reverie.base.errors import UserError
from reverie.base.noise import mix_seed
from reverie.base.team import LostError, StepInstruction, Team, world_size
from reverie.base.tensors import empty_tensor
from reverie.data import Dataset
from reverie.families.model import TrainedModel
from reverie.runs.config import TrainingConfig
from reverie.training.learner import Learner, Snapshot, TrainingState
from reverie.training.loader import Share, reader
from reverie.training.optimizer import Muon

MICRO_NUMBERS = 2**22  # maximum size of a micro-batch of several data; a request to stop waits for its end
MICRO_OF_EXACT = 12  # micro-batches of a batch with --exact; 12 divides evenly among 1, 2, 3, 4 or 6 processes


def micro_batches(exact: bool, processes: int, training: Mapping[str, Any], data: Dataset) -> int:
    """Return the default number of micro-batches of a batch.  training: fields of the table [training]."""
    largest = min(int(training["batch"]), len(data))
    if exact:
        return min(MICRO_OF_EXACT, largest)
    minimum = math.ceil(max(processes, world_size()) / int(training.get("accumulate", 1)))
    return max(minimum, min(largest, math.ceil(largest * math.prod(data.shape) / MICRO_NUMBERS)))


class Gradients:
    """Computes the gradient of each parameter over the batches of a step, and returns the mean loss.

    A step has `accumulate` batches of `micro` micro-batches.  Process r of W computes those whose number is r modulo W.  The
    gradients are summed by all-reduce, or, with --exact, in the order of their numbers, which gives the same bits for any W.
    """

    def __init__(self, model: TrainedModel, train: Dataset, settings: TrainingConfig, team: Team | None) -> None:
        self.model, self.train, self.settings, self.team = model, train, settings, team
        self.rank, self.world = (team.rank, team.world) if team is not None else (0, 1)
        self.micro = max(settings.micro_batches, math.ceil(self.world / settings.accumulate))
        self.parts = settings.accumulate * self.micro
        if self.micro > min(settings.batch, len(train)):
            raise UserError(f"a batch of {min(settings.batch, len(train))} cannot be split into {self.micro} parts for"
                            f" {self.world} processes; use fewer --processes or a larger --batch")  # fmt: skip
        self.parameters = [p for p in model.parameters() if p.requires_grad]
        self.loader: Iterator[tuple[Tensor, Tensor | None]] = iter(())

    def go_to(self, i: int) -> None:
        """Position the data loader at step i."""
        share = Share(self.micro, self.parts, self.rank, self.world)
        self.loader = reader(self.train, self.settings.batch, self.settings.seed, i * self.settings.accumulate, share)

    def _mine(self, i: int, seed: int) -> Iterator[Tensor]:
        """Yield the loss of each micro-batch of this process, weighted by its share of the batch, after its backward pass."""
        settings, device = self.settings, self.model.device
        total = settings.accumulate * min(settings.batch, len(self.train))
        for part in range(self.rank, self.parts, self.world):
            x, labels = next(self.loader)
            cond = labels.to(device) if labels is not None else None
            number, part_number = divmod(part, self.micro)
            part_seed = mix_seed(seed, i * settings.accumulate + number)
            part_seed = part_seed if self.micro == 1 else mix_seed(part_seed, part_number)
            with torch.autocast(device.type, torch.bfloat16, enabled=settings.precision == "bf16"):
                part_loss = self.model.loss(x.to(device), cond, part_seed).mean() / (total / len(x))
            part_loss.backward()
            yield part_loss.detach()

    def __call__(self, i: int, seed: int) -> Tensor:
        """Return the mean loss of step i: ()."""
        if self.team is None:
            return _sum_in_order(list(self._mine(i, seed)))
        losses, rows, fault = list[Tensor](), list[Tensor](), ""
        try:
            for part_loss in self._mine(i, seed):
                losses.append(part_loss)
                if self.settings.exact:
                    rows.append(self._flat(part_loss))
                    self._clear()
            if losses and not self.settings.exact:
                rows.append(self._flat(_sum_in_order(losses)))
        except (UserError, OSError) as error:
            fault = str(error) or type(error).__name__
        return self._reduce(rows, fault)

    def _clear(self) -> None:
        for p in self.parameters:
            p.grad = None

    def _flat(self, loss: Tensor) -> Tensor:
        """Return the gradients, whether each parameter has one, and the loss, as one vector."""
        has_gradient = torch.tensor([float(p.grad is not None) for p in self.parameters], device=loss.device)
        gradients = [p.grad.flatten().float() if p.grad is not None else p.new_zeros(p.numel()) for p in self.parameters]
        return torch.cat([*gradients, has_gradient, loss.float()[None]])

    def _reduce(self, rows: list[Tensor], fault: str) -> Tensor:
        """Sum over all processes, set the gradients of the parameters, and return the loss."""
        assert self.team is not None
        length = sum(p.numel() for p in self.parameters) + len(self.parameters) + 1
        if self.settings.exact:
            slots = math.ceil(self.parts / self.world)
            own_rows = torch.zeros(slots, length, device=self.model.device)
            for slot, row in enumerate(rows if not fault else []):
                own_rows[slot] = row
            gathered = self.team.all_gather(own_rows, fault)  # (W, slots, length)
            total = _sum_in_order([gathered[k % self.world, k // self.world] for k in range(self.parts)])
        else:
            total = self.team.all_reduce(
                rows[0] if rows and not fault else torch.zeros(length, device=self.model.device), fault
            )
        has_gradient, start = total[-1 - len(self.parameters) : -1].tolist(), 0
        for p, has in zip(self.parameters, has_gradient, strict=True):
            p.grad = total[start : start + p.numel()].view_as(p).to(p.dtype) if has else None
            start += p.numel()
        return total[-1]


def _sum_in_order(rows: list[Tensor]) -> Tensor:
    """Return ((r_0 + r_1) + r_2) + ..., summed in this order."""
    total = rows[0].clone()
    for row in rows[1:]:
        total += row
    return total


def make_step(learner: Learner, gradients: Gradients, instruction: StepInstruction) -> tuple[Tensor, Tensor]:
    """Make an optimizer step and return the loss and the norm of the gradient: (), ()."""
    for optimizer in learner.optimizers:
        optimizer.param_groups[0]["lr"] = instruction.rate
        optimizer.zero_grad(set_to_none=True)
    gradients.model.set_progress(instruction.fraction)
    loss = gradients(instruction.i, instruction.seed)
    norm = learner.clip(gradients.settings.gradient_clip)
    learner.updating = True
    for optimizer in learner.optimizers:
        optimizer.step()
    return loss, norm


def distribute_muon(learner: Learner, settings: TrainingConfig, team: Team) -> None:
    """Distribute the work of Muon over a team, unless bits must not depend on the number of processes."""
    for optimizer in learner.optimizers:
        if isinstance(optimizer, Muon) and not settings.exact:
            optimizer.team = team


def broadcast_state(team: Team, learner: Learner) -> None:
    """Copy the state of the leader's learner to all learners of a team.  Only the leader updates the average."""
    own = {name: t for name, t in learner.tensors().items() if not name.startswith("average.")}
    names = team.broadcast_text("\n".join(sorted(own)) if team.rank == 0 else "").split("\n")
    if team.rank == 0:
        team.broadcast_tensors(own)
        return
    specs = learner.forms()
    if unknown := [name for name in names if name not in specs]:
        raise LostError(
            f"this process has no tensor {unknown[0]}, which the leader has; use the same version of Reverie in all processes"
        )
    received = {name: empty_tensor(specs[name]) for name in names}
    team.broadcast_tensors(received)
    average = {name.replace("model.", "average.", 1): t for name, t in received.items() if name.startswith("model.")}
    learner.restore(Snapshot({**received, **average}, TrainingState()))
