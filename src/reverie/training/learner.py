"""Everything that changes while a model learns, so that it can be kept, put back and gone on with."""

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
from reverie.runs.step import MOST_I
from reverie.training.optimizer import NEVER_NEGATIVE, OPTIMIZERS, STATE

M = TypeVar("M", bound=nn.Module)
MOST_WINDOW = 10**6  # steps since the last report whose losses are kept
RESCUES = 2  # a third time the training gives up


class Average(Generic[M]):
    """The exponential average of a model's parameters, over the last `share` of the steps so far (arXiv:2312.02696).

    Because the horizon grows with the run, the average is never stuck at the first weights.
    """

    def __init__(self, model: M, share: float) -> None:
        self.model = copy.deepcopy(model).requires_grad_(False).eval()
        self.share = share
        learned = [name for name, p in model.named_parameters() if p.requires_grad]
        mine, theirs = dict(self.model.named_parameters()), dict(model.named_parameters())
        self._mine: list[Tensor] = [mine[name] for name in learned]
        self._theirs = [theirs[name].detach() for name in learned]  # views: they follow the model

    def update(self, updates: int) -> None:
        """Move towards the model's parameters; updates: how often this has been done before."""
        torch._foreach_lerp_(self._mine, self._theirs, 1 / (1 + self.share * updates))


class TrainingState(BaseModel):
    """The numbers beside the weights.

    i: steps done; seconds: time spent; window: the losses since the last report and norms of the gradients; first_loss:
    that of the first step, when the network gives nothing yet; rescues: how often the training was rolled back;
    ending: the fraction of the longest time allowed at which a training until good began to end.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    i: int = Field(default=0, ge=0, le=MOST_I)
    seconds: float = Field(default=0.0, ge=0, le=1e12)
    window: tuple[tuple[float, float], ...] = Field(default=(), max_length=MOST_WINDOW)
    first_loss: float | None = None
    rescues: int = Field(default=0, ge=0, le=RESCUES)
    ending: float | None = Field(default=None, gt=0, le=1)


@dataclass(frozen=True)
class Snapshot:
    """A copy of a learner's tensors and facts."""

    tensors: Mapping[str, Tensor]
    facts: TrainingState


class Learner:
    """A model, the average of its weights, its optimizers, and how far it has come (see TrainingState).

    moving: whether weights are being changed, so that some are those before and others those after.
    """

    def __init__(self, model: Model, settings: TrainingConfig) -> None:
        if settings.lora is not None:
            add_adapters(model, settings.lora)
        self.model = model
        self.average = Average(model, settings.ema_share)
        learns = any(p.requires_grad for p in model.parameters())  # else it is fitted, without an optimizer
        self.optimizers = OPTIMIZERS[settings.optimizer](model, settings.learning_rate, settings.weight_decay) if learns else []
        self.i, self.seconds, self.rescues = 0, 0.0, 0
        self.first_loss: float | None = None
        self.ending: float | None = None
        self.moving = False
        self.window: list[tuple[Tensor, Tensor]] = []
        # A state is known to be good when the steps after it went well, so a rescue goes back to the report before the last.
        self.good = self.last = self.snapshot()

    def facts(self) -> TrainingState:
        """Return how far it has come, as plain numbers."""
        window = tuple((float(loss), float(norm)) for loss, norm in self.window[-MOST_WINDOW:])
        return TrainingState(
            i=self.i, seconds=self.seconds, window=window, first_loss=self.first_loss, rescues=self.rescues, ending=self.ending
        )

    @property
    def device(self) -> torch.device:
        """Where the model is."""
        return self.model.device

    def _modules(self) -> Iterator[tuple[str, nn.Module]]:
        yield "model", self.model
        yield "average", self.average.model

    def _optimizer_parameters(self) -> Iterator[tuple[str, int, torch.optim.Optimizer, nn.Parameter]]:
        for k, optimizer in enumerate(self.optimizers):
            for j, p in enumerate(optimizer.param_groups[0]["params"]):
                yield f"optimizer.{k}.{j}", j, optimizer, p

    def tensors(self) -> dict[str, Tensor]:
        """Return every tensor by name, not copied."""
        found = {f"{part}.{name}": t.detach() for part, module in self._modules() for name, t in module.state_dict().items()}
        for prefix, _, optimizer, p in self._optimizer_parameters():
            found |= {f"{prefix}.{key}": value for key, value in optimizer.state.get(p, {}).items()}
        return found

    def forms(self) -> dict[str, TensorSpec]:
        """Return the form of every tensor that a learner like this can have; the optimizers' may be missing."""
        wanted = {
            f"{part}.{name}": form
            for part, module in self._modules()
            for name, form in tensor_specs(module.state_dict()).items()
        }
        for prefix, _, optimizer, p in self._optimizer_parameters():
            shapes = {key: () if key == "step" else tuple(p.shape) for key in STATE[type(optimizer)]}
            wanted |= {f"{prefix}.{key}": TensorSpec(p.dtype, shape) for key, shape in shapes.items()}
        return wanted

    def fault(self, kept: Snapshot) -> str | None:
        """Say what is wrong with a snapshot from a file whose tensors have the right forms; None where nothing is.

        A parameter has either the whole state of its optimizer or, before its first gradient, none.
        """
        seen = False
        for prefix, _, optimizer, _ in self._optimizer_parameters():
            keys = STATE[type(optimizer)]
            there = {key: kept.tensors[f"{prefix}.{key}"] for key in keys if f"{prefix}.{key}" in kept.tensors}
            if 0 < len(there) < len(keys):
                return f"{prefix} has {', '.join(there)} and not all of {', '.join(keys)}"
            if any(bool((there[key] < 0).any()) for key in there if key in NEVER_NEGATIVE):
                return f"{prefix} has a count or a square below 0"
            seen = seen or bool(there)
        if self.optimizers and seen != (kept.facts.i > 0):
            return f"it tells of step {kept.facts.i:,} {'with' if seen else 'without'} the state of an optimizer"
        return None

    def snapshot(self) -> Snapshot:
        """Return a copy to go back to."""
        return Snapshot({name: t.clone() for name, t in self.tensors().items()}, self.facts())

    def report(self) -> None:
        """Note that all went well since the last report, and begin another."""
        self.window = []
        self.good, self.last = self.last, self.snapshot()

    def restore(self, kept: Snapshot) -> None:
        """Put tensors and facts back, bit for bit."""
        self.moving = True
        for part, module in self._modules():
            prefix = f"{part}."
            module.load_state_dict({n.removeprefix(prefix): t for n, t in kept.tensors.items() if n.startswith(prefix)})
        states: list[dict[int, dict[str, Tensor]]] = [{} for _ in self.optimizers]
        for name, t in kept.tensors.items():
            if name.startswith("optimizer."):
                _, k, j, key = name.split(".")
                states[int(k)].setdefault(int(j), {})[key] = t.clone()
        for optimizer, state in zip(self.optimizers, states, strict=True):
            optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})
        self._take_facts(kept.facts)
        self.moving = False

    def _take_facts(self, facts: TrainingState) -> None:
        self.i, self.seconds, self.rescues = facts.i, facts.seconds, facts.rescues
        self.first_loss, self.ending = facts.first_loss, facts.ending
        self.window = [(torch.tensor(loss), torch.tensor(norm)) for loss, norm in facts.window]

    def show(self) -> None:
        """Make the models those that are looked at, which here they always are; see `reverie.training.sharding`."""

    def whole(self, kept: Snapshot) -> Snapshot:
        """Return a snapshot with all of every tensor."""
        return kept

    def clip(self, limit: float) -> Tensor:
        """Shorten the gradient to a length, and return what it had: ()."""
        return nn.utils.clip_grad_norm_(self.model.parameters(), limit).detach()

    def is_finite(self) -> bool:
        """Tell whether every weight is a number."""
        weights = [t.detach() for t in self.model.state_dict().values() if t.is_floating_point()]
        return math.isfinite(float(torch.stack(torch._foreach_norm(weights)).sum()))
