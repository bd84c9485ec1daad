"""Image features computed by several processes: each computes its own numbered blocks.

Block contents and order do not depend on the number of processes, so all metrics of the features are the same.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from reverie.base.deadline import Deadline
from reverie.base.errors import UserError
from reverie.base.progress import OnProgress
from reverie.base.team import Instruction, StepInstruction, Team
from reverie.data import Dataset
from reverie.evaluation.evaluation_data import classifier_seconds
from reverie.evaluation.metrics.features import BATCH, Features, choose_features, dataset_classifier, of_general, of_pixels
from reverie.nets.lenet import LeNet


@dataclass(frozen=True)
class SharedFeatures(Features):
    """Features whose blocks are computed by a team of processes."""

    team: Team | None = field(default=None, repr=False, compare=False)

    def blocks(self, images: Tensor) -> Iterator[Tensor]:
        """Yield the features of one block of images after another."""
        assert self.team is not None
        parts = images.split(BATCH)
        for k in range(0, len(parts), self.team.world):
            shared = parts[k : k + self.team.world]
            self.team.broadcast(StepInstruction(Instruction.COMPUTE_FEATURES))
            self.team.broadcast_text(json.dumps([list(part.shape) for part in shared]))
            result = _compute(lambda: self.compute(self.team.scatter(shared, ())))  # type: ignore[union-attr]  # noqa: B023
            yield from (torch.from_numpy(x) for x in self.team.gather_arrays(*result)[: len(shared)])


def _compute(compute: Callable[[], Tensor]) -> tuple[np.ndarray | None, str]:
    """Return features, (B, D), or the error message."""
    try:
        return compute().flatten(1).float().cpu().numpy(), ""
    except UserError as error:
        return None, str(error)


def share_features(
    choice: str | Callable[[Tensor], Tensor] | Features, train: Dataset, held: Dataset, on_progress: OnProgress, team: Team,
    deadline: Deadline | None = None,
) -> Features:  # fmt: skip
    """Return the features of `choose_features`, computed by a team; the leader alone evaluates a given function."""
    seconds = classifier_seconds(deadline or Deadline())
    chosen = choose_features(choice, train, held, on_progress, seconds)
    if not isinstance(choice, str):
        return chosen
    team.broadcast(StepInstruction(Instruction.OPEN_FEATURES))
    classes = len(train.label_names)
    team.broadcast_text(json.dumps({"name": chosen.name, "shape": list(train.shape), "classes": classes}))
    if chosen.name == "classifier":
        team.broadcast_tensors(dict(dataset_classifier(train, held, on_progress, seconds=seconds)[0].state_dict()))
    team.raise_any()
    return SharedFeatures(chosen.name, chosen.compute, chosen.facts, chosen.learned, team)


class FeatureWorker:
    """Features in a process that is not the leader."""

    def __init__(self, team: Team) -> None:
        self.team = team
        self.compute: Callable[[Tensor], Tensor] | None = None

    def __call__(self, step: StepInstruction) -> None:
        """Execute one instruction of the leader."""
        received: Any = json.loads(self.team.broadcast_text())
        if step.order == Instruction.OPEN_FEATURES:
            self._prepare(received["name"], tuple(map(int, received["shape"])), int(received["classes"]))
            return
        result: tuple[np.ndarray | None, str] = (None, "")
        if self.team.rank < len(received):
            images = self.team.scatter((), received[self.team.rank])
            with torch.no_grad():
                result = _compute(lambda: self.compute(images))  # type: ignore[misc]  # set by _prepare
        self.team.gather_arrays(*result)

    def _prepare(self, name: str, shape: tuple[int, ...], classes: int) -> None:
        problem = ""
        try:
            if name == "classifier":
                net = LeNet(shape, classes).eval()
                self.team.broadcast_tensors(dict(net.state_dict()))
                self.compute = lambda x: net(x)[0]
            else:
                self.compute = (of_general() if name == "general" else of_pixels(shape)).compute
        except UserError as error:
            problem = str(error)
        self.team.raise_any(problem)
