"""Distillation: trains a student, from the weights of a run, to sample in a few network evaluations."""

from __future__ import annotations

import platform
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from pydantic import ValidationError
from torch import Tensor

from reverie.base.budget import Budget
from reverie.base.deadline import Deadline
from reverie.base.deprecations import renamed_options
from reverie.base.errors import UserError
from reverie.base.noise import check_seed
from reverie.base.precision import default_precision
from reverie.base.progress import OnProgress, silent
from reverie.base.spec import first_problem
from reverie.data import Dataset
from reverie.data.classifiers import cached_classifier, can_classify, label_classifier
from reverie.data.in_memory import DataSource
from reverie.diffusion.guidance import check_scale
from reverie.diffusion.learned import Learned
from reverie.families.diffusion.distillation import (
    ClassifierFeatures,
    DistillationTarget,
    Distilled,
    Features,
    Pool,
    TeacherFeatures,
)
from reverie.families.diffusion.latent_codec import LatentCodec
from reverie.families.diffusion.model import Diffusion
from reverie.families.model import Model
from reverie.nets.lenet import LeNet
from reverie.runs import folder
from reverie.runs.config import Config, TrainingConfig, build_model
from reverie.runs.device import choose_device
from reverie.runs.run import Run, load
from reverie.runs.screen import format_duration
from reverie.runs.source_data import load_source_data, relocated
from reverie.training import finetuning
from reverie.training import tensorboard as events
from reverie.training.claim import check_free, claim, sweep
from reverie.training.learner import Learner
from reverie.training.loop import limit_budget
from reverie.training.trainer import Training

MINUTES = 5.0
RATE = 0.2  # learning rate relative to that of the teacher
MIN_BATCH = 64  # minimum batch size: the distance of smaller batches is too noisy
DRAWN = 4096  # samples of a guided teacher for training its student
CLASSIFIERS = 3  # number of classifiers whose features compare samples with data
CLASSIFIERS_SHARE, DRAWN_SHARE = 0.2, 0.2  # upper limits of the time for training them, and for sampling the teacher
MIN_DRAWN = 64  # minimum number of samples of a guided teacher
MIN_ACCURACY = 0.95  # minimum held-out accuracy of a classifier whose features are used


def check_teacher(run: Run, guidance: float) -> None:
    """Refuse a run that cannot be distilled with this guidance."""
    run.require("distil")
    settings, model = run.diffusion_settings, run.diffusion
    check_scale(guidance, "the guidance scale")
    if settings.distilled is not None:
        raise UserError(f"{run.path} is itself a student; distil its teacher")
    if settings.purpose == "likelihood" or settings.target == "levels" or isinstance(model.denoiser.schedule, Learned):
        raise UserError(
            f"{run.path} is trained for the likelihood, which a student does not have; distil a run trained for samples"
        )
    if isinstance(model.codec, LatentCodec):
        raise UserError(f"{run.path} is latent diffusion, which cannot be distilled yet; distil a run of pixels")
    if settings.variance == "learned":
        raise UserError(f"{run.path} has learned variances, which a student does not use; distil a run with --variance fixed")
    if model.examples is not None:
        raise UserError(
            f"{run.path} is conditioned on captions, numbers or images, which cannot be distilled yet; use a run with labels"
        )
    if guidance != 1 and not run.config.data.labels:
        raise UserError(f"the run {run.path} was trained without labels, which guidance needs; omit --guidance")


@torch.no_grad()
def sample_teacher(
    run: Run, guidance: float, count: int, seed: int, on_progress: OnProgress = silent, deadline: Deadline | None = None
) -> Dataset:  # fmt: skip
    """Return samples of a guided run as a labelled dataset; equal for equal seeds.

    deadline: ends sampling early, after at least MIN_DRAWN samples.
    """
    data_config, size, parts, done = run.config.data, run.batch_size(), list[Tensor](), 0
    deadline = deadline or Deadline()
    while done < count and (done < MIN_DRAWN or deadline.elapsed * size < deadline.left * done):
        *_, last = run.frames(min(size, count - done), done, guidance=guidance, seed=seed)
        parts.append(run.model.decode(last.x0).float().cpu())
        done = min(done + size, count)
        on_progress("sampling the teacher", done, count)
    x = torch.cat(parts)
    if data_config.kind == "images":
        x = x.clamp(0, 1).mul(255).round().to(torch.uint8)
    return Dataset(data_config.name, x, run.labels(None, done, seed), data_config.labels)


def distillation_data(
    teacher: Run,
    distilled: Distilled,
    seed: int,
    dataset: Dataset,
    on_progress: OnProgress = silent,
    deadline: Deadline | None = None,
) -> tuple[Dataset, Dataset]:
    """Return training and held-out data of a student: the teacher's data, or samples of the guided teacher."""
    if distilled.guidance != 1:
        dataset = sample_teacher(teacher, distilled.guidance, distilled.samples, seed, on_progress, deadline)
    return dataset.split(teacher.config.data.seed)


def classifiers_of(
    train: Dataset, held_out: Dataset, seed: int, on_progress: OnProgress = silent, budget: Budget | None = None,
    right: float = MIN_ACCURACY,
) -> list[LeNet]:  # fmt: skip
    """Return classifiers of the data's labels, from the cache or trained within their share of the time.

    Several classifiers reduce the effect of the errors of each.  Each has half of the remaining time, the last one all of it.
    Without a time limit they are equal for equal seeds.  right: minimum held-out accuracy.
    """
    if not can_classify(train):
        return []
    budget, nets = budget or Budget(), list[LeNet]()
    deadline = Deadline(min(CLASSIFIERS_SHARE * budget.seconds, max(0.0, budget.free)), budget.clock)
    seeds = [(seed + k) % 2**31 for k in range(CLASSIFIERS)]
    cached = all(
        cached_classifier(train, classifier_seed, limit)
        for classifier_seed, limit in zip(seeds, _limits(deadline.left), strict=True)
    )
    limit = f"in {format_duration(deadline.left)}, " if deadline.limited else ""
    origin = "from the cache" if cached else f"trained first, {limit}and cached"
    budget.notify(f"classifiers: {CLASSIFIERS} of the labels, whose features compare samples with data, {origin}")
    for k, classifier_seed in enumerate(seeds):
        seconds = _limits(deadline.left, CLASSIFIERS - k)[0]
        classifier = label_classifier(
            train, held_out, classifier_seed, seconds=seconds, on_progress=on_progress, clock=budget.clock
        )
        if classifier.facts.accuracy < right:
            budget.notify(f"classifiers: held-out accuracy {classifier.facts.accuracy:.0%} is below {right:.0%};"
                       f" using {len(nets) or 'none'} of {CLASSIFIERS}")  # fmt: skip
            break
        nets.append(classifier.net)
    return nets


def _limits(seconds: float, count: int = CLASSIFIERS) -> list[float]:
    """Return the seconds for each of a number of classifiers."""
    limits = [seconds / 2 ** (k + 1) for k in range(count)]
    return [*limits[:-1], 2 * limits[-1]]


def make_target(model: Model, teacher: Run, classifiers: list[LeNet], train: Dataset) -> DistillationTarget:
    """Return the distillation target of a model, on the same device and frozen."""
    assert isinstance(model, Diffusion)
    features: Features = TeacherFeatures(teacher.diffusion.denoiser)
    if classifiers:
        features = ClassifierFeatures([net.to(model.device) for net in classifiers])
    pool = Pool(features, train, model.codec.encode, model.device, model.conditioning_of)
    return DistillationTarget(features, model.label_dropout, pool, model.clips)


def teacher_of(config: Config, device: torch.device) -> Run | None:
    """Return the teacher of a student, if its weights are unchanged; None if the run is not a student."""
    if _distilled(config) is None or config.start is None:
        return None
    run = load(config.start.run, str(device))
    if finetuning.record(run).weights != config.start.weights:
        raise UserError(f"the weights of {run.path} have changed since this distillation started; distil it again")
    return run


def _distilled(config: Config) -> Distilled | None:
    distilled: Distilled | None = getattr(config.family, "distilled", None)
    return distilled


def restore_distillation(
    learner: Learner,
    teacher: Run,
    config: Config,
    dataset: Dataset,
    on_progress: OnProgress = silent,
    budget: Budget | None = None,
) -> tuple[Dataset, Dataset]:
    """Restore the distillation target of a resumed student; return its training and held-out data."""
    distilled, seed = _distilled(config), config.training.seed
    assert distilled is not None
    train_set, held_out = distillation_data(teacher, distilled, seed, dataset, on_progress)
    by_labels = distilled.features == "classifier"
    classifiers = classifiers_of(train_set, held_out, seed, on_progress, budget, right=0.0) if by_labels else []
    target = make_target(learner.model, teacher, classifiers, train_set)
    for model in (learner.model, learner.average.model):
        assert isinstance(model, Diffusion)
        model.distillation_target = target
    return train_set, held_out


@renamed_options
def prepare_distillation(
    run: str | Path,
    out: str | Path | None = None,
    *,
    steps: int | None = None,
    minutes: float | None = None,
    guidance: float = 1.0,
    seed: int = 0,
    device: str = "auto",
    overwrite: bool = False,
    tensorboard: bool = False,
    data: DataSource | None = None,
    data_dir: str | Path | None = None,
    on_progress: OnProgress | None = None,
    budget: Budget | None = None,
    **options: Any,
) -> Training:
    """Check all settings, make the folder of the student and return its training; writes nothing if a check fails.

    guidance: scale of the teacher's guidance, which the student learns; data, data_dir: the new location of the run's data;
    options: further fields of TrainingConfig (batch, learning_rate, ...); budget: the time of the whole command.
    """
    budget = budget or Budget()
    events.check(tensorboard)
    torch_device = choose_device(device)
    check_seed(seed)
    if steps is not None and minutes is not None:
        raise UserError("give only one of --steps and --minutes")
    teacher = load(run, str(torch_device))
    check_teacher(teacher, guidance)
    if out is not None:
        check_free(Path(out), overwrite)
    teacher_config = teacher.config
    before = teacher_config.training
    planned: dict[str, Any] = {
        "batch": max(MIN_BATCH, before.batch), "optimizer": before.optimizer, "learning_rate": RATE * before.learning_rate,
        "precision": default_precision(teacher_config.data.shape, torch_device),
        "steps": steps, "minutes": MINUTES if steps is None and minutes is None else minutes, "seed": seed,
    }  # fmt: skip
    try:
        training = TrainingConfig.model_validate({**planned, **options})
    except ValidationError as error:
        raise UserError(f"cannot distil with these settings: {first_problem(error)}") from None
    limit_budget(budget, training, torch_device)
    is_bounded = teacher.diffusion.codec.levels is not None
    distilled = Distilled(guidance=guidance, samples=0 if guidance == 1 else DRAWN, clipped=is_bounded)
    on_progress = on_progress or silent
    dataset = load_source_data(teacher_config.data, folder=teacher.path, data=data, data_dir=data_dir, on_progress=on_progress)
    deadline = Deadline(min(DRAWN_SHARE * budget.seconds, max(0.0, budget.free)), budget.clock)
    if guidance != 1:
        limit = f", within {format_duration(deadline.left)}" if deadline.limited else ""
        budget.notify(f"data: up to {DRAWN:,} samples of {teacher.path} are generated first{limit}")
    train_set, held_out = distillation_data(teacher, distilled, seed, dataset, on_progress, deadline)
    if guidance != 1:
        distilled = distilled.model_copy(update={"samples": len(train_set) + len(held_out)})
    classifiers = classifiers_of(train_set, held_out, seed, on_progress, budget)
    if classifiers:
        distilled = distilled.model_copy(update={"features": "classifier"})
    student = teacher.diffusion_settings.model_copy(update={"distilled": distilled, "autoguidance": 1.0}).recorded()
    config = teacher_config.model_copy(update={
        "versions": {"reverie": version("reverie"), "torch": str(torch.__version__), "python": platform.python_version()},
        "data": relocated(teacher_config.data, data, data_dir),
        "family": student,
        "training": training, "start": finetuning.record(teacher), "requested": {},
    })  # fmt: skip
    model = build_model(config)
    model.load_state_dict(teacher.model.state_dict())
    model = model.to(torch_device)
    assert isinstance(model, Diffusion)
    model.distillation_target = make_target(model, teacher, classifiers, train_set)
    lock = claim(out, f"{teacher.path.name}-fast", overwrite)
    try:
        folder.write_config(lock.folder, config)
        learner = Learner(model, training)
    except BaseException:
        sweep(lock.folder, whole_run=True)
        lock.release()
        raise
    features = "label classifiers" if classifiers else "the teacher"
    guided = f" with guidance {guidance:g} on {len(train_set) + len(held_out):,} of its samples" if guidance != 1 else ""
    why = f"student of {teacher.path}{guided}: starts from its weights and learns to sample in 1, 2 or 4 evaluations,"
    why += f" compared with data by the features of {features}"
    return Training(
        Run(config, learner.average.model, lock.folder), learner, train_set, held_out, lock, (), (why,), tensorboard,
        budget=budget,
    )  # fmt: skip
