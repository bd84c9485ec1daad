"""The doctor: small checks of a training's recent history, each of which finds one illness or nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from torch import Tensor

from reverie.codec import Codec
from reverie.schedule import SIGNAL_LIMIT, Schedule

Row = Mapping[str, Any]

RESCUE = "rescue"  # what a finding is called that tells of a rollback
SETTLED = 0.25  # the share of a run after which previews should show something
STUCK, MOVED = 0.99, 1e-3  # of the first held-out loss; relative movement of the weights by which learning shows
BLANK, COLLAPSED, SATURATED = 0.1, 0.05, 0.3
LAG = 0.1  # the share of what was learned by which the average may be worse than the raw weights
RISE = 1.05  # how far above its lowest value a held-out loss may lie
COPY = 0.5  # samples this much closer to the training data than held-out data are copies
FLAT = 0.005  # improvement of the held-out loss below which it has stopped
PATIENCE = 4  # checks without improvement after which it has stopped
LEVELS = ("the least noise", "little noise", "much noise", "the most noise")


@dataclass(frozen=True)
class Finding:
    """What is wrong, since which step, why probably, and what to do."""

    check: str
    what: str
    since: int
    cause: str
    advice: str

    def __str__(self) -> str:
        return f"{self.what} (since step {self.since:,}): probably {self.cause}; {self.advice}"

    def as_row(self, i: int) -> dict[str, Any]:
        """Return the finding as a row of metrics.jsonl."""
        return {"i": i, "finding": asdict(self)}


@dataclass(frozen=True)
class Look:
    """What a preview shows, beside the same figures of the data; in model units.

    blank, spread and outside: median deviation within a sample, mean variance between samples, and share of values beyond
    the data's range by a quarter of it; nearest: median distance to the closest training datum.
    """

    mean: float
    blank: float
    spread: float
    outside: float
    nearest: float


@dataclass
class Patient:
    """What the checks look at.  rows: the reports so far; looks: the newest preview, and the data seen in the same way."""

    rows: Sequence[Row]
    schedule: Schedule
    codec: Codec
    data: Tensor
    is_images: bool
    movement: Mapping[str, float] = field(default_factory=dict)
    preview: Look | None = None
    truth: Look | None = None

    @property
    def now(self) -> Row:
        """The newest report."""
        return self.rows[-1]

    def checked(self) -> list[Row]:
        """Return the reports that hold a check on held-out data."""
        return [row for row in self.rows if "held_out" in row]


Check = Callable[[Patient], Finding | None]


def data_range(p: Patient) -> Finding | None:
    """Images outside [0, 1], or a codec that does not give back what it was given."""
    low, high = float(p.data.min()), float(p.data.max())
    if p.is_images and (low < -1e-3 or high > 1 + 1e-3):
        what = f"the images hold values from {low:.3g} to {high:.3g}"
        return Finding("data_range", what, 0, "a wrong scale: they should lie between 0 and 1", "divide bytes by 255")
    error = float((p.codec.decode(p.codec.encode(p.data)) - p.data).abs().max())
    if error > 1e-3 * max(1.0, abs(low), abs(high)):
        what = f"normalising the data and undoing it changes them by up to {error:.3g}"
        cause = "a normalisation that is inverted wrongly"
        return Finding("data_range", what, 0, cause, "mend the codec so that decode(encode(x)) is x")
    return None


def constant_data(p: Patient) -> Finding | None:
    """A channel or coordinate that never changes, or data that are all the same."""
    if float(p.data.std(0).max()) < 1e-6:
        cause = "one datum repeated"
        return Finding("constant_data", "all data are the same", 0, cause, "give data that differ, or the model will copy it")
    flat = p.data.transpose(0, 1).flatten(1)  # (channels, everything else)
    if dead := [k for k, deviation in enumerate(flat.std(1).tolist()) if deviation < 1e-6]:
        kind = "channel" if p.is_images else "coordinate"
        cause = "a broken export, or an empty alpha channel"
        advice = "leave it out; for images --channels does it"
        return Finding("constant_data", f"{kind} {dead[0]} of the data never changes", 0, cause, advice)
    return None


def signal_left(p: Patient) -> Finding | None:
    """A schedule that does not end in noise."""
    if (left := p.schedule.remaining_signal()) <= SIGNAL_LIMIT:
        return None
    what = f"the schedule ends with a signal of {left:.2g} times the noise"
    cause = "too few steps or too small a beta_end or sigma_max"
    return Finding("signal_left", what, 0, cause, "train with --schedule cosine or rectified")


def not_learning(p: Patient) -> Finding | None:
    """A held-out loss that is still that of a network that gives nothing."""
    rows = p.checked()
    late = [row for row in rows if row["fraction"] >= 0.1]
    if not late or late[0] is rows[0] or not p.movement:
        return None
    first, best = float(rows[0]["held_out"]), min(float(row["held_out"]) for row in late)
    if best < STUCK * first:
        return None
    what = f"the held-out loss is {float(late[-1]['held_out']):.4g} and was {first:.4g} before anything was learned"
    rate = max(float(row["learning_rate"]) for row in p.rows)
    if max(p.movement.values()) < MOVED:
        cause, advice = "a learning rate that is too small to move the weights", f"try --learning-rate {100 * rate:.2g}"
    elif p.now["fraction"] < 2 * SETTLED:
        return None  # it may still begin
    else:
        cause = "a learning rate that is too high, or data that hold nothing but noise"
        advice = "leave --learning-rate out, or give a tenth of it"
    return Finding("not_learning", what, int(late[0]["i"]), cause, advice)


def dead_parameter(p: Patient) -> Finding | None:
    """A parameter that no step has changed."""
    still = [name for name, moved in p.movement.items() if moved == 0]
    if p.now["fraction"] < 0.05 or not still or max(p.movement.values()) < MOVED:
        return None
    what = f"{len(still)} of {len(p.movement)} parameters never changed, first {still[0]}"
    cause = "a frozen layer, or one that the output does not depend on"
    return Finding("dead_parameter", what, 0, cause, "unfreeze it or take it out")


def empty_previews(p: Patient) -> Finding | None:
    """Previews that are black, white or one colour, saturated, or all the same."""
    if p.preview is None or p.truth is None or p.now["fraction"] < SETTLED:
        return None
    look, truth, i = p.preview, p.truth, int(p.now["i"])
    if p.is_images and look.blank < BLANK * truth.blank:
        name = "black" if look.mean < -0.8 else "white" if look.mean > 0.8 else "of one colour"
        cause = "weights that give the same value everywhere"
        return Finding("empty_previews", f"the previews are {name}", i, cause, "train longer or with a lower --learning-rate")
    if look.outside > SATURATED:
        what = f"{look.outside:.0%} of the previews' values lie far outside the data's range"
        cause = "an error that grows from step to step of sampling"
        return Finding("empty_previews", what, i, cause, "train with --target v or flow, and look at the schedule")
    if look.spread < COLLAPSED * truth.spread:
        what = f"the previews are nearly all the same: their variance is {look.spread / truth.spread:.1%} of the data's"
        return Finding("empty_previews", what, i, "a collapse of the model", "train longer or with a lower --learning-rate")
    return None


def lagging_average(p: Patient) -> Finding | None:
    """Average weights that are worse than the raw ones."""
    rows = [row for row in p.checked() if row["fraction"] >= SETTLED and "raw_held_out" in row]
    if len(rows) < 2:
        return None
    first = float(p.checked()[0]["held_out"])
    if any(row["held_out"] - row["raw_held_out"] <= LAG * abs(first - row["raw_held_out"]) for row in rows[-2:]):
        return None
    what = f"the average weights are worse than the raw ones: held-out loss {rows[-1]['held_out']:.3g} against"
    what += f" {rows[-1]['raw_held_out']:.3g}"
    cause = "an average over too many steps"
    return Finding("lagging_average", what, int(rows[-2]["i"]), cause, "lower ema_share, or train longer")


def overfitting(p: Patient) -> Finding | None:
    """A held-out loss that rises, at some noise level, while that on training data falls."""
    rows = [row for row in p.checked() if row.get("seen_levels")]
    for k, level in enumerate(LEVELS):
        held = [row["held_out_levels"][k] for row in rows]
        if len(held) < 4:
            return None
        best = min(range(len(held)), key=held.__getitem__)
        fell = rows[-1]["seen_levels"][k] < rows[best]["seen_levels"][k]
        if best < len(held) - 2 and fell and min(held[-2:]) > RISE * held[best]:
            what = f"at {level} the held-out loss rose from {held[best]:.3g} to {held[-1]:.3g} while that of training data fell"
            cause = "too few data for a training of this length"
            return Finding(
                "overfitting", what, int(rows[best]["i"]), cause, "give more data, train shorter, or a smaller --network"
            )
    return None


def copies(p: Patient) -> Finding | None:
    """Samples that lie closer to training data than held-out data do."""
    if p.preview is None or p.truth is None or p.now["fraction"] < SETTLED:
        return None
    ours, theirs = p.preview.nearest, p.truth.nearest
    if ours >= COPY * theirs or theirs == 0:
        return None
    what = f"samples are {ours / theirs:.2f} times as far from the closest training datum as held-out data are"
    cause = "a model that has learned its training data by heart"
    return Finding("copies", what, int(p.now["i"]), cause, "give more data, train shorter, or a smaller --network")


CHECKS: dict[str, Check] = {
    check.__name__: check
    for check in (
        data_range, constant_data, signal_left, not_learning, dead_parameter, empty_previews, lagging_average, overfitting,
        copies,
    )
}  # fmt: skip


def examine(patient: Patient) -> tuple[Finding, ...]:
    """Return what the checks find."""
    return tuple(found for check in CHECKS.values() if (found := check(patient)) is not None)


def has_stopped_improving(rows: Sequence[Row], key: str = "held_out", least: float = FLAT) -> bool:
    """Tell whether a figure's best value of the last checks is no better than the best before them."""
    values = [float(row[key]) for row in rows if key in row]
    return len(values) > 2 * PATIENCE and min(values[-PATIENCE:]) > (1 - least) * min(values[:-PATIENCE])


def look_at(z: Tensor, distance: Tensor, low: float, high: float) -> Look:
    """Return what data or samples look like.  z: (n, ...) in model units; distance: (n,) to the closest training datum."""
    flat = z.flatten(1)
    margin = (high - low) / 4
    outside = ((flat < low - margin) | (flat > high + margin)).float().mean()
    spread = flat.var(0).mean() if len(flat) > 1 else flat.new_zeros(())
    return Look(float(flat.mean()), float(flat.std(1).median()), float(spread), float(outside), float(distance.median()))
