"""Lessons: formulas that act on a run or on what is typed, as plain numbers and pictures for a page."""

from __future__ import annotations

from reverie.lessons import denoising, formulas, plane, process
from reverie.lessons.lesson import Control, Lesson

__all__ = ["LESSONS", "Control", "Lesson"]

LESSONS: dict[str, Lesson] = {
    **process.LESSONS,
    **denoising.LESSONS,
    **plane.LESSONS,
    **formulas.LESSONS,
}  # in the order they are read
