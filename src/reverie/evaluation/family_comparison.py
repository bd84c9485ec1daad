"""Comparison of families on one dataset: each is trained for the same CPU time and evaluated with the same settings."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from reverie.base.errors import UserError, out_of_memory
from reverie.base.spec import parse
from reverie.data import Dataset
from reverie.data.in_memory import DataSource
from reverie.data.text_pairs import TextPairs
from reverie.data.text_windows import text_of
from reverie.draw.passages import passage_picture
from reverie.draw.picture import dots, figure, png_bytes
from reverie.draw.scatter import limits_of, point_axes
from reverie.evaluation.compare import Comparison, Competitor
from reverie.evaluation.evaluation_data import samples_tensor
from reverie.evaluation.memorization import sheet
from reverie.evaluation.reports import Evaluation, evaluate_run, find_data
from reverie.families.flow.settings import FlowSettings
from reverie.families.model import Family, TrainedModel
from reverie.runs import folder
from reverie.runs.run import Run, load
from reverie.runs.screen import Screen
from reverie.runs.source_data import source_name
from reverie.runs.weights import is_finished
from reverie.training.memory_use import measure_step_memory
from reverie.training.prepare import FAMILY_OPTIONS, prepare, read_family
from reverie.training.resume import differences, resume
from reverie.training.trainer import Training

MINUTES = 2.0  # of CPU time for each family, by default
CANDIDATES = 4096  # held-out data from which a sheet is chosen
SHOWN, POINTS_SHOWN, LINES, TEXTS = 60, 2000, 8, 3  # samples on a sheet: images, points, series, texts
EQUAL: dict[str, Any] = {"clock": "processor", "keep": "best"}  # options that make trainings comparable


@dataclass(frozen=True)
class CompetitorSpec:
    """A family with options to train in a folder; or, without a family, an existing run."""

    name: str
    family: Family[Any] | None
    folder: Path


def split_families(families: str) -> list[str]:
    """Split at the commas between families: `gaussian,mixture:components=4,rank=2` contains two."""
    parts: list[str] = []
    for word in families.split(","):
        if "=" in word and ":" not in word and parts:
            parts[-1] += f",{word}"
        else:
            parts.append(word.strip())
    return [part for part in parts if part]


def read_competitors(families: str | Iterable[str], place: Path) -> list[CompetitorSpec]:
    """Return the competitors (families by name, runs by folder); refuse duplicates and fewer than two."""
    requested = split_families(families) if isinstance(families, str) else list(families)
    if len(requested) < 2:
        raise UserError(f"a comparison needs at least two families, got {len(requested)}; use --families gaussian,diffusion")
    specs = []
    for name in requested:
        if (Path(name) / folder.CONFIG).is_file():
            specs.append(CompetitorSpec(name, None, Path(name)))
        else:
            specs.append(CompetitorSpec(name, read_family(name, {})[0], place / re.sub(r"[^\w.=-]+", "-", name)))
    if len({spec.folder.resolve() for spec in specs}) < len(specs):
        raise UserError(f"a family occurs twice: {', '.join(requested)}; name each once")
    return specs


def _options(spec: CompetitorSpec, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the training options of a family; families that train by steps get the same CPU time."""
    assert spec.family is not None
    training_options = {
        key: value for key, value in options.items() if key not in FAMILY_OPTIONS or key in spec.family.option_names
    }
    if not any(training_options.get(length) is not None for length in ("steps", "minutes", "epochs")):
        training_options["minutes"] = MINUTES
    return {**EQUAL, **training_options}


def _load_or_train(spec: CompetitorSpec, data: DataSource, options: Mapping[str, Any], screen: Screen, device: str) -> Run:
    """Load, resume or train the run of a competitor."""
    if spec.family is None:
        return load(spec.folder, device)
    training_options = _options(spec, options)
    family_options = {key: value for key, value in parse(spec.name).items() if key != "name"}
    if not spec.family.learns_by_steps:
        training_options = {key: value for key, value in training_options.items() if key not in ("steps", "minutes", "epochs")}
    training: Training
    if (spec.folder / folder.CONFIG).is_file():
        comparable = {key: value for key, value in training_options.items() if key not in ("overwrite", "data_dir", "epochs")}
        if changed := differences(
            folder.read_config(spec.folder), {**comparable, **family_options, "family": spec.family.name}
        ):
            raise UserError(
                f"{spec.folder} was trained with other settings: {'; '.join(changed)}; choose another folder with --runs"
            )
        if is_finished(spec.folder):
            screen.notify("already trained")
            return load(spec.folder, device)
        with screen.reading() as bars:
            training = resume(spec.folder, device=device, on_progress=bars, data=None if isinstance(data, str | Path) else data)
    else:
        with screen.reading() as bars:
            training = prepare(data, spec.folder, family=spec.name, device=device, on_progress=bars, **training_options)
    for line in training.introduction():
        screen.notify(line)
    screen.follow_training(training)
    return training.run


def _sheet(x: torch.Tensor, data: torch.Tensor, titles: list[str] | None) -> bytes:
    """Return a picture of images in rows, of points within the limits of the data, or of a few series, (N, T, C), as lines."""
    if x.ndim == 4:
        return sheet(x, titles, columns=10)
    fig = figure(3.6, 3.6, {"left": 0.0, "right": 1.0, "top": 1.0, "bottom": 0.0})
    if x.ndim == 3:
        axes = fig.subplots()
        axes.plot(x[:LINES, :, 0].T.numpy(), lw=0.8)
        axes.set_axis_off()
        return png_bytes(fig)
    axes = point_axes(fig.subplots(), limits_of(data.numpy()))
    axes.spines[:].set_visible(False)
    dots(axes, x[:, :2].numpy())
    return png_bytes(fig)


def data_sheet(run: Run, held: Dataset, seed: int) -> bytes:
    """Return held-out data as a picture, with the labels of `samples_sheet`."""
    if held.kind == "text":
        return passage_picture([text_of(row) for row in held.subsample(TEXTS).numpy()])
    if isinstance(held.x, TextPairs):
        return passage_picture([" \u2192 ".join(pair) for pair in itertools.islice(held.x.pairs(), TEXTS)])
    names = run.label_names
    count = SHOWN if held.kind == "images" else POINTS_SHOWN
    order = torch.randperm(len(held), generator=torch.Generator().manual_seed(seed))[:CANDIDATES]
    x, labels = held.batch(order)
    if labels is None or not names or held.kind != "images":
        return _sheet(x[:count], x, None)
    used, chosen = [0] * len(names), list[torch.Tensor]()
    for k in range(count):
        labelled = x[labels == k % len(names)]
        chosen.append(labelled[used[k % len(names)] % len(labelled)] if len(labelled) else torch.zeros_like(x[0]))
        used[k % len(names)] += 1
    return _sheet(torch.stack(chosen), x, [names[k % len(names)] for k in range(count)])


def samples_sheet(run: Run, held: Dataset, seed: int) -> bytes:
    """Return the first samples of a seed as a picture, each label in turn."""
    if held.kind == "text":
        return passage_picture(run.sample(TEXTS, seed=seed).texts)
    if held.kind == "pairs":
        return passage_picture([" \u2192 ".join(pair) for pair in run.sample(TEXTS, seed=seed).pairs])
    images = held.kind == "images"
    named = bool(run.label_names) and images
    samples = run.sample(SHOWN if images else POINTS_SHOWN, seed=seed, label="all" if named else None)
    x = samples_tensor(samples.x) if images else torch.from_numpy(np.asarray(samples.x, np.float32))
    return _sheet(x, held.batch(torch.arange(min(len(held), 2000)))[0], list(samples.labels or ()) if named else None)


def costs_of(run: Run, train: Dataset) -> dict[str, Any]:
    """Return the costs of a run: parameters, size, steps, training time, and memory per step."""
    rows, model, training = run.metrics(), run.model, run.config.training
    learned = model.parameters() if isinstance(model, TrainedModel) else model.buffers()
    losses = [row["held_out"] for row in rows if "held_out" in row]
    costs: dict[str, Any] = {
        "parameters": sum(t.numel() for t in learned), "weights_bytes": (run.path / folder.WEIGHTS_FILE).stat().st_size,
        "steps": rows[-1]["i"] if rows else 0, "seconds": rows[-1]["seconds"] if rows else math.nan,
        "clock": training.clock, "kept": training.keep,
    }  # fmt: skip
    if losses and isinstance(model, TrainedModel):
        checked = [row for row in rows if "held_out" in row]
        costs["best_at_step"] = int(min(checked, key=lambda row: float(row["held_out"]))["i"])
    if isinstance(model, TrainedModel):
        x, labels = train.batch(torch.arange(min(training.batch, len(train))))
        costs["step_bytes"] = measure_step_memory(
            model.requires_grad_(True), x.to(run.model.device), labels.to(run.model.device) if labels is not None else None
        )
        model.requires_grad_(False)
    return costs


def capabilities_of(run: Run) -> dict[str, str]:
    """Return the capabilities of a family in a few words each."""
    family, images = run.config.model_family, run.kind == "images"
    likelihood = {"exact": "exact", "lower bound": "ELBO", "none": "none"}[family.likelihood]
    if family.likelihood == "exact" and images and family.dequantises:
        likelihood = "exact, dequantized"
    steps = next(iter(run.frames(1))).of
    sampling = f"in {steps:,} steps" if steps > 1 else "in one step"
    if isinstance(run.config.family, FlowSettings) and run.config.family.transform in ("maf", "spline"):
        sampling = "number by number"
    inpaints = "yes" if "inpaint" in family.capabilities else "no"
    encodes = "yes" if "encode" in family.capabilities or "invert" in family.capabilities else "no"
    return {"likelihood": likelihood, "sampling": sampling, "inpainting": inpaints, "encoding": encodes,
            "labels": "yes" if "labels" in family.capabilities else "no",
            "guidance": "yes" if "guidance" in family.options else "no"}  # fmt: skip


def train_and_compare(
    data: DataSource, families: str | Iterable[str], place: str | Path | None = None, *, n: int | None = None,
    quick: bool = False, seed: int = 0, device: str = "auto", features: str | Callable[..., Any] = "auto", screen: Screen,
    options: Mapping[str, Any],
) -> Comparison:  # fmt: skip
    """Train each family on the same data for the same CPU time, and compare them.

    A family that fails is reported with its reason; the others continue.  Finished runs in the folder are not trained again.
    options: of training; n, quick, features: of the evaluation.
    """
    root = Path(place) if place is not None else Path("runs") / f"compare-{Path(source_name(data)).stem}"
    specs = read_competitors(families, root)
    options = {**options, **({"seed": seed} if seed else {})}
    evaluations, competitors, failures = list[Evaluation](), list[Competitor](), dict[str, str]()
    truth: bytes | None = None
    in_memory = None if isinstance(data, str | Path) else data  # runs record names and paths, but not data in memory
    for spec in specs:
        screen.notify(f"{spec.name}, in {spec.folder}:")
        try:
            run = _load_or_train(spec, data, options, screen, device)
            with screen.reading() as bars:
                evaluation = evaluate_run(
                    run, n, quick=quick, features=features, data=in_memory, notify=screen.notify, on_progress=bars
                )
                train, held = find_data(run, POINTS_SHOWN // 2, bars, in_memory)
            shown = samples_sheet(run, held, seed)
            truth = truth or data_sheet(run, held, seed)
            competitor = Competitor(spec.name, costs_of(run, train), capabilities_of(run), shown)
        except UserError as error:
            failures[spec.name] = str(error)
        except (ArithmeticError, MemoryError, RuntimeError) as error:
            no_memory = out_of_memory(error) if isinstance(error, (MemoryError, RuntimeError)) else False
            failures[spec.name] = "out of memory" if no_memory else f"{type(error).__name__}: {str(error).splitlines()[0]}"
        else:
            evaluations.append(evaluation)
            competitors.append(competitor)
            continue
        screen.notify(f"{spec.name} failed: {failures[spec.name]}")
    if not evaluations:
        raise UserError(f"every family failed; {'; '.join(f'{name}: {why}' for name, why in failures.items())}")
    return Comparison(tuple(evaluations), tuple(competitors), failures, truth)
