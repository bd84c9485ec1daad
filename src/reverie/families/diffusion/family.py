"""Denoising diffusion as a family: what is planned for data and a budget, and what it can do."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar, get_args

import torch
from pydantic import ValidationError
from torch.utils.flop_counter import FlopCounterMode

from reverie.base.errors import UserError, pick
from reverie.base.spec import Spec, build, complete, first_problem, format_spec, parse
from reverie.base.tensors import TensorSpec, tensor_specs
from reverie.data import Dataset
from reverie.data.augment import conditioned_entries, parse_augmentations
from reverie.data.augment_plan import choose_augment
from reverie.data.codec import standard_spec
from reverie.data.conditions import ConditionForm
from reverie.data.kind import Kind
from reverie.diffusion.loss import LOSSES, TIMES, WEIGHTS
from reverie.diffusion.pair import TARGETS
from reverie.diffusion.plan import PRESETS, check_width, expectation, network_for, plan, slow_size
from reverie.diffusion.schedules import SCHEDULES
from reverie.families.diffusion.clusters import Clusters, default_cluster_count
from reverie.families.diffusion.latent_codec import ALL_CODECS, model_shape
from reverie.families.diffusion.likelihood_training import (
    DROPOUT,
    FEATURES,
    MANY_PASSES,
    NETWORK_OF_POINTS,
    augment_for_likelihood,
    codec_of,
    for_likelihood,
)
from reverie.families.diffusion.model import Diffusion
from reverie.families.diffusion.sampling import OPTIONS
from reverie.families.diffusion.settings import (
    CONDITION_OPTIONS,
    EXAMPLE_NUMBERS,
    MOST_EXAMPLES,
    DiffusionSettings,
    Purpose,
    VarianceSetting,
    build_diffusion,
    condition_width,
    outputs_of,
    plan_denoiser,
)
from reverie.families.model import Family, FamilyPlan, Likelihood, PlanRequest
from reverie.nets import NETWORKS

SPEED = {True: 6e10, False: 5e12}  # floating-point operations a second, about, of a CPU with two cores and of a GPU
STD_SAMPLE = 2000  # images enough to know their standard deviation
NETWORK_PREFIX = "denoiser.net."  # before the names of the network's tensors among the model's
DENOISER_PREFIX, CODEC_PREFIX, CLUSTERS_PREFIX = (
    "denoiser.",
    "codec.",
    "clusters.",
)  # before the names of its parts' tensors among the model's
RECORDED_OPTIONS = ("purpose", "weight", "variance", "times", "label_dropout", "sigma_data", "codec")
# What a network of diffusers can be used with there: its table of noise levels, data as they are, no word of augmentations.
FOR_DIFFUSERS = {"target": "v", "schedule": {"name": "linear"}, "sigma_data": 1.0, "augment": "none"}
CONDITIONED_NETWORKS = ("unet", "transformer")  # networks that take captions, numbers and images
DATA_OPTIONS = ("channels", "height", "width", "labels", "cond_dim", "inputs", "outputs", *CONDITION_OPTIONS)  # set by the data


def data_std(dataset: Dataset) -> float:
    """Return the standard deviation of the data in model units: 1 for points, that of 2 x - 1 for images."""
    if dataset.kind != "images":
        return 1.0
    return max(float(2 * dataset.subsample(STD_SAMPLE).std()), 1e-3)


def form_of(data: Dataset, shape: tuple[int, ...]) -> Dataset:
    """Return as many data of another shape, without their numbers, to plan for; the same where the shape is theirs."""
    if shape == data.shape:
        return data
    return Dataset(data.name, torch.empty(len(data), *shape, dtype=torch.uint8, device="meta"), None, data.label_names)


def shape_of(network: Spec) -> tuple[int, ...]:
    """Return the shape of the data that a network is for."""
    return tuple(network[key] for key in ("channels", "height", "width") if key in network)


def condition_options(form: ConditionForm, network: str, shape: tuple[int, ...]) -> Spec:
    """Return the options of a network that is told rows of conditions; refuse one that cannot be."""
    if network not in CONDITIONED_NETWORKS:
        others = " or ".join(CONDITIONED_NETWORKS)
        raise UserError(
            f"the network {network} is told no captions, numbers or images; give --network {others}, or read"
            " the data with --labels none"
        )
    if form.image is not None and form.image[1:] != shape[1:]:
        raise UserError("an image cannot be told to a model that draws the codes of an autoencoder; train with --no-latent")
    words = form.caption_tokenizer.size if form.length else 0
    values = words, form.length, len(form.numbers), form.image[0] if form.image else 0
    return dict(zip(CONDITION_OPTIONS, values, strict=True))


def examples_of(width: int, count: int) -> int:
    """Return how many rows of conditions a model keeps."""
    return max(1, min(count, MOST_EXAMPLES, max(16, EXAMPLE_NUMBERS // width)))


class DiffusionFamily(Family[DiffusionSettings]):
    """Noise is added to data step by step, a network learns to undo it, and new data are drawn from pure noise."""

    name: ClassVar[str] = "diffusion"
    default_for: ClassVar[frozenset[Kind]] = frozenset({"points", "images"})
    summary: ClassVar[str] = "Denoising diffusion (arXiv:2006.11239) with any schedule, target and sampler."
    can: ClassVar[frozenset[str]] = frozenset({
        "labels", "guidance", "sampler", "inpaint", "restore", "edit", "invert", "interpolate", "illusion", "train-classifier",
        "start", "captions", "distil",
    })  # fmt: skip
    options: ClassVar[Mapping[str, Any]] = OPTIONS
    likelihood: ClassVar[Likelihood] = "lower bound"
    settings = DiffusionSettings
    set_by_training: ClassVar[frozenset[str]] = frozenset({"autoguidance", "sampling", "distilled", "examples"})

    def check(self, requested: Mapping[str, Any]) -> None:
        """Refuse names and options of network, schedule, target, loss, weight, times and augmentation that are not known."""
        super().check(requested)
        build(LOSSES, requested.get("loss", "mse"), "loss")
        pick(dict.fromkeys(get_args(Purpose)), requested.get("purpose") or "samples", "purpose")
        build(WEIGHTS, requested.get("weight", "uniform"), "weight")
        pick(dict.fromkeys(get_args(VarianceSetting)), requested.get("variance") or "fixed", "variance")
        pick(TIMES, requested.get("times", "stratified"), "way to draw times")
        if requested.get("target") is not None:
            pick(TARGETS, requested["target"], "target")
        if requested.get("schedule") is not None:
            build(SCHEDULES, requested["schedule"], "schedule")
        if requested.get("augment", "auto") not in ("auto", "none"):
            parse_augmentations(requested["augment"])
        if requested.get("network") is not None:
            network = parse(requested["network"])
            if taken := [key for key in DATA_OPTIONS if key in network]:
                raise UserError(f"the network's {taken[0]} are told by the data and cannot be given with --network")
            known: Spec = PRESETS.get(str(network.get("name")), {})
            pick({**NETWORKS, **PRESETS}, str(network.get("name")), "network")
            complete(NETWORKS, {**known, **network, "name": known.get("name", network["name"])}, "network")

    def held_out_measure(self, settings: DiffusionSettings) -> str:
        """Return what the loss is of, and what it is averaged over: other targets, weights or schedules give other numbers."""
        if settings.distilled is not None:
            return f"distillation loss, features of the {settings.distilled.features}"
        over = f"weight {settings.weight}, times {settings.times}, schedule {format_spec(settings.schedule)}"
        return f"{format_spec(settings.loss)} of {settings.target}, {over}, codec {settings.codec['name']}"

    def plan(self, request: PlanRequest) -> FamilyPlan[DiffusionSettings]:
        """Choose network, schedule, target, units and augmentation; see `reverie.diffusion.plan`."""
        data, requested = request.data, {key: value for key, value in request.requested.items() if value is not None}
        if parse(requested.get("network", "")).get("name") == "diffusers-unet":
            requested = FOR_DIFFUSERS | requested
        codec: Spec = requested.get("codec", {"name": "pixels"})
        by_bound, coded = requested.get("purpose") == "likelihood", codec["name"] == "latent"
        if coded and by_bound:
            raise UserError("the codes of an autoencoder tell no likelihood of pixels; train for it with --no-latent")
        if "codec" in requested:
            pass
        elif data.kind != "images":
            codec = standard_spec(request.train.batch(torch.arange(len(request.train)))[0])
        elif by_bound:
            codec = codec_of(request.train)
        shape = model_shape(codec, data.shape)
        with torch.device("meta"):
            levels = build(ALL_CODECS, codec, "codec").levels
        if by_bound:
            requested = for_likelihood(levels) | requested
        if requested.get("schedule") is not None and parse(requested["schedule"]).get("name") == "learned":
            requested = {"weight": "vlb"} | requested
        if parse(requested.get("weight", "uniform"))["name"] in ("vlb", "mixed"):  # other times would weigh the bound anew
            requested = {"times": "stratified"} | requested
        planned = plan(form_of(data, shape), request.minutes, request.steps)
        if by_bound and data.kind != "images":
            planned = replace(planned, network=NETWORK_OF_POINTS)
        times = {"times": planned.settings["times"]} if "times" in planned.settings else {}
        training = {key: value for key, value in planned.settings.items() if key != "times"} | dict(request.training)
        reasons = () if "network" in requested else planned.reasons
        network: Spec = parse(requested["network"]) if "network" in requested else planned.network
        full = network_for(shape, len(data.label_names), network)
        check_width(full)
        passes = self._passes(full, training, request)
        usual = augment_for_likelihood(passes) if by_bound and data.kind == "images" else "auto"
        if request.train.conditions is not None and request.train.conditions.form.image is not None:
            usual = "none"  # the image that is told would have to be changed alike
        augment, why = choose_augment(requested.get("augment", usual), request.train, passes, request.seed, request.progress)
        reasons += (why,) if why else ()
        clusters = self._clusters(requested, full["name"], request)
        full |= {"cond_dim": n} if (n := len(conditioned_entries(augment, data.shape)) + clusters) else {}
        if (slow := slow_size(full)) and "stem" not in network:
            reasons += (slow,)
        if by_bound and full["name"] == "unet" and "dropout" not in network and passes > MANY_PASSES:
            full["dropout"] = DROPOUT
            reasons += (f"dropout of {DROPOUT:g}, because each image will be seen about {passes:,.0f} times",)
        if data.kind == "images" and training.get("minutes") and request.device == "cpu" and not (by_bound or coded):
            reasons += (expectation(data.shape, training["minutes"]),)
        if requested.get("target") == "levels" and levels is not None:
            full |= {"inputs": 2, "outputs": min(FEATURES, levels)}
        elif (outputs := outputs_of(requested.get("variance", "fixed"))) != 1:
            full |= {"outputs": outputs}
        given = {key: requested[key] for key in RECORDED_OPTIONS if key in requested} | {"clusters": clusters}
        if clusters and "clusters" not in requested:
            reasons += (
                f"clusters: the network is told which of {clusters} kinds of image each is, by k-means; --clusters 0: none",
            )
        if request.train.conditions is not None:
            full |= condition_options(request.train.conditions.form, full["name"], shape)
            given["examples"] = examples_of(request.train.conditions.form.width, len(request.train))
            reasons += (f"conditions: {request.train.conditions.describe()}",)
        try:
            settings = DiffusionSettings.model_validate({
                "target": requested.get("target", planned.target), "codec": codec, **times,
                "sigma_data": 1.0 if coded else data_std(request.train),
                "schedule": complete(SCHEDULES, requested.get("schedule", planned.schedule), "schedule"), "network": full,
                "loss": complete(LOSSES, requested.get("loss", "mse"), "loss"), "augment": augment, **given,
            })  # fmt: skip
        except ValidationError as error:
            raise UserError(f"cannot train like this: {first_problem(error)}") from None
        return FamilyPlan(settings.recorded(), training, reasons)

    def _clusters(self, requested: Mapping[str, Any], network: str, request: PlanRequest) -> int:
        """Return how many clusters of images the network is told of: as many as are asked for, or suit the data."""
        if "clusters" in requested:
            if requested["clusters"] and request.data.kind != "images":
                raise UserError(f"clusters are of images, and these are {request.data.kind}; leave --clusters out")
            if requested["clusters"] and network not in CONDITIONED_NETWORKS:
                others = " or ".join(CONDITIONED_NETWORKS)
                raise UserError(f"the network {network} is told no clusters; give --network {others}, or leave --clusters out")
            return int(requested["clusters"])
        able = network in CONDITIONED_NETWORKS and request.data.kind == "images" and request.train.conditions is None
        return default_cluster_count(len(request.train)) if able and requested.get("purpose") != "likelihood" else 0

    def _passes(self, network: Spec, training: Mapping[str, Any], request: PlanRequest) -> float:
        """Return how often a training will see each datum: by its steps, or about as often as fits into its minutes."""
        if training.get("steps"):
            return request.train.passes(training["steps"] * training.get("accumulate", 1), training["batch"])
        with torch.device("meta"), FlopCounterMode(display=False) as counter:
            net = build(NETWORKS, network, "network")
            net(torch.zeros(1, *shape_of(network)), torch.zeros(1))
        seen = 60 * float(training["minutes"]) * SPEED[request.device == "cpu"] / (3 * max(1, counter.get_total_flops()))
        return float(seen / len(request.train))

    def network(self, form: Dataset, minutes: float | None, steps: int | None, requested: Mapping[str, Any]) -> Spec | None:
        """Return the network, asked for or planned; it refuses a shape that it cannot take."""
        shape = model_shape(requested["codec"], form.shape) if requested.get("codec") else form.shape
        asked: str | Spec | None = requested.get("network")
        asked = plan(form_of(form, shape), minutes, steps).network if asked is None else asked
        network = network_for(shape, len(form.label_names), asked)
        check_width(network)
        return network

    def levels(self, form: Dataset, requested: Mapping[str, Any]) -> int:
        """Return all values of a byte where levels are told apart, as they are for the likelihood of images."""
        usual = "levels" if requested.get("purpose") == "likelihood" else "flow"
        return 256 if form.kind == "images" and (requested.get("target") or usual) == "levels" else 0

    def batch(self, form: Dataset) -> int:
        """Return the batch of the plan."""
        return int(plan(form, None, 1).settings["batch"])

    def build(self, settings: DiffusionSettings, shape: tuple[int, ...], labels: int, seed: int) -> Diffusion:
        """Make the model; see `reverie.families.diffusion.settings`."""
        return build_diffusion(settings, shape, labels, seed)

    def tensor_specs(self, settings: DiffusionSettings, shape: tuple[int, ...], labels: int) -> dict[str, TensorSpec]:
        """Return the forms of the denoiser's tensors and of those of the codec, which are all that there are."""
        planned = plan_denoiser(settings, shape, labels)
        with torch.device("meta"):
            codec = build(ALL_CODECS, settings.codec, "codec")
        parts = ((DENOISER_PREFIX, planned), (CODEC_PREFIX, codec))
        forms = {f"{part}{name}": form for part, module in parts for name, form in tensor_specs(module.state_dict()).items()}
        if settings.clusters:
            with torch.device("meta"):
                clusters = Clusters(settings.clusters, shape, labels)
            forms |= {f"{CLUSTERS_PREFIX}{name}": form for name, form in tensor_specs(clusters.state_dict()).items()}
        if settings.examples:
            forms["examples"] = TensorSpec(torch.float32, (settings.examples, condition_width(settings.network)))
        return forms

    def matches(self, settings: DiffusionSettings, key: str, value: Any, shape: tuple[int, ...], labels: int) -> bool:
        """Tell whether an option is what settings have; a network by its plan, but for what another version may plan."""
        tables: Mapping[str, Mapping[str, Any]] = {"schedule": SCHEDULES, "loss": LOSSES, "weight": WEIGHTS}
        if (table := tables.get(key)) is not None:
            return complete(table, value, key) == complete(table, getattr(settings, key), key)
        if key == "network":
            asked, kept = parse(value), complete(NETWORKS, settings.network, "network")  # with options it was kept without
            planned = network_for(model_shape(settings.codec, shape), labels, asked)
            free = {
                "stem",
                "widths",
                "attention",
                "cond_dim",
                "inputs",
                "outputs",
                "dropout",
                *CONDITION_OPTIONS,
            } - asked.keys()
            free -= asked.keys()
            return all(planned.get(k) == v for k, v in kept.items() if k not in free)
        if key == "augment":
            return value == "auto" or (() if value == "none" else parse_augmentations(value)) == settings.augment
        return super().matches(settings, key, value, shape, labels)
