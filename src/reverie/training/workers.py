"""The processes of a team that follow in a training, and how the leader instructs them."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import tomli_w
import torch
from pydantic import ValidationError

from reverie.base.errors import UserError
from reverie.base.parse import read_toml
from reverie.base.team import Instruction, LostError, StepInstruction, Team, rank, world_size
from reverie.base.worker_processes import end_with_leader
from reverie.families.model import TrainedModel
from reverie.runs.config import Config, build_model
from reverie.runs.source_data import load_source_data
from reverie.training.gradient import Gradients, broadcast_state, distribute_muon, make_step
from reverie.training.learner import Learner
from reverie.training.sharding import ShardedGradients, ShardedLearner


def lead(team: Team, config: Config, path: Path, learner: Learner, shard: bool) -> Learner:
    """Let the others get ready for a training, with the state of this learner; what goes wrong with one is told here.

    shard: whether the state is shared out; then the learner that is returned is the one to go on with.
    """
    if not isinstance(learner.model, TrainedModel):
        return learner
    team.broadcast(StepInstruction(Instruction.TRAIN, learner.i))
    team.broadcast_text(tomli_w.dumps(config.as_table()))
    team.broadcast_text(str(path.resolve()))
    team.raise_any()
    broadcast_state(team, learner)
    distribute_muon(learner, config.training, team)
    if not shard:
        return learner
    team.broadcast(StepInstruction(Instruction.SHARD, learner.i))
    return ShardedLearner(learner, team)


def _ready(team: Team, device: torch.device, config: str, path: str) -> tuple[Learner, Gradients]:
    try:
        read = Config.model_validate(read_toml(config))
    except ValidationError:
        raise UserError("the configuration that the leading process tells is not valid; are all of one version?") from None
    train, _ = load_source_data(read.data, folder=Path(path)).split(read.data.seed)
    model = build_model(read).to(device)
    assert isinstance(model, TrainedModel)
    if read.training.exact:
        torch.set_num_threads(1)
    learner = Learner(model, read.training)
    distribute_muon(learner, read.training, team)
    return learner, Gradients(model, train, read.training, team)


class TrainingWorker:
    """What a process that follows does of trainings."""

    def __init__(self, team: Team, device: torch.device) -> None:
        self.team, self.device = team, device
        self.learner: Learner | None = None
        self.gradients: Gradients | None = None

    def __call__(self, told: StepInstruction) -> None:
        """Do what the leader tells."""
        if told.order == Instruction.TRAIN:
            config, path, fault = self.team.broadcast_text(), self.team.broadcast_text(), ""
            try:
                self.learner, self.gradients = _ready(self.team, self.device, config, path)
            except (UserError, OSError) as error:
                fault = str(error)
            self.team.raise_any(fault)
        assert self.learner is not None and self.gradients is not None
        if told.order == Instruction.SHARD:
            learner = ShardedLearner(self.learner, self.team)
            self.learner, self.gradients = learner, ShardedGradients(learner, self.gradients.train, self.gradients.settings)
            self.gradients.go_to(told.i)
        elif told.order == Instruction.STEP:
            make_step(self.learner, self.gradients, told)
            if isinstance(self.learner, ShardedLearner):
                self.learner.average.update(told.i)
                self.learner.i = told.i + 1
        elif isinstance(self.learner, ShardedLearner):
            self._tend(self.learner, self.gradients, told)
        else:
            broadcast_state(self.team, self.learner)
            self.gradients.go_to(told.i)

    def _tend(self, learner: ShardedLearner, gradients: Gradients, told: StepInstruction) -> None:
        """Do with this process's share of the state what the leader does with its own."""
        match told.order:
            case Instruction.GATHER_WEIGHTS:
                learner.show()
            case Instruction.SNAPSHOT:
                learner.report()
            case Instruction.GATHER_STATE:
                learner.contribute(told.i)
            case _:
                learner.restore(learner.good)
                learner.last = learner.good
                gradients.go_to(told.i)


Handler = Callable[[StepInstruction], None]  # what a process that follows does when it is told something


def serve(device: torch.device, duties: Mapping[str, Callable[[Team], Handler]]) -> None:
    """Follow the leader until it leaves, or is lost; then this process ends with code 3, and the leader, if any, says why.

    duties: by the names of `Instruction.duty`, each made when it is first needed.
    """
    for number in (signal.SIGINT, signal.SIGTERM):  # the leader decides when the step is done
        signal.signal(number, signal.SIG_IGN)
    end_with_leader()
    try:
        team, made = Team(rank(), world_size(), device), dict[str, Handler]()
        try:
            while (told := team.broadcast()).order != Instruction.EXIT:
                name = told.order.duty
                if name not in made:
                    made[name] = duties[name](team)
                try:
                    made[name](told)
                except LostError:
                    raise
                except UserError:
                    continue  # all know of it, and the leader says what follows
        finally:
            team.close()
    except LostError:
        sys.exit(3)
