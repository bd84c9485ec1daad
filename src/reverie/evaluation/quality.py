"""How near samples are to data: distances of features, variety, and whether they can be told apart."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from reverie.data.appearance import detail
from reverie.data.classifiers import MAX_HELD_OUT
from reverie.evaluation.evaluation_data import EvaluationData, learning
from reverie.evaluation.metrics.distances import DISTANCES
from reverie.evaluation.metrics.diversity import mean_distance
from reverie.evaluation.metrics.features import dataset_classifier
from reverie.evaluation.metrics.frechet import frechet_distance, frechet_spread, frechet_to
from reverie.evaluation.metrics.kid import kid
from reverie.evaluation.metrics.manifold import NAMES, Manifold, manifold
from reverie.evaluation.metrics.sampling_error import Figure, alike_at, chance, swapped, variance, with_other_samples
from reverie.evaluation.metrics.twosample import two_sample
from reverie.evaluation.report_section import ReportSection
from reverie.evaluation.scores import score
from reverie.evaluation.verdicts import find_faults
from reverie.nets.lenet import accuracy, features_and_classes

ENOUGH = 2048  # samples from which on a Fréchet distance leads
NEIGHBOURS = 5
CHEAP = 128  # features up to which a Fréchet distance takes no time
MOST_COMPARED = 1000  # data of each side for the distances of DISTANCES


def averaged(pairs: Sequence[tuple[Tensor, Tensor]], figure: Callable[[Tensor, Tensor], float]) -> tuple[float, float]:
    """Return the mean of a figure over pairs of sets and its variance from one to the next, 0 if there is only one."""
    values = [figure(x, y) for x, y in pairs]
    return float(np.mean(values)), float(np.var(values, ddof=1)) if len(values) > 1 else 0.0


def compared(
    m: EvaluationData, to: Callable[[Tensor], Figure], times: int, most: int | None = None, **more: Any
) -> dict[str, Any]:
    """Return a squared distance of samples to real data beside that of real data, as a score with the errors of both.

    to(y): the distance to y as a function; times: sets that are drawn for a variance; most: members of a set that are compared.
    error: how much it differs with other samples, the real data as they are, which is what counts between runs.  That of the
    floor, and of the gap: how much as many real data differ from it by chance.
    Where real data are parted, distances between random parts of them differ with variance 2 s (1/n + 1/m)², which gives s.
    """
    pairs, floors = ([(x[:most], y[:most]) for x, y in sets] for sets in (m.pairs(), m.floors()))
    random = torch.Generator().manual_seed(m.seed)
    (ours, varies), (floor, usual) = (averaged(sets, lambda x, y: to(y)(x)) for sets in (pairs, floors))
    if not m.parted:
        error, alike = chance(to(pairs[0][1]), pairs[0][0], floors[0][0], len(pairs[0][1]), times, random)
        gap = alike * (1 + 1 / len(pairs)) ** 0.5
        return score(ours, error / len(pairs) ** 0.5, floor, gap, gap_error=gap, **more)
    samples, real, size = m.of_samples, m.of_real[:most], len(pairs[0][0])
    s, n, r, half = usual * size**2 / 8, len(samples), len(m.of_real), len(samples[:most]) // 2
    own = s * alike_at(n, r)
    if half > 1:  # else there is nothing to tell the samples' own variance by
        drawn = samples[torch.randperm(n, generator=random)[: 2 * half]]
        halves = variance(swapped(to(real), drawn[:half], drawn[half:], times, random))
        own = with_other_samples(halves, own, s * alike_at(half, len(real)), half / n) ** 2
    few = (varies + usual) / len(pairs)  # that there are few splits
    gap = (2 * s * (1 / n + 1 / r) ** 2 + few) ** 0.5
    error = (own + varies / len(pairs)) ** 0.5
    return score(ours, error, floor, gap, gap_error=gap, **more)


def _frechet(m: EvaluationData) -> dict[str, Any]:
    many = m.effort.resamples // (1 if m.of_train.shape[1] <= CHEAP else 4)
    error, interval = frechet_spread(m.of_samples, m.of_train, many, m.seed)
    return {
        "frechet": compared(m, frechet_to, many, samples=m.shared),
        "frechet_all": score(
            frechet_distance(m.of_samples, m.of_train), error, interval=list(interval), samples=len(m.of_samples)
        ),
        "frechet_resamples": many,
    }


def distance_by_kernel(m: EvaluationData, features: Tensor) -> tuple[float, float]:
    """Return the KID of features to those of the training data, in units of the latter, and how much others would differ."""
    found = kid(features / m.unit, m.of_train / m.unit)
    return float(found.value), found.error_given_y


def kid_floor(m: EvaluationData, count: int) -> tuple[float, float]:
    """Return the KID that real data have, and how much that of so many others would differ from it by chance.

    Where real data are parted it is 0: between random parts of one set it is so on average, whatever the counts.
    """
    x, y = next(m.floors())
    found = kid(x / m.unit, y / m.unit)
    s = found.error_if_equal**2 / (2 * (1 / len(x) + 1 / len(y)) ** 2)
    n, r = count, len(m.of_train)
    if m.parted:
        return 0.0, (2 * s) ** 0.5 * (1 / n + 1 / r)
    return distance_by_kernel(m, m.of_held)[0], (s * (alike_at(n, r) + alike_at(len(m.of_held), r))) ** 0.5


def _kid(m: EvaluationData) -> dict[str, Any]:
    ours, (floor, gap) = distance_by_kernel(m, m.of_samples), kid_floor(m, len(m.samples))
    return {"kid": score(*ours, floor, gap, gap_error=gap), "kid_feature_unit": m.unit}


def _detail(m: EvaluationData) -> dict[str, Any]:
    fine, truth, held = (detail(x) for x in (m.samples, m.some(m.train), m.some(m.held)))
    if not (usual := float(truth.mean())):
        return {}
    errors = [float(x.std() / usual / len(x) ** 0.5) if len(x) > 1 else None for x in (fine, held)]
    floor = float(held.mean()) / usual
    if m.parted:  # fresh data would have what the training data have, give or take the chance of these
        floor, errors[1] = 1.0, float(truth.std() / usual / len(truth) ** 0.5)
    return {"detail": score(float(fine.mean()) / usual, errors[0], floor, errors[1])}


def quality_section(m: EvaluationData) -> ReportSection:
    """KID and Fréchet distance of features, each beside that of real data, and the detail of the images."""
    m.tell("distances of features", 0, 2)
    by_kernel = _kid(m)
    m.tell("distances of features", 1, 2)
    by_moments = _frechet(m)
    m.tell("distances of features", 2, 2)
    enough = min(len(m.samples), len(m.of_train)) >= ENOUGH
    first, second = (by_moments, by_kernel) if enough else (by_kernel, by_moments)
    figures = {"leads": next(iter(first)), **first, **second, **_detail(m), **m.facts()}
    why = (
        f"With {ENOUGH:,} samples and data or more the Fréchet distance leads; KID stands beside it." if enough else
        f"KID leads, because a Fréchet distance of fewer than {ENOUGH:,} samples or data is mostly bias; KID is right on"
        " average at any count."
    )  # fmt: skip
    net = figures["features"]
    known = f", which is right about {net['held_out_accuracy']:.1%} of held-out images" if "held_out_accuracy" in net else ""
    because = f" They were chosen because {net['chosen_because']}." if "chosen_because" in net else ""
    words = (
        why,
        m.about_floors() + (" The KID of such parts is 0 on average; its ± is for as many samples." if m.parted else ""),
        f"The Fréchet distance falls as the count grows; samples and real data have it at {m.shared:,}. All"
        f" {len(m.samples):,} samples at once have {by_moments['frechet_all']['value']:.3g}.",
        f"Features: {net['net']}{known}.{because}",
    )
    return ReportSection("quality", "Distance to the data", find_faults("quality", figures), words, figures)


def distances_section(m: EvaluationData) -> ReportSection:
    """Each line of DISTANCES, beside that of real data."""
    figures: dict[str, Any] = {}

    def to(of: Callable[[Tensor, Tensor], float]) -> Callable[[Tensor], Figure]:
        return lambda y: lambda x: of(x, y)

    for name, distance in DISTANCES.items():
        m.tell("more distances", len(figures), len(DISTANCES))
        figures[name] = compared(m, to(distance.of), m.effort.resamples // 4, MOST_COMPARED)
    figures |= {**m.facts(), "compared_count": min(m.shared, MOST_COMPARED)}
    return ReportSection("distances", "More distances", find_faults("distances", figures), (m.about_floors(),), figures)


def _spread(m: EvaluationData) -> dict[str, Any]:
    """Return how far samples lie apart on average, as a share of what training data do, beside the same of held-out data."""
    if min(len(m.samples), len(m.train)) < 2:
        return {}
    truth, error = mean_distance(m.some(m.train, MOST_COMPARED))
    if not truth:
        return {}
    ours, varies = mean_distance(m.samples[:MOST_COMPARED])
    floor, usual = (truth, error) if m.parted else mean_distance(m.some(m.held, MOST_COMPARED))
    return {"spread": score(ours / truth, varies / truth, floor / truth, usual / truth)}


def variety_section(m: EvaluationData) -> ReportSection:
    """Precision, recall, density and coverage, each beside that of real data at the same counts."""
    most = m.effort.balls
    pairs, found = [*m.pairs(), *m.floors()], list[Manifold]()
    for x, y in pairs:
        m.tell("neighbourhoods", len(found), len(pairs))
        found.append(manifold(x[:most], y[:most], NEIGHBOURS))
    own = len(pairs) - (m.effort.splits if m.parted else 1)
    ours, floors = found[:own], found[own:]

    size, n, r = min(m.shared, most), len(m.of_samples), len(m.of_real)

    def of(name: str) -> dict[str, Any]:
        """Return the mean of each over its pairs.  Their errors, of single pairs, fall as more samples and data are used."""
        both = []
        for found, count in ((ours, n if m.parted else size * len(ours)), (floors, r if m.parted else size)):
            values, errors = (np.array([getattr(one, part)[name] for one in found]) for part in ("values", "errors"))
            few = float(np.var(values, ddof=1)) / len(values) if m.parted else 0.0  # that there are few splits
            both += [float(values.mean()), float(np.mean(errors**2) * size / count + few) ** 0.5]
        return score(*both)

    figures = {
        **{name: of(name) for name in NAMES}, **_spread(m), "neighbours": NEIGHBOURS, **m.facts(),
        "compared_count": min(m.shared, most), "training_data": min(most, m.shared if m.parted else len(m.of_train)),
    }  # fmt: skip
    words = (
        "Precision: the share of samples among real data. Recall: the share of real data among samples. Density and"
        " coverage say the same and mind outliers less. All depend on the counts, so compare with the figure beside.",
        "Spread: how far two samples lie apart on average, in the data's own numbers, by how far training data do. Less than 1"
        " is blur or few things drawn again and again, which a distance to the data does not always see.",
        m.about_floors(),
    )
    return ReportSection("variety", "Precision and variety", find_faults("variety", figures), words, figures)


def two_sample_section(m: EvaluationData) -> ReportSection:
    """Whether a classifier can tell samples from real data: held-out ones, or all where few are held out."""
    found = two_sample(m.of_samples, m.of_real if m.parted else m.of_held, m.seed)
    figures = {
        "told_apart": score(found.accuracy, found.standard_error, 0.5, p_value=found.p_value),
        "asked": found.asked, "trained": found.trained, **m.facts(),
    }  # fmt: skip
    words = (
        f"A logistic classifier saw the features of {found.trained:,} samples and real data and was asked about"
        f" {found.asked:,} others: right in {found.accuracy:.1%} of cases, by luck with probability {found.p_value:.2g}."
        " 50 % means that it cannot tell them apart; this test is hard, and a good model may well fail it.",
    )
    return ReportSection("two_sample", "Can samples be told from data?", find_faults("two_sample", figures), words, figures)


def labels_section(m: EvaluationData) -> ReportSection | None:
    """How many samples show what they were asked to, by a classifier of the data."""
    if m.labels is None or m.kind != "images":
        return None
    spare = m.deadline.limited and m.features.name != "classifier"
    net, facts = dataset_classifier(*m.taught, m.tell, seconds=learning(m.deadline), known=spare)
    right = features_and_classes(net, m.samples)[1] == m.labels
    x, labels = m.held.batch(torch.arange(min(len(m.held), MAX_HELD_OUT)))
    assert labels is not None
    share, floor = float(right.double().mean()), accuracy(net, x, labels)
    errors = [float(np.sqrt(max(p * (1 - p), 1 / n) / n)) for p, n in ((share, len(right)), (floor, len(x)))]
    by_label = {
        name: float(right[m.labels == k].double().mean())
        for k, name in enumerate(m.train.label_names) if bool((m.labels == k).any())
    }  # fmt: skip
    figures = {"label_accuracy": score(share, errors[0], floor, errors[1]), "by_label": by_label,
               "classifier": facts, "samples": len(right)}  # fmt: skip
    worst = min(by_label, key=lambda name: by_label[name])
    words = (
        f"The classifier sees the wanted label in {share:.1%} of the samples, and in {floor:.1%} of {len(x):,} held-out data;"
        f" least often for {worst!r}, {by_label[worst]:.1%}.",
        f"It is {facts['net'].split(',')[0]}. What it does not recognise in real data it cannot judge in samples either: read"
        " the one share beside the other.",
    )
    return ReportSection("labels", "Do samples show their labels?", find_faults("labels", figures), words, figures)
