"""Diffusion in the latent space of an autoencoder (arXiv:2112.10752): the autoencoder as a codec, frozen."""

from __future__ import annotations

import math
from typing import Annotated, Any

import torch
from pydantic import Field, ValidationError
from torch import Tensor, nn

from reverie.base.errors import UserError
from reverie.base.spec import Spec, build, first_problem
from reverie.data import Dataset, chunk_size
from reverie.data.codec import CODECS, Codec
from reverie.families.model import FAMILIES, FamilySettings, Model
from reverie.families.vae.autoencoder import Autoencoder
from reverie.families.vae.model import VAE

MEASURED = 512  # training data, at most, whose codes and reconstructions are measured
LEAST = 1e-4  # deviation of a channel of codes that is taken as one
Side = Annotated[int, Field(ge=1, le=16384)]
MOMENTS = ("code_mean", "code_spread")  # of an autoencoder, which draw codes and mean nothing here


def settings_of_autoencoder(table: dict[str, Any]) -> FamilySettings:
    """Return the settings of an autoencoder; refuse those of anything else."""
    family = FAMILIES.get(str(table.get("name")))
    if family is None or not hasattr(family.settings, "model_fields") or "latent" not in family.settings.model_fields:
        raise UserError(f"a latent codec needs the settings of an autoencoder, got those of {table.get('name')!r}")
    try:
        settings: FamilySettings = family.settings.model_validate(table)
    except ValidationError as error:
        raise UserError(f"the autoencoder of a latent codec is not valid: {first_problem(error)}") from None
    return settings


def autoencoder_of(settings: FamilySettings, shape: tuple[int, ...]) -> Autoencoder | VAE:
    """Make an autoencoder whose codes are maps, in which convolutions can work; refuse others."""
    model = FAMILIES[settings.name].build(settings, shape, 0, 0)
    if not isinstance(model, Autoencoder | VAE) or len(model.latent) != 3:
        raise UserError(f"the codes of this {settings.name} are no maps, which diffusion in its latent space needs; train an"
                        " autoencoder with layers=map")  # fmt: skip
    return model


class LatentCodec(Codec):
    """z = (E(x) - mean) / std and x = D(mean + std z) with an autoencoder's encoder, by its mean, and decoder.

    autoencoder: its settings, the table [family] of its run; shape: of its images.  Weights, and mean and deviation of each
    channel of codes, are taken from a run by `take`; they never learn.  error: the mean squared error of decoded training
    images, in user units; lost: the same as a share of their variance.
    """

    lossy = True

    def __init__(self, autoencoder: dict[str, Any], shape: tuple[Side, Side, Side]) -> None:
        super().__init__()
        self.data_shape = tuple(shape)
        self.autoencoder = autoencoder_of(settings_of_autoencoder(autoencoder), self.data_shape).requires_grad_(False)
        channels = self.autoencoder.latent[0]
        self.mean, self.std = nn.Buffer(torch.zeros(channels, 1, 1)), nn.Buffer(torch.ones(channels, 1, 1))
        self.error, self.lost = nn.Buffer(torch.zeros(())), nn.Buffer(torch.zeros(()))

    def model_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Return the shape of a code."""
        if tuple(shape) != self.data_shape:
            raise UserError(f"the data have the shape {tuple(shape)} but the autoencoder of the codec is for {self.data_shape}")
        return self.autoencoder.latent

    @property
    def units(self) -> Codec:
        """The units of the autoencoder."""
        return self.autoencoder.codec

    def encode(self, x: Tensor) -> Tensor:
        """Return (E(x) - mean) / std: the same bits for the same batch."""
        return (self.autoencoder.to_latent(x) - self.mean) / self.std

    def decode(self, z: Tensor) -> Tensor:
        """Return D(mean + std z) within [0, 1]."""
        return self.autoencoder.from_latent(self.mean + self.std * z).clamp(0, 1)

    def picture(self, z: Tensor) -> Tensor:
        """Return D(mean + std z) in the autoencoder's units, where nothing is cut off and gradients flow."""
        return self.autoencoder.expected(self.mean + self.std * z)

    def known_cells(self, seen: Tensor) -> Tensor:
        """Return which numbers of a code are known: those of places all of whose pixels are.  seen: (C, H, W) bool."""
        channels, height, width = self.autoencoder.latent
        whole: Tensor = seen.all(0).unflatten(0, (height, -1)).unflatten(2, (width, -1)).all(3).all(1)
        return whole.expand(channels, -1, -1)

    def log_cell(self, shape: tuple[int, ...]) -> float:
        """Refuse: a code has no one image, and an image no one code."""
        raise UserError(
            "this model draws the codes of an autoencoder, which tell no likelihood of pixels; train one with --no-latent"
        )

    @torch.no_grad()
    def take(self, model: Model, data: Dataset) -> None:
        """Take the weights of a trained autoencoder, and measure its codes and what it loses on training data."""
        kept = {name: tensor for name, tensor in model.state_dict().items() if name not in MOMENTS}
        own = self.autoencoder.state_dict()
        self.autoencoder.load_state_dict({**own, **kept})
        device = self.mean.device
        codes, errors = [], []
        x = data.subsample(MEASURED)
        for part in x.split(chunk_size(data.shape, 64)):
            code = self.autoencoder.to_latent(part.to(device))
            codes.append(code.double().cpu())
            errors.append((self.autoencoder.from_latent(code).clamp(0, 1).cpu() - part).double().square().flatten(1).mean(1))
        z = torch.cat(codes)
        self.mean.copy_(z.mean((0, 2, 3))[:, None, None].to(self.mean))
        self.std.copy_(z.std((0, 2, 3)).clamp_min(LEAST)[:, None, None].to(self.std))
        error = torch.cat(errors).mean()
        self.error.copy_(error.to(self.error))
        self.lost.copy_((error / x.double().sub(x.double().mean(0)).square().mean().clamp_min(1e-12)).to(self.lost))

    def summary(self) -> dict[str, Any]:
        """Return what it is and how well it gives images back."""
        psnr = -10 * math.log10(max(float(self.error), 1e-12))
        return {"code": list(self.autoencoder.latent), "psnr": round(psnr, 2), "variance_lost": round(float(self.lost), 4)}


ALL_CODECS: dict[str, type[Codec]] = {**CODECS, "latent": LatentCodec}


def latent_spec(settings: FamilySettings, shape: tuple[int, ...]) -> Spec:
    """Return the codec of a run whose images are coded by an autoencoder of these settings."""
    return {"name": "latent", "autoencoder": settings.model_dump(mode="json"), "shape": tuple(shape)}


def model_shape(codec: Spec, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the shape of a datum in the units of a codec; nothing is allocated for it."""
    with torch.device("meta"):
        return build(ALL_CODECS, codec, "codec").model_shape(shape)
