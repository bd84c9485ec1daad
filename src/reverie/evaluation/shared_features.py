"""Features of images by several processes: blocks are numbered, and each process computes its own of a round.

A block is the same whoever computes it, and features come in the order of the images, so every figure made of them is the same.
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
from reverie.evaluation.evaluation_data import learning
from reverie.evaluation.metrics.features import BATCH, Features, choose_features, dataset_classifier, of_general, of_pixels
from reverie.nets.lenet import LeNet


@dataclass(frozen=True)
class SharedFeatures(Features):
    """Features whose blocks a team computes."""

    team: Team | None = field(default=None, repr=False, compare=False)

    def blocks(self, images: Tensor) -> Iterator[Tensor]:
        """Yield the features of one block of images after another."""
        assert self.team is not None
        parts = images.split(BATCH)
        for k in range(0, len(parts), self.team.world):
            shared = parts[k : k + self.team.world]
            self.team.broadcast(StepInstruction(Instruction.COMPUTE_FEATURES))
            self.team.broadcast_text(json.dumps([list(part.shape) for part in shared]))
            found = _computed(lambda: self.compute(self.team.scatter(shared, ())))  # type: ignore[union-attr]  # noqa: B023
            yield from (torch.from_numpy(x) for x in self.team.gather_arrays(*found)[: len(shared)])


def _computed(compute: Callable[[], Tensor]) -> tuple[np.ndarray | None, str]:
    """Return features, (B, D), or what was wrong."""
    try:
        return compute().flatten(1).float().cpu().numpy(), ""
    except UserError as error:
        return None, str(error)


def share_features(
    by: str | Callable[[Tensor], Tensor] | Features, train: Dataset, held: Dataset, tell: OnProgress, team: Team,
    deadline: Deadline | None = None,
) -> Features:  # fmt: skip
    """Return features as `choose`, computed by a team; those of a function that was given, by the leader alone."""
    seconds = learning(deadline or Deadline())
    found = choose_features(by, train, held, tell, seconds)
    if not isinstance(by, str):
        return found
    team.broadcast(StepInstruction(Instruction.OPEN_FEATURES))
    classes = len(train.label_names)
    team.broadcast_text(json.dumps({"name": found.name, "shape": list(train.shape), "classes": classes}))
    if found.name == "classifier":
        team.broadcast_tensors(dict(dataset_classifier(train, held, tell, seconds=seconds)[0].state_dict()))
    team.raise_any()
    return SharedFeatures(found.name, found.compute, found.facts, found.learned, team)


class FeatureWorker:
    """What a process that follows does of measuring."""

    def __init__(self, team: Team) -> None:
        self.team = team
        self.compute: Callable[[Tensor], Tensor] | None = None

    def __call__(self, told: StepInstruction) -> None:
        """Do what the leader tells."""
        format_score: Any = json.loads(self.team.broadcast_text())
        if told.order == Instruction.OPEN_FEATURES:
            self._get_ready(format_score["name"], tuple(map(int, format_score["shape"])), int(format_score["classes"]))
            return
        found: tuple[np.ndarray | None, str] = (None, "")
        if self.team.rank < len(format_score):
            images = self.team.scatter((), format_score[self.team.rank])
            with torch.no_grad():
                found = _computed(lambda: self.compute(images))  # type: ignore[misc]  # got ready before
        self.team.gather_arrays(*found)

    def _get_ready(self, name: str, shape: tuple[int, ...], classes: int) -> None:
        fault = ""
        try:
            if name == "classifier":
                net = LeNet(shape, classes).eval()
                self.team.broadcast_tensors(dict(net.state_dict()))
                self.compute = lambda x: net(x)[0]
            else:
                self.compute = (of_general() if name == "general" else of_pixels(shape)).compute
        except UserError as error:
            fault = str(error)
        self.team.raise_any(fault)
