"""The learned schedule of a run: as it began, and as it is."""

from __future__ import annotations

from pathlib import Path

import torch

from reverie.base.files import own_file
from reverie.base.spec import build
from reverie.diffusion.learned import Learned
from reverie.diffusion.schedules import SCHEDULES
from reverie.draw.curves import learned_curve
from reverie.draw.picture import figure, save
from reverie.families.diffusion.model import Diffusion
from reverie.runs.run import Run

SCHEDULE_PICTURE = "schedule.png"
TIMES = torch.linspace(0, 1, 201, dtype=torch.float64)


def log_snr_before_and_after(run: Run) -> tuple[torch.Tensor, torch.Tensor] | None:
    """Return the log-SNR at TIMES by which a schedule began and that it has learned, (n,) each; None if it was not learned."""
    if not isinstance(run.model, Diffusion) or not isinstance(run.model.denoiser.schedule, Learned):
        return None
    began = build(SCHEDULES, run.diffusion_settings.schedule, "schedule")
    before, after = (torch.as_tensor(s.log_snr(TIMES)).detach() for s in (began, run.model.denoiser.schedule))
    return before, after


def draw_schedule(run: Run, path: Path) -> None:
    """Draw the schedule that a run has learned into its folder, where it has."""
    found = log_snr_before_and_after(run)
    if found is not None:
        made = figure(6, 4)
        before, after = (x.numpy() for x in found)
        learned_curve(made.subplots(), "what was learned of the schedule", TIMES.numpy(), before, after)
        save(made, own_file(path, SCHEDULE_PICTURE))
