"""The verdict on a run: what is wrong, what the time has given, and what to do next."""

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

SHARP, VARIED = (0.7, 1.4), 0.7  # fine detail and spread of previews, as multiples of the data's, that pass for theirs
FAR = 1.5  # distance of samples to the closest training datum, as a multiple of held-out data's, that does not pass for theirs
ABOVE = 1.15  # times a linear filter's loss at some noise level, from which a network is worse than that
MORE = 5  # minutes to go on for where the steps so far were too few to tell anything
SHORT, NOISE, FAULTLESS = "too short to judge", "the previews are noise", "no fault found in training"
NEEDED = {1: 1_000, 3: 3_000, 4: 3_000}  # steps of a diffusion of images, by channels, below which samples were blobs
LIKE_TEXT = 0.5  # share of known 8-grams, as a share of that of held-out text, from which samples read like the text

GOOD = {
    "images": "the previews have the detail and spread of held-out data", "text": "what it writes reads like the text",
}  # fmt: skip

Row = Mapping[str, Any]


@dataclass(frozen=True)
class Verdict:
    """Three lines for a person, what the doctor found, and the commands to go on and to mend."""

    lines: tuple[str, str, str]
    findings: tuple[Finding, ...]
    commands: dict[str, str]


def _shown(config: Config, appearance: Mapping[str, float]) -> str:
    """Say what is amiss with the previews beside the data; nothing where nothing is."""
    if "novel" in appearance:
        unlike = 1 - appearance["novel"] < LIKE_TEXT * (1 - appearance["held_out_novel"])
        return f"what it writes is unlike the text: {_known_strings(appearance)}" if unlike else ""
    if config.data.kind != "images":
        far = appearance.get("nearest_neighbor", 1.0)
        return f"samples lie {far:.2g} times as far from the closest training datum as held-out data do" if far > FAR else ""
    detail, spread = appearance.get("detail", 1.0), appearance.get("std", 1.0)  # older runs tell less
    if appearance.get("noise", 0.0) > NOISY:
        return NOISE
    if not SHARP[0] <= detail <= SHARP[1]:
        if detail < 1 and isinstance(config.family, DiffusionSettings) and config.family.autoguidance != 1:
            return f"the previews, which are not led, have {detail:.0%} of the data's fine detail"
        return f"the previews are {'blurred' if detail < 1 else 'rough'}, with {detail:.0%} of the data's fine detail"
    return f"the previews are alike, with {spread:.0%} of the data's spread" if spread < VARIED else ""


def _known_strings(appearance: Mapping[str, float]) -> str:
    known, usual = 1 - appearance["novel"], 1 - appearance["held_out_novel"]
    return f"{known:.0%} of its strings of 8 characters are in the training text, of held-out text {usual:.0%}"


def _health(findings: Sequence[Finding], steps: int, noise: bool = False, little: bool = False) -> str:
    if findings:
        return f"{len(findings)} found wrong: " + " | ".join(str(finding) for finding in findings)
    if noise:
        return f"{SHORT}: after {_steps(steps)} the previews are still noise"
    if steps < ENOUGH:
        return f"{SHORT}: {_steps(steps)}"
    if little:
        return f"learned little: after {_steps(steps)} even the loss on training data is above that of a linear filter"
    return FAULTLESS


def _steps(count: int) -> str:
    return f"{count:,} step{'s' * (count != 1)}"


def _time(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 100 else f"{format_number(seconds / 60)} minutes"


def purpose_of(config: Config) -> str:
    """Say what a run is trained for."""
    if isinstance(config.family, DiffusionSettings) and config.family.purpose == "likelihood":
        return "for the likelihood"
    return {"images": "for pictures", "pairs": "for answers"}.get(config.data.kind, "for samples")


def meaning_of(config: Config) -> str:
    """Say what the figures of a run mean; nothing where they are a loss that means nothing elsewhere."""
    if not isinstance(config.family, DiffusionSettings) or config.family.purpose != "likelihood":
        return ""
    unit, codec = f"nats for {KINDS[config.data.kind]}", config.family.codec
    if config.data.kind == "images":
        used = f"the {len(codec['values'])} values that the images use" if "values" in codec else "256 values, 8 bits"
        unit = f"bits/dim, for each number one of {used}"
    return f"held-out figures are the whole bound, what data cost at most, in {unit}"


def _gave(config: Config, rows: Sequence[Row], shown: str) -> str:
    """Say in one line what this size and this time have given."""
    if not rows:
        return "no check on held-out data was made"
    first, last, training = rows[0], rows[-1], config.training
    kind = "x".join(map(str, config.data.shape[1:])) + " images" if config.data.kind == "images" else config.data.kind
    kind, overlap = ("windows of text", OVERLAP) if config.data.kind == "text" else (kind, 1)
    kind = "pairs of texts" if config.data.kind == "pairs" else kind
    trained = max(1.0, config.data.count - max(1, round(HELD_OUT * config.data.count)))
    seen = overlap * last["i"] * min(training.batch, trained) * training.accumulate / trained  # no batch has one of them twice
    times = f"each seen {seen:,.0f} times" if seen >= 1.5 else f"{min(1.0, seen):.0%} of them seen once"
    unit = last.get("unit")
    line = f"{_time(last['seconds'])} on {config.data.count:,} {kind} {purpose_of(config)}, {times}: "
    digits = ".3f" if unit else ".4f"
    line += f"{metric_name(unit)} {last['held_out']:{digits}}" + (f" {unit}" if unit else "")
    line += f", at first {first['held_out']:{digits}}" if first is not last else ""
    if last.get("linear_levels") and not unit:
        line += f", that of a linear filter {statistics.fmean(last['linear_levels']):.4f}"
    if isinstance(config.family, DiffusionSettings):
        line += _drawn_by(config.family)
    return line + (f"; {shown}" if shown else "")


def _quality(config: Config, appearance: Mapping[str, float] | None) -> str:
    """Say how good the last previews are, by their figures; nothing where there are none."""
    if appearance is None:
        return ""
    if amiss := _shown(config, appearance):
        return amiss
    if "novel" in appearance:
        return f"what it writes reads like the text: {_known_strings(appearance)}"
    if config.data.kind != "images":
        distance = appearance.get("nearest_neighbor", 1.0)
        return f"samples lie {distance:.2g} times as far from the closest training datum as held-out data do"
    detail, spread = appearance.get("detail", 1.0), appearance.get("std", 1.0)
    return f"the previews have {detail:.0%} of the data's fine detail and {spread:.0%} of its spread"


def _too_few(config: Config, rows: Sequence[Row]) -> str:
    """Say that too few steps were made for images, and whether the processor was busy meanwhile; nothing where they suffice."""
    if not rows or config.data.kind != "images" or not isinstance(config.family, DiffusionSettings):
        return ""
    made, needed = rows[-1]["i"], NEEDED.get(config.data.shape[0], NEEDED[3])
    if config.start is not None or made >= needed:
        return ""
    busy = _waited(rows)
    beside = f", and the processor was busy for {busy:.0%} of the time" if busy > BUSY else ""
    return f"too few steps: {made:,} were made{beside}; about {needed:,} are needed; "


def _waited(rows: Sequence[Row]) -> float:
    """Return the share of the time of a training in which it waited for a processor."""
    waited = before = 0.0
    for row in rows:
        waited += row.get("waited", 0.0) * max(0.0, row["seconds"] - before)
        before = row["seconds"]
    return waited / before if before else 0.0


def _drawn_by(settings: DiffusionSettings) -> str:
    """Say how samples are drawn when no option says otherwise, where the training has chosen it."""
    guided, record = f" with autoguidance {settings.autoguidance:g}" if settings.autoguidance != 1 else "", settings.sampling
    if record is None or record.source != "selected":
        return f"; samples are drawn{guided}" if guided else ""
    return (
        f"; samples are drawn by {format_choice(record.choice)}{guided}, the best of {len(record.candidates)} on held-out data"
    )


def _next(config: Config, rows: Sequence[Row], findings: Sequence[Finding], shown: str, looked: bool) -> str:
    if findings:
        return f"next: {findings[0].advice}"
    if not rows or rows[-1]["i"] < ENOUGH:
        return "next: train longer; this was too short to judge"
    fall = held_out_decrease(rows)
    if fall is None:
        return "next: train longer; there were too few checks to tell whether the held-out figure still falls"
    (since, share), unit = fall, rows[-1].get("unit")
    name, by = metric_name(unit), f"{max(share, 0):.3f} {unit}" if unit else f"{max(share, 0):.1%}"
    if share > FALLING * min(1.0, math.log2(rows[-1]["i"] / since)):  # after a short extension, of as much as it is long
        return f"next: the {name} fell by {by if unit else f'{share:.0%}'} since step {since:,}, so more time will help"
    flat = f"next: since step {since:,} the {name} {f'fell by {by} only' if share > 0 else 'has not fallen'}"
    linear = rows[-1].get("linear_levels") or ()
    if any(mine > ABOVE * its for mine, its in zip(rows[-1].get("train_levels", ()), linear, strict=False)):
        shown = "even on training data the loss is worse than that of a linear filter"
    if looked and not shown:
        good = GOOD.get(config.data.kind, "the samples lie as near to the training data as held-out data")
        return f"{flat}, and {good}: more time will give little"
    larger = sizes(config.family.network).larger if isinstance(config.family, DiffusionSettings) else None
    larger = None if _by_heart(rows, since) else larger
    advice = f"a larger network may give more: --network {larger}" if larger else "more data may give more"
    return f"{flat}{', but ' if shown else ''}{shown}: {advice}"


def _by_heart(rows: Sequence[Row], since: int) -> bool:
    """Tell whether only the loss on training data went on falling: then a larger network has nothing more to learn."""
    old, last = next(row for row in rows if row["i"] == since), rows[-1]
    if "train_loss" not in old or "train_loss" not in last:
        return False
    return bool(
        last["train_loss"] < last["held_out"] and gain(old["train_loss"], last["train_loss"], last.get("unit")) > FALLING
    )


def _fitted(run: Run, rows: Sequence[Row], findings: Sequence[Finding]) -> tuple[str, str, str]:
    """Judge a model that is fitted at once: there is no time to judge, only what it costs to say new data with it."""
    health = _health(findings, ENOUGH)
    if not rows:
        return health, "no check on held-out data was made", "next: train it again"
    last, path = rows[-1], shlex.quote(str(run.path))
    rounds = f"{last['i']:,} round{'s' * (last['i'] != 1)}"
    fitted = f"{_time(last['seconds'])} on {run.config.data.count:,} {run.kind}, fitted in {rounds}"
    cost = f"held-out data cost {last['held_out']:.4f} nats for each dimension"
    cost += f", training data {last['train_loss']:.4f}" if "train_loss" in last else ""
    return health, f"{fitted}: {cost}", f"next: measure it beside another family: reverie evaluate {path} OTHER-RUN"


def _last_appearance(config: Config, rows: Sequence[Row]) -> Mapping[str, float] | None:
    """Return the figures of the last previews; None where there were none, or where they are not the purpose."""
    if isinstance(config.family, DiffusionSettings) and config.family.purpose == "likelihood":
        return None
    return next((row["appearance"] for row in reversed(rows) if row.get("appearance")), None)


def _last_shown(config: Config, rows: Sequence[Row]) -> str | None:
    """Say what is amiss with the last previews, nothing where nothing is; None where there were none, or not the purpose."""
    appearance = _last_appearance(config, rows)
    return _shown(config, appearance) if appearance else None


def health_of(config: Config, rows: Sequence[Row], findings: Sequence[Finding]) -> str:
    """Say in one line whether a run is well, by its reports and findings."""
    checked = [row for row in rows if "held_out" in row]
    steps, little = (checked[-1]["i"], _worse_than_a_filter(checked[-1])) if checked else (0, False)
    return _health(findings, steps, _last_shown(config, checked) == NOISE, little)


def short_verdict(config: Config, rows: Sequence[Row], findings: Sequence[Finding]) -> str:
    """Say in a few words how a run went: faults found in training, and what is amiss with what it makes."""
    if findings:
        return "found wrong: " + ", ".join(dict.fromkeys(finding.check for finding in findings))
    said = health_of(config, rows, findings).partition(":")[0]
    checked = [row for row in rows if "held_out" in row]
    amiss = (_last_shown(config, checked) or "").partition(",")[0].partition(":")[0]
    few = _too_few(config, [row for row in rows if "i" in row]).partition(":")[0]
    return "; ".join(part for part in (said, amiss, few) if part) if said == FAULTLESS else said


def _worse_than_a_filter(row: Row) -> bool:
    """Tell whether a network, over all noise levels, does worse on training data than the best linear filter."""
    seen, linear = row.get("train_levels"), row.get("linear_levels")
    return bool(seen and linear and not row.get("unit")) and statistics.fmean(seen or ()) > statistics.fmean(linear or ())


def verdict(run: Run) -> Verdict:
    """Judge a run by its reports and findings."""
    every = [row for row in run.metrics() if "i" in row and "seconds" in row]
    rows = [row for row in every if "held_out" in row]
    findings = tuple(folder.read_findings(run.path))
    if not run.config.model_family.learns_by_steps:
        return Verdict(_fitted(run, rows, findings), findings, {})
    path, training = shlex.quote(str(run.path)), run.config.training
    finished = is_finished(run.path)
    shown = _last_shown(run.config, rows)
    health = health_of(run.config, rows, findings)
    as_long = f"--minutes {format_number(training.minutes)}" if training.minutes else f"--steps {training.steps}"
    longer = f"--minutes {MORE}" if health.startswith(SHORT) and not training.minutes else as_long
    commands = {"go on": f"reverie train --resume {path}" + (f" --extend {longer}" if finished else "")}
    if findings and (command := retrain_command(run, findings)):
        commands["mend"] = command
    quality = _gave(run.config, rows, _quality(run.config, _last_appearance(run.config, rows)))
    advice = _next(run.config, rows, findings, shown or "", shown is not None)
    missing = "" if findings or steps_made(rows) < ENOUGH else _too_few(run.config, every)
    return Verdict((health, quality, advice.replace("next: ", f"next: {missing}", 1)), findings, commands)


def steps_made(rows: Sequence[Row]) -> int:
    """Return the number of steps at the last check."""
    return int(rows[-1]["i"]) if rows else 0
