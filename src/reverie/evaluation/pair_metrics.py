"""Evaluation of sequence-to-sequence models: exact match on unseen pairs, by source length, and the NLL of targets."""

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
from reverie.evaluation.section_plan import PlannedSection, ready_section
from reverie.families.model import SamplingInputs
from reverie.families.seq2seq.model import UNIT, PairModel
from reverie.runs.run import Run
from reverie.runs.sampling_options import Options

SAMPLES, QUICK = 2048, 256  # maximum numbers of unseen pairs
BATCH = 256  # sources per batch
RANGES = 5  # of the source lengths in training
SHOWN = 5  # wrong answers in the report
MIN_ERROR = 0.5  # answers added to both counts in the standard error, so that it is never 0


def pair_model(run: Run) -> PairModel:
    """Return the model of a run of pairs."""
    if not isinstance(run.model, PairModel):
        raise UserError(f"{run.path} is a run of {run.kind}; give a run of text pairs")
    return run.model


def share_right(right: Sequence[bool]) -> dict[str, Any]:
    """Return the share of right answers with its standard error, which is never 0."""
    n, k = len(right), sum(right)
    p = (k + MIN_ERROR) / (n + 2 * MIN_ERROR)
    return score(k / n, math.sqrt(p * (1 - p) / n), n=n)


def answer_pairs(model: PairModel, pairs: Sequence[TextPair], options: Options, on_progress: OnProgress) -> list[str]:
    """Return the answer to each source."""
    answers, x = list[str](), make_pairs(pairs)
    own_options = {key: value for key, value in options.items() if key in ("beams", "length", "temperature", "top_k", "top_p")}
    for first in range(0, len(pairs), BATCH):
        part = torch.arange(first, min(first + BATCH, len(pairs)))
        sources = x.take(part)[:, 0].to(model.device)
        *_, last = model.frames(SamplingInputs(part + 1, options={**own_options, "sources": sources}))
        answers += [model.spelled(row) for row in last.x0[:, 1].cpu().numpy()]
        on_progress("answering", len(answers), len(pairs))
    return answers


def by_length(pairs: Sequence[TextPair], right: Sequence[bool], longest: int) -> list[dict[str, Any]]:
    """Return the share of right answers by source length, within and beyond the lengths in training."""
    width = max(1, math.ceil(longest / RANGES))
    rows: dict[int, list[bool]] = {}
    for (source, _), ok in zip(pairs, right, strict=True):
        rows.setdefault((len(source) - 1) // width, []).append(ok)
    table = []
    for k in sorted(rows):
        share = share_right(rows[k])
        low, high = k * width + 1, (k + 1) * width
        table.append({"characters": f"{low}-{high}" if high > low else str(low), "trained": "yes" if low <= longest else "no",
                      "pairs": share["n"], "exact": round(share["value"], 4), "error": round(share["error"], 4)})  # fmt: skip
    return table


def pair_plan(
    run: Run, splits: tuple[Dataset, Dataset] | None, why: str, n: int, on_progress: OnProgress, options: Options
) -> tuple[list[PlannedSection], float, float]:
    """Return the planned sections of a run of pairs, and the wall and CPU seconds per answer."""
    model, title = pair_model(run), "Answers to unseen sources"
    if splits is None:
        missing = [
            ReportSection(name, heading, figures={"not_computable": why})
            for name, heading in (("answers", title), (NAME, TITLE))
        ]
        return [ready_section(section) for section in missing], math.nan, math.nan
    train, held = splits
    assert isinstance(train.x, TextPairs) and isinstance(held.x, TextPairs)
    seed, longest = options.get("seed", 0), int(train.x.lengths[:, 0].max())
    order = torch.randperm(len(held), generator=torch.Generator().manual_seed(seed))[:n]
    chosen = held.x.subset(order)
    unseen, longer = list(chosen.pairs()), longer_pairs(run.config.data.source or run.config.data.name, n, seed, longest)
    start, cpu_start = time.perf_counter(), time.process_time()
    answers = answer_pairs(model, [*unseen, *longer], options, on_progress)
    seconds, cpu_seconds = (part / len(answers) for part in (time.perf_counter() - start, time.process_time() - cpu_start))
    return [
        PlannedSection(
            "answers", title, lambda: answers_section(title, unseen, longer, answers, longest, (len(train), len(held)))
        ),
        PlannedSection(NAME, TITLE, lambda: _nll_section(model, chosen)),
    ], seconds, cpu_seconds  # fmt: skip


def answers_section(
    title: str,
    unseen: Sequence[TextPair],
    longer: Sequence[TextPair],
    answers: Sequence[str],
    longest: int,
    counts: tuple[int, int],
) -> ReportSection:
    """Compare answers with the targets.  counts: of training and of held-out pairs."""
    pairs = [*unseen, *longer]
    right = [answer == target for answer, (_, target) in zip(answers, pairs, strict=True)]
    figures: dict[str, Any] = {"exact_match": share_right(right[: len(unseen)])}
    verdict = f"{format_score(figures['exact_match'], '.4f')} of {len(unseen):,} unseen sources are answered exactly"
    if longer:
        figures["exact_match_longer"] = share_right(right[len(unseen) :])
        exact = format_score(figures["exact_match_longer"], ".4f")
        verdict += f", and {exact} of {len(longer):,} sources longer than the {longest} characters of training"
    figures["by_length"] = by_length(pairs, right, longest)
    lengths = ", ".join(f"{row['characters']} {row['exact']:.3f}" for row in figures["by_length"])
    verdict += f"; by characters: {lengths}."
    wrong = [(pair, answer) for pair, answer, ok in zip(pairs, answers, right, strict=True) if not ok]
    notes = [
        f"The sources of the {counts[1]:,} held-out pairs are disjoint from those of the {counts[0]:,} training pairs. ± is the"
        " standard error of a share; an answer is right if every character is.",
        *(f"wrong: {visible(s)} \u2192 {visible(a)}, target {visible(t)}" for (s, t), a in wrong[:SHOWN]),
    ]
    if not longer:
        notes.insert(1, "The dataset provides no longer sources, so generalization to greater lengths was not measured.")
    return ReportSection("answers", title, (verdict,), tuple(notes), figures)


def _nll_section(model: PairModel, unseen: TextPairs) -> ReportSection:
    cost = model.cost(unseen.take(torch.arange(len(unseen))))
    figure = score(cost.nats_per_token, cost.error, unit=UNIT, n=cost.pairs, tokens=cost.tokens)
    verdict = f"The exact NLL of the targets of unseen pairs is {format_score(figure, '.4f')} nats per token."
    notes = (f"{cost.tokens:,} tokens of {cost.pairs:,} targets, including their end tokens.",)
    return ReportSection(NAME, TITLE, (verdict,), notes, {"exact": figure})
