"""The doctor: keeps the history of a training, takes previews and runs the checks."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from torch import Tensor

from reverie.data.appearance import AppearanceStats
from reverie.families.diffusion.model import Diffusion
from reverie.runs import folder
from reverie.runs.config import build_model
from reverie.runs.finding import Finding
from reverie.runs.run import Run
from reverie.runs.step import Step
from reverie.training.checks import PATIENCE, examine, has_stopped_improving
from reverie.training.diagnosis import Diagnosis, NetworkInfo
from reverie.training.linear import first_map, linear_filter
from reverie.training.loop import FIRST_PRICE, FREE
from reverie.training.previews import Previews
from reverie.training.suggestions import sizes
from reverie.training.text_previews import TextPreviews

if TYPE_CHECKING:
    from reverie.training.trainer import Training

PREVIEW = "last preview"  # the stage after the last step
LAST_SHARE = 0.1  # upper limit of the training time for the last preview
PREVIEW_SHARE = 0.03  # upper limit of the training time for previews
CHECKED_DATA = 512  # training data for the checks
MIN_RMS = 0.01  # minimum root mean square of weights by which their change is divided


def network_info(run: Run, data: Tensor) -> NetworkInfo:
    """Return properties of the untrained network of a diffusion model; empty for other models and for students."""
    model = run.model
    if not isinstance(model, Diffusion) or model.distilled:
        return NetworkInfo()
    return NetworkInfo(
        model.denoiser.schedule, linear_filter(model, model.encode(data.to(model.device))),
        first_map(model) if model.kind == "images" else None, lambda: sizes(run.diffusion_settings.network),
    )  # fmt: skip


class Doctor:
    """Keeps the history of a training, takes previews within their share of the time, and runs the checks."""

    def __init__(self, training: Training, previews: Previews | TextPreviews) -> None:
        self.training, self.previews = training, previews
        self.rows: list[dict[str, Any]] = list(training.run.metrics())
        self.active: dict[str, Finding] = {f.check: f for f in folder.read_findings(training.run.path)}
        fresh = training.run.config.start is None  # otherwise the initial weights are those of another run
        untrained = build_model(training.run.config)
        self.first = {name: p.detach().clone() for name, p in untrained.named_parameters() if p.requires_grad} if fresh else {}
        self.data = training.train.subsample(CHECKED_DATA).float()
        self.network = network_info(training.run, self.data)
        self.preview: AppearanceStats | None = None
        self.previewed_at = 0
        self.previewing = PREVIEW_SHARE * training.learner.seconds
        self.price: float | None = None  # seconds of the last preview

    def _movement(self) -> dict[str, float]:
        """Return the change of each parameter since the start, relative to its initial norm."""

        def moved(p: Tensor, first: Tensor) -> float:
            root = p.numel() ** 0.5
            return float((p.detach().cpu() - first).norm() / first.norm().clamp_min(MIN_RMS * root))

        parameters = dict(self.training.learner.model.named_parameters())
        return {name: moved(parameters[name], first) for name, first in self.first.items()}

    def visit(self, step: Step) -> Step:
        """Return the report with the score of the preview and new findings."""
        learner = self.training.learner
        if step.loss is None or step.held_out is None:
            if step.loss is not None:
                self.rows.extend(step.as_rows())
            return step
        if self._has_time(step):
            step = self._preview(step)
        if step.fraction == 1 and self.network.linear is not None:
            step = replace(step, linear_levels=self.network.linear.loss_levels)
        self.rows.extend(step.as_rows())
        diagnosis = Diagnosis(
            self.rows, self.training.run.model, self.data, self.training.train.kind, self._movement(), self.preview,
            self.previews.truth, len(self.training.train), self.training.run.config.requested, self.network, self.previewed_at,
        )  # fmt: skip
        problems = {finding.check: finding for finding in examine(diagnosis)}
        new = tuple(finding for name, finding in problems.items() if name not in self.active)
        self.active = problems
        if self.training.run.config.training.until == "converged" and learner.ending is None and self._has_converged():
            learner.ending = step.fraction
        return replace(step, findings=new, active=tuple(problems))

    def _has_time(self, step: Step) -> bool:
        """Return whether there is time for a preview: within the share of previews, or at the end within the budget."""
        if step.fraction == 1:
            estimate = FIRST_PRICE * step.seconds / max(1, step.i)  # if none was taken yet
            return self.training.budget.has_time_for(PREVIEW, estimate if self.price is None else self.price)
        return self.previewing <= max(FREE, PREVIEW_SHARE * step.seconds)

    def _preview(self, step: Step) -> Step:
        """Take a preview and return the report with its statistics."""
        budget = self.training.budget
        start = budget.clock()
        with budget.stage(PREVIEW) if step.fraction == 1 else nullcontext():
            self.preview, score = self.previews.take(step.i)
        self.price = budget.clock() - start
        if step.fraction < 1:
            budget.reserve(PREVIEW, self.price, LAST_SHARE)
        self.previewing += self.price * (step.i > 1)  # as for checks, the first does not count
        self.previewed_at = step.i
        if isinstance(self.previews, TextPreviews):
            return replace(step, appearance=self.previews.novelty or None)
        if self.preview is None or self.previews.truth is None:
            return step
        return replace(step, preview_score=score, appearance=self.preview.relative_to(self.previews.truth))

    def _has_converged(self) -> bool:
        """Return whether the held-out loss and, if there are enough, the scores of previews have stopped improving."""
        scored = [row for row in self.rows if "preview_score" in row]
        previews_converged = len(scored) <= 2 * PATIENCE or has_stopped_improving(scored, "preview_score")
        return previews_converged and has_stopped_improving(self.rows)
