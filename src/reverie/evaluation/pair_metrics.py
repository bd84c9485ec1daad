"""Evaluating a model of answers: how many unseen pairs it answers exactly, by length, and what their targets cost."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from typing import Any

import torch

from reverie.base.errors import UserError
from reverie.base.progress import OnProgress
from reverie.base.visible import visible
from reverie.data import Dataset
from reverie.data.pair_sets import longer_pairs
from reverie.data.text_pairs import TextPair, TextPairs, make_pairs
from reverie.evaluation.likelihood import NAME, TITLE
from reverie.evaluation.report_section import ReportSection
from reverie.evaluation.scores import format_score, score
from reverie.evaluation.section_plan import Planned, planned
from reverie.families.model import SamplingInputs
from reverie.families.seq2seq.model import UNIT, PairModel
from reverie.runs.run import Run
from reverie.runs.sampling_options import Options

SAMPLES, QUICK = 2048, 256  # unseen pairs that are answered, at most
AT_ONCE = 256  # that are answered together
RANGES = 5  # of the lengths that were trained on
SHOWN = 5  # wrong answers that are told
LEAST_ERROR = 0.5  # answers by which a share of none or all is counted off, in its error


def pair_model(run: Run) -> PairModel:
    """Return the model of a run of pairs."""
    if not isinstance(run.model, PairModel):
        raise UserError(f"{run.path} is a run of {run.kind}, not of pairs of texts")
    return run.model


def share_right(right: Sequence[bool]) -> dict[str, Any]:
    """Return how many of answers are right, with the standard error of a share, which is never taken to be 0."""
    n, k = len(right), sum(right)
    p = (k + LEAST_ERROR) / (n + 2 * LEAST_ERROR)
    return score(k / n, math.sqrt(p * (1 - p) / n), n=n)


def answer_pairs(model: PairModel, pairs: Sequence[TextPair], options: Options, tell: OnProgress) -> list[str]:
    """Return the answer to each source."""
    found, x = list[str](), make_pairs(pairs)
    known = {key: value for key, value in options.items() if key in ("beams", "length", "temperature", "top_k", "top_p")}
    for first in range(0, len(pairs), AT_ONCE):
        part = torch.arange(first, min(first + AT_ONCE, len(pairs)))
        rows = x.take(part)[:, 0].to(model.device)
        *_, last = model.frames(SamplingInputs(part + 1, options={**known, "sources": rows}))
        found += [model.spelled(row) for row in last.x0[:, 1].cpu().numpy()]
        tell("answering", len(found), len(pairs))
    return found


def by_length(pairs: Sequence[TextPair], right: Sequence[bool], longest: int) -> list[dict[str, Any]]:
    """Return the share of right answers for sources of so many characters, up to the longest trained on and beyond."""
    wide = max(1, math.ceil(longest / RANGES))
    rows: dict[int, list[bool]] = {}
    for (source, _), ok in zip(pairs, right, strict=True):
        rows.setdefault((len(source) - 1) // wide, []).append(ok)
    table = []
    for k in sorted(rows):
        found = share_right(rows[k])
        low, high = k * wide + 1, (k + 1) * wide
        table.append({"characters": f"{low}-{high}" if high > low else str(low), "trained": "yes" if low <= longest else "no",
                      "pairs": found["n"], "exact": round(found["value"], 4), "error": round(found["error"], 4)})  # fmt: skip
    return table


def pair_plan(
    run: Run, whole: tuple[Dataset, Dataset] | None, why: str, n: int, tell: OnProgress, options: Options
) -> tuple[list[Planned], float, float]:
    """Return the sections of a run of pairs, whose answers are given, and the seconds of wall and processor that one took."""
    model, title = pair_model(run), "Answers to unseen sources"
    if whole is None:
        lost = [
            ReportSection(name, about, figures={"not_computable": why}) for name, about in (("answers", title), (NAME, TITLE))
        ]
        return [planned(section) for section in lost], math.nan, math.nan
    train, held = whole
    assert isinstance(train.x, TextPairs) and isinstance(held.x, TextPairs)
    seed, longest = options.get("seed", 0), int(train.x.lengths[:, 0].max())
    order = torch.randperm(len(held), generator=torch.Generator().manual_seed(seed))[:n]
    chosen = held.x.subset(order)
    unseen, longer = list(chosen.pairs()), longer_pairs(run.config.data.source or run.config.data.name, n, seed, longest)
    begun, worked = time.perf_counter(), time.process_time()
    answers = answer_pairs(model, [*unseen, *longer], options, tell)
    each, work = (part / len(answers) for part in (time.perf_counter() - begun, time.process_time() - worked))
    return [
        Planned("answers", title, lambda: answers_section(title, unseen, longer, answers, longest, (len(train), len(held)))),
        Planned(NAME, TITLE, lambda: _cost_section(model, chosen)),
    ], each, work  # fmt: skip


def answers_section(
    title: str,
    unseen: Sequence[TextPair],
    longer: Sequence[TextPair],
    answers: Sequence[str],
    longest: int,
    counts: tuple[int, int],
) -> ReportSection:
    """Compare answers with what they should be.  counts: of pairs that were trained on, and of those held out."""
    pairs = [*unseen, *longer]
    right = [answer == target for answer, (_, target) in zip(answers, pairs, strict=True)]
    figures: dict[str, Any] = {"exact_match": share_right(right[: len(unseen)])}
    verdict = f"{format_score(figures['exact_match'], '.4f')} of {len(unseen):,} unseen sources are answered exactly"
    if longer:
        figures["exact_match_longer"] = share_right(right[len(unseen) :])
        exact = format_score(figures["exact_match_longer"], ".4f")
        verdict += f", and {exact} of {len(longer):,} sources longer than the {longest} characters trained on"
    figures["by_length"] = by_length(pairs, right, longest)
    told = ", ".join(f"{row['characters']} {row['exact']:.3f}" for row in figures["by_length"])
    verdict += f"; by characters: {told}."
    wrong = [(pair, answer) for pair, answer, ok in zip(pairs, answers, right, strict=True) if not ok]
    words = [
        f"No source of the {counts[1]:,} held-out pairs is among the {counts[0]:,} that were trained on. ± is the standard"
        " error of a share; an answer is right if every character is.",
        *(f"wrong: {visible(s)} \u2192 {visible(a)}, should be {visible(t)}" for (s, t), a in wrong[:SHOWN]),
    ]
    if not longer:
        words.insert(1, "No longer sources than these are known, so what the model makes of such was not measured.")
    return ReportSection("answers", title, (verdict,), tuple(words), figures)


def _cost_section(model: PairModel, unseen: TextPairs) -> ReportSection:
    cost = model.cost(unseen.take(torch.arange(len(unseen))))
    figure = score(cost.nats_per_token, cost.error, unit=UNIT, n=cost.pairs, tokens=cost.tokens)
    told = f"The targets of unseen pairs cost {format_score(figure, '.4f')} nats for each token, exactly."
    words = (f"{cost.tokens:,} tokens of {cost.pairs:,} targets, their ends among them.",)
    return ReportSection(NAME, TITLE, (told,), words, {"exact": figure})
