"""Settings of diffusion models: the table [family] of config.toml."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

import torch
from pydantic import Field

from reverie.base.errors import UserError, pick
from reverie.base.spec import Spec, build, parse, spec_of
from reverie.data.augment import AUGMENTATIONS, build_augment, conditioned_entries
from reverie.data.kind import kind_of
from reverie.diffusion.denoiser import NetDenoiser
from reverie.diffusion.lattice import LatticeDenoiser
from reverie.diffusion.learned import Learned
from reverie.diffusion.loss import LOSSES, TIMES, build_weight
from reverie.diffusion.pair import TARGETS
from reverie.diffusion.schedules import SCHEDULES
from reverie.families.diffusion.clusters import MAX_CLUSTERS, Clusters
from reverie.families.diffusion.distillation import Distilled, profile_of
from reverie.families.diffusion.latent_codec import ALL_CODECS, model_shape
from reverie.families.diffusion.model import Diffusion
from reverie.families.diffusion.sampling import SamplingProfile
from reverie.families.diffusion.sampling_record import SamplingRecord, default_record, earlier_record
from reverie.families.model import FamilySettings
from reverie.nets import NETWORKS

MAX_PARAMETERS = 500_000_000
ALPHA_LIMIT = 1e-3  # smallest alpha at t = 1 for targets whose decoding divides by alpha


MAX_EXAMPLES, EXAMPLE_NUMBERS = 1024, 2**18  # stored condition vectors, and their values in total
CONDITION_OPTIONS = ("vocabulary", "length", "numbers", "cond_channels")  # sizes of a network's condition vectors

Purpose = Literal["samples", "likelihood"]
VarianceSetting = Literal["fixed", "learned"]


class DiffusionSettings(FamilySettings):
    """Network, schedule, target, codec and loss of a diffusion model."""

    name: Literal["diffusion"] = "diffusion"
    purpose: Purpose = "samples"
    target: str = "v"
    sigma_data: Annotated[float, Field(gt=0, le=10**6)] = 1.0
    loss: Spec = Field(default={"name": "mse"})
    weight: str = "uniform"
    variance: VarianceSetting = "fixed"
    times: str = "stratified"
    label_dropout: Annotated[float, Field(ge=0, le=1)] = 0.1
    examples: Annotated[int, Field(ge=0, le=MAX_EXAMPLES)] = 0  # stored condition vectors
    clusters: Annotated[int, Field(ge=0, le=MAX_CLUSTERS)] = 0  # of images, a condition in addition to the label
    autoguidance: Annotated[float, Field(ge=1, le=10)] = 1.0  # default scale; selected at the end of training
    sampling: SamplingRecord | None = None  # default sampling; selected at the end of training
    distilled: Distilled | None = None  # of students; see `reverie distil`
    augment: tuple[Annotated[Spec, spec_of(AUGMENTATIONS, "augmentation")], ...] = Field(default=(), max_length=16)
    codec: Annotated[Spec, spec_of(ALL_CODECS, "codec")]
    schedule: Annotated[Spec, spec_of(SCHEDULES, "schedule")]
    network: Annotated[Spec, spec_of(NETWORKS, "network")]

    @classmethod
    def read(cls, table: Mapping[str, Any]) -> Self:
        """Return the settings of a run folder; a missing default sampling is that of the version that trained the run."""
        settings = cls.model_validate(table)
        if settings.sampling is not None:
            return settings
        return settings.model_copy(update={"sampling": earlier_record(table, settings.network_shape, settings.profile)})

    def recorded(self) -> Self:
        """Return the settings with the current default sampling recorded."""
        return self.model_copy(update={"sampling": default_record(self.network_shape, self.profile)})

    @property
    def network_shape(self) -> tuple[int, ...]:
        """The shape of the network's input."""
        return tuple(self.network[key] for key in ("channels", "height", "width") if key in self.network)

    @property
    def profile(self) -> SamplingProfile:
        """The profile that selects the default sampling."""
        return profile_of(self.distilled, self.codec["name"] == "latent")


def settings_of(family: FamilySettings) -> DiffusionSettings:
    """Return the settings of a diffusion model; raise a UserError for other families."""
    if not isinstance(family, DiffusionSettings):
        raise UserError(f"this needs a diffusion model, and the run is a {family.name}; give a diffusion run")
    return family


def outputs_of(variance: str) -> int:
    """Return the number of network outputs per value: the target, and its variance if learned."""
    return 2 if variance == "learned" else 1


def condition_width(network: Spec) -> int:
    """Return the number of values in a condition vector, 0 without condition vectors."""
    image = network.get("cond_channels", 0) * network.get("height", 0) * network.get("width", 0)
    return int((network.get("length", 0) if network.get("vocabulary") else 0) + network.get("numbers", 0) + image)


def _check_parts(settings: DiffusionSettings, data: tuple[int, ...], labels: int) -> None:
    """Raise a UserError for settings that do not fit each other or the data."""
    network = settings.network
    if (inner := model_shape(settings.codec, data)) != settings.network_shape:
        raise UserError(f"the data have the shape {inner}, but the network has {settings.network_shape}")
    if labels != network.get("labels", 0):
        raise UserError(f"the data have {labels} labels, but the network has {network.get('labels', 0)}")
    if bool(condition_width(network)) != bool(settings.examples):
        raise UserError("examples must be above 0 for networks with condition vectors, and 0 for others")
    if condition_width(network) and labels:
        raise UserError("a network takes labels or condition vectors, not both")
    if settings.clusters and kind_of(data) != "images":
        raise UserError(f"clusters need images, and these data are {kind_of(data)}; give --clusters 0")
    if settings.clusters and condition_width(network):
        raise UserError("clusters cannot be combined with captions or numbers; give --clusters 0")
    if settings.clusters and settings.purpose == "likelihood":  # the bound would not count the information in a cluster
        raise UserError("a model trained for the likelihood cannot be conditioned on clusters; give --clusters 0")
    if (width := len(conditioned_entries(settings.augment, data)) + settings.clusters) != network.get("cond_dim", 0):
        raise UserError(
            f"augmentations and clusters have {width} values, but the network takes cond_dim={network.get('cond_dim', 0)}"
        )
    if settings.target != "levels" and (outputs := outputs_of(settings.variance)) != network.get("outputs", 1):
        raise UserError(
            f"a network with {settings.variance} variances needs outputs={outputs}, got {network.get('outputs', 1)}"
        )
    if settings.target == "levels" and settings.variance == "learned":
        raise UserError("the target 'levels' includes variances; leave --variance out")
    if kind_of(data) == "points" and "mean" in settings.codec and len(settings.codec["mean"]) != data[0]:
        raise UserError(f"the data have {data[0]} coordinates, but the codec has {len(settings.codec['mean'])}")


def _check_learned(settings: DiffusionSettings) -> None:
    """Raise a UserError for settings that do not fit a schedule trained by the bound."""
    if settings.target in ("eps", "score"):
        raise UserError(
            f"the target {settings.target!r} divides by alpha, which may be 0 in a learned schedule; train 'v', 'edm' or"
            " 'levels', or give another --schedule"
        )
    needed = {"weight": "vlb", "loss": "mse", "times": "stratified"}
    values = {
        "weight": parse(settings.weight)["name"],
        "loss": settings.loss["name"],
        "times": settings.times.replace("uniform", "stratified"),
    }
    for key, value in needed.items():
        if values[key] != value:
            raise UserError(
                f"a learned schedule is trained by the bound, which needs --{key} {value}, got {values[key]}; leave it out, or"
                " give another --schedule"
            )


def _denoiser(settings: DiffusionSettings, shape: tuple[int, ...]) -> NetDenoiser:
    """Build the denoiser: network, target and schedule."""
    net, schedule = build(NETWORKS, settings.network, "network"), build(SCHEDULES, settings.schedule, "schedule")
    if settings.target != "levels":
        return NetDenoiser(net, schedule, settings.target, settings.sigma_data, settings.variance == "learned")
    with torch.device("meta"):
        levels = build(ALL_CODECS, settings.codec, "codec").levels
    if levels is None:
        raise UserError("the target 'levels' needs images, and points and codes are continuous; give --target v")
    return LatticeDenoiser(net, schedule, shape, levels, settings.network["outputs"])


def plan_denoiser(settings: DiffusionSettings, shape: tuple[int, ...], labels: int) -> NetDenoiser:
    """Return the denoiser on the meta device; raise a UserError for settings that do not fit each other or the data."""
    schedule = build(SCHEDULES, settings.schedule, "schedule")
    pick(TARGETS, settings.target, "target")
    build_weight(settings.weight)
    pick(TIMES, settings.times, "distribution of times")
    alpha = float(schedule(1.0)[0])
    if isinstance(schedule, Learned):
        _check_learned(settings)
    if settings.target in ("eps", "score") and alpha < ALPHA_LIMIT:
        raise UserError(
            f"the target {settings.target!r} divides by alpha, which is {alpha:.2g} at the end of the"
            f" {settings.schedule['name']} schedule, below {ALPHA_LIMIT}; train 'v', 'flow' or 'edm', or give --schedule linear"
        )
    _check_parts(settings, shape, labels)
    with torch.device("meta"):
        planned = _denoiser(settings, shape)
    parameters = sum(p.numel() for p in planned.parameters())
    if parameters > MAX_PARAMETERS:
        raise UserError(f"the network has {parameters:,} parameters, above the limit of {MAX_PARAMETERS:,}; give a smaller one")
    return planned


def build_diffusion(settings: DiffusionSettings, shape: tuple[int, ...], labels: int, seed: int) -> Diffusion:
    """Build the model with weights initialized from the seed."""
    plan_denoiser(settings, shape, labels)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        denoiser = _denoiser(settings, shape)
    codec, augment = build(ALL_CODECS, settings.codec, "codec"), build_augment(settings.augment, shape)
    objective = settings.weight, settings.times, settings.label_dropout
    measure, likelihood = build(LOSSES, settings.loss, "loss"), settings.purpose == "likelihood"
    examples = (settings.examples, condition_width(settings.network)) if settings.examples else None
    clusters = Clusters(settings.clusters, shape, labels) if settings.clusters else None
    extras = examples, settings.distilled, clusters
    return Diffusion(denoiser, codec, shape, *objective, augment, labels, measure, likelihood, *extras)
