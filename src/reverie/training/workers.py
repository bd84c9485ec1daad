"""The workers of a training, and the instructions of its leader."""

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


def start_workers(team: Team, config: Config, path: Path, learner: Learner, shard: bool) -> Learner:
    """Prepare the workers for a training with the state of this learner, and raise their errors here.

    shard: whether to shard the state; the learner that is returned is then the one to use.
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


def _prepare(team: Team, device: torch.device, config: str, path: str) -> tuple[Learner, Gradients]:
    try:
        settings = Config.model_validate(read_toml(config))
    except ValidationError:
        raise UserError(
            "the configuration from the leader is not valid; use the same version of Reverie in all processes"
        ) from None
    train, _ = load_source_data(settings.data, folder=Path(path)).split(settings.data.seed)
    model = build_model(settings).to(device)
    assert isinstance(model, TrainedModel)
    if settings.training.exact:
        torch.set_num_threads(1)
    learner = Learner(model, settings.training)
    distribute_muon(learner, settings.training, team)
    return learner, Gradients(model, train, settings.training, team)


class TrainingWorker:
    """Executes the training instructions of the leader."""

    def __init__(self, team: Team, device: torch.device) -> None:
        self.team, self.device = team, device
        self.learner: Learner | None = None
        self.gradients: Gradients | None = None

    def __call__(self, instruction: StepInstruction) -> None:
        """Execute an instruction."""
        if instruction.order == Instruction.TRAIN:
            config, path, fault = self.team.broadcast_text(), self.team.broadcast_text(), ""
            try:
                self.learner, self.gradients = _prepare(self.team, self.device, config, path)
            except (UserError, OSError) as error:
                fault = str(error)
            self.team.raise_any(fault)
        assert self.learner is not None and self.gradients is not None
        if instruction.order == Instruction.SHARD:
            learner = ShardedLearner(self.learner, self.team)
            self.learner, self.gradients = learner, ShardedGradients(learner, self.gradients.train, self.gradients.settings)
            self.gradients.go_to(instruction.i)
        elif instruction.order == Instruction.STEP:
            make_step(self.learner, self.gradients, instruction)
            if isinstance(self.learner, ShardedLearner):
                self.learner.average.update(instruction.i)
                self.learner.i = instruction.i + 1
        elif isinstance(self.learner, ShardedLearner):
            self._execute_sharded(self.learner, self.gradients, instruction)
        else:
            broadcast_state(self.team, self.learner)
            self.gradients.go_to(instruction.i)

    def _execute_sharded(self, learner: ShardedLearner, gradients: Gradients, instruction: StepInstruction) -> None:
        """Execute an instruction on the state of a sharded learner."""
        match instruction.order:
            case Instruction.GATHER_WEIGHTS:
                learner.gather_models()
            case Instruction.SNAPSHOT:
                learner.report()
            case Instruction.GATHER_STATE:
                learner.contribute(instruction.i)
            case _:
                learner.restore(learner.good)
                learner.last = learner.good
                gradients.go_to(instruction.i)


Handler = Callable[[StepInstruction], None]  # executes the instructions of one command


def serve(device: torch.device, handlers: Mapping[str, Callable[[Team], Handler]]) -> None:
    """Execute the instructions of the leader until it exits.  If the leader is lost, exit with code 3.

    handlers: creates the handler for each `Instruction.command`, when first needed.
    """
    for number in (signal.SIGINT, signal.SIGTERM):  # the leader stops the team after a step
        signal.signal(number, signal.SIG_IGN)
    end_with_leader()
    try:
        team, running = Team(rank(), world_size(), device), dict[str, Handler]()
        try:
            while (instruction := team.broadcast()).order != Instruction.EXIT:
                name = instruction.order.command
                if name not in running:
                    running[name] = handlers[name](team)
                try:
                    running[name](instruction)
                except LostError:
                    raise
                except UserError:
                    continue  # raised in all processes; the leader decides
        finally:
            team.close()
    except LostError:
        sys.exit(3)
