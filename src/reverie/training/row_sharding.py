"""Tensors sharded by rows, and Muon on them."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor, nn

from reverie.base.team import Team
from reverie.training.optimizer import Matrices, Muon, orthogonal


class Rows:
    """The rows of a tensor in each process: ceil(rows / W), fewer in the last."""

    def __init__(self, team: Team) -> None:
        self.team = team

    def mine(self, t: Tensor) -> Tensor:
        """Return a copy of the rows of this process."""
        each = math.ceil(len(t) / self.team.world)
        return t[self.team.rank * each : (self.team.rank + 1) * each].clone()

    def _padded(self, rows: Tensor, count: int) -> Tensor:
        padded = rows.new_zeros(math.ceil(count / self.team.world), *rows.shape[1:])
        padded[: len(rows)] = rows
        return padded

    def gather(self, rows: Tensor, count: int) -> Tensor | None:
        """Return the complete tensor, of `count` rows, in the leader; None in workers."""
        padded = self._padded(rows, count)
        every = [torch.empty_like(padded) for _ in range(self.team.world)] if self.team.rank == 0 else None
        with self.team.handle_errors():
            dist.gather(padded, every, 0)
        return torch.cat(every)[:count] if every is not None else None

    def all_gather(self, rows: Tensor, count: int) -> Tensor:
        """Return the complete tensor in all processes."""
        padded = self._padded(rows, count)
        every = [torch.empty_like(padded) for _ in range(self.team.world)]
        with self.team.handle_errors():
            dist.all_gather(every, padded)
        return torch.cat(every)[:count]


class ShardedMuon(Muon):
    """Muon on sharded rows: gathers each matrix, orthogonalises it, and applies the rows of each process."""

    def __init__(self, parameters: Sequence[nn.Parameter], counts: Sequence[int], lr: float, rows: Rows) -> None:
        self.counts = {id(p): count for p, count in zip(parameters, counts, strict=True)}
        self.rows = rows
        super().__init__(parameters, lr)

    def form(self, p: Tensor) -> tuple[int, int]:
        """Return rows and columns of the complete matrix."""
        return self.counts[id(p)], math.prod(p.shape[1:])

    def updates(self, ahead: Matrices) -> Matrices:
        """Return the rows of this process of the orthogonal updates."""
        found: Matrices = {}
        for (rows, columns), parts in ahead.items():
            mine = torch.stack([g.reshape(len(g), columns) for g in parts], 1)  # (rows of mine, K, columns)
            whole = orthogonal(self.rows.all_gather(mine, rows).transpose(0, 1).contiguous())
            found[rows, columns] = list(self.rows.mine(whole.transpose(0, 1)).unbind(1))
        return found
