"""Which augmentation suits a data set when nothing is said, with the reason."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from reverie.base.spec import Spec
from reverie.data import Dataset
from reverie.data.augment import build_augment, parse_augmentations
from reverie.data.mirror import check_mirroring

FEW = 4000  # training images below which augmentation is worth its cost
# Passes over the data below which augmentation only takes time: 1,811 emoji of 32 x 32, seen 61 times by unet-mini, cost it
# 0.187 and held-out ones 0.189, so there was nothing to prevent (docs/benchmarks.md).
OFTEN = 150


def choose_augment(
    wished: str | Sequence[str | Spec],
    train: Dataset,
    passes: float | None,
    seed: int = 0,
    tell: Callable[[str, int, int], None] = lambda what, done, of: None,
) -> tuple[tuple[Spec, ...], str]:
    """Return the augmentations of a training, and what to say of them: a line, empty for points.

    wished: "auto", "none", or names with options; passes: how often each image will be seen, if that is known.
    """
    if wished == "none" or not wished:
        return (), ""
    if wished != "auto":
        specs = parse_augmentations(wished)
        build_augment(specs, train.shape)
        return specs, f"augment: {_said(specs)}"
    if train.kind != "images":
        return (), ""
    count = len(train)
    if count > FEW:
        return (), f"augment: none; {count:,} images are enough without"
    if passes is not None and passes < OFTEN:
        often = "once" if passes < 1.5 else f"{round(passes):,} times"
        return (), f"augment: none; each image will be seen only about {often}"
    names = ["shift", "rotate", "zoom", *(["colour"] if train.shape[0] > 1 else [])]
    mirrored = check_mirroring(train, seed, tell)
    if mirrored.is_safe:
        names.append("flip:conditioned=no")
        why = "are few, and cannot be told from their mirror images"
    elif mirrored.right:
        why = f"are few; no flip, because {mirrored.share:.0%} were told from their mirror images, where guessing gives 50%"
    else:
        why = "are few; no flip, because so few cannot show whether they may be mirrored"
    specs = parse_augmentations(names)
    return specs, f"augment: {_said(specs)}; {count:,} images {why}"


def _said(specs: Sequence[Spec]) -> str:
    names, untold = [spec["name"] for spec in specs], [spec["name"] for spec in specs if not spec.get("conditioned", True)]
    if names == untold:
        return ", ".join(names)
    return f"{', '.join(names)} ({f'all but {untold[0]} ' if untold else ''}told to the network)"
