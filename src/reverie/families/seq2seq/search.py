"""Beam search for the most likely answers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from reverie.nets.sequence import State
from reverie.text.tokenizer import END

Next = Callable[[Tensor, State | None], tuple[Tensor, State]]  # all tokens or the newest, (K, n) -> log p of the next, (K, V)


@dataclass(frozen=True)
class Candidate:
    """Tokens without the end, and their log-probability with it; ended: False where the length limit ended them."""

    tokens: tuple[int, ...]
    log_prob: float
    ended: bool = True


def beam_search(following: Next, beams: int, limit: int) -> list[Candidate]:
    """Return up to `beams` answers, the most likely first, without length normalisation.

    Each step keeps the `beams` most likely continuations of all; finished answers occupy beams.  One beam is greedy; as many
    beams as sequences find the most likely one.  limit: largest number of tokens, after which answers are ended.
    """
    y, state = following(torch.zeros(1, 0, dtype=torch.int64), None)
    written: list[tuple[int, ...]] = [()]
    sums, ended = torch.zeros(1, dtype=torch.float64), list[Candidate]()
    for _ in range(limit):
        total = sums[:, None] + y.double().cpu()
        best, index = total.flatten().topk(min(beams - len(ended), total.numel()))
        rows, tokens = index // total.shape[1], index % total.shape[1]
        on = tokens != END
        ended += [Candidate(written[int(row)], float(value)) for row, value in zip(rows[~on], best[~on], strict=True)]
        rows, tokens, sums = rows[on], tokens[on], best[on]
        written = [(*written[int(row)], int(token)) for row, token in zip(rows, tokens, strict=True)]
        if not written:
            break
        y, state = following(tokens[:, None], state.take(rows))
    else:
        closed = (sums + y[:, END].double().cpu()).tolist()
        ended += [Candidate(tokens, value, ended=False) for tokens, value in zip(written, closed, strict=True)]
    return sorted(ended, key=lambda one: -one.log_prob)
