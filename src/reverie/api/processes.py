"""Several processes that train, draw and measure together."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from reverie.base.loading import no_collection

if TYPE_CHECKING:
    from reverie.base.team import Team
    from reverie.runs.run import Run


def follow(device: str = "auto") -> bool:
    """Tell whether this process was started as one that follows, which then works until the leading one leaves."""
    with no_collection():  # torch is loaded by it
        from reverie.base.team import rank

    if not rank():
        return False
    from reverie.runs.device import device_for
    from reverie.training.follower import Duty, serve

    where = device_for(device)

    def train(team: Team) -> Duty:
        from reverie.training.follower import Learning

        return Learning(team, where)

    def draw(team: Team) -> Duty:
        from reverie.runs.shared import Drawing

        return Drawing(team, lambda path, changes: _changed(path, str(where), changes))

    def measure(team: Team) -> Duty:
        from reverie.evaluation.shared_features import FeatureWorker

        return FeatureWorker(team)

    serve(where, {"train": train, "sample": draw, "evaluate": measure})
    return True


def _changed(path: Path, device: str, changes: Sequence[str]) -> Run:
    """Open a run, and do to it what was done to one of the leading process."""
    from reverie.runs.run import load

    run = load(path, device)
    for kind, _, what in (change.partition(" ") for change in changes):
        if kind == "adapter":
            from reverie.runs.adapters import with_adapters

            run = with_adapters(run, (what,))
        else:
            from reverie.exchange.backend import with_backend

            run = with_backend(run, what)
    return run


@contextmanager
def together(processes: int = 1, device: str = "auto") -> Iterator[None]:
    """Keep several processes of this machine, or those of torchrun, for all that is done inside: they come and go once."""
    from reverie.base.processes import check_processes, team_of
    from reverie.runs.device import device_for

    check_processes(processes)
    with team_of(processes, device_for(device)):
        yield


def to_go_on_with(out: str | Path) -> bool:
    """Tell whether torchrun started anew what was training in a folder, so that it is to be gone on with."""
    from reverie.base.team import was_restarted

    return was_restarted() and (Path(out) / "config.toml").is_file()
