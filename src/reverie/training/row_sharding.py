"""Tensors of which each process has its rows, and Muon on such rows."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor, nn

from reverie.base.team import Team
from reverie.training.optimizer import Matrices, Muon, orthogonal


class Rows:
    """Which rows of a tensor a process has: those of its part, of ceil(rows / W) each, the last of which may be fewer."""

    def __init__(self, team: Team) -> None:
        self.team = team

    def mine(self, t: Tensor) -> Tensor:
        """Return a copy of this process's rows."""
        each = math.ceil(len(t) / self.team.world)
        return t[self.team.rank * each : (self.team.rank + 1) * each].clone()

    def _padded(self, rows: Tensor, count: int) -> Tensor:
        padded = rows.new_zeros(math.ceil(count / self.team.world), *rows.shape[1:])
        padded[: len(rows)] = rows
        return padded

    def gathered(self, rows: Tensor, count: int) -> Tensor | None:
        """Return the whole tensor, of so many rows, in the leader."""
        padded = self._padded(rows, count)
        every = [torch.empty_like(padded) for _ in range(self.team.world)] if self.team.rank == 0 else None
        with self.team.handle_errors():
            dist.gather(padded, every, 0)
        return torch.cat(every)[:count] if every is not None else None

    def everywhere(self, rows: Tensor, count: int) -> Tensor:
        """Return the whole tensor in every process."""
        padded = self._padded(rows, count)
        every = [torch.empty_like(padded) for _ in range(self.team.world)]
        with self.team.handle_errors():
            dist.all_gather(every, padded)
        return torch.cat(every)[:count]


class ShardedMuon(Muon):
    """Muon on rows: a matrix is gathered to be made orthogonal, and each process takes its rows of the update."""

    def __init__(self, parameters: Sequence[nn.Parameter], counts: Sequence[int], lr: float, rows: Rows) -> None:
        self.counts = {id(p): count for p, count in zip(parameters, counts, strict=True)}
        self.rows = rows
        super().__init__(parameters, lr)

    def form(self, p: Tensor) -> tuple[int, int]:
        """Return rows and columns of the whole matrix."""
        return self.counts[id(p)], math.prod(p.shape[1:])

    def updates(self, ahead: Matrices) -> Matrices:
        """Return this process's rows of the orthogonal updates."""
        found: Matrices = {}
        for (rows, columns), parts in ahead.items():
            mine = torch.stack([g.reshape(len(g), columns) for g in parts], 1)  # (rows of mine, K, columns)
            whole = orthogonal(self.rows.everywhere(mine, rows).transpose(0, 1).contiguous())
            found[rows, columns] = list(self.rows.mine(whole.transpose(0, 1)).unbind(1))
        return found
