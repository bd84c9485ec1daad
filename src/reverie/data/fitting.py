"""The default size and fit of images, chosen from the sizes in their headers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import numpy as np

from reverie.data.pixels import DEFAULT_SIDE

Size = tuple[int, int]  # height, width

MAX_CROP = 0.5  # an image that loses more than this share is unusable
MAX_CROPPED_SHARE = 0.1  # if more than this share of images loses over MAX_CROP, all are padded
NOTED_CROP = 0.1  # cropped share of a typical image that is worth a note
ASPECT_TOLERANCE = 0.1  # aspect ratios within this share of the typical one count as equal


def divisible_side(side: int) -> int:
    """Return the largest side up to this one that every planned network can halve as often as needed."""
    unit = 4 if side >= 16 else 2
    return max(unit, side - side % unit)


def choose_size_and_fit(
    sizes: Counter[Size], size: Size | None, fit: str, largest: int = DEFAULT_SIDE
) -> tuple[Size, str, list[str]]:
    """Return size and fit for images of these sizes, and notes.  size: None, or as requested; fit: one of FITS or auto.

    Padding fits the longer side: 28x120 at 28x28 would become 7x28 and a margin.
    """
    chosen, size_note = (size, None) if size else choose_size(sizes, largest)
    chosen_fit, fit_note = choose_fit(sizes, chosen, fit)
    if size is None and chosen_fit == "pad" and chosen[0] == chosen[1]:
        chosen, size_note = choose_size(sizes, largest, max)
        chosen_fit, fit_note = choose_fit(sizes, chosen, fit)
    return chosen, chosen_fit, [note for note in (size_note, fit_note) if note]


def choose_size(
    sizes: Counter[Size], largest: int = DEFAULT_SIDE, side: Callable[[Size], int] = min
) -> tuple[Size, str | None]:
    """Return the size for images of these sizes, no side above the largest, and a note if it differs from theirs.

    side: which side of the images determines a square.
    """
    first_size = next(iter(sizes))
    if len(sizes) == 1 and max(first_size) <= largest:
        size = divisible_side(first_size[0]), divisible_side(first_size[1])
        if size == first_size:
            return first_size, None
    else:
        typical = np.repeat([side(size) for size in sizes], list(sizes.values()))
        size = (divisible_side(min(largest, int(np.median(typical)))),) * 2
    smallest, biggest = min(sizes, key=lambda s: s[0] * s[1]), max(sizes, key=lambda s: s[0] * s[1])
    images = f"images of {format_size(smallest)}" if len(sizes) == 1 else (
        f"images of {len(sizes)} sizes from {format_size(smallest)} to {format_size(biggest)}"
    )  # fmt: skip
    return size, f"{images} are resized to {format_size(size)}; choose another height x width with --size"


def format_size(size: Size) -> str:
    """Format a size, height first."""
    return f"{size[0]}x{size[1]}"


def cropped_shares(sizes: Counter[Size], size: Size) -> tuple[np.ndarray, np.ndarray]:
    """Return the shares of each image's height and width that cropping to a size removes; one of the two is 0.

    An image of aspect a = width / height, cropped to aspect b, keeps b / a of its width, or a / b of its height.
    """
    aspect = _aspects(sizes) * (size[0] / size[1])
    return np.maximum(0, 1 - aspect), np.maximum(0, 1 - 1 / aspect)


def _aspects(sizes: Counter[Size]) -> np.ndarray:
    return np.repeat([width / height for height, width in sizes], list(sizes.values()))


def choose_fit(sizes: Counter[Size], size: Size, requested: str) -> tuple[str, str | None]:
    """Return the fit of images of these sizes, and a note about cropping.  requested: a fit, or auto."""
    height, width = cropped_shares(sizes, size)
    cropped = height + width
    cropped_share = float((cropped > MAX_CROP).mean())
    if requested == "auto" and cropped_share >= MAX_CROPPED_SHARE:
        what = "all" if cropped_share == 1 else f"{cropped_share:.0%}"
        note = (
            f"images are padded to {format_size(size)} with the colour of their edge, because cropping would remove more"
            " than half of"
        )
        return "pad", f"{note} {what}{_shape_hint(sizes, size)}; --fit crop crops them"
    if requested in ("pad", "stretch"):
        return requested, None
    typical = float(np.median(cropped))
    if typical >= NOTED_CROP:
        side = "width" if not height.any() else "height" if not width.any() else "height or width"
        note = f"cropping to {format_size(size)} removes {typical:.0%} of the {side} of a typical image"
    elif cropped_share:
        count = round(cropped_share * len(cropped))
        note = f"cropping to {format_size(size)} removes more than half of {count} {'image' if count == 1 else 'images'}"
    else:
        return "crop", None
    return "crop", f"{note}; --fit pad keeps all of it{_shape_hint(sizes, size)}"


def _shape_hint(sizes: Counter[Size], size: Size) -> str:
    """Return a hint at a size that keeps the aspect ratio, if all images have about the same."""
    aspects = _aspects(sizes)
    typical = float(np.median(aspects))
    if float((abs(aspects / typical - 1) <= ASPECT_TOLERANCE).mean()) < 0.9:
        return ""
    longest = max(size)
    suggested = (longest, max(8, round(longest * typical / 8) * 8)) if typical < 1 else (
        max(8, round(longest / typical / 8) * 8), longest
    )  # fmt: skip
    return f", and --size {format_size(suggested)} keeps their shape" if suggested != size else ""
