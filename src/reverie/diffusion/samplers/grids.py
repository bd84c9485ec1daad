"""Time grids: which times a trajectory visits.  A grid is a value; called with a schedule and a number of steps it gives times.

Most fall from `start` to `end`, or to t_min.  All end above sigma = 0, because the last act of sampling is an estimate.
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

MAX_NOISE_RATIO = 100.0  # sigma / alpha at which grids begin that need it finite, where the schedule ends at alpha = 0


class Grid(ABC):
    """A rule for times."""

    @abstractmethod
    def __call__(self, schedule: Schedule, steps: int) -> Tensor:
        """Return the times of this many steps: (steps,) float64."""


@dataclass(frozen=True)
class DecreasingGrid(Grid):
    """A grid that falls from start to end."""

    start: float = 1.0
    end: float | None = None

    def __post_init__(self) -> None:
        if not (0 < self.start <= 1 and (self.end is None or 0 <= self.end < self.start)):
            raise UserError(f"a grid needs 0 <= end < start <= 1, got start {self.start} and end {self.end}")

    def __call__(self, schedule: Schedule, steps: int) -> Tensor:
        """Return the times, from start to end."""
        end = schedule.t_min if self.end is None else self.end
        if not end < self.start:
            raise UserError(f"a grid that starts at t = {self.start:g} cannot fall to t = {end:g}")
        return self.place(schedule, end, torch.linspace(0, 1, steps, dtype=torch.float64))

    @abstractmethod
    def place(self, schedule: Schedule, end: float, share: Tensor) -> Tensor:
        """Return the times at these shares of the way from start to end: (steps,)."""


@dataclass(frozen=True)
class Uniform(DecreasingGrid):
    """Evenly spaced in t (arXiv:2010.02502); for a discrete chain of as many steps, its own times."""

    def place(self, schedule: Schedule, end: float, share: Tensor) -> Tensor:
        """Return evenly spaced times."""
        return _between(self.start, end, share)


@dataclass(frozen=True)
class Quadratic(DecreasingGrid):
    """Evenly spaced in the square root of t: closer towards the data (arXiv:2010.02502, appendix D.2)."""

    def place(self, schedule: Schedule, end: float, share: Tensor) -> Tensor:
        """Return the squares of evenly spaced roots."""
        return _between(math.sqrt(self.start), math.sqrt(end), share).square()


@dataclass(frozen=True)
class Trailing(Grid):
    """Evenly spaced, t = start (1 - k / steps) for k < steps, so that the last step to 0 is as long (arXiv:2305.08891).

    arXiv:2305.08891, table 2.  last: where the last step begins instead, 0 for as long as the others; a model that gives
    data at once needs no short steps.
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
        share = torch.arange(steps, dtype=torch.float64)
        if self.last:
            return _between(self.start, self.last, share / max(1, steps - 1))
        return self.start * (1 - share / steps)


def _between(first: float, last: float, share: Tensor) -> Tensor:
    """Return first + share (last - first), exact at both ends."""
    return first * (1 - share) + last * share


def _log_noise(schedule: Schedule, t: float) -> float:
    """Return log(sigma / alpha), that of MAX_NOISE_RATIO where alpha = 0."""
    alpha, sigma = schedule(t)
    if not sigma > 0:
        raise UserError(f"this grid needs noise at its end, and there is none at t = {t:g}; end it above")
    return math.log(MAX_NOISE_RATIO if schedule.is_pure_noise(t) else sigma / alpha)


@dataclass(frozen=True)
class LogSNR(DecreasingGrid):
    """Evenly spaced in the log-SNR (arXiv:2206.00927).  A schedule with alpha = 0 at its end starts at sigma / alpha = 100."""

    def place(self, schedule: Schedule, end: float, share: Tensor) -> Tensor:
        """Return the times at evenly spaced log-SNR."""
        return self._times(schedule, end, _between(*self._ends(schedule, end), share))

    def _ends(self, schedule: Schedule, end: float) -> tuple[float, float]:
        """Return log(sigma / alpha) at the start and at the end."""
        most, least = _log_noise(schedule, self.start), _log_noise(schedule, end)
        if not least < most:
            raise UserError(f"this grid starts at sigma / alpha = {math.exp(most):g}, and at t = {end:g} it is not below that")
        return most, least

    def _times(self, schedule: Schedule, end: float, log_noise: Tensor) -> Tensor:
        """Return the times with these log(sigma / alpha), the ends without the rounding of the inversion."""
        times = torch.as_tensor(schedule.invert(-2 * log_noise))
        if len(times) > 1:
            times[-1] = end
        if not schedule.is_pure_noise(self.start):
            times[0] = self.start
        return times


@dataclass(frozen=True)
class Karras(LogSNR):
    """Evenly spaced in (sigma / alpha)^(1 / rho) (arXiv:2206.00364, eq. 5); entered where log-snr is."""

    rho: float = 7.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.rho > 0:
            raise UserError(f"rho must be above 0, got {self.rho}")

    def place(self, schedule: Schedule, end: float, share: Tensor) -> Tensor:
        """Return the times at evenly spaced roots of the noise level."""
        most, least = (math.exp(noise / self.rho) for noise in self._ends(schedule, end))
        return self._times(schedule, end, self.rho * _between(most, least, share).log())


@dataclass(frozen=True)
class Refined(DecreasingGrid):
    """Evenly spaced in t, with the last interval divided into `fine` steps evenly spaced in the log-SNR.

    An even grid jumps from t = 1 / steps to the data, which loses detail finer than that noise.  Of fewer than three times as
    many steps a third is fine.
    """

    fine: Annotated[int, Field(ge=1, le=1000)] = 5

    def place(self, schedule: Schedule, end: float, share: Tensor) -> Tensor:
        """Return evenly spaced times, and closer ones near the data."""
        fine = min(self.fine, len(share) // 3)
        if not fine:
            return _between(self.start, end, share)
        even = _between(self.start, end, torch.linspace(0, 1, len(share) - fine + 1, dtype=torch.float64))[:-1]
        most, least = _log_noise(schedule, float(even[-1])), _log_noise(schedule, end)
        near = torch.as_tensor(
            schedule.invert(-2 * _between(most, least, torch.linspace(0, 1, fine + 1, dtype=torch.float64)[1:]))
        )
        near[-1] = end  # without the rounding of the inversion
        return torch.cat([even, near])


@dataclass(frozen=True)
class Zigzag(Grid):
    """Another grid that repeats every `jump` steps `repeats` times: down, up by fresh noise, down again (arXiv:2201.09865).

    It gives what is replaced on the way, as in inpainting, time to agree with the rest (RePaint, arXiv:2201.09865).
    """

    grid: str = "uniform"
    jump: Annotated[int, Field(ge=1, le=10_000)] = 5
    repeats: Annotated[int, Field(ge=1, le=1000)] = 2

    def __call__(self, schedule: Schedule, steps: int) -> Tensor:
        """Return the times of the other grid with its detours; steps counts the times of the other grid."""
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
        """Return the time, steps times."""
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
