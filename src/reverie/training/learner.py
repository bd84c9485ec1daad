"""The complete state of a training: model, EMA weights, optimizers and counters."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

import torch
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor, nn

from reverie.base.tensors import TensorSpec, tensor_specs
from reverie.families.model import Model
from reverie.nets.lora import add_adapters
from reverie.runs.config import TrainingConfig
from reverie.runs.step import MAX_I
from reverie.training.optimizer import NEVER_NEGATIVE, OPTIMIZERS, STATE

M = TypeVar("M", bound=nn.Module)
MAX_WINDOW = 10**6  # stored losses since the last report
RESCUES = 2  # rollbacks after which the training stops


class Average(Generic[M]):
    """The exponential moving average (EMA) of a model's parameters over the last `share` of the steps (arXiv:2312.02696).

    The horizon grows with the run, so the initial weights are forgotten.
    """

    def __init__(self, model: M, share: float) -> None:
        self.model = copy.deepcopy(model).requires_grad_(False).eval()
        self.share = share
        trained = [name for name, p in model.named_parameters() if p.requires_grad]
        averaged, parameters = dict(self.model.named_parameters()), dict(model.named_parameters())
        self._mine: list[Tensor] = [averaged[name] for name in trained]
        self._theirs = [parameters[name].detach() for name in trained]  # views, which follow the model

    def update(self, updates: int) -> None:
        """Move the average towards the model's parameters.  updates: number of earlier updates."""
        torch._foreach_lerp_(self._mine, self._theirs, 1 / (1 + self.share * updates))


class TrainingState(BaseModel):
    """The counters of a training.

    i: steps done; seconds: of training; window: losses and gradient norms since the last report; first_loss: the loss of the
    first step; rescues: number of rollbacks; ending: fraction of the maximum time at which a training until convergence started
    its final decay.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    i: int = Field(default=0, ge=0, le=MAX_I)
    seconds: float = Field(default=0.0, ge=0, le=1e12)
    window: tuple[tuple[float, float], ...] = Field(default=(), max_length=MAX_WINDOW)
    first_loss: float | None = None
    rescues: int = Field(default=0, ge=0, le=RESCUES)
    ending: float | None = Field(default=None, gt=0, le=1)


@dataclass(frozen=True)
class Snapshot:
    """A copy of a learner's tensors and counters."""

    tensors: Mapping[str, Tensor]
    state: TrainingState


class Learner:
    """A model, its EMA weights, its optimizers and its counters, see `TrainingState`.

    updating: whether an update is in progress, so that the weights are not consistent.
    """

    def __init__(self, model: Model, settings: TrainingConfig) -> None:
        if settings.lora is not None:
            add_adapters(model, settings.lora)
        self.model = model
        self.average = Average(model, settings.ema_share)
        is_trained = any(p.requires_grad for p in model.parameters())  # otherwise the model is fitted without an optimizer
        self.optimizers = (
            OPTIMIZERS[settings.optimizer](model, settings.learning_rate, settings.weight_decay) if is_trained else []
        )
        self.i, self.seconds, self.rescues = 0, 0.0, 0
        self.first_loss: float | None = None
        self.ending: float | None = None
        self.updating = False
        self.window: list[tuple[Tensor, Tensor]] = []
        # A state counts as good once the steps after it succeeded, so a rollback goes to the report before the last.
        self.good = self.last = self.snapshot()

    def state(self) -> TrainingState:
        """Return the counters."""
        window = tuple((float(loss), float(norm)) for loss, norm in self.window[-MAX_WINDOW:])
        return TrainingState(
            i=self.i, seconds=self.seconds, window=window, first_loss=self.first_loss, rescues=self.rescues, ending=self.ending
        )

    @property
    def device(self) -> torch.device:
        """The device of the model."""
        return self.model.device

    def _modules(self) -> Iterator[tuple[str, nn.Module]]:
        yield "model", self.model
        yield "average", self.average.model

    def _optimizer_parameters(self) -> Iterator[tuple[str, int, torch.optim.Optimizer, nn.Parameter]]:
        for k, optimizer in enumerate(self.optimizers):
            for j, p in enumerate(optimizer.param_groups[0]["params"]):
                yield f"optimizer.{k}.{j}", j, optimizer, p

    def tensors(self) -> dict[str, Tensor]:
        """Return all tensors by name, without copies."""
        named = {f"{part}.{name}": t.detach() for part, module in self._modules() for name, t in module.state_dict().items()}
        for prefix, _, optimizer, p in self._optimizer_parameters():
            named |= {f"{prefix}.{key}": value for key, value in optimizer.state.get(p, {}).items()}
        return named

    def forms(self) -> dict[str, TensorSpec]:
        """Return the spec of each tensor of the learner; those of optimizer states are optional."""
        specs = {
            f"{part}.{name}": spec
            for part, module in self._modules()
            for name, spec in tensor_specs(module.state_dict()).items()
        }
        for prefix, _, optimizer, p in self._optimizer_parameters():
            shapes = {key: () if key == "step" else tuple(p.shape) for key in STATE[type(optimizer)]}
            specs |= {f"{prefix}.{key}": TensorSpec(p.dtype, shape) for key, shape in shapes.items()}
        return specs

    def problem(self, snapshot: Snapshot) -> str | None:
        """Describe what is wrong with a snapshot whose tensors have the right specs; None if nothing is.

        A parameter has either the complete state of its optimizer or, before its first gradient, none.
        """
        has_state = False
        for prefix, _, optimizer, _ in self._optimizer_parameters():
            keys = STATE[type(optimizer)]
            stored = {key: snapshot.tensors[f"{prefix}.{key}"] for key in keys if f"{prefix}.{key}" in snapshot.tensors}
            if 0 < len(stored) < len(keys):
                return f"{prefix} has only {', '.join(stored)} of {', '.join(keys)}"
            if any(bool((stored[key] < 0).any()) for key in stored if key in NEVER_NEGATIVE):
                return f"{prefix} has a negative count or square"
            has_state = has_state or bool(stored)
        if self.optimizers and has_state != (snapshot.state.i > 0):
            return f"step {snapshot.state.i:,} is {'with' if has_state else 'without'} optimizer state"
        return None

    def snapshot(self) -> Snapshot:
        """Return a copy of the present state."""
        return Snapshot({name: t.clone() for name, t in self.tensors().items()}, self.state())

    def report(self) -> None:
        """Mark the last state as good and take a snapshot."""
        self.window = []
        self.good, self.last = self.last, self.snapshot()

    def restore(self, snapshot: Snapshot) -> None:
        """Restore tensors and counters bit for bit."""
        self.updating = True
        for part, module in self._modules():
            prefix = f"{part}."
            module.load_state_dict({n.removeprefix(prefix): t for n, t in snapshot.tensors.items() if n.startswith(prefix)})
        states: list[dict[int, dict[str, Tensor]]] = [{} for _ in self.optimizers]
        for name, t in snapshot.tensors.items():
            if name.startswith("optimizer."):
                _, k, j, key = name.split(".")
                states[int(k)].setdefault(int(j), {})[key] = t.clone()
        for optimizer, state in zip(self.optimizers, states, strict=True):
            optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})
        self._restore_counters(snapshot.state)
        self.updating = False

    def _restore_counters(self, state: TrainingState) -> None:
        self.i, self.seconds, self.rescues = state.i, state.seconds, state.rescues
        self.first_loss, self.ending = state.first_loss, state.ending
        self.window = [(torch.tensor(loss), torch.tensor(norm)) for loss, norm in state.window]

    def gather_models(self) -> None:
        """Complete the models of a sharded learner, see `reverie.training.sharding`; no operation here."""

    def gather_snapshot(self, snapshot: Snapshot) -> Snapshot:
        """Return a snapshot with complete tensors."""
        return snapshot

    def clip(self, limit: float) -> Tensor:
        """Clip the norm of the gradient and return the norm before: ()."""
        return nn.utils.clip_grad_norm_(self.model.parameters(), limit).detach()

    def is_finite(self) -> bool:
        """Return whether all weights are finite."""
        weights = [t.detach() for t in self.model.state_dict().values() if t.is_floating_point()]
        return math.isfinite(float(torch.stack(torch._foreach_norm(weights)).sum()))
