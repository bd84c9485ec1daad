"""How strongly a run's samples are to be led away from its early state: so much that they have the detail of the data."""

from __future__ import annotations

import torch

from reverie.data import Dataset
from reverie.data.looks import detail
from reverie.families.diffusion.settings import DiffusionSettings
from reverie.runs import folder
from reverie.runs.run import Run

EARLY = 1 / 8  # of a training, after which its state is kept to be led away from
DRAWN, DATA = 32, 512  # samples, and data that they are compared with
SHARP = 0.95  # times the data's detail from which samples need no guidance
TRIED, MOST = 2.0, 3.0  # the scale that is tried, and the largest that is chosen
FEWEST = 200  # steps below which the early state has learned nothing that could be compared


def choose_autoguidance(run: Run, train: Dataset, steps: int) -> float:
    """Return the scale at which samples have as much detail as data, taken to grow evenly with the scale; 1 is none.

    The detail of an image is how much its neighbouring pixels differ.
    """
    early = (run.path / folder.EARLY_FILE).is_file()
    if run.kind != "images" or not isinstance(run.config.family, DiffusionSettings) or not early or steps < FEWEST:
        return 1.0
    wanted = float(detail(train.batch(torch.arange(min(DATA, len(train))))[0]).mean())

    def share(scale: float) -> float:
        *_, last = run.frames(DRAWN, autoguidance=scale)
        return float(detail(run.model.decode(last.x0).cpu()).mean()) / max(wanted, 1e-12)

    plain = share(1.0)
    if plain >= SHARP:
        return 1.0
    gained = share(TRIED) - plain
    if gained <= 0:
        return 1.0
    return round(min(MOST, 1 + (TRIED - 1) * (1 - plain) / gained), 2)
