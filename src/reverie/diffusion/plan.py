"""What to train for a data set when nothing is said: network, schedule, target and length, with the reasons."""

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

# The networks by name: what `--network` takes.  A preset is a spec whose options can be overridden one by one.
PRESETS: dict[str, Spec] = {
    "unet-tiny": {"name": "unet", "widths": (32, 64), "blocks": 1},
    "unet-mini": {"name": "unet", "widths": (48, 96), "blocks": 1},
    "unet-small": {"name": "unet", "widths": (64, 128), "blocks": 2},
    "unet-base": {"name": "unet", "widths": (128, 256), "blocks": 2},
    "unet-teaching": {
        "name": "unet", "widths": (10, 20, 40), "blocks": 3, "stem": 1, "attention": False, "groups": 1, "conditioning": "add",
    },
}  # fmt: skip

ROOM = 0.75  # of the first map's channels, at most, for what is folded into them
FINEST_MAP = 16  # the stem folds pixels until the first map is at most about this wide
COARSEST_MAP = 16  # a preset has as many resolutions as bring its last map to at most this width, where attention is cheap
MOST_ATTENDED = 4096  # places of the last map that attend to each other: the cost of more outgrows all the rest's
WIDEST = 256  # channels that a resolution added to a preset may have
COLOUR_64_MINUTES = 15  # on a CPU, from which colour images are 64 pixels wide by default; with less they are 32
SHORT_SIDE = 32
# What images of 32 x 32 look like after so many minutes on two cores, and what was measured of them (experiments/networks.md,
# experiments/sampling.md); larger ones take as much longer as they have more pixels.
COLOUR_TO_EXPECT = (
    (0.0, "patches of the right colours", ""), (0.5, "colours and rough shapes", ""),
    (3.0, "shapes that can be recognised", "five minutes of 1,906 emoji gave a KID of 0.25, data have 0"),
    (20.0, "clean pictures, where there are data enough", ""),
)  # fmt: skip
GREY_TO_EXPECT = (
    (0.0, "smudged shapes", ""),
    (0.7, "shapes that can be recognised", "one minute of MNIST gave a Fréchet distance of 1.7 to 3.1, data have 2"),
    (4.0, "clean shapes, such as digits", "five minutes of MNIST gave a Fréchet distance of 1.3 to 1.6, data have 2"),
)
# Budgets from which a larger network is chosen, measured for colour images of 32 x 32 (experiments/networks.md: in ten minutes
# small overtakes mini after four); larger ones take as much longer as they have more pixels.  Judged by the cost for
# grey digits, which are simpler, and for base.
MINI_WORTH_MINUTES = 5
SMALL_WORTH_MINUTES = 15
SMALL_WORTH_ANYWAY = 30
BASE_WORTH_MINUTES = 240
COLOUR_BATCH = 32  # half the batch of digits: at equal time its held-out loss is lower (docs/benchmarks.md)


@dataclass(frozen=True)
class Plan:
    """A choice for everything, and why."""

    network: Spec
    schedule: Spec
    target: str
    settings: dict[str, Any]
    reasons: tuple[str, ...]


def stem_for(channels: int, height: int, width: int, widths: Sequence[int]) -> int:
    """Return the side of the squares to fold: the least power of two that makes the map small, if the size allows it.

    A stem never folds more numbers than three quarters of the first map's channels: a narrower map cannot pass on the noise,
    and one just as wide has no room for anything else.
    """
    stem, unit = 1, 2 << len(widths) - 1  # what the size must be divisible by for twice the stem
    while max(height, width) / stem > FINEST_MAP and channels * (2 * stem) ** 2 <= ROOM * widths[0]:
        if height % (unit * stem) or width % (unit * stem):
            break
        stem *= 2
    return stem


def deepened(height: int, width: int, widths: Sequence[int], stem: int) -> tuple[int, ...]:
    """Return the widths with more resolutions added until the last map is small, if the size allows it."""
    wide = tuple(widths)
    while max(height, width) / (stem << len(wide) - 1) > COARSEST_MAP and not (
        height % (stem << len(wide)) or width % (stem << len(wide))
    ):
        wide = (*wide, min(2 * wide[-1], WIDEST))
    return wide


def network_for(shape: tuple[int, ...], labels: int, network: str | Spec) -> Spec:
    """Return a network in full: a preset by what it stands for, and what the data decide.

    The data decide the shape, the number of labels, the stem of a U-Net if it is not given, and how many resolutions a preset
    has.  shape: (D,) or (C, H, W).
    """
    wished = parse(network)
    preset = PRESETS.get(str(wished.get("name")), {})
    full = {**preset, **wished, "name": preset.get("name", wished.get("name")), "channels": shape[0], "labels": labels}
    if kind_of(shape) == "images":
        full |= {"height": shape[1], "width": shape[2]}
    full = complete(NETWORKS, full, "network")
    if full["name"] == "unet" and kind_of(shape) == "images" and "stem" not in {**preset, **wished}:
        channels, height, width = shape
        full["stem"] = stem_for(channels, height, width, full["widths"])
        if preset and "widths" not in wished:
            full["widths"] = deepened(height, width, full["widths"], full["stem"])
        last = full["stem"] << len(full["widths"]) - 1
        if preset and "attention" not in {**preset, **wished} and height * width > MOST_ATTENDED * last**2:
            full["attention"] = False
    return full


def check_width(network: Spec) -> None:
    """Refuse a network that folds more numbers into its first map than that has channels: it cannot even pass noise on."""
    first = {"unet": ("stem", "widths"), "transformer": ("patch", "dim")}.get(network["name"])
    if first is None:
        return
    fold, side, width = first[0], network[first[0]], network[first[1]]
    width = width[0] if isinstance(width, tuple) else width
    channels, folded = network["channels"], network["channels"] * side**2
    if folded > width:
        raise UserError(
            f"a {fold} of {side} folds {channels} x {side} x {side} = {folded} numbers into {width} channels, which cannot hold"
            f" them: {1 - width / folded:.0%} of the noise could never be predicted; give a {fold} of at most"
            f" {math.isqrt(width // channels)}, or {first[1]} from {folded} on"
        )


def largest_colour_side(minutes: float | None, steps: int | None, device: str) -> int:
    """Return the longest side to choose for colour images: what a budget in minutes on a CPU can do something with."""
    short = device == "cpu" and steps is None and (minutes or IMAGE_MINUTES) < COLOUR_64_MINUTES
    return SHORT_SIDE if short else DEFAULT_SIDE


def small_for_the_budget(dataset: Dataset, largest: int, minutes: float | None = None) -> str | None:
    """Return a note where colour images are made smaller than they are, because the budget is short: how to have more."""
    sizes = [name.split("x") for name in dataset.report.get("sizes", {}) if "x" in name]
    larger = any(min(map(int, sides)) > largest for sides in sizes)
    if largest == DEFAULT_SIDE or dataset.kind != "images" or dataset.shape[0] == 1 or not larger:
        return None
    size = f"{dataset.shape[1]}x{dataset.shape[2]}"
    time = (
        f"the {counted(IMAGE_MINUTES)} of a default training are" if minutes is None else f"{counted(minutes)} of training are"
    )
    more = f"--size {DEFAULT_SIDE} --minutes {COLOUR_64_MINUTES} or longer"
    return f"{size} because {time} short for more pixels on this processor; for more detail: {more}"


def counted(minutes: float) -> str:
    """Say how many minutes: 1 minute, 2.5 minutes."""
    return f"{minutes:.3g} minute{'' if minutes == 1 else 's'}"


def looks(shape: tuple[int, ...], minutes: float) -> tuple[str, str]:
    """Return in words what images of this shape look like after so many minutes on two cores, and what was measured."""
    of_32 = minutes * SHORT_SIDE**2 / (shape[1] * shape[2])
    rows = COLOUR_TO_EXPECT if shape[0] > 1 else GREY_TO_EXPECT
    return [(words, measured) for least, words, measured in rows if of_32 >= least][-1]


def expectation(shape: tuple[int, ...], minutes: float) -> str:
    """Say what a training of so many minutes on a CPU gives, and what a longer one would."""
    (now, measured), size = looks(shape, minutes), f"{shape[1]}x{shape[2]}"
    line = f"to expect of {size} in {counted(minutes)} on two cores: {now}"
    longer = next((m for m in (5, 15, 60, 240) if m > minutes and looks(shape, m)[0] != now), None)
    line += f"; in {longer}: {looks(shape, longer)[0]}" if longer else ""
    return f"{line} ({measured})" if measured else line


def slow_size(network: Spec) -> str | None:
    """Return a note where the size keeps a U-Net from folding its pixels, which makes every step many times slower."""
    if network["name"] != "unet":
        return None
    channels, height, width, stem = (network[key] for key in ("channels", "height", "width", "stem"))
    unit = 2 * stem << len(network["widths"]) - 1
    tall, wide = (max(1, round(side / unit)) * unit for side in (height, width))
    if max(height, width) <= 2 * FINEST_MAP * stem or stem_for(channels, tall, wide, network["widths"]) <= stem:
        return None
    return f"--size {tall}x{wide} would train several times faster, because its pixels can be folded {2 * stem} x {2 * stem}"


def network_size(channels: int, area: float, minutes: float) -> str:
    """Return which U-Net is worth its cost in so many minutes.  area: of an image, in those of 32 x 32."""
    colour = channels > 1
    if minutes >= BASE_WORTH_MINUTES:
        return "base"
    if minutes >= SMALL_WORTH_ANYWAY or (colour and minutes >= SMALL_WORTH_MINUTES * max(1.0, area)):
        return "small"
    return "mini" if colour and minutes >= MINI_WORTH_MINUTES * area else "tiny"


def plan(dataset: Dataset, minutes: float | None, steps: int | None) -> Plan:
    """Choose for a data set and a budget."""
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
    given = counted(budget) if budget else f"{steps} steps"
    reason = f"images {height}x{width}x{channels}, {len(dataset):,} of them, {given}: unet-{size}"
    return Plan({"name": f"unet-{size}"}, {"name": "rectified"}, "flow", settings, (reason,))
