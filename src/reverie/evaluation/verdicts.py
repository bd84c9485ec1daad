"""Verdicts: rules that detect one fault each in the figures of an evaluation."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from reverie.evaluation.report_section import ReportSection
from reverie.evaluation.scores import (
    FLOOR_THRESHOLD,
    HEADLINE_METRICS,
    SIGNIFICANCE,
    HeadlineMetric,
    familywise_threshold,
    format_score,
    z_above_floor,
)

Figures = Mapping[str, Any]

LOW_SHARE = 0.5  # of the floor's precision, recall or coverage: below it is a fault
NOTABLE_SHARE = 0.85  # of the floor: below it is a large difference, though no fault
NOTABLE_ACCURACY = 0.75  # accuracy of the two-sample classifier: above it is a large difference
BLURRED, NOISY = 0.75, 1.35  # detail relative to data
COPIED = 0.01  # excess share of copies that is a fault
COPIED_PASSAGE = 1.5  # times the longest passage that held-out text shares with the training text
COLLAPSED = 0.5  # share of repeated samples that counts as mode collapse
UNRELIABLE_KID = 0.05  # floor or error of KID above which a slight blur would go unnoticed
FAULTY_ACCURACY = 0.9  # accuracy of the two-sample classifier that is a fault


def _low(f: Figures, *names: str) -> str:
    """Format those of the named figures that are far below the floor."""
    low = [
        name for name in names if f[name]["value"] < LOW_SHARE * f[name]["floor"] and z_above_floor(f[name]) < -FLOOR_THRESHOLD
    ]
    return " and ".join(f"{name} {f[name]['value']:.2f} (real data {format_score(f[name], '.2f', 'floor')})" for name in low)


def low_precision(f: Figures) -> str | None:
    """Samples outside the neighbourhoods of the data."""
    low = _low(f, "precision", "density")
    return f"most samples are unlike the data: {low}" if low else None


def mode_collapse(f: Figures) -> str | None:
    """Samples that cover only a part of the data."""
    low = _low(f, "recall", "coverage")
    return f"the samples lack diversity: {low}" if low else None


def repeated(f: Figures) -> str | None:
    """Identical samples."""
    r = f["repeated"]
    if r["value"] - r.get("floor", 0.0) <= COPIED or z_above_floor(r) <= FLOOR_THRESHOLD:
        return None
    floor = f" (data: {r['floor']:.0%})" if r.get("floor") else ""
    collapse = ": mode collapse" if r["value"] > COLLAPSED else ""
    return f"{r['value']:.0%} of the samples are identical to another sample{floor}{collapse}"


def blurred(f: Figures) -> str | None:
    """Samples with less detail than the data."""
    d = f.get("detail")
    if not d or d["value"] >= BLURRED * d["floor"] or z_above_floor(d) > -FLOOR_THRESHOLD:
        return None
    return f"the samples are blurred: the mean difference of adjacent pixels is {d['value']:.2f} times that of the data"


def noisy(f: Figures) -> str | None:
    """Samples with more detail than the data."""
    d = f.get("detail")
    if not d or d["value"] <= NOISY * d["floor"] or z_above_floor(d) < FLOOR_THRESHOLD:
        return None
    return f"the samples are noisy: the mean difference of adjacent pixels is {d['value']:.2f} times that of the data"


def feature_shift(f: Figures) -> str | None:
    """Samples whose features are distributed differently from those of the data."""
    k = f["kid"]
    if z_above_floor(k) <= FLOOR_THRESHOLD:
        return None
    return f"the samples differ from the data: KID {format_score(k)}, real data {format_score(k, '.2g', 'floor')}"


def inconclusive(f: Figures) -> str | None:
    """Too few real data, or real data too different from each other, for a conclusion."""
    k = f["kid"]
    floor, error = k.get("floor", 0.0), k.get("floor_error", 0.0)
    if floor >= UNRELIABLE_KID and floor - error > k["value"]:
        return (
            f"inconclusive: two sets of real data differ more (KID {format_score(k, of='floor')}) than samples and data"
            f" ({format_score(k)}): too few data, or unsuitable features"
        )
    if error >= UNRELIABLE_KID and z_above_floor(k) <= FLOOR_THRESHOLD:
        return f"inconclusive: too few data: KID {format_score(k, of='floor')} of real data, {format_score(k)} of samples"

    return None


def distinguishable(f: Figures) -> str | None:
    """Samples that a logistic classifier distinguishes from data."""
    t = f["two_sample_accuracy"]
    if t["value"] < FAULTY_ACCURACY or t["p_value"] > 0.01:
        return None
    return f"a logistic classifier distinguishes samples from data with accuracy {t['value']:.0%} (chance: 50%)"


def shifted(f: Figures) -> str | None:
    """Points that are distributed differently from the data."""
    s, m = f["sliced_wasserstein"], f["mmd"]
    if z_above_floor(s) <= FLOOR_THRESHOLD or m["p_value"] > SIGNIFICANCE:
        return None
    return (
        f"the points differ from the data: sliced Wasserstein distance {format_score(s)} (real data {s['floor']:.2g}),"
        f" MMD p = {m['p_value']:.2g}"
    )


def wrong_labels(f: Figures) -> str | None:
    """Samples without their requested labels."""
    a = f["label_accuracy"]
    if z_above_floor(a) > -FLOOR_THRESHOLD or a["value"] > 0.9 * a["floor"]:
        return None
    return f"the samples ignore their labels: label accuracy {a['value']:.0%}, held-out data {a['floor']:.0%}"


def ignored_captions(f: Figures) -> str | None:
    """Samples that do not match their captions."""
    poor = [name for name, a in f.items() if z_above_floor(a) < -FLOOR_THRESHOLD and a["value"] < 0.9 * a["floor"]]
    if not poor:
        return None
    worst = min(poor, key=lambda name: f[name]["value"] / f[name]["floor"])
    share, floor = f[worst]["value"], f[worst]["floor"]
    return f"the samples ignore their captions: {worst}: accuracy {share:.0%}, real images {floor:.0%}"


def memorized(f: Figures) -> str | None:
    """Samples that are copies of training data."""
    c = f["copies"]
    if c["value"] - c["floor"] <= COPIED or z_above_floor(c) <= FLOOR_THRESHOLD:
        return None
    return (
        f"the model memorized training data: {c['value']:.1%} of the samples are copies,"
        f" {c['floor']:.1%} of {f.get('floor_source', 'held-out data')}"
    )


def memorized_text(f: Figures) -> str | None:
    """Samples with long passages of the training text."""
    p = f["longest"]
    if p["value"] <= COPIED_PASSAGE * p["floor"] or z_above_floor(p) <= FLOOR_THRESHOLD:
        return None
    return (
        f"the model memorized training text: the longest shared passage of a sample has {p['value']:.0f} characters, of"
        f" held-out text {p['floor']:.0f}"
    )


def gibberish(f: Figures) -> str | None:
    """Text whose character n-grams differ from those of real text."""
    n = f.get("novel_8")
    if n is None or 1 - n["value"] >= LOW_SHARE * (1 - n["floor"]) or z_above_floor(n) <= FLOOR_THRESHOLD:
        return None
    return (
        f"the samples are unlike the text: {n['value']:.0%} of their 8-grams are not in the training text, of held-out text"
        f" {n['floor']:.0%}"
    )


# Fault -> the section with its figures, and the rule; the worst first.
RULES: dict[str, tuple[str, Callable[[Figures], str | None]]] = {
    "repeated": ("samples", repeated),
    "memorized": ("memorization", memorized),
    "memorized_text": ("passages", memorized_text),
    "gibberish": ("passages", gibberish),
    "low_precision": ("precision_recall", low_precision),
    "mode_collapse": ("precision_recall", mode_collapse),
    "blurred": ("quality", blurred),
    "noisy": ("quality", noisy),
    "wrong_labels": ("labels", wrong_labels),
    "ignored_captions": ("captions", ignored_captions),
    "distinguishable": ("two_sample", distinguishable),
    "shifted": ("points", shifted),
    "feature_shift": ("quality", feature_shift),
    "inconclusive": ("quality", inconclusive),
}


def find_faults(name: str, figures: Figures) -> tuple[str, ...]:
    """Return the sentences of the rules that apply to the figures of one section."""
    if "not_computable" in figures:
        return ()
    return tuple(line for section, rule in RULES.values() if section == name and (line := rule(figures)))


def differences(figures: Mapping[str, Figures]) -> tuple[list[str], list[str]]:
    """Return the headline metrics that are significantly worse than those of real data: large differences, and small ones."""
    rows = [(row, row.of(figures)) for row in HEADLINE_METRICS.values()]
    with_floor = [(row, figure) for row, figure in rows if figure is not None and {"floor", "error"} <= set(figure)]

    def is_worse(row: HeadlineMetric, figure: Figures) -> bool:
        z = z_above_floor(figure)
        if row.better == "floor":
            return abs(z) > familywise_threshold(len(with_floor), 2)
        return (z if row.better == "low" else -z) > familywise_threshold(len(with_floor))

    def is_large(row: HeadlineMetric, figure: Figures) -> bool:
        if row.name == "two_sample_accuracy":
            return bool(figure["value"] > NOTABLE_ACCURACY)
        low = bool(figure["value"] < NOTABLE_SHARE * figure["floor"])
        if row.better == "high":
            return low
        return row.name == "diversity" and (low or figure["value"] > figure["floor"] / NOTABLE_SHARE)

    large_and_small: tuple[list[str], list[str]] = [], []
    for r, f in with_floor:
        if is_worse(r, f):
            large_and_small[not is_large(r, f)].append(f"{r.title} {f['value']:{r.form}} ({format_score(f, r.form, 'floor')})")
    return large_and_small


def assess(sections: Sequence[ReportSection]) -> tuple[list[str], list[str]]:
    """Return the names of the faults, and the lines of the verdict, the worst first."""
    figures = {s.name: s.figures for s in sections if "not_computable" not in s.figures}
    flags = {name: line for name, (section, rule) in RULES.items() if section in figures and (line := rule(figures[section]))}
    measured = [s for s in sections if s.name in figures and any(s.name == section for section, _ in RULES.values())]
    if flags:
        lines = list(flags.values())
    elif {"quality", "points", "passages"} & set(figures):
        large, small = differences(figures)
        small_line = f"small but significant differences from real data: {', '.join(small)}"
        if large:
            lines = [f"worse than real data: {', '.join(large)}", *([small_line] if small else [])]
        elif small:
            lines = [f"good: no fault found; {small_line}"]
        else:
            lines = ["good: no significant difference between samples and real data"]
    elif measured:
        lines = ["no fault found, but too few figures could be computed for a verdict"]
    else:
        lines = []
    lines += [s.verdict[0] for s in sections if s.verdict and s.name in figures and s not in measured]
    left_out = (f"not measured: {', '.join(titles)}: {why}" for why, titles in missing(sections).items())
    return list(flags), [*lines, *left_out]


def missing(sections: Sequence[ReportSection]) -> dict[str, list[str]]:
    """Return the titles of the sections without figures, by the reason."""
    titles: dict[str, list[str]] = {}
    for s in sections:
        if "not_computable" in s.figures:
            titles.setdefault(s.figures["not_computable"], []).append(s.title[0].lower() + s.title[1:])
    return titles
