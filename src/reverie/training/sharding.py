"""A learner whose parameters, optimizer state and EMA weights are sharded over processes (FSDP2).

Each process holds its rows of each tensor.  A layer's parameters are gathered when it is computed, and its gradients are
reduced and scattered (`torch.distributed.fsdp.fully_shard`).  Optimizers and averages work on rows.  The leader's
unsharded models are empty between reports; rows are gathered into them for reports and files, whose format is that of one
process.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn

from reverie.base.errors import UserError
from reverie.base.team import Instruction, StepInstruction, Team
from reverie.data import Dataset
from reverie.families.model import Model, TrainedModel
from reverie.nets import transformer, unet
from reverie.runs.config import TrainingConfig
from reverie.training.gradient import Gradients
from reverie.training.learner import Average, Learner, Snapshot
from reverie.training.optimizer import Muon, adamw_of
from reverie.training.row_sharding import Rows, ShardedMuon

# Modules whose parameters are gathered when they are computed; those of others, for the whole loss.
UNITS = (unet.ResidualBlock, transformer.DiTBlock)


def check_shard(settings: TrainingConfig, world: int) -> None:
    """Refuse settings that cannot be sharded."""
    if world < 2:
        raise UserError("--shard needs several processes; add --processes 2, or start with torchrun")
    if settings.exact:
        raise UserError("--exact needs complete gradients in each process, which --shard splits; use only one of them")
    if settings.lora is not None:
        raise UserError("--lora trains few weights, which need no sharding; omit --shard")
    parts = settings.accumulate * max(settings.micro_batches, math.ceil(world / settings.accumulate))  # see `Gradients`
    if parts % world:
        raise UserError(f"{parts} micro-batches of a step do not divide evenly among {world} processes; add"
                        f" --micro-batches {world}, or omit --shard")  # fmt: skip


class ShardedAverage(Average[Model]):
    """The average of rows; `model` is filled by `ShardedLearner.gather_models`."""

    def __init__(self, average: Average[Model], mine: dict[str, Tensor], theirs: dict[str, nn.Parameter]) -> None:
        self.model, self.share, self.rows = average.model, average.share, mine
        self._mine, self._theirs = list(mine.values()), [theirs[name].detach() for name in mine]


class ShardedLearner(Learner):
    """A sharded learner, made from one whose state is complete and equal in all processes.

    work: the sharded model; model, average.model: empty, or filled by `gather_models`.
    """

    def __init__(self, full: Learner, team: Team) -> None:
        self.team, self.rows = team, Rows(team)
        self.model = full.model
        self.work = _sharded(copy.deepcopy(full.model), team)
        parameters, full_parameters = dict(self.work.named_parameters()), dict(full.model.named_parameters())
        self.counts = {name: len(p) for name, p in full_parameters.items() if p.requires_grad and p.ndim}
        self.local = {name: nn.Parameter(parameters[name].to_local().detach()) for name in self.counts}  # type: ignore[attr-defined]  # of DTensor
        self.local |= {name: parameters[name] for name, p in full_parameters.items() if p.requires_grad and not p.ndim}
        averaged = dict(full.average.model.named_parameters())
        mine = {name: self._part(averaged[name].detach(), name in self.counts) for name in self.local}
        self.average: ShardedAverage = ShardedAverage(full.average, mine, self.local)
        named = {id(p): name for name, p in full_parameters.items()}
        self.optimized = [[named[id(p)] for p in o.param_groups[0]["params"]] for o in full.optimizers]
        self.optimizers = [
            self._optimizer(o, names) for o, names in zip(full.optimizers, self.optimized, strict=True)
        ]  # fmt: skip
        self.i, self.seconds, self.rescues = full.i, full.seconds, full.rescues
        self.first_loss, self.ending, self.window = full.first_loss, full.ending, full.window
        self.gathered = True
        self.release_models()
        self.good = self.last = self.snapshot()
        full.good = full.last = Snapshot({}, self.state())  # frees the earlier states
        full.average._mine, full.average._theirs = [], []

    def _part(self, t: Tensor, sharded: bool) -> Tensor:
        return self.rows.mine(t) if sharded else t.clone()

    def _optimizer(self, full: torch.optim.Optimizer, names: Sequence[str]) -> torch.optim.Optimizer:
        """Return an optimizer of the rows of this process, with its rows of the state."""
        group, local = full.param_groups[0], [self.local[name] for name in names]
        optimizer: torch.optim.Optimizer
        if isinstance(full, Muon):
            optimizer = ShardedMuon(local, [self.counts[name] for name in names], group["lr"], self.rows)
        else:
            optimizer = adamw_of(local, group["lr"], group["weight_decay"])
        for p, name, own in zip(group["params"], names, local, strict=True):
            for key, value in full.state.get(p, {}).items():
                optimizer.state[own][key] = self._part(value, name in self.counts and value.ndim > 0)
        full.state.clear()
        return optimizer

    @property
    def device(self) -> torch.device:
        """The device of the model."""
        return self.work.device

    def _replicated(self) -> Iterator[tuple[str, Tensor]]:
        """Yield the tensors that are complete in all processes: buffers and frozen parameters."""
        for part, module in (("model", self.work), ("average", self.average.model)):
            yield from ((f"{part}.{name}", t.detach()) for name, t in module.state_dict().items() if name not in self.local)

    def tensors(self) -> dict[str, Tensor]:
        """Return the rows of this process of all tensors by name, without copies."""
        named = {f"model.{name}": t.detach() for name, t in self.local.items()}
        named |= {f"average.{name}": t for name, t in self.average.rows.items()} | dict(self._replicated())
        for prefix, _, optimizer, p in self._optimizer_parameters():
            named |= {f"{prefix}.{key}": value for key, value in optimizer.state.get(p, {}).items()}
        return named

    def _count(self, name: str) -> int | None:
        """Return the total number of rows of a tensor; None if it is complete in all processes."""
        part, _, inner = name.partition(".")
        if part == "optimizer":
            k, j, key = inner.split(".")
            return None if key == "step" else self.counts.get(self.optimized[int(k)][int(j)])
        return self.counts.get(inner)

    def gather(self, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        """Return the complete tensors on the CPU in the leader, an empty dict in workers; all pass the same names."""
        gathered: dict[str, Tensor] = {}
        for name in sorted(tensors):
            count = self._count(name)
            tensor = tensors[name] if count is None else self.rows.gather(tensors[name], count)
            if self.team.rank == 0 and tensor is not None:
                gathered[name] = tensor.cpu()
        return gathered

    def gather_snapshot(self, snapshot: Snapshot) -> Snapshot:
        """Return a snapshot with complete tensors; called by the leader only."""
        which = 1 if snapshot is self.good else 2 if snapshot is self.last else 0
        self.team.broadcast(StepInstruction(Instruction.GATHER_STATE, which))
        return Snapshot(self.gather(dict(snapshot.tensors)), snapshot.state)

    def contribute(self, which: int) -> None:
        """Send the rows of a state to the leader: the present (0), the good (1) or the last one (2)."""
        self.gather(self.tensors() if which == 0 else dict((self.good, self.last)[which - 1].tensors))

    def gather_models(self) -> None:
        """Fill the unsharded models of the leader."""
        if self.gathered:
            return
        if self.team.rank == 0:
            self.team.broadcast(StepInstruction(Instruction.GATHER_WEIGHTS))
        now = self.tensors()
        complete = self.gather({name: t for name, t in now.items() if not name.startswith("optimizer.")})
        for part, module in self._modules():
            if self.team.rank == 0:
                parameters = dict(module.named_parameters())
                for name in self.local:
                    parameters[name].data = complete[f"{part}.{name}"].to(self.device)
                module.load_state_dict({name: complete[f"{part}.{name}"] for name in module.state_dict()})
        self.gathered = self.team.rank == 0

    def release_models(self) -> None:
        """Empty the unsharded models."""
        if self.gathered:
            for _, module in self._modules():
                for name, p in module.named_parameters():
                    if name in self.counts:
                        p.data = p.data.new_empty(0)
        self.gathered = False

    def report(self) -> None:
        """Mark the last state as good and take a snapshot, in all processes."""
        if self.team.rank == 0:
            self.team.broadcast(StepInstruction(Instruction.SNAPSHOT))
        super().report()

    def restore(self, snapshot: Snapshot) -> None:
        """Restore the good state in all processes."""
        assert snapshot is self.good, "workers hold no other state"
        if self.team.rank == 0:
            self.team.broadcast(StepInstruction(Instruction.ROLL_BACK, snapshot.state.i))
        for prefix, _, optimizer, p in self._optimizer_parameters():
            if not any(name.startswith(f"{prefix}.") for name in snapshot.tensors):  # before its first gradient
                optimizer.state.pop(p, None)
        now = self.tensors()
        for name, t in snapshot.tensors.items():
            now[name].copy_(t)
        self.release_models()
        self._restore_counters(snapshot.state)

    def clip(self, limit: float) -> Tensor:
        """Clip the norm of the gradient and return the norm before: ()."""
        gradients = {name: p.grad for name, p in self.local.items() if p.grad is not None}
        zero = torch.zeros((), device=self.device)
        sharded = sum((g.square().sum() for name, g in gradients.items() if name in self.counts), zero)
        replicated = sum((g.square().sum() for name, g in gradients.items() if name not in self.counts), zero)
        norm = (self.team.all_reduce(sharded[None])[0] + replicated).sqrt()
        torch._foreach_mul_(list(gradients.values()), (limit / (norm + 1e-6)).clamp_max(1.0))
        return norm


def _sharded(model: nn.Module, team: Team) -> TrainedModel:
    """Shard the parameters of a model, layer by layer."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard, register_fsdp_forward_method  # takes two seconds to import

    mesh = init_device_mesh(team.device.type, (team.world,))
    unsharded = {p for p in model.parameters() if not p.requires_grad or not p.ndim}
    for module in [m for m in model.modules() if isinstance(m, UNITS)] + [model]:
        shard = fully_shard(module, mesh=mesh, ignored_params=unsharded)
        shard.set_force_sum_reduction_for_comms(True)  # gradients are weighted by their share of the batch already
        shard.set_gradient_divide_factor(1.0)
    register_fsdp_forward_method(model, "loss")
    assert isinstance(model, TrainedModel)
    return model


class ShardedGradients(Gradients):
    """Computes the rows of the gradient of each process, and returns the mean loss."""

    def __init__(self, learner: ShardedLearner, train: Dataset, settings: TrainingConfig) -> None:
        super().__init__(learner.work, train, settings, learner.team)
        self.learner = learner

    def __call__(self, i: int, seed: int) -> Tensor:
        """Return the mean loss of step i: ()."""
        learner, work = self.learner, cast("Any", self.model)  # an FSDPModule
        assert self.team is not None
        learner.release_models()
        work.zero_grad(set_to_none=True)
        batches, fault = [], ""
        try:  # before any collective operation, so that an error here does not block the others
            batches = [next(self.loader) for _ in range(self.rank, self.parts, self.world)]
        except (UserError, OSError) as error:
            fault = str(error) or type(error).__name__
        self.team.raise_any(fault)
        unread, self.loader = self.loader, iter(batches)
        losses = list[Tensor]()
        with self.team.handle_errors():
            work.set_requires_gradient_sync(len(batches) == 1)
            for k, loss in enumerate(self._mine(i, seed), 1):
                losses.append(loss)
                work.set_requires_gradient_sync(k + 1 >= len(batches))
        self.loader = unread
        replicated = [p for name, p in learner.local.items() if name not in learner.counts]
        summed = [torch.stack(losses).sum()] + [p.grad if p.grad is not None else torch.zeros_like(p) for p in replicated]
        loss, *rest = self.team.all_reduce(torch.stack([t.detach().float() for t in summed])).unbind()
        for p, g in zip(replicated, rest, strict=True):
            p.grad = g.to(p.dtype)
        for name, p in dict(work.named_parameters()).items():
            if name in learner.counts:
                learner.local[name].grad = p.grad.to_local() if p.grad is not None else None
        return loss


def gradients_of(learner: Learner, train: Dataset, settings: TrainingConfig, team: Team | None) -> Gradients:
    """Return the gradient computation of a learner."""
    if isinstance(learner, ShardedLearner):
        return ShardedGradients(learner, train, settings)
    assert isinstance(learner.model, TrainedModel)
    return Gradients(learner.model, train, settings, team)
