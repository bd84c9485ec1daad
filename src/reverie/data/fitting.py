"""Which size images are brought to, and how, when it is not said: judged by the sizes that their headers state."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import numpy as np

from reverie.data.pixels import DEFAULT_SIDE

Size = tuple[int, int]  # height, width

TOO_MUCH = 0.5  # an image that loses more than this share of itself is no longer what it was
OFTEN = 0.1  # share of images that lose too much by cropping, from which on all are padded
WORTH_SAYING = 0.1  # share of a typical image that is cut
ALIKE = 0.1  # aspect ratios within this share of the typical one count as one shape


def divisible_side(side: int) -> int:
    """Return the largest side up to this one that every planned network can halve as often as it must."""
    unit = 4 if side >= 16 else 2
    return max(unit, side - side % unit)


def choose_size_and_fit(
    sizes: Counter[Size], size: Size | None, fit: str, largest: int = DEFAULT_SIDE
) -> tuple[Size, str, list[str]]:
    """Return size and fit for images of these sizes, and what is to be said of them.  size: None, or as wished; fit: or auto.

    Where images are padded it is their longer side that must find room: 28x120 at 28x28 would be 7x28 and a margin.
    """
    chosen, size_note = (size, None) if size else choose_size(sizes, largest)
    way, fit_note = choose_fit(sizes, chosen, fit)
    if size is None and way == "pad" and chosen[0] == chosen[1]:
        chosen, size_note = choose_size(sizes, largest, max)
        way, fit_note = choose_fit(sizes, chosen, fit)
    return chosen, way, [note for note in (size_note, fit_note) if note]


def choose_size(
    sizes: Counter[Size], largest: int = DEFAULT_SIDE, side: Callable[[Size], int] = min
) -> tuple[Size, str | None]:
    """Return the size for images of these sizes, no side above the largest, and a note where it is not simply their own.

    side: which side of the images a square is to have.
    """
    own = next(iter(sizes))
    if len(sizes) == 1 and max(own) <= largest:
        size = divisible_side(own[0]), divisible_side(own[1])
        if size == own:
            return own, None
    else:
        typical = np.repeat([side(size) for size in sizes], list(sizes.values()))
        size = (divisible_side(min(largest, int(np.median(typical)))),) * 2
    least, most = min(sizes, key=lambda s: s[0] * s[1]), max(sizes, key=lambda s: s[0] * s[1])
    seen = f"images of {format_size(least)}" if len(sizes) == 1 else (
        f"images of {len(sizes)} sizes from {format_size(least)} to {format_size(most)}"
    )  # fmt: skip
    return size, f"{seen} are brought to {format_size(size)}; choose another height x width with --size"


def format_size(size: Size) -> str:
    """Return a size in words, height first."""
    return f"{size[0]}x{size[1]}"


def cropped_shares(sizes: Counter[Size], size: Size) -> tuple[np.ndarray, np.ndarray]:
    """Return the share that cropping to a size cuts off each image's height and off its width; one of the two is 0.

    An image of aspect a = width / height, cropped to aspect b, keeps b / a of its width, or a / b of its height.
    """
    aspect = _aspects(sizes) * (size[0] / size[1])
    return np.maximum(0, 1 - aspect), np.maximum(0, 1 - 1 / aspect)


def _aspects(sizes: Counter[Size]) -> np.ndarray:
    return np.repeat([width / height for height, width in sizes], list(sizes.values()))


def choose_fit(sizes: Counter[Size], size: Size, wished: str) -> tuple[str, str | None]:
    """Return how images of these sizes are brought to one, and a note about what is cut.  wished: a fit, or auto."""
    height, width = cropped_shares(sizes, size)
    lost = height + width
    too_much = float((lost > TOO_MUCH).mean())
    if wished == "auto" and too_much >= OFTEN:
        what = "all" if too_much == 1 else f"{too_much:.0%}"
        note = f"images are padded to {format_size(size)} with the colour of their edge: cropping would cut more than half off"
        return "pad", f"{note} {what} of them{_of_their_shape(sizes, size)}; --fit crop does so"
    if wished in ("pad", "stretch"):
        return wished, None
    typical = float(np.median(lost))
    if typical >= WORTH_SAYING:
        side = "width" if not height.any() else "height" if not width.any() else "height or width"
        note = f"cropping to {format_size(size)} cuts {typical:.0%} off the {side} of a typical image"
    elif too_much:
        count = round(too_much * len(lost))
        note = f"cropping to {format_size(size)} cuts more than half off {count} {'image' if count == 1 else 'images'}"
    else:
        return "crop", None
    return "crop", f"{note}; --fit pad keeps all of it{_of_their_shape(sizes, size)}"


def _of_their_shape(sizes: Counter[Size], size: Size) -> str:
    """Say which size would keep the shape of images that are all of about one shape."""
    aspects = _aspects(sizes)
    typical = float(np.median(aspects))
    if float((abs(aspects / typical - 1) <= ALIKE).mean()) < 0.9:
        return ""
    longest = max(size)
    like = (longest, max(8, round(longest * typical / 8) * 8)) if typical < 1 else (
        max(8, round(longest / typical / 8) * 8), longest
    )  # fmt: skip
    return f", and --size {format_size(like)} their shape" if like != size else ""
