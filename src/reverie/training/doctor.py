"""Watching a training: its history, its previews, and the checks that look at it all."""

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
LAST_SHARE = 0.1  # of the training time, at most, that the last preview takes
PREVIEW_SHARE = 0.03  # of the training time, at most
DATA_LOOKED_AT = 512
LEAST_SIZE = 0.01  # the size that a weight which begins at zero is taken to have


def network_facts(run: Run, data: Tensor) -> NetworkInfo:
    """Return what is known of the network of a diffusion model before it is trained; nothing for others and for students."""
    model = run.model
    if not isinstance(model, Diffusion) or model.distilled:
        return NetworkInfo()
    return NetworkInfo(
        model.denoiser.schedule, linear_filter(model, model.encode(data.to(model.device))),
        first_map(model) if model.kind == "images" else None, lambda: sizes(run.diffusion_settings.network),
    )  # fmt: skip


class Doctor:
    """Keeps the history of a training, takes previews within their share of the time, and has the checks look at it all."""

    def __init__(self, training: Training, previews: Previews | TextPreviews) -> None:
        self.training, self.previews = training, previews
        self.rows: list[dict[str, Any]] = list(training.run.metrics())
        self.active: dict[str, Finding] = {f.check: f for f in folder.read_findings(training.run.path)}
        fresh = training.run.config.start is None  # else the first weights were those of another run
        untrained = build_model(training.run.config)
        self.first = {name: p.detach().clone() for name, p in untrained.named_parameters() if p.requires_grad} if fresh else {}
        self.data = training.train.subsample(DATA_LOOKED_AT).float()
        self.facts = network_facts(training.run, self.data)
        self.look: AppearanceStats | None = None
        self.looked_at = 0
        self.previewing = PREVIEW_SHARE * training.learner.seconds
        self.price: float | None = None  # seconds of the last preview

    def _movement(self) -> dict[str, float]:
        """Return how far each parameter is from where it began, relative to its size there."""

        def moved(p: Tensor, first: Tensor) -> float:
            root = p.numel() ** 0.5
            return float((p.detach().cpu() - first).norm() / first.norm().clamp_min(LEAST_SIZE * root))

        now = dict(self.training.learner.model.named_parameters())
        return {name: moved(now[name], first) for name, first in self.first.items()}

    def visit(self, step: Step) -> Step:
        """Return the report with the preview's score and with what is newly wrong."""
        learner = self.training.learner
        if step.loss is None or step.held_out is None:
            if step.loss is not None:
                self.rows.extend(step.as_rows())
            return step
        if self._has_time(step):
            step = self._preview(step)
        if step.fraction == 1 and self.facts.linear is not None:
            step = replace(step, linear_levels=self.facts.linear.loss_levels)
        self.rows.extend(step.as_rows())
        patient = Diagnosis(
            self.rows, self.training.run.model, self.data, self.training.train.kind, self._movement(), self.look,
            self.previews.truth, len(self.training.train), self.training.run.config.requested, self.facts, self.looked_at,
        )  # fmt: skip
        found = {finding.check: finding for finding in examine(patient)}
        new = tuple(finding for name, finding in found.items() if name not in self.active)
        self.active = found
        if self.training.run.config.training.until == "converged" and learner.ending is None and self._is_good():
            learner.ending = step.fraction
        return replace(step, findings=new, active=tuple(found))

    def _has_time(self, step: Step) -> bool:
        """Tell whether there is time for a preview: within the share of previews, and at the end if any is left."""
        if step.fraction == 1:
            guess = FIRST_PRICE * step.seconds / max(1, step.i)  # where none was taken yet
            return self.training.budget.has_time_for(PREVIEW, guess if self.price is None else self.price)
        return self.previewing <= max(FREE, PREVIEW_SHARE * step.seconds)

    def _preview(self, step: Step) -> Step:
        """Take a preview and return the report with what it looks like."""
        budget = self.training.budget
        began = budget.clock()
        with budget.stage(PREVIEW) if step.fraction == 1 else nullcontext():
            self.look, score = self.previews.take(step.i)
        self.price = budget.clock() - began
        if step.fraction < 1:
            budget.reserve(PREVIEW, self.price, LAST_SHARE)
        self.previewing += self.price * (step.i > 1)  # as with checks, the first is not held against others
        self.looked_at = step.i
        if isinstance(self.previews, TextPreviews):
            return replace(step, appearance=self.previews.beside or None)
        if self.look is None or self.previews.truth is None:
            return step
        return replace(step, preview_score=score, appearance=self.look.relative_to(self.previews.truth))

    def _is_good(self) -> bool:
        """Tell whether held-out loss and, where there are enough of them, previews have stopped improving."""
        scored = [row for row in self.rows if "preview_score" in row]
        seen = len(scored) <= 2 * PATIENCE or has_stopped_improving(scored, "preview_score")
        return seen and has_stopped_improving(self.rows)
