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
        per_process = math.ceil(len(t) / self.team.world)
        return t[self.team.rank * per_process : (self.team.rank + 1) * per_process].clone()

    def _padded(self, rows: Tensor, count: int) -> Tensor:
        padded = rows.new_zeros(math.ceil(count / self.team.world), *rows.shape[1:])
        padded[: len(rows)] = rows
        return padded

    def gather(self, rows: Tensor, count: int) -> Tensor | None:
        """Return the complete tensor, of `count` rows, in the leader; None in workers."""
        padded = self._padded(rows, count)
        gathered = [torch.empty_like(padded) for _ in range(self.team.world)] if self.team.rank == 0 else None
        with self.team.handle_errors():
            dist.gather(padded, gathered, 0)
        return torch.cat(gathered)[:count] if gathered is not None else None

    def all_gather(self, rows: Tensor, count: int) -> Tensor:
        """Return the complete tensor in all processes."""
        padded = self._padded(rows, count)
        gathered = [torch.empty_like(padded) for _ in range(self.team.world)]
        with self.team.handle_errors():
            dist.all_gather(gathered, padded)
        return torch.cat(gathered)[:count]


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
        own_updates: Matrices = {}
        for (rows, columns), parts in ahead.items():
            own_rows = torch.stack([g.reshape(len(g), columns) for g in parts], 1)  # (own rows, K, columns)
            orthogonal_matrices = orthogonal(self.rows.all_gather(own_rows, rows).transpose(0, 1).contiguous())
            own_updates[rows, columns] = list(self.rows.mine(orthogonal_matrices.transpose(0, 1)).unbind(1))
        return own_updates
