"""The verdict on a run: problems, results and the next step."""

from __future__ import annotations

import math
import shlex
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from reverie.base.busy import BUSY
from reverie.data.dataset import HELD_OUT
from reverie.data.kind import KINDS
from reverie.data.text_windows import OVERLAP
from reverie.families.diffusion.sampling_record import format_choice
from reverie.families.diffusion.settings import DiffusionSettings
from reverie.runs import folder
from reverie.runs.config import Config
from reverie.runs.finding import Finding
from reverie.runs.run import Run
from reverie.runs.weights import is_finished
from reverie.training.checks import FALLING, NOISY
from reverie.training.diagnosis import ENOUGH, gain, held_out_decrease, metric_name
from reverie.training.suggestions import format_number, retrain_command, sizes

SHARP, VARIED = (0.7, 1.4), 0.7  # accepted fine detail and standard deviation of previews, relative to the data
FAR = 1.5  # distance of samples to the nearest training datum, relative to that of held-out data, from which it is too large
ABOVE = 1.15  # ratio of the loss to that of a linear filter, at some noise level, from which the network is worse
MORE = 5  # minutes of extension after a run that was too short to assess
SHORT, NOISE, FAULTLESS = "too short to assess", "the previews are noise", "no problem found in training"
NEEDED = {1: 1_000, 3: 3_000, 4: 3_000}  # steps, by channels, that diffusion models of images need for more than blobs
LIKE_TEXT = 0.5  # share of known 8-grams, relative to that of held-out text, from which samples resemble the text

GOOD = {
    "images": "the previews have the detail and variation of held-out data", "text": "generated text resembles the data",
}  # fmt: skip

Row = Mapping[str, Any]


@dataclass(frozen=True)
class Verdict:
    """Three lines of text, the findings of the doctor, and the commands that resume the run and train it again with changes."""

    lines: tuple[str, str, str]
    findings: tuple[Finding, ...]
    commands: dict[str, str]


def _preview_problem(config: Config, appearance: Mapping[str, float]) -> str:
    """Describe what is wrong with the previews; empty if nothing is."""
    if "novel" in appearance:
        differs = 1 - appearance["novel"] < LIKE_TEXT * (1 - appearance["held_out_novel"])
        return f"generated text does not resemble the data: {_known_strings(appearance)}" if differs else ""
    if config.data.kind != "images":
        return _distance_to_training(appearance) if appearance.get("nearest_neighbor", 1.0) > FAR else ""
    detail, std = appearance.get("detail", 1.0), appearance.get("std", 1.0)  # older runs do not record both
    if appearance.get("noise", 0.0) > NOISY:
        return NOISE
    if not SHARP[0] <= detail <= SHARP[1]:
        if detail < 1 and isinstance(config.family, DiffusionSettings) and config.family.autoguidance != 1:
            return f"the previews, drawn without autoguidance, have {detail:.0%} of the data's fine detail"
        return f"the previews are {'blurred' if detail < 1 else 'grainy'}, with {detail:.0%} of the data's fine detail"
    return f"the previews lack variation: {std:.0%} of the data's standard deviation" if std < VARIED else ""


def _distance_to_training(appearance: Mapping[str, float]) -> str:
    distance = appearance.get("nearest_neighbor", 1.0)
    return f"the distance of samples to the nearest training datum is {distance:.2g} times that of held-out data"


def _known_strings(appearance: Mapping[str, float]) -> str:
    known, held_out = 1 - appearance["novel"], 1 - appearance["held_out_novel"]
    return f"{known:.0%} of its 8-character strings are in the training text (held-out text: {held_out:.0%})"


def _health(findings: Sequence[Finding], steps: int, noise: bool = False, little: bool = False) -> str:
    if findings:
        return f"{len(findings)} problem{'s' * (len(findings) != 1)} found: " + " | ".join(str(finding) for finding in findings)
    if noise:
        return f"{SHORT}: after {_steps(steps)} the previews are still noise"
    if steps < ENOUGH:
        return f"{SHORT}: {_steps(steps)}"
    if little:
        return f"learned little: after {_steps(steps)} the training loss is above that of a linear filter"
    return FAULTLESS


def _steps(count: int) -> str:
    return f"{count:,} step{'s' * (count != 1)}"


def _time(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 100 else f"{format_number(seconds / 60)} minutes"


def purpose_of(config: Config) -> str:
    """Return what a run is trained for, as a phrase."""
    if isinstance(config.family, DiffusionSettings) and config.family.purpose == "likelihood":
        return "for the likelihood"
    return "for answers" if config.data.kind == "pairs" else "for samples"


def meaning_of(config: Config) -> str:
    """Describe the held-out metric of a run; empty for a loss, which is not comparable between models."""
    if not isinstance(config.family, DiffusionSettings) or config.family.purpose != "likelihood":
        return ""
    unit, codec = f"nats for {KINDS[config.data.kind]}", config.family.codec
    if config.data.kind == "images":
        used = f"the {len(codec['values'])} values of the images" if "values" in codec else "256 values, 8 bits"
        unit = f"bits/dim over {used}"
    return f"held-out figures are upper bounds on the NLL in {unit}"


def _result(config: Config, rows: Sequence[Row], quality: str) -> str:
    """Return the results of the training in one line."""
    if not rows:
        return "no check on held-out data was made"
    first, last, training = rows[0], rows[-1], config.training
    kind = "x".join(map(str, config.data.shape[1:])) + " images" if config.data.kind == "images" else config.data.kind
    kind, overlap = ("windows of text", OVERLAP) if config.data.kind == "text" else (kind, 1)
    kind = "pairs of texts" if config.data.kind == "pairs" else kind
    trained = max(1.0, config.data.count - max(1, round(HELD_OUT * config.data.count)))
    epochs = overlap * last["i"] * min(training.batch, trained) * training.accumulate / trained  # no batch repeats a datum
    times = f"{epochs:,.0f} epochs" if epochs >= 1.5 else f"{min(1.0, epochs):.0%} of an epoch"
    unit = last.get("unit")
    line = f"{_time(last['seconds'])} on {config.data.count:,} {kind} {purpose_of(config)}, {times}: "
    digits = ".3f" if unit else ".4f"
    line += f"{metric_name(unit)} {last['held_out']:{digits}}" + (f" {unit}" if unit else "")
    line += f" (initially {first['held_out']:{digits}})" if first is not last else ""
    if last.get("linear_levels") and not unit:
        line += f", linear filter {statistics.fmean(last['linear_levels']):.4f}"
    if isinstance(config.family, DiffusionSettings):
        line += _sampling_summary(config.family)
    return line + (f"; {quality}" if quality else "")


def _quality(config: Config, appearance: Mapping[str, float] | None) -> str:
    """Describe the quality of the last previews; empty if there are none."""
    if appearance is None:
        return ""
    if problem := _preview_problem(config, appearance):
        return problem
    if "novel" in appearance:
        return f"generated text resembles the data: {_known_strings(appearance)}"
    if config.data.kind != "images":
        distance = appearance.get("nearest_neighbor", 1.0)
        return f"samples lie {distance:.2g} times as far from the closest training datum as held-out data do"
    detail, std = appearance.get("detail", 1.0), appearance.get("std", 1.0)
    return f"the previews have {detail:.0%} of the data's fine detail and {std:.0%} of its standard deviation"


def _too_few(config: Config, rows: Sequence[Row]) -> str:
    """Report that a run of images had too few steps, and whether the processor was busy; empty if it had enough."""
    if not rows or config.data.kind != "images" or not isinstance(config.family, DiffusionSettings):
        return ""
    steps, needed = rows[-1]["i"], NEEDED.get(config.data.shape[0], NEEDED[3])
    if config.start is not None or steps >= needed:
        return ""
    busy = _waited(rows)
    busy_note = f" (the processor was busy {busy:.0%} of the time)" if busy > BUSY else ""
    return f"too few steps: {steps:,}{busy_note} of about {needed:,} needed; "


def _waited(rows: Sequence[Row]) -> float:
    """Return the share of the training time spent waiting for a processor."""
    waited = before = 0.0
    for row in rows:
        waited += row.get("waited", 0.0) * max(0.0, row["seconds"] - before)
        before = row["seconds"]
    return waited / before if before else 0.0


def _sampling_summary(settings: DiffusionSettings) -> str:
    """Describe the default sampling where the training selected it."""
    guided, record = f" with autoguidance {settings.autoguidance:g}" if settings.autoguidance != 1 else "", settings.sampling
    if record is None or record.source != "selected":
        return f"; default sampling{guided}" if guided else ""
    return f"; default sampling: {format_choice(record.choice)}{guided}, the best of {len(record.candidates)} on held-out data"


def _next(config: Config, rows: Sequence[Row], findings: Sequence[Finding], problem: str, has_previews: bool) -> str:
    if findings:
        return f"next: {findings[0].advice}"
    if not rows or rows[-1]["i"] < ENOUGH:
        return "next: train longer; this was too short to assess"
    decrease = held_out_decrease(rows)
    if decrease is None:
        return "next: train longer; there are too few checks to see whether the held-out metric still falls"
    (since, share), unit = decrease, rows[-1].get("unit")
    name, amount = metric_name(unit), f"{max(share, 0):.3f} {unit}" if unit else f"{max(share, 0):.1%}"
    if share > FALLING * min(1.0, math.log2(rows[-1]["i"] / since)):  # less for a short extension
        return (
            f"next: the {name} fell by {amount if unit else f'{share:.0%}'} since step {since:,}, so longer training will help"
        )
    flat = f"next: since step {since:,} the {name} {f'fell by only {amount}' if share > 0 else 'has not fallen'}"
    linear = rows[-1].get("linear_levels") or ()
    if any(trained > ABOVE * filtered for trained, filtered in zip(rows[-1].get("train_levels", ()), linear, strict=False)):
        problem = "even the training loss is worse than that of a linear filter"
    if has_previews and not problem:
        good = GOOD.get(config.data.kind, "samples are as close to the training data as held-out data")
        return f"{flat}, and {good}: longer training will give little"
    larger = sizes(config.family.network).larger if isinstance(config.family, DiffusionSettings) else None
    larger = None if _memorizes(rows, since) else larger
    advice = f"try a larger network: --network {larger}" if larger else "try more data"
    return f"{flat}{', but ' if problem else ''}{problem}: {advice}"


def _memorizes(rows: Sequence[Row], since: int) -> bool:
    """Return whether only the training loss still falls, so that a larger network would only memorize more."""
    old, last = next(row for row in rows if row["i"] == since), rows[-1]
    if "train_loss" not in old or "train_loss" not in last:
        return False
    return bool(
        last["train_loss"] < last["held_out"] and gain(old["train_loss"], last["train_loss"], last.get("unit")) > FALLING
    )


def _fitted(run: Run, rows: Sequence[Row], findings: Sequence[Finding]) -> tuple[str, str, str]:
    """Return the lines for a model that is fitted without steps: its negative log-likelihood of new data."""
    health = _health(findings, ENOUGH)
    if not rows:
        return health, "no check on held-out data was made", "next: train it again"
    last, path = rows[-1], shlex.quote(str(run.path))
    rounds = f"{last['i']:,} round{'s' * (last['i'] != 1)}"
    fitted = f"{_time(last['seconds'])} on {run.config.data.count:,} {run.kind}, {rounds}"
    nll = f"held-out NLL {last['held_out']:.4f} nats per dimension"
    nll += f", training data {last['train_loss']:.4f}" if "train_loss" in last else ""
    return health, f"{fitted}: {nll}", f"next: compare it with another family: reverie evaluate {path} OTHER-RUN"


def _last_appearance(config: Config, rows: Sequence[Row]) -> Mapping[str, float] | None:
    """Return the statistics of the last previews; None if there are none or the run is trained for the likelihood."""
    if isinstance(config.family, DiffusionSettings) and config.family.purpose == "likelihood":
        return None
    return next((row["appearance"] for row in reversed(rows) if row.get("appearance")), None)


def _last_problem(config: Config, rows: Sequence[Row]) -> str | None:
    """Describe what is wrong with the last previews, empty if nothing is; None where `_last_appearance` is."""
    appearance = _last_appearance(config, rows)
    return _preview_problem(config, appearance) if appearance else None


def health_of(config: Config, rows: Sequence[Row], findings: Sequence[Finding]) -> str:
    """Return the problems of a run in one line, by its reports and findings."""
    checked = [row for row in rows if "held_out" in row]
    steps, little = (checked[-1]["i"], _worse_than_a_filter(checked[-1])) if checked else (0, False)
    return _health(findings, steps, _last_problem(config, checked) == NOISE, little)


def short_verdict(config: Config, rows: Sequence[Row], findings: Sequence[Finding]) -> str:
    """Summarize a run in a few words: problems found in training, and problems of its previews."""
    if findings:
        return "problems: " + ", ".join(dict.fromkeys(finding.check for finding in findings))
    health = health_of(config, rows, findings).partition(":")[0]
    checked = [row for row in rows if "held_out" in row]
    problem = (_last_problem(config, checked) or "").partition(",")[0].partition(":")[0]
    few = _too_few(config, [row for row in rows if "i" in row]).partition(":")[0]
    return "; ".join(part for part in (health, problem, few) if part) if health == FAULTLESS else health


def _worse_than_a_filter(row: Row) -> bool:
    """Return whether the training loss, over all noise levels, is above that of the best linear filter."""
    train, linear = row.get("train_levels"), row.get("linear_levels")
    return bool(train and linear and not row.get("unit")) and statistics.fmean(train or ()) > statistics.fmean(linear or ())


def verdict(run: Run) -> Verdict:
    """Return the verdict on a run, by its reports and findings."""
    reports = [row for row in run.metrics() if "i" in row and "seconds" in row]
    rows = [row for row in reports if "held_out" in row]
    findings = tuple(folder.read_findings(run.path))
    if not run.config.model_family.learns_by_steps:
        return Verdict(_fitted(run, rows, findings), findings, {})
    path, training = shlex.quote(str(run.path)), run.config.training
    finished = is_finished(run.path)
    problem = _last_problem(run.config, rows)
    health = health_of(run.config, rows, findings)
    same_length = f"--minutes {format_number(training.minutes)}" if training.minutes else f"--steps {training.steps}"
    extension = f"--minutes {MORE}" if health.startswith(SHORT) and not training.minutes else same_length
    commands = {"resume": f"reverie train --resume {path}" + (f" --extend {extension}" if finished else "")}
    if findings and (command := retrain_command(run, findings)):
        commands["retrain"] = command
    result = _result(run.config, rows, _quality(run.config, _last_appearance(run.config, rows)))
    advice = _next(run.config, rows, findings, problem or "", problem is not None)
    too_few = "" if findings or steps_made(rows) < ENOUGH else _too_few(run.config, reports)
    return Verdict((health, result, advice.replace("next: ", f"next: {too_few}", 1)), findings, commands)


def steps_made(rows: Sequence[Row]) -> int:
    """Return the number of steps at the last check."""
    return int(rows[-1]["i"]) if rows else 0
