"""What a diffusion model is made of, as the table [family] of config.toml."""

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
from reverie.families.diffusion.clusters import MOST_CLUSTERS, Clusters
from reverie.families.diffusion.distillation import Distilled, profile_of
from reverie.families.diffusion.latent_codec import ALL_CODECS, model_shape
from reverie.families.diffusion.model import Diffusion
from reverie.families.diffusion.sampling import SamplingProfile
from reverie.families.diffusion.sampling_record import SamplingRecord, default_record, earlier_record
from reverie.families.model import FamilySettings
from reverie.nets import NETWORKS

MOST_PARAMETERS = 500_000_000
ALPHA_LIMIT = 1e-3  # below this alpha at t = 1, targets whose decoding divides by alpha are useless there


MOST_EXAMPLES, EXAMPLE_NUMBERS = 1024, 2**18  # rows of conditions that are kept, and numbers of all of them together
CONDITION_OPTIONS = (
    "vocabulary",
    "length",
    "numbers",
    "cond_channels",
)  # sizes of a network's condition vectors

Purpose = Literal["samples", "likelihood"]
VarianceSetting = Literal["fixed", "learned"]


class DiffusionSettings(FamilySettings):
    """Network, schedule and target, the units of the data, and what the loss is taken over."""

    name: Literal["diffusion"] = "diffusion"
    purpose: Purpose = "samples"
    target: str = "v"
    sigma_data: Annotated[float, Field(gt=0, le=10**6)] = 1.0
    loss: Spec = Field(default={"name": "mse"})
    weight: str = "uniform"
    variance: VarianceSetting = "fixed"
    times: str = "stratified"
    label_dropout: Annotated[float, Field(ge=0, le=1)] = 0.1
    examples: Annotated[int, Field(ge=0, le=MOST_EXAMPLES)] = 0  # of conditions that are rows, kept to draw by
    clusters: Annotated[int, Field(ge=0, le=MOST_CLUSTERS)] = 0  # of images, that the network is told beside the label
    autoguidance: Annotated[float, Field(ge=1, le=10)] = 1.0  # of samples when nothing is said; chosen when training ends
    sampling: SamplingRecord | None = None  # when nothing is said; chosen when training ends
    distilled: Distilled | None = None  # of a student that draws in a few evaluations; see `reverie distil`
    augment: tuple[Annotated[Spec, spec_of(AUGMENTATIONS, "augmentation")], ...] = Field(default=(), max_length=16)
    codec: Annotated[Spec, spec_of(ALL_CODECS, "codec")]
    schedule: Annotated[Spec, spec_of(SCHEDULES, "schedule")]
    network: Annotated[Spec, spec_of(NETWORKS, "network")]

    @classmethod
    def read(cls, table: Mapping[str, Any]) -> Self:
        """Return the settings of a run folder; where no default sampling is recorded, with that of the version that made it."""
        settings = cls.model_validate(table)
        if settings.sampling is not None:
            return settings
        return settings.model_copy(update={"sampling": earlier_record(table, settings.network_shape, settings.profile)})

    def recorded(self) -> Self:
        """Return the settings with the present default sampling as their record."""
        return self.model_copy(update={"sampling": default_record(self.network_shape, self.profile)})

    @property
    def network_shape(self) -> tuple[int, ...]:
        """The shape of what the network denoises."""
        return tuple(self.network[key] for key in ("channels", "height", "width") if key in self.network)

    @property
    def profile(self) -> SamplingProfile:
        """What the network makes, by which the default sampling is chosen."""
        return profile_of(self.distilled, self.codec["name"] == "latent")


def settings_of(family: FamilySettings) -> DiffusionSettings:
    """Return the settings of a diffusion model; refuse those of another family."""
    if not isinstance(family, DiffusionSettings):
        raise UserError(f"this is a model of the family {family.name}; what you ask for is known of diffusion models only")
    return family


def outputs_of(variance: str) -> int:
    """Return how many numbers a network gives for each number of the data: the target, and its variance if that is learned."""
    return 2 if variance == "learned" else 1


def condition_width(network: Spec) -> int:
    """Return how many numbers a row of conditions has, 0 where there are none."""
    image = network.get("cond_channels", 0) * network.get("height", 0) * network.get("width", 0)
    return int((network.get("length", 0) if network.get("vocabulary") else 0) + network.get("numbers", 0) + image)


def _check_parts(settings: DiffusionSettings, data: tuple[int, ...], labels: int) -> None:
    """Refuse settings whose parts do not fit each other or the data."""
    network = settings.network
    if (inner := model_shape(settings.codec, data)) != settings.network_shape:
        raise UserError(f"the data have the shape {inner} but the network is for {settings.network_shape}")
    if labels != network.get("labels", 0):
        raise UserError(f"the data have {labels} labels but the network has {network.get('labels', 0)}")
    if bool(condition_width(network)) != bool(settings.examples):
        raise UserError("a network that is told rows of conditions keeps examples of them, and others keep none")
    if condition_width(network) and labels:
        raise UserError("a network is told labels, or rows of other conditions, but not both")
    if settings.clusters and kind_of(data) != "images":
        raise UserError(f"clusters are of images, and these are {kind_of(data)}")
    if settings.clusters and condition_width(network):
        raise UserError("a network is told clusters beside labels, but not beside captions or numbers; give --clusters 0")
    if settings.clusters and settings.purpose == "likelihood":  # whose bound would not count what a cluster tells
        raise UserError(
            "a model that is trained for the likelihood is told no clusters, which would cost nothing; give --clusters 0"
        )
    if (told := len(conditioned_entries(settings.augment, data)) + settings.clusters) != network.get("cond_dim", 0):
        raise UserError(f"augmentations and clusters tell {told} numbers but the network is told {network.get('cond_dim', 0)}")
    if settings.target != "levels" and (told := outputs_of(settings.variance)) != network.get("outputs", 1):
        raise UserError(f"a network whose variances are {settings.variance} has {told} outputs for each number of the data")
    if settings.target == "levels" and settings.variance == "learned":
        raise UserError("the target 'levels' tells variances of itself, without learning them apart; leave --variance out")
    if kind_of(data) == "points" and "mean" in settings.codec and len(settings.codec["mean"]) != data[0]:
        raise UserError(f"the data have {data[0]} coordinates but the codec has {len(settings.codec['mean'])}")


def _check_learned(settings: DiffusionSettings) -> None:
    """Refuse what does not go with a schedule whose ends are trained by the bound."""
    if settings.target in ("eps", "score"):
        raise UserError(
            f"the target {settings.target!r} divides by alpha, which a learned schedule may take to 0; train 'v', 'edm' or"
            " 'levels', or give another --schedule"
        )
    wanted = {"weight": "vlb", "loss": "mse", "times": "stratified"}
    given = {
        "weight": parse(settings.weight)["name"],
        "loss": settings.loss["name"],
        "times": settings.times.replace("uniform", "stratified"),
    }
    for key, value in wanted.items():
        if given[key] != value:
            raise UserError(
                f"a learned schedule is trained by the bound, which --{key} {given[key]} does not give; leave that out, or give"
                " another --schedule"
            )


def _denoiser(settings: DiffusionSettings, shape: tuple[int, ...]) -> NetDenoiser:
    """Make the denoiser that settings describe: the network, what it is asked for, and the schedule."""
    net, schedule = build(NETWORKS, settings.network, "network"), build(SCHEDULES, settings.schedule, "schedule")
    if settings.target != "levels":
        return NetDenoiser(net, schedule, settings.target, settings.sigma_data, settings.variance == "learned")
    with torch.device("meta"):
        levels = build(ALL_CODECS, settings.codec, "codec").levels
    if levels is None:
        raise UserError("the target 'levels' needs images, whose numbers have levels; points and codes are real: train 'v'")
    return LatticeDenoiser(net, schedule, shape, levels, settings.network["outputs"])


def plan_denoiser(settings: DiffusionSettings, shape: tuple[int, ...], labels: int) -> NetDenoiser:
    """Return the denoiser that settings describe, without its memory; refuse parts that do not fit each other or the data."""
    schedule = build(SCHEDULES, settings.schedule, "schedule")
    pick(TARGETS, settings.target, "target")
    build_weight(settings.weight)
    pick(TIMES, settings.times, "way to draw times")
    alpha = float(schedule(1.0)[0])
    if isinstance(schedule, Learned):
        _check_learned(settings)
    if settings.target in ("eps", "score") and alpha < ALPHA_LIMIT:
        raise UserError(
            f"the target {settings.target!r} divides by alpha, which this {settings.schedule['name']} schedule takes down to"
            f" {alpha:.2g} (wanted at least {ALPHA_LIMIT}); train 'v', 'flow' or 'edm', or use the linear schedule"
        )
    _check_parts(settings, shape, labels)
    with torch.device("meta"):
        planned = _denoiser(settings, shape)
    parameters = sum(p.numel() for p in planned.parameters())
    if parameters > MOST_PARAMETERS:
        raise UserError(f"this network has {parameters:,} parameters; at most {MOST_PARAMETERS:,} are allowed")
    return planned


def build_diffusion(settings: DiffusionSettings, shape: tuple[int, ...], labels: int, seed: int) -> Diffusion:
    """Make the model that settings describe, with weights drawn from the seed."""
    plan_denoiser(settings, shape, labels)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        denoiser = _denoiser(settings, shape)
    codec, augment = build(ALL_CODECS, settings.codec, "codec"), build_augment(settings.augment, shape)
    drawn = settings.weight, settings.times, settings.label_dropout
    measure, likelihood = build(LOSSES, settings.loss, "loss"), settings.purpose == "likelihood"
    examples = (settings.examples, condition_width(settings.network)) if settings.examples else None
    clusters = Clusters(settings.clusters, shape, labels) if settings.clusters else None
    told = examples, settings.distilled, clusters
    return Diffusion(denoiser, codec, shape, *drawn, augment, labels, measure, likelihood, *told)
