"""The parts of a run that an exported file contains: denoisers, solver steps, and facts."""

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
    """A diffusion model.  weak: an early checkpoint for autoguidance; autoguidance: its scale, 1 is none."""

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
        """The frequencies of the image clusters, None without clusters.

        counts: by label; draw: index of the random draw that selects a cluster; before: number of entries of the conditioning
        vector before those of the clusters.
        """
        if (clusters := self.model.clusters) is None:
            return None
        return {"counts": clusters.counts.long().tolist(), "draw": CLUSTER_DRAW, "before": self.model.augmentation_width}

    def solver_steps(self, options: Options) -> list[SolverStep]:
        """Return the steps of a sampler on its grid."""
        sampler, grid = self.run.sampling(options)
        return solver_steps(sampler, self.model.denoiser.schedule, grid)

    def facts(self, options: Options) -> dict[str, Any]:
        """Return the facts for the reader of the file, without paths."""
        sampler, steps, grid = self.run.chosen_sampling(options)
        data = self.run.config.data
        return {
            "kind": data.kind, "data": data.name, "shape": list(self.model.shape), "labels": list(data.labels),
            "label_counts": list(data.label_counts), "sampler": sampler, "steps": steps, "grid": grid,
            "autoguidance": self.autoguidance, "codec": self.codec, "clusters": self.clusters,
            "clipped": self.model.clips,
        }  # fmt: skip


def split_run(run: Run, options: Options, what: str) -> ExportParts:
    """Return the parts of a run; refuse one that the file cannot contain.  what: the file, for messages."""
    if not isinstance(run.model, Diffusion):
        raise UserError(f"{run.path} has the family {run.config.family.name}, and {what} contains diffusion models only;"
                        " export to a folder")  # fmt: skip
    if isinstance(run.model.codec, LatentCodec):
        raise UserError(f"{run.path} samples codes of an autoencoder, which {what} cannot contain yet; export to a folder")
    if run.config.data.condition is not None:
        raise UserError(f"{run.path} is conditioned on captions, numbers or images, which {what} cannot contain yet; export to"
                        " a folder")  # fmt: skip
    if run.diffusion_settings.target == "levels":
        raise UserError(f"{run.path} predicts the levels of images, which {what} cannot contain yet; export to a folder")
    run.sampling(options)
    requested = options.get("autoguidance")
    scale = run.autoguidance if requested is None else requested
    weak = run.early() if scale != 1 else None
    assert weak is None or isinstance(weak, Diffusion)
    return ExportParts(run, run.model, None if weak is None else weak.denoiser, scale)
