"""All noise schedules: log-SNR, alpha and sigma by time; and learned schedules of runs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from matplotlib.axes import Axes

from reverie.base.errors import UserError
from reverie.base.spec import build
from reverie.diffusion.schedule import Schedule
from reverie.diffusion.schedules import SCHEDULES
from reverie.draw.curves import MAX_LOG_SNR, label_axes, learned_curve, log_snr_axes
from reverie.draw.picture import ACCENT, CYCLE, check_picture, figure, matplotlib_text, save
from reverie.runs.learned_schedule import TIMES, log_snr_before_and_after
from reverie.runs.run import Run, load

COLUMNS, MAX_RUNS = 3, 12
DASHES = ("-", "--", "-.")  # for schedules beyond the number of colours


def curves(schedule: Schedule) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return log-SNR, alpha and sigma at TIMES, (n,) each; the log-SNR is infinite where alpha or sigma is 0."""
    alpha, sigma = (torch.as_tensor(c).detach().numpy() for c in schedule(TIMES))
    with np.errstate(divide="ignore"):
        return 2 * (np.log(alpha) - np.log(sigma)), alpha, sigma


def draw(out: Path, *, runs: Sequence[str | Path | Run] = (), device: str = "auto") -> list[Path]:
    """Draw the figure and return its file."""
    check_picture(out)
    if len(runs) > MAX_RUNS:
        raise UserError(f"at most {MAX_RUNS} runs are shown, got {len(runs)}; give fewer")
    opened = [run if isinstance(run, Run) else load(run, device) for run in runs]
    rows = 1 + -(-len(opened) // COLUMNS)
    fig = figure(13, 4.2 * rows)
    panels = fig.subplots(rows, COLUMNS, squeeze=False)
    log_snr, alphas, sigmas = panels[0]
    log_snr_axes(log_snr, "log-SNR")
    for k, name in enumerate(SCHEDULES):
        curves_by_panel = curves(build(SCHEDULES, name, "schedule"))
        style = {"color": CYCLE[k % len(CYCLE)], "ls": DASHES[k // len(CYCLE) % len(DASHES)], "lw": 1.6}
        for axes, values in zip(panels[0], curves_by_panel, strict=True):
            axes.plot(TIMES.numpy(), values, label=name, **style)
    for axes, title in ((alphas, "alpha, of the data"), (sigmas, "sigma, of the noise")):
        label_axes(axes, title, "t, from data to noise", title.partition(",")[0])
        axes.set_ylim(-0.03, 1.25)  # sigma of variance-exploding schedules continues far beyond
    log_snr.set_ylim(-MAX_LOG_SNR, MAX_LOG_SNR)
    alphas.legend(fontsize=8, frameon=False, loc="lower left")
    for axes, run in zip(panels[1:].flat, opened, strict=False):
        _draw_run(axes, run)
    for axes in panels[1:].flat[len(opened) :]:
        axes.axis("off")
    save(fig, out)
    return [out]


def _draw_run(axes: Axes, run: Run) -> None:
    """Draw the schedule of a run: initial and learned, or the fixed one."""
    if (log_snrs := log_snr_before_and_after(run)) is not None:
        learned_curve(axes, str(run.path), TIMES.numpy(), log_snrs[0].numpy(), log_snrs[1].numpy())
        return
    spec, schedule = run.diffusion_settings.schedule, run.diffusion.denoiser.schedule
    log_snr_axes(axes, matplotlib_text(str(run.path)))
    axes.plot(TIMES.numpy(), curves(schedule)[0], color=ACCENT, lw=1.8, label=f"{matplotlib_text(spec['name'])}, not learned")
    axes.legend(fontsize=8, frameon=False)
