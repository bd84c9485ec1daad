"""Evaluation of language models: the NLL of held-out text, and copied and novel passages of samples."""

from __future__ import annotations

import math
import time
from collections import Counter
from typing import Any

import numpy as np

from reverie.base.errors import UserError
from reverie.base.progress import OnProgress
from reverie.data import Dataset
from reverie.data.text_windows import TextWindows, codes_of
from reverie.diffusion.likelihood.normal import mean_and_error
from reverie.evaluation.likelihood import NAME, TITLE
from reverie.evaluation.report_section import ReportSection
from reverie.evaluation.scores import format_score, score
from reverie.evaluation.section_plan import PlannedSection, ready_section
from reverie.families.language.model import UNIT, LanguageModel
from reverie.runs.run import Run
from reverie.runs.sampling_options import Options
from reverie.text.passages import MAX_PASSAGE, Passages

SAMPLES, QUICK = 64, 16  # texts
MEASURED, MEASURED_QUICK = 10**7, 50_000  # maximum characters of held-out text whose NLL is computed
SEARCHED = 4 * 2**20  # maximum characters of the training text that are searched for passages
GRAMS = (4, 8, 16, 32)
SHOWN = 4
PASSAGES = "Copied and novel passages"


def language_model(run: Run) -> LanguageModel:
    """Return the model of a run of text."""
    if not isinstance(run.model, LanguageModel):
        raise UserError(f"{run.path} is a run of {run.kind}, not of text")
    return run.model


def nll_section(run: Run, held: Dataset, quick: bool) -> ReportSection:
    """Compute the exact NLL of the held-out text in one pass."""
    assert isinstance(held.x, TextWindows)
    texts, left = list[str](), MEASURED_QUICK if quick else MEASURED
    for text in held.x.texts():
        if left > 0:
            texts.append(text[:left])
            left -= len(text)
    start, cpu_start = time.perf_counter(), time.process_time()
    cost = language_model(run).cost(texts)
    figure = score(cost.bits, cost.error, unit=UNIT, n=cost.characters, bits_per_byte=cost.bits_per_byte,
                   nats_per_token=cost.nats / cost.tokens, tokens=cost.tokens, seconds=time.perf_counter() - start,
                   processor_seconds=time.process_time() - cpu_start)  # fmt: skip
    verdict = f"The NLL of held-out text is {format_score(figure, '.3f')} {UNIT}, {cost.bits_per_byte:.3f} bits per byte."
    notes = (
        f"The NLL is exact: {cost.characters:,} characters in {cost.tokens:,} tokens, {figure['nats_per_token']:.4f} nats per"
        " token given all earlier ones. The error is the standard error over pieces of 512 characters.",
    )
    return ReportSection(NAME, TITLE, (verdict,), notes, {"exact": figure})


def passages_section(samples: list[str], train: Dataset, held: Dataset) -> ReportSection:
    """Measure the longest passage that each sample shares with the training text; held-out text of that length is the floor."""
    assert isinstance(train.x, TextWindows) and isinstance(held.x, TextWindows)
    training_text = train.x.codes[:SEARCHED]
    codes = [codes_of(text) for text in samples]
    size = max(map(len, codes))
    starts = np.linspace(0, max(0, len(held.x.codes) - size), len(codes)).astype(int)
    real = [held.x.codes[s : s + len(c)] for s, c in zip(starts, codes, strict=True)]
    search = Passages(training_text, [*codes, *real])
    lengths = search.longest().astype(float)
    of_samples, of_real = lengths[: len(codes)], lengths[len(codes) :]
    figures: dict[str, Any] = {
        "longest": score(*_mean(of_samples), *_mean(of_real), n=len(codes), most=float(of_samples.max()), characters=size)
    }
    for n in GRAMS:
        share = search.novel(n)
        shares = [part[np.isfinite(part)] for part in (share[: len(codes)], share[len(codes) :])]
        if all(len(part) for part in shares):
            figures[f"novel_{n}"] = score(*_mean(shares[0]), *_mean(shares[1]), n=len(shares[0]))
    verdict = (
        "The longest passage of a sample in the training text has on average"
        f" {format_score(figures['longest'], '.1f')} characters, of held-out text"
        f" {format_score(figures['longest'], '.1f', 'floor')}; the maximum is {of_samples.max():.0f}."
    )
    note = (
        f" Only the first {len(training_text):,} characters of the training text were searched."
        if len(train.x.codes) > SEARCHED
        else ""
    )
    notes = (
        f"Samples have up to {size} characters; passages count up to {MAX_PASSAGE} characters.{note} novel_n is the share of"
        " character n-grams that are not in the training text.",
    )
    return ReportSection("passages", PASSAGES, (verdict,), notes, figures)


def _repeated(texts: list[str]) -> dict[str, Any]:
    """Return the share of texts that are identical to another text."""
    counts = Counter(texts)
    share = sum(count for count in counts.values() if count > 1) / len(texts)
    return score(share, math.sqrt(share * (1 - share) / len(texts)), 0.0, n=len(texts))


def _mean(x: np.ndarray) -> tuple[float, float | None]:
    import torch

    return mean_and_error(torch.from_numpy(x).double())


def text_plan(
    run: Run, splits: tuple[Dataset, Dataset] | None, why: str, n: int, quick: bool, on_progress: OnProgress, options: Options
) -> tuple[list[PlannedSection], float, float]:
    """Return the planned sections of a run of text, and the wall and CPU seconds per sample."""
    start, cpu_start = time.perf_counter(), time.process_time()
    texts = run.sample(n, on_progress=on_progress, **options).texts
    seconds, cpu_seconds = (time.perf_counter() - start) / n, (time.process_time() - cpu_start) / n
    characters = sum(map(len, texts))
    speed = {"characters": characters, "characters_per_processor_second": characters / max(1e-9, cpu_seconds * n)}
    shown = tuple(f"{text!r}" for text in texts[:SHOWN])
    samples = ReportSection("samples", "Samples", (), shown, {"repeated": _repeated(texts), "speed": speed})
    plan, nonempty = [ready_section(samples)], [text for text in texts if text]
    if splits is None:
        return [*plan, ready_section(ReportSection(NAME, TITLE, figures={"not_computable": why}))], seconds, cpu_seconds
    plan.append(PlannedSection(NAME, TITLE, lambda: nll_section(run, splits[1], quick)))
    if nonempty:
        plan.append(PlannedSection("passages", PASSAGES, lambda: passages_section(nonempty, *splits)))
    return plan, seconds, cpu_seconds
