"""The default augmentation of a dataset, with the reason."""

from __future__ import annotations

from collections.abc import Sequence

from reverie.base.progress import OnProgress, silent
from reverie.base.spec import Spec
from reverie.data import Dataset
from reverie.data.augment import build_augment, parse_augmentations
from reverie.data.mirror import check_mirroring

ENOUGH_IMAGES = 4000  # training images below which augmentation pays off
# Epochs below which augmentation only costs time: unet-mini, trained for 61 epochs on 1,811 emoji of 32 x 32, has the loss
# 0.187 on them and 0.189 on held-out ones, so there is no overfitting to prevent (docs/benchmarks.md).
MIN_EPOCHS = 150


def choose_augment(
    requested: str | Sequence[str | Spec],
    train: Dataset,
    passes: float | None,
    seed: int = 0,
    on_progress: OnProgress = silent,
) -> tuple[tuple[Spec, ...], str]:
    """Return the augmentations of a training, and a line about them, empty for points.

    requested: "auto", "none", or names with options; passes: expected epochs, if known.
    """
    if requested == "none" or not requested:
        return (), ""
    if requested != "auto":
        specs = parse_augmentations(requested)
        build_augment(specs, train.shape)
        return specs, f"augment: {_describe(specs)}"
    if train.kind != "images":
        return (), ""
    count = len(train)
    if count > ENOUGH_IMAGES:
        return (), f"augment: none; {count:,} images are enough without it"
    if passes is not None and passes < MIN_EPOCHS:
        frequency = "once" if passes < 1.5 else f"{round(passes):,} times"
        return (), f"augment: none; each image is seen only about {frequency}"
    names = ["shift", "rotate", "zoom", *(["colour"] if train.shape[0] > 1 else [])]
    mirrored = check_mirroring(train, seed, on_progress)
    if mirrored.is_safe:
        names.append("flip:conditioned=no")
        why = "are few; mirrored images are indistinguishable from originals, so flip is safe"
    elif mirrored.correct:
        why = (
            f"are few; no flip, because a classifier separates mirrored images from originals in {mirrored.share:.0%} of"
            " cases (chance: 50%)"
        )
    else:
        why = "are few; no flip, because they are too few to test whether mirroring is safe"
    specs = parse_augmentations(names)
    return specs, f"augment: {_describe(specs)}; {count:,} images {why}"


def _describe(specs: Sequence[Spec]) -> str:
    names = [spec["name"] for spec in specs]
    unconditioned = [spec["name"] for spec in specs if not spec.get("conditioned", True)]
    if names == unconditioned:
        return ", ".join(names)
    return f"{', '.join(names)} ({f'all but {unconditioned[0]} ' if unconditioned else ''}conditioned)"
