"""Evaluation of a run: its samples, its data, all sections of the report, and the verdict."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from reverie.base.deadline import Deadline, PacedProgress
from reverie.base.deprecations import current_report_key
from reverie.base.errors import UserError, pick
from reverie.base.progress import OnProgress, silent
from reverie.data import DATASETS, Dataset, load_data
from reverie.data.in_memory import MEMORY_SOURCE, DataSource
from reverie.data.kind import KINDS
from reverie.evaluation import pair_metrics, text_metrics
from reverie.evaluation.evaluation_data import FULL, QUICK, classifier_seconds
from reverie.evaluation.faithfulness import NAME as CAPTIONS
from reverie.evaluation.faithfulness import TITLE as CAPTIONS_TITLE
from reverie.evaluation.faithfulness import captions_section
from reverie.evaluation.metrics.features import FEATURES, Features
from reverie.evaluation.model_metrics import model_plan
from reverie.evaluation.report_section import ReportSection
from reverie.evaluation.sample_metrics import collect_data, sample_plan, sections_without_data
from reverie.evaluation.scores import HEADLINE_METRICS, format_score
from reverie.evaluation.section_plan import PlannedSection, measure_planned, ready_section
from reverie.evaluation.shared_features import share_features
from reverie.evaluation.verdicts import assess, missing
from reverie.runs.distributed import DistributedRun
from reverie.runs.prompts import has_condition
from reverie.runs.run import Run
from reverie.runs.samples import Samples
from reverie.runs.sampling_options import Options, check_count
from reverie.runs.source_data import load_source_data

REPORTED_OPTIONS = (  # reported only if set
    "guidance_interval",
    "guidance_rescale",
    "classifier_guidance",
    "autoguidance",
    "precision",
)

QUICK_SECONDS = 60.0  # time limit of --quick
MIN_SECONDS = 20.0  # minimum time for sampling and measuring after the data were read
SAMPLING_SHARE = 0.4  # of the remaining time

Notify = Callable[[str], None]


@dataclass(frozen=True, repr=False)
class Evaluation:
    """The results of an evaluation of one run.

    flags: names of the detected problems; verdict: one sentence for each, the worst first; partial: whether the evaluation was
    interrupted.
    """

    facts: dict[str, Any]
    sections: tuple[ReportSection, ...]
    flags: tuple[str, ...]
    verdict: tuple[str, ...]
    partial: bool = False

    def __repr__(self) -> str:
        faults = f"faults: {', '.join(self.flags)}" if self.flags else "no faults found"
        return f"Evaluation({self.facts['run']!r}, {self.facts['samples']:,} samples, {faults})"

    def scores(self) -> Iterator[tuple[str, Mapping[str, Any]]]:
        """Yield the headline metrics by name, the primary one first."""
        figures = {section.name: section.figures for section in self.sections}
        primary = figures.get("quality", {}).get("primary_metric")
        for key, row in sorted(HEADLINE_METRICS.items(), key=lambda pair: pair[0] != primary):
            figure = row.of(figures)
            if isinstance(figure, Mapping) and "value" in figure:
                yield key, figure

    def figures(self) -> dict[str, Any]:
        """Return plain values: facts, verdict, headline metrics by name, and all sections."""
        first: dict[str, Any] = {}
        for key, score in self.scores():
            names = {"value": key, "error": f"{key}_error", "floor": f"{key}_floor", "floor_error": f"{key}_floor_error",
                     "gap_error": f"{key}_gap_error", "p_value": f"{key}_p_value"}  # fmt: skip
            first |= {name: score[part] for part, name in names.items() if part in score}
        sections = {section.name: dict(section.figures) for section in self.sections}
        conclusions = {"partial": self.partial, "verdict": list(self.verdict), "flags": list(self.flags)}
        return {**self.facts, **conclusions, **first, "sections": sections}

    def __getitem__(self, name: str) -> Any:
        """Return one of `figures()`."""
        return self.figures()[current_report_key(name)]

    def table(self) -> list[tuple[str, str, str]]:
        """Return the headline metrics, formatted: title, figure of the samples, figure of real data."""
        rows = []
        for key, score in self.scores():
            row = HEADLINE_METRICS[key]
            rows.append((row.title, format_score(score, row.form), format_score(score, row.form, "floor")))
        return rows

    def __str__(self) -> str:
        rows = [("", "samples", "real data"), *self.table()]
        widths = [max(len(row[k]) for row in rows) for k in range(3)]
        table = [f"{a:<{widths[0]}}  {b:>{widths[1]}}  {c:>{widths[2]}}".rstrip() for a, b, c in rows]
        facts = self.facts
        samples = "1 sample" if facts["samples"] == 1 else f"{facts['samples']:,} samples"
        method = f"{facts['sampler']}, {facts['steps']} steps" if "sampler" in facts else facts["family"]
        head = f"{samples} of {facts['run']} ({method}, seed {facts['seed']})"
        return "\n".join([*self.verdict, "", head, *(table if len(rows) > 1 else [])])

    def save(self, path: str | Path) -> Path:
        """Write the report as one HTML file without external resources."""
        from reverie.evaluation.html_report import write_report

        rows = [dict(zip(("figure", "samples", "real data"), row, strict=True)) for row in self.table()]
        in_sections = {line for section in self.sections for line in section.verdict}
        verdict = tuple(line for line in self.verdict if line not in in_sections)
        first = ReportSection("summary", "Summary", verdict, figures={"figures": rows} if rows else {})
        facts = {key: value for key, value in self.facts.items() if value is not None}
        # A reason that applies to several sections is in the summary only.
        shared = {why for why, titles in missing(self.sections).items() if len(titles) > 1}
        sections = [s for s in self.sections if s.figures.get("not_computable") not in shared]
        return write_report(path, f"Evaluation of {self.facts['run']}", facts, [first, *sections])


class EvaluationStopped(KeyboardInterrupt):
    """An evaluation was interrupted.  evaluation: its results so far."""

    def __init__(self, evaluation: Evaluation) -> None:
        super().__init__("the evaluation was interrupted; .evaluation contains its results so far")
        self.evaluation = evaluation


def find_data(
    run: Run, n: int, on_progress: OnProgress = silent, data: DataSource | None = None, data_dir: str | Path | None = None
) -> tuple[Dataset, Dataset]:
    """Return the training and held-out data of a run, read from their source, `data` or `data_dir`.

    For points from a formula, the held-out set is 2n new points.
    """
    config = run.config.data
    source = config.source or config.name
    dataset = load_source_data(config, folder=run.path, data=data, data_dir=data_dir, on_progress=on_progress)
    train, held = dataset.split(config.seed)
    if dataset.kind == "points" and source in DATASETS:
        held = load_data(source, max(2 * n, 16) * max(1, len(config.labels)), config.seed + 1)
        if len(held) == len(dataset) and held.fingerprint() == dataset.fingerprint():  # a fixed set, not a generator
            held = dataset.split(config.seed)[1]
    return train, held


def of_label(data: Dataset, label: str | None) -> Dataset:
    """Return the data of one label, or all data; label names stay as they are."""
    if label not in data.label_names or data.labels is None:
        return data
    return data.take(torch.nonzero(data.labels == data.label_names.index(label))[:, 0])


def _parts(splits: tuple[Dataset, Dataset], label: str | None) -> tuple[Dataset, Dataset]:
    """Return the training and held-out data of one label, or all data; refuse empty sets."""
    label = None if label is None else str(label)
    train, held = (of_label(part, label) for part in splits)
    of = f" of the label {label!r}" if label in train.label_names else ""
    for what, part in (("training", train), ("held-out", held)):
        if not len(part):
            raise UserError(f"there are no {what} data{of} to compare with; use a larger dataset")
    return train, held


def sample_run(
    run: Run, n: int, notify: Notify, on_progress: OnProgress, options: Options, deadline: Deadline
) -> tuple[Samples, float, float]:
    """Return n samples, or as many as fit into their share of the time, with the wall and CPU seconds per sample."""
    parts: list[Samples] = []
    count, limit = 0, SAMPLING_SHARE * deadline.left
    start, cpu_start = deadline.clock(), time.process_time()
    for part in run.batches(n, on_progress=on_progress, **options):
        parts.append(part)
        count += len(part)
        elapsed = deadline.clock() - start
        if len(parts) == 1:
            noun = KINDS[run.kind]
            left = elapsed / count * (n - count)
            notify(f"sampling takes {1e3 * elapsed / count:.3g} ms {noun}" +
                (f": {left:.0f} s more for {n:,}" if 1 <= left <= limit else ""))  # fmt: skip
        if count < n and elapsed * (1 + len(part) / count) > limit:
            notify(f"sampling all {n:,} would take {elapsed / count * n:.0f} s; {count:,} samples are measured")
            break
    labels = [name for part in parts for name in part.labels or ()]
    samples = Samples(np.concatenate([part.x for part in parts]), labels or None, series=run.kind == "series")
    return samples, (deadline.clock() - start) / count, (time.process_time() - cpu_start) / count


def evaluate_run(
    run: Run, n: int | None = None, *, quick: bool = False, features: str | Callable[[Tensor], Tensor] | Features = "auto",
    data: DataSource | None = None, data_dir: str | Path | None = None, notify: Notify = lambda text: None,
    on_progress: OnProgress = silent, options: Options | None = None, deadline: Deadline | None = None,
) -> Evaluation:  # fmt: skip
    """Sample n times from a run (default 2,048, or 512 with quick) and compute all sections that fit before the deadline.

    data, data_dir: the data or their present location.  Missing data are an error if a location is given or if the run was
    trained on data in memory; otherwise the sections without data remain.  An interrupt raises `EvaluationStopped` with the
    results so far.
    """
    options, deadline = options or {}, deadline or Deadline()
    if isinstance(features, str) and features != "auto":
        pick(FEATURES, features, "kind of features")
    n = (text_metrics.QUICK if quick else text_metrics.SAMPLES) if n is None and run.kind == "text" else n
    n = (pair_metrics.QUICK if quick else pair_metrics.SAMPLES) if n is None and run.kind == "pairs" else n
    n = (QUICK if quick else FULL).samples if n is None else n
    check_count(n)
    samples_by_steps = "sampler" in run.config.model_family.capabilities
    run.sampling(options) if samples_by_steps else run.check_options(options)
    run.condition(options, 1)  # reports wrong options before the data are read
    splits, why = None, ""
    try:
        splits = find_data(run, n, on_progress, data, data_dir)
    except UserError as error:
        if data is not None or data_dir is not None or run.config.data.source == MEMORY_SOURCE:
            raise
        why = str(error)
    deadline.ensure_left(MIN_SECONDS)
    paced, count = PacedProgress(on_progress, deadline), n
    if run.kind == "text":
        plan, seconds, cpu_seconds = text_metrics.text_plan(run, splits, why, n, quick, on_progress, options)
    elif run.kind == "pairs":
        plan, seconds, cpu_seconds = pair_metrics.pair_plan(run, splits, why, n, on_progress, options)
    else:
        samples, seconds, cpu_seconds = sample_run(run, n, notify, on_progress, options, deadline)
        count = len(samples)
        plan = _plan(run, samples, splits, why, features, quick, options, paced)
    sections, finished = measure_planned(plan, deadline, paced)
    evaluation = _conclude(run, (count, n), options, quick, sections, seconds, cpu_seconds, partial=not finished)
    if not finished:
        raise EvaluationStopped(evaluation)
    return evaluation


def _plan(
    run: Run, samples: Samples, splits: tuple[Dataset, Dataset] | None, why: str,
    features: str | Callable[[Tensor], Tensor] | Features, quick: bool, options: Options, on_progress: PacedProgress,
) -> list[PlannedSection]:  # fmt: skip
    """Return the planned sections for samples of points, images or series."""
    config, seed, label, deadline = run.config.data, options.get("seed", 0), options.get("label"), on_progress.deadline
    steered = label not in (None, "all") or options.get("guidance", 1.0) != 1 or has_condition(options)
    try:
        if splits is None:
            raise UserError(why)
        train, held = _parts(splits, label)
    except UserError as error:
        why = str(error)
        missed = [ready_section(section) for section in sections_without_data(samples.x, samples.labels, why, samples.kind)]
        return [*missed, *model_plan(run, None, quick, seed, on_progress, options, steered=steered, why=why)]
    if isinstance(run, DistributedRun) and run.team is not None and run.kind == "images":
        features = share_features(features, *splits, on_progress, run.team, deadline)
    captioned = config.condition is not None
    labels = None if captioned else samples.labels
    source = config.source or config.name
    data = collect_data(samples.x, train, held, labels, features, seed, quick, on_progress, source, splits, deadline)
    plan = sample_plan(data)
    if captioned and config.condition is not None and config.condition.length and samples.labels is not None:
        request = train, held, data.samples, list(samples.labels), options
        plan.append(PlannedSection(CAPTIONS, CAPTIONS_TITLE, lambda: captions_section(
            run, *request, quick=quick, seed=seed, on_progress=on_progress, seconds=classifier_seconds(deadline))))  # fmt: skip
    return [*plan, *model_plan(run, data, quick, seed, on_progress, options, steered=steered)]


def _conclude(
    run: Run, counts: tuple[int, int], options: Options, quick: bool, sections: list[ReportSection], seconds: float,
    cpu_seconds: float, *, partial: bool,
) -> Evaluation:  # fmt: skip
    """Return the sections with facts and verdict.

    counts: numbers of measured and of requested samples; seconds, cpu_seconds: wall and CPU seconds per sample.
    """
    config, seed, label = run.config.data, options.get("seed", 0), options.get("label")
    samples_by_steps = "sampler" in run.config.model_family.capabilities
    flags, verdict = assess(sections)
    if counts[0] < counts[1]:
        verdict.append(f"only {counts[0]:,} of {counts[1]:,} samples fit into the time limit of --quick")
    if partial:
        verdict.insert(0, "partial: interrupted before all sections were measured")
    rows = [row for row in run.metrics() if "held_out" in row]
    facts = {
        "run": str(run.path), "data": config.name, "fingerprint": config.fingerprint, "samples": counts[0], "seed": seed,
        "label": label,
        "family": run.config.family.name, "guidance": options.get("guidance", 1.0),
        **{key: value for key, value in options.items() if key in REPORTED_OPTIONS and value not in (None, 0.0, "fp32")},
        **(dict(zip(("sampler", "steps", "grid"), run.chosen_sampling(options), strict=True)) if samples_by_steps else {}),
        **({"autoguidance": run.autoguidance} if options.get("autoguidance") is None and run.autoguidance != 1 else {}),
        "milliseconds_per_sample": 1e3 * seconds, "processor_milliseconds_per_sample": 1e3 * cpu_seconds, "quick": quick,
        "held_out_loss": rows[-1]["held_out"] if rows else None,
    }  # fmt: skip
    return Evaluation(facts, tuple(sections), tuple(flags), tuple(verdict), partial)
