"""Default settings of a training for a dataset and budget: network, schedule, target and length, with reasons."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from reverie.base.errors import UserError
from reverie.base.spec import Spec, complete, parse
from reverie.data import Dataset
from reverie.data.kind import kind_of
from reverie.data.pixels import DEFAULT_SIDE
from reverie.nets import NETWORKS

POINT_STEPS = 10_000
IMAGE_MINUTES = 10.0

# The networks by name, for `--network`.  A preset is a spec whose options can be overridden.
PRESETS: dict[str, Spec] = {
    "unet-tiny": {"name": "unet", "widths": (32, 64), "blocks": 1},
    "unet-mini": {"name": "unet", "widths": (48, 96), "blocks": 1},
    "unet-small": {"name": "unet", "widths": (64, 128), "blocks": 2},
    "unet-base": {"name": "unet", "widths": (128, 256), "blocks": 2},
    "unet-teaching": {
        "name": "unet", "widths": (10, 20, 40), "blocks": 3, "stem": 1, "attention": False, "groups": 1, "conditioning": "add",
    },
}  # fmt: skip

FOLD_SHARE = 0.75  # largest share of the first map's channels that folded pixels may fill
FINEST_MAP = 16  # the stem folds pixels until the first map has about this width
COARSEST_MAP = 16  # a preset has resolutions down to this width, where attention is cheap
MAX_ATTENDED = 4096  # maximum positions of the last map with attention; more would dominate the computation
WIDEST = 256  # largest width of a resolution added to a preset
COLOUR_64_MINUTES = 15  # of CPU time above which colour images have 64 pixels a side by default, else 32
SHORT_SIDE = 32
# Expected quality of 32 x 32 images by minutes on two cores, with measurements (experiments/networks.md,
# experiments/sampling.md); larger images take proportionally longer.
COLOUR_TO_EXPECT = (
    (0.0, "patches of the right colours", ""), (0.5, "colours and rough shapes", ""),
    (3.0, "recognizable shapes", "five minutes of 1,906 emoji gave a KID of 0.25, data have 0"),
    (20.0, "clean images, given enough data", ""),
)  # fmt: skip
GREY_TO_EXPECT = (
    (0.0, "blurred shapes", ""),
    (0.7, "recognizable shapes", "one minute of MNIST gave a Fréchet distance of 1.7 to 3.1, data have 2"),
    (4.0, "clean shapes, such as digits", "five minutes of MNIST gave a Fréchet distance of 1.3 to 1.6, data have 2"),
)
# Budgets above which a larger network is the default, measured for 32 x 32 colour images (experiments/networks.md: in ten
# minutes small overtakes mini after four); larger images take proportionally longer.  For grey digits and for base the
# budgets are estimated from the computational cost.
MINI_WORTH_MINUTES = 5
SMALL_WORTH_MINUTES = 15
SMALL_WORTH_ANYWAY = 30
BASE_WORTH_MINUTES = 240
COLOUR_BATCH = 32  # half the batch size of digits: lower held-out loss in equal time (docs/benchmarks.md)


@dataclass(frozen=True)
class Plan:
    """Default settings with reasons."""

    network: Spec
    schedule: Spec
    target: str
    settings: dict[str, Any]
    reasons: tuple[str, ...]


def stem_for(channels: int, height: int, width: int, widths: Sequence[int]) -> int:
    """Return the stem size: the smallest power of two that makes the first map small, if the image size allows it.

    A stem folds at most three quarters of the first map's channels: a narrower map cannot represent the noise, and an equally
    wide one has no capacity for anything else.
    """
    stem, unit = 1, 2 << len(widths) - 1  # the size must be divisible by unit * stem for twice the stem
    while max(height, width) / stem > FINEST_MAP and channels * (2 * stem) ** 2 <= FOLD_SHARE * widths[0]:
        if height % (unit * stem) or width % (unit * stem):
            break
        stem *= 2
    return stem


def with_coarser_maps(height: int, width: int, widths: Sequence[int], stem: int) -> tuple[int, ...]:
    """Return the widths with resolutions added until the last map is small, if the image size allows it."""
    extended = tuple(widths)
    while max(height, width) / (stem << len(extended) - 1) > COARSEST_MAP and not (
        height % (stem << len(extended)) or width % (stem << len(extended))
    ):
        extended = (*extended, min(2 * extended[-1], WIDEST))
    return extended


def network_for(shape: tuple[int, ...], labels: int, network: str | Spec) -> Spec:
    """Return a full network spec: presets resolved, and options from the data.

    The data determine the shape, the number of labels, the default stem of a U-Net, and the number of resolutions of a preset.
    shape: (D,) or (C, H, W).
    """
    spec = parse(network)
    preset = PRESETS.get(str(spec.get("name")), {})
    full = {**preset, **spec, "name": preset.get("name", spec.get("name")), "channels": shape[0], "labels": labels}
    if kind_of(shape) == "images":
        full |= {"height": shape[1], "width": shape[2]}
    full = complete(NETWORKS, full, "network")
    if full["name"] == "unet" and kind_of(shape) == "images" and "stem" not in {**preset, **spec}:
        channels, height, width = shape
        full["stem"] = stem_for(channels, height, width, full["widths"])
        if preset and "widths" not in spec:
            full["widths"] = with_coarser_maps(height, width, full["widths"], full["stem"])
        last = full["stem"] << len(full["widths"]) - 1
        if preset and "attention" not in {**preset, **spec} and height * width > MAX_ATTENDED * last**2:
            full["attention"] = False
    return full


def check_width(network: Spec) -> None:
    """Raise a UserError for a network that folds more values than its first map has channels: it cannot represent the noise."""
    first = {"unet": ("stem", "widths"), "transformer": ("patch", "dim")}.get(network["name"])
    if first is None:
        return
    fold, side, width = first[0], network[first[0]], network[first[1]]
    width = width[0] if isinstance(width, tuple) else width
    channels, folded = network["channels"], network["channels"] * side**2
    if folded > width:
        raise UserError(
            f"a {fold} of {side} folds {channels} x {side} x {side} = {folded} values into {width} channels, so"
            f" {1 - width / folded:.0%} of the noise cannot be predicted; give a {fold} of at most"
            f" {math.isqrt(width // channels)}, or {first[1]} of at least {folded}"
        )


def largest_colour_side(minutes: float | None, steps: int | None, device: str) -> int:
    """Return the default longest side of colour images, by budget and device."""
    short = device == "cpu" and steps is None and (minutes or IMAGE_MINUTES) < COLOUR_64_MINUTES
    return SHORT_SIDE if short else DEFAULT_SIDE


def small_for_the_budget(dataset: Dataset, largest: int, minutes: float | None = None) -> str | None:
    """Return a note if colour images are downscaled because the budget is short, with the options for more detail."""
    sizes = [name.split("x") for name in dataset.report.get("sizes", {}) if "x" in name]
    larger = any(min(map(int, sides)) > largest for sides in sizes)
    if largest == DEFAULT_SIDE or dataset.kind != "images" or dataset.shape[0] == 1 or not larger:
        return None
    size = f"{dataset.shape[1]}x{dataset.shape[2]}"
    time = (
        f"the {counted(IMAGE_MINUTES)} of a default training are" if minutes is None else f"{counted(minutes)} of training are"
    )
    options = f"--size {DEFAULT_SIDE} --minutes {COLOUR_64_MINUTES} or longer"
    return f"{size}, because {time} too short for more pixels on this CPU; for more detail: {options}"


def counted(minutes: float) -> str:
    """Format a number of minutes: 1 minute, 2.5 minutes."""
    return f"{minutes:.3g} minute{'' if minutes == 1 else 's'}"


def expected_quality(shape: tuple[int, ...], minutes: float) -> tuple[str, str]:
    """Return the expected quality of images after a number of minutes on two cores, and its measurement."""
    minutes_of_32 = minutes * SHORT_SIDE**2 / (shape[1] * shape[2])
    rows = COLOUR_TO_EXPECT if shape[0] > 1 else GREY_TO_EXPECT
    return [(words, measured) for minimum, words, measured in rows if minutes_of_32 >= minimum][-1]


def expectation(shape: tuple[int, ...], minutes: float) -> str:
    """Describe the expected result of a training on a CPU, and of a longer one."""
    (now, measured), size = expected_quality(shape, minutes), f"{shape[1]}x{shape[2]}"
    line = f"expected result of {size} in {counted(minutes)} on two cores: {now}"
    longer = next((m for m in (5, 15, 60, 240) if m > minutes and expected_quality(shape, m)[0] != now), None)
    line += f"; in {longer}: {expected_quality(shape, longer)[0]}" if longer else ""
    return f"{line} ({measured})" if measured else line


def slow_size(network: Spec) -> str | None:
    """Return a note if the image size prevents a larger stem, which makes every step slower."""
    if network["name"] != "unet":
        return None
    channels, height, width, stem = (network[key] for key in ("channels", "height", "width", "stem"))
    unit = 2 * stem << len(network["widths"]) - 1
    h, w = (max(1, round(side / unit)) * unit for side in (height, width))
    if max(height, width) <= 2 * FINEST_MAP * stem or stem_for(channels, h, w, network["widths"]) <= stem:
        return None
    return f"--size {h}x{w} would train several times faster, because its pixels can be folded {2 * stem} x {2 * stem}"


def network_size(channels: int, area: float, minutes: float) -> str:
    """Return the size of the default U-Net for a budget.  area: of an image, relative to 32 x 32."""
    colour = channels > 1
    if minutes >= BASE_WORTH_MINUTES:
        return "base"
    if minutes >= SMALL_WORTH_ANYWAY or (colour and minutes >= SMALL_WORTH_MINUTES * max(1.0, area)):
        return "small"
    return "mini" if colour and minutes >= MINI_WORTH_MINUTES * area else "tiny"


def plan(dataset: Dataset, minutes: float | None, steps: int | None) -> Plan:
    """Return the default settings for a dataset and a budget."""
    length: dict[str, Any] = {"minutes": minutes, "steps": steps}
    if dataset.kind != "images":
        if minutes is None and steps is None:
            length["steps"] = POINT_STEPS
        settings = {"batch": 512, "learning_rate": 5e-3, "times": "stratified", **length}
        return Plan({"name": "mlp"}, {"name": "cosine"}, "v", settings, ("points: a small dense network",))
    if minutes is None and steps is None:
        length["minutes"] = IMAGE_MINUTES
    budget = length["minutes"] or 0.0
    channels, height, width = dataset.shape
    size = network_size(channels, height * width / SHORT_SIDE**2, budget)
    batch = COLOUR_BATCH if channels > 1 else 64
    settings = {"batch": batch, "optimizer": "muon", "learning_rate": 1e-2, "times": "logit-normal", **length}
    length_text = counted(budget) if budget else f"{steps} steps"
    reason = f"images {height}x{width}x{channels}, {len(dataset):,} of them, {length_text}: unet-{size}"
    return Plan({"name": f"unet-{size}"}, {"name": "rectified"}, "flow", settings, (reason,))
