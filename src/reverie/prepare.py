"""Getting ready to train: everything is checked before anything is written."""

from __future__ import annotations

import json
import math
import platform
import shlex
import shutil
import time
import warnings
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from pydantic import ValidationError

from reverie import checkpoint
from reverie.checkpoint import NETWORKS
from reverie.codec import standard_spec
from reverie.config import Config, DataConfig, TrainingConfig
from reverie.data import DATASETS, Dataset, load_data
from reverie.errors import ReverieWarning, UserError
from reverie.files import reason, writable_folder
from reverie.inspection import describe, flops
from reverie.noise import check_seed
from reverie.picture import loss_curve, save
from reverie.plan import PRESETS, network_for, plan
from reverie.run import Run, choose_device
from reverie.schedule import SCHEDULES
from reverie.spec import Spec, complete, one_line, parse
from reverie.training import Average, Step, fit

LOSS_PICTURE, PREVIEWS = "loss.png", "previews"
RUN_FILES = (checkpoint.CONFIG, checkpoint.WEIGHTS_FILE, checkpoint.METRICS, LOSS_PICTURE)
SPREAD_SAMPLE = 2000  # images enough to know their standard deviation
READING = ("points", "size", "fit", "channels", "labels", "data_dir", "strict", "on_progress")
PREVIEW_COUNT, PREVIEW_STEPS = 16, 12
SMALL_NETWORK = 100_000  # parameters below which one thread is as quick as several
PREVIEW_SHARE = 0.03  # of the training time, at most


def _free_folder(name: str) -> Path:
    for k in range(1, 10_000):
        path = Path("runs") / (name if k == 1 else f"{name}-{k}")
        if not path.exists():
            return path
    raise UserError("runs/ is full of runs of this name; choose a folder with --out")


def _claim(out: str | Path | None, name: str, overwrite: bool) -> Path:
    """Return the folder of a new run, made and writable; another run in it is refused or, if so asked, removed."""
    path = Path(out) if out is not None else _free_folder(name)
    if (path / checkpoint.CONFIG).exists() and not overwrite:
        raise UserError(f"{path} already holds a run; choose another --out, or give --overwrite to replace it")
    known = (*RUN_FILES, PREVIEWS) if (path / checkpoint.CONFIG).exists() else ()
    if path.is_dir() and (others := sorted(p.name for p in path.iterdir() if p.name not in known)):
        raise UserError(f"{path} holds other files ({others[0]} ...); choose a new or empty folder with --out")
    writable_folder(path)
    _clear(path)
    return path


def _clear(path: Path) -> None:
    """Remove the files of a run, and nothing else, from a folder."""
    for file in RUN_FILES:
        (path / file).unlink(missing_ok=True)
    shutil.rmtree(path / PREVIEWS, ignore_errors=True)


def spread(dataset: Dataset) -> float:
    """Return the standard deviation of the data in model units: 1 for points, that of 2 x - 1 for images."""
    if not dataset.is_images:
        return 1.0
    index = torch.linspace(0, len(dataset) - 1, min(len(dataset), SPREAD_SAMPLE)).long()
    return max(float(2 * dataset.batch(index)[0].std()), 1e-3)


@dataclass
class Training:
    """A training that is ready to start: iterate over it for its reports.

    Weights are saved at every held-out check, at the end, and when the iteration is broken off.
    """

    run: Run
    average: Average
    train: Dataset
    held_out: Dataset
    about: tuple[str, ...] = ()
    reasons: tuple[str, ...] = ()

    def introduction(self) -> Iterator[str]:
        """Say what will be trained on what, and why, a line each."""
        yield from self.about
        config = self.run.config
        yield f"{config.data.name}: {len(self.train):,} to train, {len(self.held_out):,} held out"
        yield from self.reasons
        model = self.run.model
        parameters = sum(p.numel() for p in model.parameters())
        yield f"network: {config.network['name']}, {parameters:,} parameters, {flops(model) / 1e6:,.1f} million operations"

    def sample_command(self) -> str:
        """Return the command that samples from the run."""
        count = 64 if self.train.is_images else 2000
        return f"reverie sample {shlex.quote(str(self.run.path))} -n {count} --out {shlex.quote(self.run.path.name + '.png')}"

    def preview(self, i: int) -> None:
        """Draw the same seeds as ever with the average weights into previews/."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ReverieWarning)  # it was said when the training was prepared
            samples = self.run.sample(PREVIEW_COUNT if self.train.is_images else 1000, steps=PREVIEW_STEPS)
        samples.save(self.run.path / PREVIEWS / f"step-{i:07d}.png")

    def __iter__(self) -> Iterator[Step]:
        run, settings = self.run, self.run.config.training
        raw = run.model
        if raw is self.average.model:
            raise UserError(f"the training of {run.path} has been run already; prepare a new one")
        threads = torch.get_num_threads()
        if sum(p.numel() for p in raw.parameters()) < SMALL_NETWORK:
            torch.set_num_threads(1)  # two threads gain nothing here, and stall each other when the machine is busy
        run.model = self.average.model  # what is sampled and saved
        previewing = 0.0
        try:
            with (run.path / checkpoint.METRICS).open("w") as file:
                for step in fit(raw, self.average, self.train, self.held_out, settings):
                    file.write(json.dumps(step.as_row()) + "\n")
                    file.flush()
                    if step.held_out is not None:
                        checkpoint.write_weights(run.path, run.model)
                        if previewing <= PREVIEW_SHARE * step.seconds or step.fraction == 1:
                            began = time.monotonic()
                            self.preview(step.i)
                            previewing += time.monotonic() - began
                    yield step
        except OSError as error:
            raise UserError(f"cannot write to {run.path}: {reason(error)}; the weights saved last are kept") from error
        finally:
            torch.set_num_threads(threads)
            if not self.average.updates:
                _clear(run.path)  # nothing was learned: leave no folder that looks like a run
                with suppress(OSError):
                    run.path.rmdir()
            elif all(torch.isfinite(p).all() for p in run.model.parameters()):
                checkpoint.write_weights(run.path, run.model)
                save(loss_curve(run.metrics()), run.path / LOSS_PICTURE)


def prepare(
    data: str,
    out: str | Path | None = None,
    *,
    steps: int | None = None,
    minutes: float | None = None,
    epochs: float | None = None,
    seed: int = 0,
    device: str = "auto",
    schedule: str | Spec | None = None,
    network: str | Spec | None = None,
    target: str | None = None,
    overwrite: bool = False,
    **options: Any,
) -> Training:
    """Check everything, make the run folder and return the training; nothing is written if anything is wrong.

    What is not given is chosen for the data (`reverie.plan`).  options: how to read the data, as in `load_data` (size, fit,
    labels, ...), and further fields of TrainingConfig (batch, learning_rate, weight, times, ...).
    """
    reading = {key: options.pop(key) for key in READING if key in options}
    where = choose_device(device)
    check_seed(seed)
    if sum(length is not None for length in (steps, minutes, epochs)) > 1:
        raise UserError("give only one of --steps, --minutes and --epochs")
    for name, length in (("steps", steps), ("minutes", minutes), ("epochs", epochs)):
        if length is not None and not 0 < length < math.inf:
            raise UserError(f"the number of {name} must be above 0, got {length}")
    dataset = load_data(data, seed=seed, **reading)
    train_set, held_out = dataset.split(seed)
    if epochs is not None:
        steps = max(1, round(epochs * len(train_set) / options.get("batch", 64)))
    chosen = plan(dataset, minutes, steps)
    wished = parse(network) if network is not None else chosen.network
    if taken := [key for key in ("channels", "height", "width", "labels") if key in wished]:
        raise UserError(f"the network's {taken[0]} are told by the data and cannot be given with --network")
    if (preset := PRESETS.get(str(wished.get("name")))) is not None:
        wished = {**preset, **wished, "name": preset["name"]}
    precision = "bf16" if where.type == "cuda" and torch.cuda.is_bf16_supported() else "fp32"
    try:
        training = TrainingConfig(**{"seed": seed, "precision": precision, **chosen.settings, **options})
    except ValidationError as error:
        raise UserError(f"cannot train like this: {one_line(error)}") from None
    config = Config(
        versions={"reverie": version("reverie"), "torch": str(torch.__version__), "python": platform.python_version()},
        target=target or chosen.target,
        sigma_data=spread(train_set),
        data=DataConfig(
            name=dataset.name, source=data if data in DATASETS else str(Path(data).expanduser().resolve()),
            count=len(dataset), seed=seed, shape=dataset.shape, labels=dataset.label_names,
            label_counts=tuple(dataset.label_counts()), fingerprint=dataset.fingerprint(),
        ),
        codec={"name": "pixels"} if dataset.is_images else standard_spec(train_set.batch(torch.arange(len(train_set)))[0]),
        schedule=complete(SCHEDULES, schedule or chosen.schedule, "schedule"),
        network=complete(NETWORKS, network_for(dataset, wished), "network"),
        training=training,
    )  # fmt: skip
    model = checkpoint.build_model(config).to(where)
    about = tuple(describe(dataset))
    model.denoiser.schedule.warn_if_signal_remains()
    path = _claim(out, dataset.name, overwrite)
    checkpoint.write_config(path, config)
    return Training(Run(config, model, path), Average(model, training.ema_share), train_set, held_out, about, chosen.reasons)
