"""Run folders of imported models."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from reverie.families.model import Model
from reverie.runs import folder
from reverie.runs.config import Config
from reverie.runs.run import Run, load
from reverie.runs.weights import write_weights
from reverie.training.claim import claim, sweep


def write_run(out: Path, config: Config, model: Model, more: Callable[[Path], None], overwrite: bool) -> Run:
    """Write the run folder of an imported model and load it; remove everything on failure."""
    lock = claim(out, config.data.name, overwrite)
    try:
        folder.write_config(out, config)
        write_weights(out, config, model)
        more(out)
    except BaseException:
        sweep(out, whole_run=True)
        raise
    finally:
        lock.release()
    return load(out, "cpu")
