"""Time grids: the times of a trajectory, computed from a schedule and a number of steps.

Most decrease from `start` to `end`, by default t_min.  All end above sigma = 0, because sampling ends with an estimate of x0.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from reverie.base.errors import UserError
from reverie.base.spec import build
from reverie.diffusion.schedule import Schedule

MAX_NOISE_RATIO = 100.0  # first sigma / alpha of grids in the log-SNR, if the schedule ends at alpha = 0


class Grid(ABC):
    """A time grid."""

    @abstractmethod
    def __call__(self, schedule: Schedule, steps: int) -> Tensor:
        """Return the times of this many steps: (steps,) float64."""


@dataclass(frozen=True)
class DecreasingGrid(Grid):
    """A grid that decreases from start to end."""

    start: float = 1.0
    end: float | None = None

    def __post_init__(self) -> None:
        if not (0 < self.start <= 1 and (self.end is None or 0 <= self.end < self.start)):
            raise UserError(f"a grid needs 0 <= end < start <= 1, got start {self.start} and end {self.end}")

    def __call__(self, schedule: Schedule, steps: int) -> Tensor:
        """Return the times, from start to end."""
        end = schedule.t_min if self.end is None else self.end
        if not end < self.start:
            raise UserError(f"a grid that starts at t = {self.start:g} cannot decrease to t = {end:g}")
        return self.times_at(schedule, end, torch.linspace(0, 1, steps, dtype=torch.float64))

    @abstractmethod
    def times_at(self, schedule: Schedule, end: float, fraction: Tensor) -> Tensor:
        """Return the times at these fractions, 0 at start and 1 at end: (steps,)."""


@dataclass(frozen=True)
class Uniform(DecreasingGrid):
    """Evenly spaced in t (arXiv:2010.02502); for a discrete chain with this number of steps, its own times."""

    def times_at(self, schedule: Schedule, end: float, fraction: Tensor) -> Tensor:
        """Return evenly spaced times."""
        return _between(self.start, end, fraction)


@dataclass(frozen=True)
class Quadratic(DecreasingGrid):
    """Evenly spaced in the square root of t: denser towards the data (arXiv:2010.02502, appendix D.2)."""

    def times_at(self, schedule: Schedule, end: float, fraction: Tensor) -> Tensor:
        """Return the squares of evenly spaced roots."""
        return _between(math.sqrt(self.start), math.sqrt(end), fraction).square()


@dataclass(frozen=True)
class Trailing(Grid):
    """Evenly spaced, t = start (1 - k / steps) for k < steps, then an equal step to 0 (arXiv:2305.08891, table 2).

    last: start of the last step instead, or 0 for a last step of equal length; a distilled model
    needs no short last step.
    """

    start: float = 1.0
    last: float = 0.0

    def __post_init__(self) -> None:
        if not 0 < self.start <= 1:
            raise UserError(f"a grid needs 0 < start <= 1, got {self.start}")
        if not 0 <= self.last < self.start:
            raise UserError(f"a grid needs 0 <= last < start, got {self.last} and {self.start}")

    def __call__(self, schedule: Schedule, steps: int) -> Tensor:
        """Return the times."""
        fraction = torch.arange(steps, dtype=torch.float64)
        if self.last:
            return _between(self.start, self.last, fraction / max(1, steps - 1))
        return self.start * (1 - fraction / steps)


def _between(first: float, last: float, fraction: Tensor) -> Tensor:
    """Return first + fraction (last - first), exact at both ends."""
    return first * (1 - fraction) + last * fraction


def _log_noise(schedule: Schedule, t: float) -> float:
    """Return log(sigma / alpha), or log(MAX_NOISE_RATIO) if alpha = 0."""
    alpha, sigma = schedule(t)
    if not sigma > 0:
        raise UserError(f"this grid needs noise at its end, and there is none at t = {t:g}; end it above")
    return math.log(MAX_NOISE_RATIO if schedule.is_pure_noise(t) else sigma / alpha)


@dataclass(frozen=True)
class LogSNR(DecreasingGrid):
    """Evenly spaced in the log-SNR (arXiv:2206.00927).  A schedule with alpha = 0 at its end starts at sigma / alpha = 100."""

    def times_at(self, schedule: Schedule, end: float, fraction: Tensor) -> Tensor:
        """Return the times at evenly spaced log-SNR."""
        return self._times(schedule, end, _between(*self._ends(schedule, end), fraction))

    def _ends(self, schedule: Schedule, end: float) -> tuple[float, float]:
        """Return log(sigma / alpha) at the start and at the end."""
        highest, lowest = _log_noise(schedule, self.start), _log_noise(schedule, end)
        if not lowest < highest:
            raise UserError(
                f"this grid starts at sigma / alpha = {math.exp(highest):g}, and t = {end:g} is noisier; decrease end"
            )
        return highest, lowest

    def _times(self, schedule: Schedule, end: float, log_noise: Tensor) -> Tensor:
        """Return the times with these log(sigma / alpha); start and end are set exactly, not by inversion."""
        times = torch.as_tensor(schedule.invert(-2 * log_noise))
        if len(times) > 1:
            times[-1] = end
        if not schedule.is_pure_noise(self.start):
            times[0] = self.start
        return times


@dataclass(frozen=True)
class Karras(LogSNR):
    """Evenly spaced in (sigma / alpha)^(1 / rho) (arXiv:2206.00364, eq. 5), with the same start as `LogSNR`."""

    rho: float = 7.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.rho > 0:
            raise UserError(f"rho must be above 0, got {self.rho}")

    def times_at(self, schedule: Schedule, end: float, fraction: Tensor) -> Tensor:
        """Return the times at evenly spaced roots of the noise level."""
        highest, lowest = (math.exp(noise / self.rho) for noise in self._ends(schedule, end))
        return self._times(schedule, end, self.rho * _between(highest, lowest, fraction).log())


@dataclass(frozen=True)
class Refined(DecreasingGrid):
    """Evenly spaced in t, with the last interval divided into `fine` steps evenly spaced in the log-SNR.

    A uniform grid ends with a jump from t = 1 / steps to the data, which loses detail finer than the noise at that time.  With
    fewer than three times `fine` steps, a third of the steps is fine.
    """

    fine: Annotated[int, Field(ge=1, le=1000)] = 5

    def times_at(self, schedule: Schedule, end: float, fraction: Tensor) -> Tensor:
        """Return evenly spaced times, denser near the data."""
        fine = min(self.fine, len(fraction) // 3)
        if not fine:
            return _between(self.start, end, fraction)
        even = _between(self.start, end, torch.linspace(0, 1, len(fraction) - fine + 1, dtype=torch.float64))[:-1]
        highest, lowest = _log_noise(schedule, float(even[-1])), _log_noise(schedule, end)
        refined = torch.as_tensor(
            schedule.invert(-2 * _between(highest, lowest, torch.linspace(0, 1, fine + 1, dtype=torch.float64)[1:]))
        )
        refined[-1] = end  # exact
        return torch.cat([even, refined])


@dataclass(frozen=True)
class Zigzag(Grid):
    """Another grid that takes every `jump` steps `repeats` times, with fresh noise in between (arXiv:2201.09865).

    In inpainting this harmonizes generated pixels with known ones (RePaint).
    """

    grid: str = "uniform"
    jump: Annotated[int, Field(ge=1, le=10_000)] = 5
    repeats: Annotated[int, Field(ge=1, le=1000)] = 2

    def __call__(self, schedule: Schedule, steps: int) -> Tensor:
        """Return the times of the other grid with its repetitions; steps: number of times of the other grid."""
        times = build(INNER, self.grid, "grid")(schedule, steps)
        path = times[:1].tolist()
        for top in range(0, steps - 1, self.jump):
            down = times[top : top + self.jump + 1].tolist()
            path += down[1:] + down * (self.repeats - 1)
        return torch.tensor(path, dtype=torch.float64)


@dataclass(frozen=True)
class Level(Grid):
    """One constant time, for Langevin dynamics at one noise level (arXiv:1907.05600)."""

    t: float = 0.1

    def __post_init__(self) -> None:
        if not 0 < self.t <= 1:
            raise UserError(f"the time of a level must lie in (0, 1], got {self.t}")

    def __call__(self, schedule: Schedule, steps: int) -> Tensor:
        """Return the time, repeated."""
        return torch.full((steps,), self.t, dtype=torch.float64)


INNER: dict[str, type[Grid]] = {
    "uniform": Uniform,
    "quadratic": Quadratic,
    "trailing": Trailing,
    "karras": Karras,
    "log-snr": LogSNR,
    "refined": Refined,
}

GRIDS: dict[str, type[Grid]] = {**INNER, "zigzag": Zigzag, "level": Level}
