"""Preparing a training: all checks precede the first write."""

from __future__ import annotations

import platform
from collections.abc import Iterable, Mapping
from dataclasses import replace
from importlib.metadata import version
from inspect import signature
from pathlib import Path
from typing import Any

import torch
from pydantic import ValidationError

from reverie.base.budget import Budget
from reverie.base.deadline import Deadline
from reverie.base.deprecations import renamed_options
from reverie.base.errors import UserError, pick, unknown
from reverie.base.noise import check_seed
from reverie.base.precision import default_precision, has_fast_bf16
from reverie.base.progress import silent
from reverie.base.spec import Spec, first_problem, format_spec, parse
from reverie.base.team import world_size
from reverie.base.visible import storable
from reverie.base.worker_processes import check_processes
from reverie.data import Dataset, load_data
from reverie.data.describe import describe_dataset
from reverie.data.in_memory import DataSource
from reverie.data.pixels import DEFAULT_SIDE
from reverie.diffusion.plan import largest_colour_side, small_for_the_budget
from reverie.families import FAMILIES
from reverie.families.diffusion.latent_codec import model_shape
from reverie.families.model import Family, FamilyPlan, PlanRequest, TrainedModel
from reverie.runs import data_copy, folder
from reverie.runs.config import MAX_MINUTES, MAX_STEPS, Config, DataConfig, TrainingConfig, build_model
from reverie.runs.device import device_for
from reverie.runs.run import Run
from reverie.runs.source_data import reading_options, source_name
from reverie.training import finetuning
from reverie.training import tensorboard as events
from reverie.training.claim import CODEC_FOLDER, check_free, claim, sweep
from reverie.training.codec_training import SHARE, LatentRequest, codec_plan, open_codec, stage_length, total_length, use_codec
from reverie.training.gradient import micro_batches
from reverie.training.learner import Learner
from reverie.training.loop import limit_budget
from reverie.training.resume import resume
from reverie.training.sharding import check_shard
from reverie.training.step_rate import in_time
from reverie.training.trainer import Training
from reverie.training.training_request import TrainingRequest

READING = (
    "points", "size", "fit", "channels", "labels", "data_dir", "strict", "on_progress", "window", "text",
    "condition_columns", "condition_image", "pairs", "columns",
)  # fmt: skip
FAMILY_OPTIONS = {key for family in FAMILIES.values() for key in family.option_names}
BEGIN_SHARE = 0.05  # upper limit of the time for clusters and other initialization from data
DEFAULT_FAMILY = "diffusion"  # for the kinds of data that it supports
NO_OPTIONS = ("data", "out", "path", "options", "given", "dataset", "budget")  # parameters that are not options of a training


def check_options(given: Iterable[str]) -> None:
    """Refuse unknown options of a training, before data are read."""
    named = (*signature(prepare).parameters, *signature(resume).parameters)
    names = dict.fromkeys((*named, *READING, *TrainingConfig.model_fields, *sorted(FAMILY_OPTIONS)))
    supported = [name for name in names if name not in NO_OPTIONS]
    if unsupported := [name for name in given if name not in supported]:
        raise unknown(unsupported[0], supported, "option of training")


def read_family(family: str | Spec, options: dict[str, Any]) -> tuple[Family[Any], dict[str, Any]]:
    """Return the family and its options: those of its spec, and those moved from the options of a training."""
    spec = parse(family)
    selected = pick(FAMILIES, str(spec.get("name")), "family")
    family_options = {key: value for key, value in spec.items() if key != "name"}
    for key in [key for key in options if key in FAMILY_OPTIONS]:
        value = options.pop(key)
        if value is not None and (value != "auto" or key in selected.option_names):
            family_options[key] = value
    selected.check(family_options)
    return selected, family_options


@renamed_options
def prepare(
    data: DataSource,
    out: str | Path | None = None,
    *,
    family: str | Spec | None = None,
    steps: int | None = None,
    minutes: float | None = None,
    epochs: float | None = None,
    seed: int = 0,
    device: str = "auto",
    start_from: str | Path | None = None,
    overwrite: bool = False,
    tensorboard: bool = False,
    keep_data: bool = False,
    latent_space: bool | None = None,
    processes: int = 1,
    shard: bool = False,
    budget: Budget | None = None,
    **options: Any,
) -> Training:
    """Check all settings, make the run folder and return the training; writes nothing if a check fails.

    By default the kind of data determines the family, and the family the other settings.  options: of reading data, as in
    `load_data` (size, fit, labels, ...), of the family (network, schedule, target, augment, ...), and further fields of
    TrainingConfig (batch, learning_rate, ...).  start_from: a run with the initial weights; keep_data: whether the run stores a
    copy of its data; latent_space: whether to train latent diffusion, None chooses by the image size; codec: a run of an
    autoencoder; processes: number of processes on this machine; shard: whether they also share parameters, optimizer state and
    EMA weights; budget: the time of the whole command.
    """
    budget = budget or Budget()
    check_options(options)
    reading = {key: options.pop(key) for key in READING if key in options}
    events.check(tensorboard)
    where = device_for(device)
    check_processes(processes)
    check_seed(seed)
    if sum(length is not None for length in (steps, minutes, epochs)) > 1:
        raise UserError("more than one length; give only one of --steps, --minutes and --epochs")
    for name, length, limit in (
        ("steps", steps, MAX_STEPS),
        ("minutes", minutes, MAX_MINUTES),
        ("epochs", epochs, MAX_STEPS),
    ):
        if length is not None and not 0 < length <= limit:
            raise UserError(f"--{name} must be above 0 and at most {limit:,}, got {length}")
    kind, family_options = read_family(family or DEFAULT_FAMILY, options)
    codec_option = family_options.pop("codec") if isinstance(family_options.get("codec"), str | Path) else None
    if kind.name != "diffusion" and (latent_space or codec_option is not None):
        raise UserError(f"the family {kind.name} has no latent diffusion; omit --latent and --codec")
    if options.get("lora") is not None and start_from is None:
        raise UserError("--lora adapts a trained network; add --from RUN")
    if codec_option is not None and (latent_space is False or start_from is not None):
        raise UserError("--codec RUN uses the latent space of that run; omit --no-latent and --from")
    if latent_space and start_from is not None:
        raise UserError("--from RUN uses the codec of that run; omit --latent")
    codec_run = open_codec(codec_option) if codec_option is not None else None
    requested = {key: _as_option(value) for key, value in family_options.items() if (key, value) != ("augment", "auto")}
    before = finetuning.open_start(start_from, kind) if start_from is not None else None
    if before is not None:
        family_options = finetuning.options_of(before, family_options)
    latent = LatentRequest(latent_space, family_options, codec_run, by_size=kind.name == "diffusion" and before is None)
    codec_shape = codec_run.config.data.shape if codec_run is not None else (1,)
    request = TrainingRequest(
        kind, minutes, steps, family_options, options, where, latent.codec, codec_shape[0],
        trains_codec=codec_run is before is None,
    )  # fmt: skip
    request.check(data, reading.get("size"))
    if out is not None:
        check_free(Path(out), overwrite)
    # With --from or --codec the size is not known before the data are read.
    check_memory = request.check_memory if before is codec_run is None or reading.get("size") else None
    largest = largest_colour_side(minutes, steps, where.type) if epochs is None else DEFAULT_SIDE
    dataset = load_data(data, seed=seed, on_shape=check_memory, largest_colour=largest, **reading)
    reference, resize_note = before or codec_run, tuple[str, ...]()
    if reference is not None and reading.get("size") is None and (size := finetuning.size_of(reference, dataset)):
        reading["size"] = size
        resize_note = (f"images are resized to {size if 'x' in size else f'{size}x{size}'}, the size of {reference.path}",)
        dataset = load_data(data, seed=seed, on_shape=request.check_memory, **reading)
    if before is not None:
        finetuning.check_shape(before, dataset)
    kind, family_note = family_for(
        dataset, kind, family_options, chosen=family is not None or latent_space is not None or reference is not None
    )
    family_options = {key: value for key, value in family_options.items() if key in kind.option_names}
    if dataset.conditions is not None and "captions" not in kind.capabilities:
        if reading.get("labels", "auto") != "auto" or reading.get("condition_columns") or reading.get("condition_image"):
            supporting = ", ".join(name for name, other in FAMILIES.items() if "captions" in other.capabilities)
            raise UserError(f"the family {kind.name} has no conditions other than labels; families that have: {supporting}")
        dataset = replace(dataset, conditions=None, report={**dataset.report, "labels_by": "none"})
    given, options = dict(options), options | request.smaller
    if keep_data:
        data_copy.check_copyable(dataset)
    train_set, held_out = dataset.split(seed)
    if epochs is not None:
        one_step = train_set.passes(options.get("accumulate", 1), options.get("batch", kind.batch(dataset)))
        steps = max(1, round(epochs / one_step))
        if steps > MAX_STEPS:
            raise UserError(f"{epochs:g} epochs of these data are {steps:,} steps; use at most {MAX_STEPS:,}")
    on_progress = reading.get("on_progress") or silent
    first_plan, lengths = None, (minutes, steps)
    if (codec := latent.codec(dataset)) is not None:
        family_options = {**family_options, "codec": codec}
        if codec_run is None:
            first_plan, lengths = codec_plan(dataset.shape, minutes, steps), stage_length(minutes, steps, 1 - SHARE)
    plan = kind.plan(PlanRequest(dataset, train_set, *lengths, seed, where.type, family_options, options, on_progress))
    reasons = (
        *family_note,
        *((latent.reason(dataset, codec),) if codec is not None else ()),
        *plan.reasons,
        *request.notes,
        *resize_note,
    )
    planned = dict(plan.training)
    if before is not None:
        reasons = (finetuning.reason(before), *reasons)
        planned |= {} if "learning_rate" in options else {"learning_rate": finetuning.RATE * planned["learning_rate"]}
        if options.get("lora") is not None:
            planned |= {key: value for key, value in finetuning.FOR_LORA.items() if key not in options}
    if "micro_batches" not in options:
        planned["micro_batches"] = micro_batches(bool(options.get("exact")), processes, planned, train_set)
    is_image_diffusion = kind.name == "diffusion" and getattr(plan.settings, "purpose", None) == "samples"
    # bfloat16 on CPUs was measured for diffusion models of images
    shape = model_shape(plan.settings.codec, dataset.shape) if is_image_diffusion else ()
    precision = default_precision(shape, where) if where.type == "cpu" else "bf16" if has_fast_bf16(where) else "fp32"
    if precision == "bf16" and where.type == "cpu" and "precision" not in options:
        reasons = (*reasons, "computed in bfloat16, which is fast on this processor; --precision fp32 for full precision")
    described_data = DataConfig(
        name=dataset.name, source=storable(source_name(data)),
        count=len(dataset), seed=seed, shape=dataset.shape, labels=dataset.label_names,
        label_counts=tuple(dataset.label_counts()), fingerprint=dataset.fingerprint(),
        reading=reading_options(reading, dataset), kind=dataset.kind,
        condition=dataset.conditions.form if dataset.conditions is not None else None, columns=dataset.columns,
    )  # fmt: skip

    def configured(family_plan: FamilyPlan[Any], training: Mapping[str, Any], **fields: Any) -> Config:
        try:
            settings = TrainingConfig(**{"seed": seed, "precision": precision, **training})
        except ValidationError as error:
            raise UserError(f"cannot train with these settings: {first_problem(error)}") from None
        versions = {"reverie": version("reverie"), "torch": str(torch.__version__), "python": platform.python_version()}
        return Config(versions=versions, data=described_data, family=family_plan.settings, training=settings, **fields)

    references = {
        "start": finetuning.record(before) if before else None,
        "codec": finetuning.record(codec_run) if codec_run else None,
    }
    config = configured(plan, planned, **references)
    training = config.training
    if shard:
        check_shard(training, max(processes, world_size()))
    config = config.model_copy(update={"requested": {
        **{key: getattr(training, key) for key in given},
        **({"seed": seed} if seed else {}),
        **requested,
        **({"from": storable(str(start_from))} if start_from is not None else {}),
        **({"codec": storable(str(codec_option))} if codec_option is not None else {}),
        **({"latent": latent_space} if latent_space is not None else {}),
    }})  # fmt: skip
    limit_budget(budget, training, where, total_length(config)[0])
    model = build_model(config)
    if isinstance(model, TrainedModel):
        model.initialize(train_set, Deadline(BEGIN_SHARE * budget.seconds, budget.clock))
    if codec_run is not None:
        use_codec(model, codec_run, train_set)
    if before is not None:
        reasons += finetuning.transfer(before, model, config, train_set)
    if not reading.get("size") and (size_note := small_for_the_budget(dataset, largest, minutes)):
        reasons += (size_note,)
    model = model.to(where)
    if max(processes, world_size()) == 1:
        training, speed_note = in_time(model, train_set, training, given, budget)
        config = config.model_copy(update={"training": training})
        reasons += (speed_note,) if speed_note else ()
    about = tuple(describe_dataset(dataset))
    model.warn()
    learner = Learner(model, training)
    lock, codec_training = claim(out, dataset.name, overwrite), None
    path = lock.folder
    if out is None and path.name != dataset.name:
        about += (f"the run folder is {path}, as {path.with_name(dataset.name)} exists",)
    try:
        folder.write_config(path, config)  # first, as it marks the folder as a run
        if keep_data:
            data_copy.write_data_copy(path, dataset)
        if first_plan is not None:
            fields: dict[str, Any] = {"clock": training.clock}
            if where.type == "cpu":
                fields["precision"] = "fp32"  # bfloat16 is no faster for these autoencoders
            codec_config = configured(first_plan, {**first_plan.training, **fields, **request.codec_smaller})
            codec_training = _codec_training(path, codec_config, train_set, held_out, where, budget)
            reasons += codec_training.reasons
    except BaseException:
        sweep(path, whole_run=True)
        lock.release()
        raise
    return Training(
        Run(config, learner.average.model, path), learner, train_set, held_out, lock, about, reasons, tensorboard,
        first=codec_training, processes=processes, shard=shard, budget=budget,
    )  # fmt: skip


def _codec_training(
    path: Path, config: Config, train: Dataset, held_out: Dataset, where: torch.device, budget: Budget
) -> Training:
    """Return the training of the autoencoder of a run, in a run folder within it.  budget: of the whole command."""
    model = build_model(config)
    assert isinstance(model, TrainedModel)
    model.initialize(train)
    micro = micro_batches(False, 1, config.training.model_dump(), train)
    training, speed_note = in_time(
        model.to(where), train, config.training.model_copy(update={"micro_batches": micro}), (), budget.sub_budget(SHARE)
    )
    config = config.model_copy(update={"training": training})
    learner = Learner(model, training)
    lock = claim(path / CODEC_FOLDER, CODEC_FOLDER, overwrite=True)
    folder.write_config(lock.folder, config)
    reasons = (f"autoencoder: {speed_note}",) if speed_note else ()
    return Training(Run(config, learner.average.model, lock.folder), learner, train, held_out, lock, reasons=reasons)


def _as_option(value: Any) -> Any:
    """Return an option of a family as on the command line."""
    if isinstance(value, list | tuple):
        return ",".join(map(format_spec, value))
    return format_spec(value) if isinstance(value, str | Mapping) else value


def family_for(
    dataset: Dataset, family: Family[Any], options: Mapping[str, Any], chosen: bool
) -> tuple[Family[Any], tuple[str, ...]]:
    """Return the family for data, and a note if it is not the given one; refuse data of other kinds.

    options: of the family; chosen: whether the user gave the family.
    """
    kind = dataset.kind
    if kind in family.kinds:
        return family, ()
    supporting = {name: other for name, other in FAMILIES.items() if kind in other.kinds}
    takes = f"{family.name} takes {' and '.join(family.kinds)}"
    if chosen:
        raise UserError(
            f"{dataset.name} contains {kind}, and the family {takes}; families that take {kind}: {', '.join(supporting)}"
        )
    best = next(other for other in supporting.values() if kind in other.default_for)
    best.check({key: value for key, value in options.items() if value != "auto"})
    others = ", ".join(name for name in supporting if name != best.name)
    return best, (f"family: {best.name}, as the data are {kind} and {takes}; --family selects another: {others}",)
