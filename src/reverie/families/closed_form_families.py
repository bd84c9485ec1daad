"""Families with closed-form densities: Gaussians, mixtures of Gaussians, probabilistic PCA."""

from __future__ import annotations

import math
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from reverie.families.closed_form import Covariance
from reverie.families.density import Density
from reverie.families.fitted import FittedFamily
from reverie.families.gaussian import GaussianModel
from reverie.families.latent_space import check_latent
from reverie.families.mixture import MixtureModel
from reverie.families.model import FamilySettings
from reverie.families.pca import PCAModel

Floor = Annotated[float, Field(gt=0, lt=1)]
Rank = Annotated[int, Field(ge=1, le=1024)]


class GaussianSettings(FamilySettings):
    """See `reverie.families.gaussian`."""

    name: Literal["gaussian"] = "gaussian"
    covariance: Covariance = "auto"
    rank: Rank = 32
    floor: Floor = 1e-6


class GaussianFamily(FittedFamily[GaussianSettings]):
    """One Gaussian per label."""

    name = "gaussian"
    summary = "One Gaussian per label, low-rank for images, by maximum likelihood (Bishop 2006, section 2.3); a baseline."
    settings = GaussianSettings

    def density(self, settings: GaussianSettings, shape: tuple[int, ...], labels: int, levels: int | None) -> Density:
        """Build the Gaussian."""
        return GaussianModel(shape, labels, settings.covariance, settings.rank, levels, settings.floor)


class MixtureSettings(FamilySettings):
    """See `reverie.families.mixture`."""

    name: Literal["mixture"] = "mixture"
    components: Annotated[int, Field(ge=1, le=1000)] | Literal["auto"] = "auto"
    covariance: Covariance = "auto"
    rank: Rank = 8
    floor: Floor = 1e-4
    restarts: Annotated[int, Field(ge=1, le=100)] = 4
    iterations: Annotated[int, Field(ge=1, le=10_000)] = 200


class MixtureFamily(FittedFamily[MixtureSettings]):
    """A mixture of Gaussians per label."""

    name = "mixture"
    summary = "A mixture of Gaussians per label, by EM from k-means++ starts (Dempster et al. 1977); with BIC."
    settings = MixtureSettings
    rounds = 10**6

    def density(self, settings: MixtureSettings, shape: tuple[int, ...], labels: int, levels: int | None) -> Density:
        """Build the mixture."""
        s = settings
        return MixtureModel(shape, labels, s.components, s.covariance, s.rank, levels, s.floor, s.restarts,
                            iterations=s.iterations)  # fmt: skip


class PCASettings(FamilySettings):
    """See `reverie.families.pca`."""

    name: Literal["pca"] = "pca"
    latent: Annotated[int, Field(ge=1, le=4096)] | Literal["auto"] = "auto"
    floor: Floor = 1e-6


class PCAFamily(FittedFamily[PCASettings]):
    """Probabilistic principal component analysis."""

    name = "pca"
    summary = "Probabilistic PCA (Tipping and Bishop 1999): a linear autoencoder with an exact likelihood."
    capabilities: ClassVar[frozenset[str]] = frozenset({"labels", "encode"})
    settings = PCASettings

    def density(self, settings: PCASettings, shape: tuple[int, ...], labels: int, levels: int | None) -> Density:
        """Build the model."""
        if settings.latent != "auto":
            check_latent(settings.latent, math.prod(shape))
        return PCAModel(shape, labels, settings.latent, levels, settings.floor)
