"""Denoising diffusion as a family: plans for data and a budget, and capabilities."""

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
    MAX_EXAMPLES,
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

SPEED = {True: 6e10, False: 5e12}  # approximate FLOP/s of a CPU with two cores and of a GPU
STD_SAMPLE = 2000  # number of images for the standard deviation of the data
NETWORK_PREFIX = "denoiser.net."  # of the network's keys in the model's state dict
DENOISER_PREFIX, CODEC_PREFIX, CLUSTERS_PREFIX = "denoiser.", "codec.", "clusters."
RECORDED_OPTIONS = ("purpose", "weight", "variance", "times", "label_dropout", "sigma_data", "codec")
# Options that make a network usable in diffusers: its noise schedule, unscaled data, no augmentation input.
FOR_DIFFUSERS = {"target": "v", "schedule": {"name": "linear"}, "sigma_data": 1.0, "augment": "none"}
CONDITIONED_NETWORKS = ("unet", "transformer")  # that take captions, numbers, images and clusters
DATA_OPTIONS = ("channels", "height", "width", "labels", "cond_dim", "inputs", "outputs", *CONDITION_OPTIONS)  # set by the data


def data_std(dataset: Dataset) -> float:
    """Return the standard deviation of the data in model units: 1 for points, that of 2 x - 1 for images."""
    if dataset.kind != "images":
        return 1.0
    return max(float(2 * dataset.subsample(STD_SAMPLE).std()), 1e-3)


def form_of(data: Dataset, shape: tuple[int, ...]) -> Dataset:
    """Return an empty dataset of the same length with another shape, for planning; the dataset itself if shapes are equal."""
    if shape == data.shape:
        return data
    return Dataset(data.name, torch.empty(len(data), *shape, dtype=torch.uint8, device="meta"), None, data.label_names)


def shape_of(network: Spec) -> tuple[int, ...]:
    """Return the shape of the data of a network."""
    return tuple(network[key] for key in ("channels", "height", "width") if key in network)


def condition_options(form: ConditionForm, network: str, shape: tuple[int, ...]) -> Spec:
    """Return a network's options for condition vectors; raise a UserError for networks that take none."""
    if network not in CONDITIONED_NETWORKS:
        others = " or ".join(CONDITIONED_NETWORKS)
        raise UserError(
            f"the network {network} takes no captions, numbers or images; give --network {others}, or read the data with"
            " --labels none"
        )
    if form.image is not None and form.image[1:] != shape[1:]:
        raise UserError("latent diffusion cannot be conditioned on images; train with --no-latent")
    words = form.caption_tokenizer.size if form.length else 0
    values = words, form.length, len(form.numbers), form.image[0] if form.image else 0
    return dict(zip(CONDITION_OPTIONS, values, strict=True))


def examples_of(width: int, count: int) -> int:
    """Return the number of condition vectors that a model stores."""
    return max(1, min(count, MAX_EXAMPLES, max(16, EXAMPLE_NUMBERS // width)))


class DiffusionFamily(Family[DiffusionSettings]):
    """Denoising diffusion."""

    name: ClassVar[str] = "diffusion"
    default_for: ClassVar[frozenset[Kind]] = frozenset({"points", "images"})
    summary: ClassVar[str] = "Denoising diffusion (arXiv:2006.11239) with any schedule, target and sampler."
    capabilities: ClassVar[frozenset[str]] = frozenset({
        "labels", "guidance", "sampler", "inpaint", "restore", "edit", "invert", "interpolate", "illusion", "train-classifier",
        "start", "captions", "distil",
    })  # fmt: skip
    options: ClassVar[Mapping[str, Any]] = OPTIONS
    likelihood: ClassVar[Likelihood] = "lower bound"
    settings = DiffusionSettings
    set_by_training: ClassVar[frozenset[str]] = frozenset({"autoguidance", "sampling", "distilled", "examples"})

    def check(self, requested: Mapping[str, Any]) -> None:
        """Raise a UserError for unknown names and options of network, schedule, target, loss and augmentation."""
        super().check(requested)
        build(LOSSES, requested.get("loss", "mse"), "loss")
        pick(dict.fromkeys(get_args(Purpose)), requested.get("purpose") or "samples", "purpose")
        build(WEIGHTS, requested.get("weight", "uniform"), "weight")
        pick(dict.fromkeys(get_args(VarianceSetting)), requested.get("variance") or "fixed", "variance")
        pick(TIMES, requested.get("times", "stratified"), "distribution of times")
        if requested.get("target") is not None:
            pick(TARGETS, requested["target"], "target")
        if requested.get("schedule") is not None:
            build(SCHEDULES, requested["schedule"], "schedule")
        if requested.get("augment", "auto") not in ("auto", "none"):
            parse_augmentations(requested["augment"])
        if requested.get("network") is not None:
            network = parse(requested["network"])
            if fixed := [key for key in DATA_OPTIONS if key in network]:
                raise UserError(f"the network's {fixed[0]} follows from the data; leave it out of --network")
            preset: Spec = PRESETS.get(str(network.get("name")), {})
            pick({**NETWORKS, **PRESETS}, str(network.get("name")), "network")
            complete(NETWORKS, {**preset, **network, "name": preset.get("name", network["name"])}, "network")

    def held_out_measure(self, settings: DiffusionSettings) -> str:
        """Return the loss with all settings that change its value."""
        if settings.distilled is not None:
            return f"distillation loss, features of the {settings.distilled.features}"
        over = f"weight {settings.weight}, times {settings.times}, schedule {format_spec(settings.schedule)}"
        return f"{format_spec(settings.loss)} of {settings.target}, {over}, codec {settings.codec['name']}"

    def plan(self, request: PlanRequest) -> FamilyPlan[DiffusionSettings]:
        """Choose network, schedule, target, codec and augmentation; see `reverie.diffusion.plan`."""
        data, requested = request.data, {key: value for key, value in request.requested.items() if value is not None}
        if parse(requested.get("network", "")).get("name") == "diffusers-unet":
            requested = FOR_DIFFUSERS | requested
        codec: Spec = requested.get("codec", {"name": "pixels"})
        for_bound, is_latent = requested.get("purpose") == "likelihood", codec["name"] == "latent"
        if is_latent and for_bound:
            raise UserError("latent diffusion has no pixel likelihood; train for the likelihood with --no-latent")
        if "codec" in requested:
            pass
        elif data.kind != "images":
            codec = standard_spec(request.train.batch(torch.arange(len(request.train)))[0])
        elif for_bound:
            codec = codec_of(request.train)
        shape = model_shape(codec, data.shape)
        with torch.device("meta"):
            levels = build(ALL_CODECS, codec, "codec").levels
        if for_bound:
            requested = for_likelihood(levels) | requested
        if requested.get("schedule") is not None and parse(requested["schedule"]).get("name") == "learned":
            requested = {"weight": "vlb"} | requested
        if parse(requested.get("weight", "uniform"))["name"] in ("vlb", "mixed"):  # other times would reweight the bound
            requested = {"times": "stratified"} | requested
        planned = plan(form_of(data, shape), request.minutes, request.steps)
        if for_bound and data.kind != "images":
            planned = replace(planned, network=NETWORK_OF_POINTS)
        times = {"times": planned.settings["times"]} if "times" in planned.settings else {}
        training = {key: value for key, value in planned.settings.items() if key != "times"} | dict(request.training)
        reasons = () if "network" in requested else planned.reasons
        network: Spec = parse(requested["network"]) if "network" in requested else planned.network
        full = network_for(shape, len(data.label_names), network)
        check_width(full)
        passes = self._passes(full, training, request)
        default = augment_for_likelihood(passes) if for_bound and data.kind == "images" else "auto"
        if request.train.conditions is not None and request.train.conditions.form.image is not None:
            default = "none"  # augmentation does not transform the image of the condition
        augment, reason = choose_augment(
            requested.get("augment", default), request.train, passes, request.seed, request.progress
        )
        reasons += (reason,) if reason else ()
        clusters = self._clusters(requested, full["name"], request)
        full |= {"cond_dim": n} if (n := len(conditioned_entries(augment, data.shape)) + clusters) else {}
        if (note := slow_size(full)) and "stem" not in network:
            reasons += (note,)
        if for_bound and full["name"] == "unet" and "dropout" not in network and passes > MANY_PASSES:
            full["dropout"] = DROPOUT
            reasons += (f"dropout {DROPOUT:g}: each image is seen about {passes:,.0f} times",)
        if data.kind == "images" and training.get("minutes") and request.device == "cpu" and not (for_bound or is_latent):
            reasons += (expectation(data.shape, training["minutes"]),)
        if requested.get("target") == "levels" and levels is not None:
            full |= {"inputs": 2, "outputs": min(FEATURES, levels)}
        elif (outputs := outputs_of(requested.get("variance", "fixed"))) != 1:
            full |= {"outputs": outputs}
        recorded = {key: requested[key] for key in RECORDED_OPTIONS if key in requested} | {"clusters": clusters}
        if clusters and "clusters" not in requested:
            reasons += (
                f"clusters: the network is conditioned on {clusters} k-means clusters of images; --clusters 0 turns this off",
            )
        if request.train.conditions is not None:
            full |= condition_options(request.train.conditions.form, full["name"], shape)
            recorded["examples"] = examples_of(request.train.conditions.form.width, len(request.train))
            reasons += (f"conditions: {request.train.conditions.describe()}",)
        try:
            settings = DiffusionSettings.model_validate({
                "target": requested.get("target", planned.target), "codec": codec, **times,
                "sigma_data": 1.0 if is_latent else data_std(request.train),
                "schedule": complete(SCHEDULES, requested.get("schedule", planned.schedule), "schedule"), "network": full,
                "loss": complete(LOSSES, requested.get("loss", "mse"), "loss"), "augment": augment, **recorded,
            })  # fmt: skip
        except ValidationError as error:
            raise UserError(f"invalid settings: {first_problem(error)}") from None
        return FamilyPlan(settings.recorded(), training, reasons)

    def _clusters(self, requested: Mapping[str, Any], network: str, request: PlanRequest) -> int:
        """Return the number of clusters: the requested one, or the default for the data."""
        if "clusters" in requested:
            if requested["clusters"] and request.data.kind != "images":
                raise UserError(f"--clusters needs images, and these data are {request.data.kind}; leave --clusters out")
            if requested["clusters"] and network not in CONDITIONED_NETWORKS:
                others = " or ".join(CONDITIONED_NETWORKS)
                raise UserError(f"the network {network} takes no clusters; give --network {others}, or leave --clusters out")
            return int(requested["clusters"])
        supported = network in CONDITIONED_NETWORKS and request.data.kind == "images" and request.train.conditions is None
        return default_cluster_count(len(request.train)) if supported and requested.get("purpose") != "likelihood" else 0

    def _passes(self, network: Spec, training: Mapping[str, Any], request: PlanRequest) -> float:
        """Return the number of epochs, from the steps of a training or estimated from its minutes."""
        if training.get("steps"):
            return request.train.passes(training["steps"] * training.get("accumulate", 1), training["batch"])
        with torch.device("meta"), FlopCounterMode(display=False) as counter:
            net = build(NETWORKS, network, "network")
            net(torch.zeros(1, *shape_of(network)), torch.zeros(1))
        samples = 60 * float(training["minutes"]) * SPEED[request.device == "cpu"] / (3 * max(1, counter.get_total_flops()))
        return float(samples / len(request.train))

    def network(self, form: Dataset, minutes: float | None, steps: int | None, requested: Mapping[str, Any]) -> Spec | None:
        """Return the requested or planned network; raise a UserError for a shape that it cannot take."""
        shape = model_shape(requested["codec"], form.shape) if requested.get("codec") else form.shape
        spec: str | Spec | None = requested.get("network")
        spec = plan(form_of(form, shape), minutes, steps).network if spec is None else spec
        network = network_for(shape, len(form.label_names), spec)
        check_width(network)
        return network

    def levels(self, form: Dataset, requested: Mapping[str, Any]) -> int:
        """Return 256 if the target is `levels`, the default for the likelihood of images, else 0."""
        default = "levels" if requested.get("purpose") == "likelihood" else "flow"
        return 256 if form.kind == "images" and (requested.get("target") or default) == "levels" else 0

    def batch(self, form: Dataset) -> int:
        """Return the batch size of the plan."""
        return int(plan(form, None, 1).settings["batch"])

    def build(self, settings: DiffusionSettings, shape: tuple[int, ...], labels: int, seed: int) -> Diffusion:
        """Build the model; see `reverie.families.diffusion.settings`."""
        return build_diffusion(settings, shape, labels, seed)

    def tensor_specs(self, settings: DiffusionSettings, shape: tuple[int, ...], labels: int) -> dict[str, TensorSpec]:
        """Return dtype and shape of the tensors of denoiser, codec, clusters and stored conditions."""
        planned = plan_denoiser(settings, shape, labels)
        with torch.device("meta"):
            codec = build(ALL_CODECS, settings.codec, "codec")
        parts = ((DENOISER_PREFIX, planned), (CODEC_PREFIX, codec))
        specs = {f"{part}{name}": spec for part, module in parts for name, spec in tensor_specs(module.state_dict()).items()}
        if settings.clusters:
            with torch.device("meta"):
                clusters = Clusters(settings.clusters, shape, labels)
            specs |= {f"{CLUSTERS_PREFIX}{name}": spec for name, spec in tensor_specs(clusters.state_dict()).items()}
        if settings.examples:
            specs["examples"] = TensorSpec(torch.float32, (settings.examples, condition_width(settings.network)))
        return specs

    def matches(self, settings: DiffusionSettings, key: str, value: Any, shape: tuple[int, ...], labels: int) -> bool:
        """Return whether a requested option equals the setting; networks compare by plan, except version-dependent options."""
        tables: Mapping[str, Mapping[str, Any]] = {"schedule": SCHEDULES, "loss": LOSSES, "weight": WEIGHTS}
        if (table := tables.get(key)) is not None:
            return complete(table, value, key) == complete(table, getattr(settings, key), key)
        if key == "network":
            spec, stored = parse(value), complete(NETWORKS, settings.network, "network")  # missing options are defaults
            planned = network_for(model_shape(settings.codec, shape), labels, spec)
            ignored = {"stem", "widths", "attention", "cond_dim", "inputs", "outputs", "dropout", *CONDITION_OPTIONS}
            ignored -= spec.keys()
            return all(planned.get(k) == v for k, v in stored.items() if k not in ignored)
        if key == "augment":
            return value == "auto" or (() if value == "none" else parse_augmentations(value)) == settings.augment
        return super().matches(settings, key, value, shape, labels)
