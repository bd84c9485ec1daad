"""Latent diffusion (arXiv:2112.10752): a frozen autoencoder as a codec."""

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

MAX_DATA = 512  # training data for the moments of codes and the reconstruction error
MIN_STD = 1e-4  # lower limit of a channel's standard deviation
Side = Annotated[int, Field(ge=1, le=16384)]
MOMENTS = ("code_mean", "code_spread")  # buffers of an autoencoder that only its own sampling uses


def settings_of_autoencoder(table: dict[str, Any]) -> FamilySettings:
    """Return the settings of an autoencoder; raise a UserError for those of other families."""
    family = FAMILIES.get(str(table.get("name")))
    if family is None or not hasattr(family.settings, "model_fields") or "latent" not in family.settings.model_fields:
        raise UserError(
            f"a latent codec needs the settings of an autoencoder, got those of {table.get('name')!r}; train one first"
        )
    try:
        settings: FamilySettings = family.settings.model_validate(table)
    except ValidationError as error:
        raise UserError(f"invalid autoencoder settings of the latent codec: {first_problem(error)}") from None
    return settings


def autoencoder_of(settings: FamilySettings, shape: tuple[int, ...]) -> Autoencoder | VAE:
    """Build an autoencoder whose codes are feature maps; raise a UserError for other latents."""
    model = FAMILIES[settings.name].build(settings, shape, 0, 0)
    if not isinstance(model, Autoencoder | VAE) or len(model.latent) != 3:
        raise UserError(f"the codes of this {settings.name} are no feature maps, which latent diffusion needs; train an"
                        " autoencoder with layers=map")  # fmt: skip
    return model


class LatentCodec(Codec):
    """z = (E(x) - mean) / std and x = D(mean + std z), with the mean of an autoencoder's encoder E and its decoder D.

    autoencoder: settings of the autoencoder, the table [family] of its run; shape: of its images.  `take` copies the weights
    from a run and measures mean and std per channel; all of them are frozen.  error: mean squared error of reconstructed
    training images, in user units; lost: this error relative to the variance of the images.
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
            raise UserError(f"the data have the shape {tuple(shape)}, but the codec's autoencoder has {self.data_shape}")
        return self.autoencoder.latent

    @property
    def units(self) -> Codec:
        """The units of the autoencoder."""
        return self.autoencoder.codec

    def encode(self, x: Tensor) -> Tensor:
        """Return (E(x) - mean) / std, deterministic for a batch."""
        return (self.autoencoder.to_latent(x) - self.mean) / self.std

    def decode(self, z: Tensor) -> Tensor:
        """Return D(mean + std z) within [0, 1]."""
        return self.autoencoder.from_latent(self.mean + self.std * z).clamp(0, 1)

    def picture(self, z: Tensor) -> Tensor:
        """Return D(mean + std z) in the autoencoder's units, unclamped and differentiable."""
        return self.autoencoder.expected(self.mean + self.std * z)

    def known_cells(self, seen: Tensor) -> Tensor:
        """Return which values of a code are known: those whose pixels are all known.  seen: (C, H, W) bool."""
        channels, height, width = self.autoencoder.latent
        known: Tensor = seen.all(0).unflatten(0, (height, -1)).unflatten(2, (width, -1)).all(3).all(1)
        return known.expand(channels, -1, -1)

    def log_cell(self, shape: tuple[int, ...]) -> float:
        """Raise a UserError: codes have no pixel likelihood."""
        raise UserError("latent diffusion has no pixel likelihood; train a model with --no-latent")

    @torch.no_grad()
    def take(self, model: Model, data: Dataset) -> None:
        """Copy the weights of a trained autoencoder, and measure its codes and reconstruction error on training data."""
        weights = {name: tensor for name, tensor in model.state_dict().items() if name not in MOMENTS}
        self.autoencoder.load_state_dict({**self.autoencoder.state_dict(), **weights})
        device = self.mean.device
        codes, errors = [], []
        x = data.subsample(MAX_DATA)
        for part in x.split(chunk_size(data.shape, 64)):
            code = self.autoencoder.to_latent(part.to(device))
            codes.append(code.double().cpu())
            errors.append((self.autoencoder.from_latent(code).clamp(0, 1).cpu() - part).double().square().flatten(1).mean(1))
        z = torch.cat(codes)
        self.mean.copy_(z.mean((0, 2, 3))[:, None, None].to(self.mean))
        self.std.copy_(z.std((0, 2, 3)).clamp_min(MIN_STD)[:, None, None].to(self.std))
        error = torch.cat(errors).mean()
        self.error.copy_(error.to(self.error))
        self.lost.copy_((error / x.double().sub(x.double().mean(0)).square().mean().clamp_min(1e-12)).to(self.lost))

    def summary(self) -> dict[str, Any]:
        """Return the shape of a code and the reconstruction quality."""
        psnr = -10 * math.log10(max(float(self.error), 1e-12))
        return {"code": list(self.autoencoder.latent), "psnr": round(psnr, 2), "variance_lost": round(float(self.lost), 4)}


ALL_CODECS: dict[str, type[Codec]] = {**CODECS, "latent": LatentCodec}


def latent_spec(settings: FamilySettings, shape: tuple[int, ...]) -> Spec:
    """Return the codec of a run whose images are encoded by an autoencoder with these settings."""
    return {"name": "latent", "autoencoder": settings.model_dump(mode="json"), "shape": tuple(shape)}


def model_shape(codec: Spec, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the shape of a datum in a codec's model units, without allocating memory."""
    with torch.device("meta"):
        return build(ALL_CODECS, codec, "codec").model_shape(shape)
