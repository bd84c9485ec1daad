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

    Each step keeps the `beams` most likely continuations of all prefixes; finished answers occupy beams.  One beam is greedy;
    as many beams as sequences make the search exact.  limit: maximum number of tokens, at which answers are ended.
    """
    y, state = following(torch.zeros(1, 0, dtype=torch.int64), None)
    prefixes: list[tuple[int, ...]] = [()]
    sums, finished = torch.zeros(1, dtype=torch.float64), list[Candidate]()
    for _ in range(limit):
        total = sums[:, None] + y.double().cpu()
        best, index = total.flatten().topk(min(beams - len(finished), total.numel()))
        rows, tokens = index // total.shape[1], index % total.shape[1]
        unfinished = tokens != END
        finished += [
            Candidate(prefixes[int(row)], float(value)) for row, value in zip(rows[~unfinished], best[~unfinished], strict=True)
        ]
        rows, tokens, sums = rows[unfinished], tokens[unfinished], best[unfinished]
        prefixes = [(*prefixes[int(row)], int(token)) for row, token in zip(rows, tokens, strict=True)]
        if not prefixes:
            break
        y, state = following(tokens[:, None], state.take(rows))
    else:
        totals = (sums + y[:, END].double().cpu()).tolist()
        finished += [Candidate(tokens, value, ended=False) for tokens, value in zip(prefixes, totals, strict=True)]
    return sorted(finished, key=lambda candidate: -candidate.log_prob)
