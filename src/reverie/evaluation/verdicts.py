"""The verdict: rules that find one fault each, or nothing, in what was measured."""

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

FAR = 0.5  # of real data's precision, recall or coverage: less is a fault of its own
NOTABLE = 0.85  # of real data's share: less is no fault of its own, and still not good
EASILY = 0.75  # of right answers: samples that are often told from data
BLURRED, GRAINY = 0.75, 1.35  # of the data's detail
COPIED = 0.01  # share of copies that is worth a word
RECITED = 1.5  # times the longest passage that held-out text shares with the training text
COLLAPSED = 0.5  # share of repeated samples from which on there is little else
BLIND = 0.05  # of KID between real data, or its error: about what a slight blur makes, which could then not be seen
TOLD = 0.9  # of right answers: samples that are told from data nearly always


def _low(f: Figures, *names: str) -> str:
    """Say which of some figures are far below those of real data."""
    low = [name for name in names if f[name]["value"] < FAR * f[name]["floor"] and z_above_floor(f[name]) < -FLOOR_THRESHOLD]
    return " and ".join(f"{name} {f[name]['value']:.2f} (real data {format_score(f[name], '.2f', 'floor')})" for name in low)


def unlike(f: Figures) -> str | None:
    """Samples that lie where no data lie."""
    low = _low(f, "precision", "density")
    return f"most samples do not look like the data: {low}" if low else None


def collapsed(f: Figures) -> str | None:
    """Samples that show only a part of what the data show."""
    low = _low(f, "recall", "coverage")
    return f"the samples lack variety: {low}" if low else None


def repeated(f: Figures) -> str | None:
    """The same sample again and again."""
    r = f["repeated"]
    if r["value"] - r.get("floor", 0.0) <= COPIED or z_above_floor(r) <= FLOOR_THRESHOLD:
        return None
    beside = f" (of data {r['floor']:.0%})" if r.get("floor") else ""
    fate = ": the model has collapsed" if r["value"] > COLLAPSED else ""
    return f"{r['value']:.0%} of the samples are the same as another one{beside}{fate}"


def blurred(f: Figures) -> str | None:
    """Samples with less detail than data."""
    d = f.get("detail")
    if not d or d["value"] >= BLURRED * d["floor"] or z_above_floor(d) > -FLOOR_THRESHOLD:
        return None
    return f"the samples are blurred: neighbouring pixels differ {d['value']:.2f} times as much as in the data"


def grainy(f: Figures) -> str | None:
    """Samples with more detail than data."""
    d = f.get("detail")
    if not d or d["value"] <= GRAINY * d["floor"] or z_above_floor(d) < FLOOR_THRESHOLD:
        return None
    return f"the samples are noisy: neighbouring pixels differ {d['value']:.2f} times as much as in the data"


def distant(f: Figures) -> str | None:
    """Features that differ on average."""
    k = f["kid"]
    if z_above_floor(k) <= FLOOR_THRESHOLD:
        return None
    return f"on average the samples differ from the data: KID {format_score(k)}, real data {format_score(k, '.2g', 'floor')}"


def undecided(f: Figures) -> str | None:
    """Real data by which nothing can be judged: further from the training data than the samples are, or who knows how far."""
    k = f["kid"]
    floor, error = k.get("floor", 0.0), k.get("floor_error", 0.0)
    if floor >= BLIND and floor - error > k["value"]:
        return (
            f"inconclusive: two sets of real data differ more (KID {format_score(k, of='floor')}) than samples and data"
            f" ({format_score(k)}): too few data, or unsuitable features"
        )
    if error >= BLIND and z_above_floor(k) <= FLOOR_THRESHOLD:
        return (
            f"inconclusive, too few data: the KID of real data is {format_score(k, of='floor')}, of samples {format_score(k)}"
        )
    return None


def told_apart(f: Figures) -> str | None:
    """Samples that a simple classifier recognises."""
    t = f["told_apart"]
    if t["value"] < TOLD or t["p_value"] > 0.01:
        return None
    return f"a simple classifier tells samples from data in {t['value']:.0%} of cases (guessing: 50 %)"


def far_off(f: Figures) -> str | None:
    """Points that lie elsewhere than data."""
    s, m = f["sliced_wasserstein"], f["mmd"]
    if z_above_floor(s) <= FLOOR_THRESHOLD or m["p_value"] > SIGNIFICANCE:
        return None
    return (
        f"the points differ from the data: sliced Wasserstein distance {format_score(s)}, two sets of data {s['floor']:.2g};"
        f" MMD p = {m['p_value']:.2g}"
    )


def wrong_labels(f: Figures) -> str | None:
    """Samples that do not show what they were asked to."""
    a = f["label_accuracy"]
    if z_above_floor(a) > -FLOOR_THRESHOLD or a["value"] > 0.9 * a["floor"]:
        return None
    return f"the labels are not obeyed: {a['value']:.0%} of the samples show theirs, of held-out data {a['floor']:.0%}"


def ignored_captions(f: Figures) -> str | None:
    """Samples that do not show what their captions say."""
    poor = [name for name, a in f.items() if z_above_floor(a) < -FLOOR_THRESHOLD and a["value"] < 0.9 * a["floor"]]
    if not poor:
        return None
    worst = min(poor, key=lambda name: f[name]["value"] / f[name]["floor"])
    share, floor = f[worst]["value"], f[worst]["floor"]
    return f"captions are not obeyed: {share:.0%} of the samples show the {worst}, of real images {floor:.0%}"


def copied(f: Figures) -> str | None:
    """Samples that are training data."""
    c = f["copies"]
    if c["value"] - c["floor"] <= COPIED or z_above_floor(c) <= FLOOR_THRESHOLD:
        return None
    return (
        f"the model copies its training data: {c['value']:.1%} of the samples are copies, of"
        f" {f.get('floor_of', 'held-out data')} {c['floor']:.1%} would pass for one"
    )


def recited(f: Figures) -> str | None:
    """Samples that hold long passages of the training text."""
    p = f["longest"]
    if p["value"] <= RECITED * p["floor"] or z_above_floor(p) <= FLOOR_THRESHOLD:
        return None
    return (
        f"the model recites its training text: a sample shares a passage of {p['value']:.0f} characters with it, held-out text"
        f" of {p['floor']:.0f}"
    )


def gibberish(f: Figures) -> str | None:
    """Text that is made of other strings than real text is."""
    n = f.get("novel_8")
    if n is None or 1 - n["value"] >= FAR * (1 - n["floor"]) or z_above_floor(n) <= FLOOR_THRESHOLD:
        return None
    return (
        f"what is written is unlike the text: {n['value']:.0%} of its strings of 8 characters are not in the training text, of"
        f" held-out text {n['floor']:.0%}"
    )


# each fault: in which section it shows, and whether it makes the samples useless or only worse than data
RULES: dict[str, tuple[str, Callable[[Figures], str | None]]] = {
    "repeated": ("samples", repeated),
    "copied": ("memory", copied),
    "recited": ("passages", recited),
    "gibberish": ("passages", gibberish),
    "unlike": ("variety", unlike),
    "collapsed": ("variety", collapsed),
    "blurred": ("quality", blurred),
    "grainy": ("quality", grainy),
    "wrong_labels": ("labels", wrong_labels),
    "ignored_captions": ("captions", ignored_captions),
    "told_apart": ("two_sample", told_apart),
    "far_off": ("points", far_off),
    "distant": ("quality", distant),
    "undecided": ("quality", undecided),
}


def find_faults(name: str, figures: Figures) -> tuple[str, ...]:
    """Return what the rules find in one section, in words."""
    if "not_computable" in figures:
        return ()
    return tuple(words for section, rule in RULES.values() if section == name and (words := rule(figures)))


def differences(found: Mapping[str, Figures]) -> tuple[list[str], list[str]]:
    """Return the first figures that are worse than those of real data by more than the luck of so many: much, and a little."""
    rows = [(row, row.of(found)) for row in HEADLINE_METRICS.values()]
    known = [(row, figure) for row, figure in rows if figure is not None and {"floor", "error"} <= set(figure)]

    def worse(row: HeadlineMetric, figure: Figures) -> bool:
        above = z_above_floor(figure)
        if row.better == "floor":
            return abs(above) > familywise_threshold(len(known), 2)
        return (above if row.better == "low" else -above) > familywise_threshold(len(known))

    def much(row: HeadlineMetric, figure: Figures) -> bool:
        if row.name == "told_apart":
            return bool(figure["value"] > EASILY)
        low = figure["value"] < NOTABLE * figure["floor"]
        return low if row.better == "high" else row.name == "spread" and (low or figure["value"] > figure["floor"] / NOTABLE)

    by_size: tuple[list[str], list[str]] = [], []
    for r, f in known:
        if worse(r, f):
            by_size[not much(r, f)].append(f"{r.title} {f['value']:{r.form}} ({format_score(f, r.form, 'floor')})")
    return by_size


def assess(sections: Sequence[ReportSection]) -> tuple[list[str], list[str]]:
    """Return the names of the faults and the verdict in words, the worst first."""
    found = {s.name: s.figures for s in sections if "not_computable" not in s.figures}
    flags = {name: words for name, (where, rule) in RULES.items() if where in found and (words := rule(found[where]))}
    measured = [s for s in sections if s.name in found and any(s.name == where for where, _ in RULES.values())]
    if flags:
        lines = list(flags.values())
    elif {"quality", "points", "passages"} & set(found):
        large, small = differences(found)
        beside = f"small differences from real data, larger than noise: {', '.join(small)}"
        if large:
            lines = [f"worse than real data: {', '.join(large)}", *([beside] if small else [])]
        elif small:
            lines = [f"good: no fault was found; {beside}"]
        else:
            lines = ["good: nothing that was measured tells the samples from real data"]
    elif measured:
        lines = ["nothing wrong was found, but too little could be measured to call it good"]
    else:
        lines = []
    lines += [s.verdict[0] for s in sections if s.verdict and s.name in found and s not in measured]
    return list(flags), [*lines, *(f"not measured: {', '.join(titles)}: {why}" for why, titles in missing(sections).items())]


def missing(sections: Sequence[ReportSection]) -> dict[str, list[str]]:
    """Return why something could not be measured, each reason once, and what that is."""
    found: dict[str, list[str]] = {}
    for s in sections:
        if "not_computable" in s.figures:
            found.setdefault(s.figures["not_computable"], []).append(s.title[0].lower() + s.title[1:])
    return found
