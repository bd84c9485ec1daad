"""Several processes that train, sample and evaluate together."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from reverie.base.loading import no_collection

if TYPE_CHECKING:
    from reverie.base.team import Team
    from reverie.runs.run import Run


def serve_if_worker(device: str = "auto") -> bool:
    """Return whether this process is a worker; if so, serve the leader until it ends."""
    with no_collection():  # because this imports torch
        from reverie.base.team import rank

    if not rank():
        return False
    from reverie.runs.device import device_for
    from reverie.training.workers import Handler, serve

    torch_device = device_for(device)

    def train(team: Team) -> Handler:
        from reverie.training.workers import TrainingWorker

        return TrainingWorker(team, torch_device)

    def sample(team: Team) -> Handler:
        from reverie.runs.distributed import SamplingWorker

        return SamplingWorker(team, lambda path, changes: _load_changed(path, str(torch_device), changes))

    def evaluate(team: Team) -> Handler:
        from reverie.evaluation.shared_features import FeatureWorker

        return FeatureWorker(team)

    serve(torch_device, {"train": train, "sample": sample, "evaluate": evaluate})
    return True


def _load_changed(path: Path, device: str, changes: Sequence[str]) -> Run:
    """Load a run and apply the changes that the leader applied to it."""
    from reverie.runs.run import load

    run = load(path, device)
    for kind, _, argument in (change.partition(" ") for change in changes):
        if kind == "adapter":
            from reverie.runs.adapters import with_adapters

            run = with_adapters(run, (argument,))
        else:
            from reverie.exchange.backend import with_backend

            run = with_backend(run, argument)
    return run


@contextmanager
def process_group(processes: int = 1, device: str = "auto") -> Iterator[None]:
    """Keep a group of processes, local ones or those of torchrun, alive for everything inside the context."""
    from reverie.base.worker_processes import check_processes, team_of
    from reverie.runs.device import device_for

    check_processes(processes)
    with team_of(processes, device_for(device)):
        yield


def is_resumable(out: str | Path) -> bool:
    """Return whether torchrun restarted an interrupted training in this folder, which should then be resumed."""
    from reverie.base.team import was_restarted

    return was_restarted() and (Path(out) / "config.toml").is_file()
