"""The learned noise schedule of a run, before and after training."""

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
    """Return the log-SNR at TIMES before and after training, (n,) each; None if the schedule is not learned."""
    if not isinstance(run.model, Diffusion) or not isinstance(run.model.denoiser.schedule, Learned):
        return None
    initial = build(SCHEDULES, run.diffusion_settings.schedule, "schedule")
    before, after = (torch.as_tensor(s.log_snr(TIMES)).detach() for s in (initial, run.model.denoiser.schedule))
    return before, after


def draw_schedule(run: Run, path: Path) -> None:
    """Plot the learned schedule of a run into its folder, if it has one."""
    curves = log_snr_before_and_after(run)
    if curves is not None:
        fig = figure(6, 4)
        before, after = (x.numpy() for x in curves)
        learned_curve(fig.subplots(), "learned noise schedule", TIMES.numpy(), before, after)
        save(fig, own_file(path, SCHEDULE_PICTURE))
