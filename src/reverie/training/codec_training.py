"""Diffusion in a latent space: when it is chosen, the autoencoder that is trained first, and how the time is shared."""

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

# Pixels of the longer side from which a latent space is chosen: at 64 it halves what is off in colour photos (book/latent.md);
# grey images hold a third as much.
COLOUR_SIDE, GREY_SIDE = 64, 96
SHARE = 1 / 3  # of the time, or of the steps, that the autoencoder is trained for
SMALLEST_MAP = 16  # places along the shorter side of a map of codes: of 8, patches show at their edges
WIDTH, BLOCKS, BATCH, RATE = 64, 2, 16, 1e-3
# Of an autoencoder that takes errors of a deviation s as noise, 2 s² for s of 2.5 of 255 levels, in units from -1 to 1.
KL = 8e-4
PERCEPTUAL = 0.03  # about a half of the loss of photos; more costs pixels, less leaves a grain (book/latent.md)


def least_side(shape: tuple[int, ...]) -> int:
    """Return the pixels of the longer side from which images of so many channels are coded."""
    return COLOUR_SIDE if shape[0] > 1 else GREY_SIDE


def patch_for(shape: tuple[int, ...]) -> int | None:
    """Return the side of the patches that images are cut into, so that their map can be halved; None where it cannot be."""
    height, width = shape[1:]
    fitting = [patch for patch in (8, 4, 2) if height % (2 * patch) == width % (2 * patch) == 0]
    return next((patch for patch in fitting if min(height, width) // patch >= SMALLEST_MAP), fitting[-1] if fitting else None)


def autoencoder_for(shape: tuple[int, ...]) -> AutoencoderSettings:
    """Return the autoencoder of images of a shape, or say why there is none."""
    patch = patch_for(shape)
    if patch is None:
        raise UserError(
            f"images of {shape[1]}x{shape[2]} have no map of codes that can be halved; give a --size of multiples of"
            " 16, or --no-latent"
        )
    return AutoencoderSettings(
        layers="map", latent=max(1, min(2 * patch, shape[0] * patch**2 // 2)), patch=patch, widths=(WIDTH,), blocks=BLOCKS,
        kl=KL, perceptual=PERCEPTUAL if available() else 0.0, codec={"name": "pixels"},
    )  # fmt: skip


@dataclass(frozen=True)
class LatentRequest:
    """Whether to train in a latent space.

    asked: yes, no, or None, by the size of the images; wished: options of the family; run: whose autoencoder is used.
    """

    asked: bool | None
    wished: Mapping[str, Any]
    run: Run | None = None
    by_size: bool = True  # whether the size may choose

    def codec(self, form: Dataset) -> Spec | None:
        """Return the codec for data of a form; None where they are not coded by an autoencoder."""
        if self.run is not None:
            self._check(self.run, form)
            return latent_spec(self.run.config.family, form.shape)
        if self.asked and form.kind != "images":
            raise UserError(f"{form.name} holds points; a latent space is for images, so leave --latent out")
        chosen = self.asked or (self.asked is None and self.by_size and self._large(form))
        return latent_spec(autoencoder_for(form.shape), form.shape) if chosen else None

    def _large(self, form: Dataset) -> bool:
        if form.kind != "images" or max(form.shape[1:]) < least_side(form.shape) or patch_for(form.shape) is None:
            return False
        own = parse(self.wished.get("network") or "none").keys() & {"stem", "patch"}
        other = self.wished.get("purpose") == "likelihood" or self.wished.get("target") == "levels" or "codec" in self.wished
        return not (own or other)

    def _check(self, run: Run, form: Dataset) -> None:
        """Refuse data that the autoencoder of a run is not for."""
        theirs = tuple(run.config.data.shape)
        if form.shape != theirs:
            size = f"{theirs[1]}" if theirs[1] == theirs[2] else f"{theirs[1]}x{theirs[2]}"
            raise UserError(
                f"the autoencoder of {run.path} is for {describe_shape(theirs)}, and {form.name} holds"
                f" {describe_shape(form.shape)}; read them alike with --size {size} --channels {theirs[0]}"
            )

    def reason(self, form: Dataset, codec: Spec) -> str:
        """Say what is coded by what, and why."""
        settings = autoencoder_for(form.shape) if self.run is None else self.run.config.family
        code = autoencoder_of(settings, form.shape).latent
        maps = f"{'x'.join(map(str, form.shape[1:]))} images are drawn as maps of {code[1]}x{code[2]} with {code[0]} channels"
        if self.run is not None:
            return f"latent: {maps}, by the autoencoder of {self.run.path}"
        why = "as asked" if self.asked else f"as from {least_side(form.shape)} pixels on; --no-latent turns it off"
        return f"latent: {maps}, by an autoencoder that is trained first, for a third of the time ({why})"


def open_codec(path: str | Path) -> Run:
    """Open the run whose autoencoder is to be used, or the one within a run of latent diffusion; refuse others."""
    place = Path(path)
    check_run(place)
    if (place / CODEC_FOLDER / "config.toml").is_file():
        place = place / CODEC_FOLDER
    run = load(place, "cpu")
    if "latent" not in type(run.config.family).model_fields:
        raise UserError(f"{place} is a run of the family {run.config.family.name}, which is no autoencoder; train one with:"
                        " reverie train DATA --family autoencoder:layers=map")  # fmt: skip
    if run.config.family.name == "vae" and run.config.data.labels:
        raise UserError(f"the autoencoder of {place} needs labels, which an image alone has not; train it with --labels none")
    autoencoder_of(run.config.family, run.config.data.shape)
    return run


def shared(minutes: float | None, steps: int | None, share: float) -> tuple[float | None, int | None]:
    """Return the part of a budget, in minutes or steps, that a stage gets."""
    if steps is not None:
        return None, max(1, round(share * steps))
    return share * (IMAGE_MINUTES if minutes is None else minutes), None


def codec_plan(shape: tuple[int, ...], minutes: float | None, steps: int | None) -> FamilyPlan[AutoencoderSettings]:
    """Return what is trained first, for its share of the budget."""
    length = dict(zip(("minutes", "steps"), shared(minutes, steps, SHARE), strict=True))
    training = {"batch": BATCH, "learning_rate": RATE, **length}
    return FamilyPlan(autoencoder_for(shape), training, ())


def is_latent(config: Config) -> bool:
    """Tell whether a run is one of latent diffusion."""
    return isinstance(config.family, DiffusionSettings) and config.family.codec["name"] == "latent"


def has_own_codec(config: Config) -> bool:
    """Tell whether a run trains its autoencoder itself, and not with that of another."""
    return is_latent(config) and config.codec is None and config.start is None


def use_codec(model: Model, run: Run, data: Dataset) -> None:
    """Give a model the autoencoder of a run, and measure it on training data."""
    assert isinstance(model, Diffusion) and isinstance(model.codec, LatentCodec)
    model.codec.take(run.model, data)


def total_length(config: Config) -> tuple[float | None, int | None]:
    """Return the minutes or steps of a run with those of its autoencoder, as they were asked for."""
    share = 1 - SHARE if has_own_codec(config) else 1.0
    minutes, steps = config.training.minutes, config.training.steps
    whole = round(minutes / share, 9) if minutes is not None else None
    return whole, round(steps / share) if steps is not None else None
