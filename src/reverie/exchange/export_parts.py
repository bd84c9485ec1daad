"""What of a run goes into a file that draws without Reverie: denoisers, the table of steps, and facts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from reverie.base.errors import UserError
from reverie.base.spec import Spec
from reverie.diffusion.denoiser import NetDenoiser
from reverie.exchange.solver_steps import SolverStep, solver_steps
from reverie.families.diffusion.clusters import CLUSTER_DRAW
from reverie.families.diffusion.latent_codec import LatentCodec
from reverie.families.diffusion.model import Diffusion
from reverie.runs.run import Run
from reverie.runs.sampling_options import Options


@dataclass(frozen=True)
class ExportParts:
    """A diffusion model.  weak: an early state, away from which autoguidance leads; autoguidance: how far, 1 is none."""

    run: Run
    model: Diffusion
    weak: NetDenoiser | None
    autoguidance: float

    @property
    def codec(self) -> Spec:
        """The units of the data."""
        return self.run.diffusion_settings.codec

    @property
    def clusters(self) -> dict[str, Any] | None:
        """How clusters of images are drawn, None where there are none.

        counts: how often each is with each label; draw: the number of the draw that decides; before: entries that are told of
        changes, which come before those of clusters.
        """
        if (found := self.model.clusters) is None:
            return None
        return {"counts": found.counts.long().tolist(), "draw": CLUSTER_DRAW, "before": self.model.augmentation_width}

    def solver_steps(self, options: Options) -> list[SolverStep]:
        """Return the table of steps of a sampler on a grid."""
        sampler, grid = self.run.sampling(options)
        return solver_steps(sampler, self.model.denoiser.schedule, grid)

    def facts(self, options: Options) -> dict[str, Any]:
        """Return what a reader has to know, without anything of the machine."""
        sampler, steps, grid = self.run.chosen_sampling(options)
        data = self.run.config.data
        return {
            "kind": data.kind, "data": data.name, "shape": list(self.model.shape), "labels": list(data.labels),
            "label_counts": list(data.label_counts), "sampler": sampler, "steps": steps, "grid": grid,
            "autoguidance": self.autoguidance, "codec": self.codec, "clusters": self.clusters,
            "clipped": self.model.clips,
        }  # fmt: skip


def split_run(run: Run, options: Options, what: str) -> ExportParts:
    """Take a run apart; refuse one that cannot go into such a file.  what: the file, for messages."""
    if not isinstance(run.model, Diffusion):
        raise UserError(f"{run.path} is a run of the family {run.config.family.name}, and {what} can hold diffusion models"
                        " only; export it as a folder, which Reverie reads")  # fmt: skip
    if isinstance(run.model.codec, LatentCodec):
        raise UserError(f"{run.path} draws codes of an autoencoder, which {what} cannot hold yet; export it as a folder")
    if run.config.data.condition is not None:
        raise UserError(f"{run.path} is told captions, numbers or images, which {what} cannot hold yet; export it as a folder")
    if run.diffusion_settings.target == "levels":
        raise UserError(f"{run.path} predicts the levels of images, which {what} cannot hold yet; export it as a folder")
    run.sampling(options)
    asked = options.get("autoguidance")
    scale = run.autoguidance if asked is None else asked
    weak = run.early() if scale != 1 else None
    assert weak is None or isinstance(weak, Diffusion)
    return ExportParts(run, run.model, None if weak is None else weak.denoiser, scale)
