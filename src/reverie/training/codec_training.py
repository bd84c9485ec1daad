"""Latent diffusion: when it is the default, the autoencoder that is trained first, and the division of time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from reverie.base.errors import UserError
from reverie.base.spec import Spec, parse
from reverie.data import Dataset
from reverie.data.kind import describe_shape
from reverie.diffusion.plan import IMAGE_MINUTES
from reverie.families.diffusion.latent_codec import LatentCodec, autoencoder_of, latent_spec
from reverie.families.diffusion.model import Diffusion
from reverie.families.diffusion.settings import DiffusionSettings
from reverie.families.model import FamilyPlan, Model
from reverie.families.vae.settings import AutoencoderSettings
from reverie.nets.efficientnet import available
from reverie.runs.config import Config
from reverie.runs.folder import check_run
from reverie.runs.run import Run, load
from reverie.training.claim import CODEC_FOLDER

# Longer side in pixels from which latent diffusion is the default: at 64 it halves the distance of samples to color photos
# (book/latent.md); grey images have a third of the values.
COLOUR_SIDE, GREY_SIDE = 64, 96
SHARE = 1 / 3  # share of the time or steps that the autoencoder gets
MIN_MAP_SIDE = 16  # minimum shorter side of a latent map: with 8, the edges of patches are visible
WIDTH, BLOCKS, BATCH, RATE = 64, 2, 16, 1e-3
# 2 s² for reconstruction errors with a standard deviation s of 2.5 of 255 levels, in units from -1 to 1.
KL = 8e-4
PERCEPTUAL = 0.03  # half of the loss of photos; a higher weight adds pixel errors, a lower one grain (book/latent.md)


def least_side(shape: tuple[int, ...]) -> int:
    """Return the longer side in pixels from which latent diffusion is the default."""
    return COLOUR_SIDE if shape[0] > 1 else GREY_SIDE


def patch_for(shape: tuple[int, ...]) -> int | None:
    """Return the patch size of the autoencoder, so that the latent map can be halved; None if there is none."""
    height, width = shape[1:]
    fitting = [patch for patch in (8, 4, 2) if height % (2 * patch) == width % (2 * patch) == 0]
    return next((patch for patch in fitting if min(height, width) // patch >= MIN_MAP_SIDE), fitting[-1] if fitting else None)


def autoencoder_for(shape: tuple[int, ...]) -> AutoencoderSettings:
    """Return the settings of the autoencoder for images of a shape; refuse shapes without one."""
    patch = patch_for(shape)
    if patch is None:
        raise UserError(
            f"images of {shape[1]}x{shape[2]} have no latent map that can be halved; use a --size with multiples of 16,"
            " or --no-latent"
        )
    return AutoencoderSettings(
        layers="map", latent=max(1, min(2 * patch, shape[0] * patch**2 // 2)), patch=patch, widths=(WIDTH,), blocks=BLOCKS,
        kl=KL, perceptual=PERCEPTUAL if available() else 0.0, codec={"name": "pixels"},
    )  # fmt: skip


@dataclass(frozen=True)
class LatentRequest:
    """Whether to train latent diffusion.

    latent: the option; if None and by_size, the image size decides; options: of the family; run: of the autoencoder.
    """

    latent: bool | None
    options: Mapping[str, Any]
    run: Run | None = None
    by_size: bool = True

    def codec(self, form: Dataset) -> Spec | None:
        """Return the codec for data of a shape; None without an autoencoder."""
        if self.run is not None:
            self._check(self.run, form)
            return latent_spec(self.run.config.family, form.shape)
        if self.latent and form.kind != "images":
            raise UserError(f"latent diffusion needs images, and {form.name} contains {form.kind}; omit --latent")
        chosen = self.latent or (self.latent is None and self.by_size and self._large(form))
        return latent_spec(autoencoder_for(form.shape), form.shape) if chosen else None

    def _large(self, form: Dataset) -> bool:
        if form.kind != "images" or max(form.shape[1:]) < least_side(form.shape) or patch_for(form.shape) is None:
            return False
        sets_patches = parse(self.options.get("network") or "none").keys() & {"stem", "patch"}
        is_incompatible = (
            self.options.get("purpose") == "likelihood" or self.options.get("target") == "levels" or "codec" in self.options
        )
        return not (sets_patches or is_incompatible)

    def _check(self, run: Run, form: Dataset) -> None:
        """Refuse data that do not fit the autoencoder of a run."""
        expected = tuple(run.config.data.shape)
        if form.shape != expected:
            size = f"{expected[1]}" if expected[1] == expected[2] else f"{expected[1]}x{expected[2]}"
            raise UserError(
                f"the autoencoder of {run.path} is for {describe_shape(expected)}, and {form.name} contains"
                f" {describe_shape(form.shape)}; add --size {size} --channels {expected[0]}"
            )

    def reason(self, form: Dataset, codec: Spec) -> str:
        """Describe the latent space and why it was chosen."""
        settings = autoencoder_for(form.shape) if self.run is None else self.run.config.family
        code = autoencoder_of(settings, form.shape).latent
        maps = f"{'x'.join(map(str, form.shape[1:]))} images as latent maps of {code[1]}x{code[2]} with {code[0]} channels"
        if self.run is not None:
            return f"latent diffusion: {maps}, by the autoencoder of {self.run.path}"
        cause = "requested" if self.latent else f"default from {least_side(form.shape)} pixels; --no-latent disables it"
        return f"latent diffusion: {maps}, by an autoencoder that is trained first, for a third of the time ({cause})"


def open_codec(path: str | Path) -> Run:
    """Open a run of an autoencoder, or the autoencoder within a run of latent diffusion; refuse others."""
    run_folder = Path(path)
    check_run(run_folder)
    if (run_folder / CODEC_FOLDER / "config.toml").is_file():
        run_folder = run_folder / CODEC_FOLDER
    run = load(run_folder, "cpu")
    if "latent" not in type(run.config.family).model_fields:
        raise UserError(f"{run_folder} is a run of the family {run.config.family.name}, not an autoencoder; train one with:"
                        " reverie train DATA --family autoencoder:layers=map")  # fmt: skip
    if run.config.family.name == "vae" and run.config.data.labels:
        raise UserError(f"the autoencoder of {run_folder} needs labels; train it with --labels none")
    autoencoder_of(run.config.family, run.config.data.shape)
    return run


def stage_length(minutes: float | None, steps: int | None, share: float) -> tuple[float | None, int | None]:
    """Return the minutes or steps of a stage with a share of the budget."""
    if steps is not None:
        return None, max(1, round(share * steps))
    return share * (IMAGE_MINUTES if minutes is None else minutes), None


def codec_plan(shape: tuple[int, ...], minutes: float | None, steps: int | None) -> FamilyPlan[AutoencoderSettings]:
    """Return the plan of the autoencoder, with its share of the budget."""
    length = dict(zip(("minutes", "steps"), stage_length(minutes, steps, SHARE), strict=True))
    training = {"batch": BATCH, "learning_rate": RATE, **length}
    return FamilyPlan(autoencoder_for(shape), training, ())


def is_latent(config: Config) -> bool:
    """Return whether a run is latent diffusion."""
    return isinstance(config.family, DiffusionSettings) and config.family.codec["name"] == "latent"


def has_own_codec(config: Config) -> bool:
    """Return whether a run trains its own autoencoder."""
    return is_latent(config) and config.codec is None and config.start is None


def use_codec(model: Model, run: Run, data: Dataset) -> None:
    """Set the autoencoder of a model and measure its statistics on training data."""
    assert isinstance(model, Diffusion) and isinstance(model.codec, LatentCodec)
    model.codec.take(run.model, data)


def total_length(config: Config) -> tuple[float | None, int | None]:
    """Return the requested minutes or steps of a run, including its autoencoder."""
    share = 1 - SHARE if has_own_codec(config) else 1.0
    minutes, steps = config.training.minutes, config.training.steps
    total_minutes = round(minutes / share, 9) if minutes is not None else None
    return total_minutes, round(steps / share) if steps is not None else None
