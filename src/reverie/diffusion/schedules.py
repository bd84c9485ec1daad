"""The schedules by name."""

from __future__ import annotations

from reverie.diffusion.learned import Learned
from reverie.diffusion.schedule import Additive, Cosine, Linear, LogLinear, Rectified, ScaledLinear, Schedule, Sigmoid

SCHEDULES: dict[str, type[Schedule]] = {
    "linear": Linear,
    "cosine": Cosine,
    "sigmoid": Sigmoid,
    "scaled-linear": ScaledLinear,
    "log-linear": LogLinear,
    "additive": Additive,
    "rectified": Rectified,
    "learned": Learned,
}
