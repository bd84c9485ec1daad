"""Jigsaw puzzles with interchangeable pieces.

Every inner edge has the same shape, symmetric under rotation by 180 degrees: a knob to one side in its first half and a
knob to the other side in its second.  So all inner pieces are congruent in every orientation, and so are all border
pieces and all corner pieces with their straight sides outwards.
"""

from __future__ import annotations

import torch
from torch import Tensor

KNOB = 0.17  # radius of a knob relative to the side of a piece: larger ones would meet at the corners


def owners(side: int, count: int) -> Tensor:
    """Return the index of the piece of each pixel, (side, side)."""
    piece = side // count
    index = torch.arange(side) // piece
    owner = index[:, None] * count + index
    centre = torch.arange(side, dtype=torch.float64) + 0.5
    y, x = centre[:, None].expand(side, side), centre.expand(side, side)
    for row in range(count):
        for column in range(count):
            own = row * count + column
            top, left = row * piece, column * piece
            if row + 1 < count:  # the edge below, from left to right: first a knob of this piece, then one of the lower piece
                below, edge = own + count, top + piece
                owner[_disc(y, x, edge, left + piece / 4, piece)] = own
                owner[_disc(y, x, edge, left + 3 * piece / 4, piece)] = below
            if column + 1 < count:  # the right edge is the lower edge rotated by 90 degrees
                right, edge = own + 1, left + piece
                owner[_disc(y, x, top + piece / 4, edge, piece)] = right
                owner[_disc(y, x, top + 3 * piece / 4, edge, piece)] = own
    return owner


def _disc(y: Tensor, x: Tensor, middle_y: float, middle_x: float, piece: int) -> Tensor:
    return (y - middle_y) ** 2 + (x - middle_x) ** 2 <= (KNOB * piece) ** 2


def _sides(position: tuple[int, int], count: int) -> tuple[bool, ...]:
    """Return which sides of a piece are straight: top, right, bottom, left."""
    row, column = position
    return row == 0, column == count - 1, row == count - 1, column == 0


def _rotated(sides: tuple[bool, ...], quarters: int) -> tuple[bool, ...]:
    """Return the sides after a clockwise rotation."""
    return tuple(sides[(k - quarters) % 4] for k in range(4))


def jigsaw(side: int, count: int, seed: int) -> Tensor:
    """Return the source pixel of each position after a random valid rearrangement, (side * side,)."""
    random = torch.Generator().manual_seed(seed)
    owner, piece = owners(side, count), side // count
    slots_by_type: dict[int, list[tuple[int, int]]] = {}
    for row in range(count):
        for column in range(count):
            slots_by_type.setdefault(sum(_sides((row, column), count)), []).append((row, column))
    source = torch.arange(side * side)
    for slots in slots_by_type.values():
        pieces = [slots[k] for k in torch.randperm(len(slots), generator=random).tolist()]
        for slot, moved in zip(slots, pieces, strict=True):
            first = int(torch.randint(4, (1,), generator=random))
            rotations = [q % 4 for q in range(first, first + 4) if _rotated(_sides(moved, count), q) == _sides(slot, count)]
            y, x = torch.nonzero(owner == slot[0] * count + slot[1]).unbind(1)
            # offsets from the centre of the slot in half pixels, rotated back to offsets from the centre of the piece
            dy, dx = 2 * y + 1 - piece * (2 * slot[0] + 1), 2 * x + 1 - piece * (2 * slot[1] + 1)
            for _ in range(rotations[0]):
                dy, dx = -dx, dy
            from_y = (dy - 1 + piece * (2 * moved[0] + 1)) // 2
            from_x = (dx - 1 + piece * (2 * moved[1] + 1)) // 2
            source[y * side + x] = from_y * side + from_x
    return source
