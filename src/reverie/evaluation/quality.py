"""How near samples are to data: distances of features, variety, and whether they can be told apart."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from reverie.data.looks import detail
from reverie.evaluation.judge import faults
from reverie.evaluation.material import Material
from reverie.evaluation.metrics.classifier import accuracy, answers
from reverie.evaluation.metrics.distances import DISTANCES
from reverie.evaluation.metrics.features import JUDGED, own_classifier
from reverie.evaluation.metrics.frechet import frechet_distance, frechet_spread
from reverie.evaluation.metrics.kid import kid
from reverie.evaluation.metrics.manifold import NAMES, manifold
from reverie.evaluation.metrics.twosample import two_sample
from reverie.evaluation.score import score
from reverie.evaluation.section import Section

ENOUGH = 2048  # samples from which on a Fréchet distance leads
NEIGHBOURS = 5
CHEAP = 128  # features up to which a Fréchet distance takes no time
MOST_COMPARED = 1000  # data of each side for the distances of DISTANCES


Pairs = Sequence[tuple[Tensor, Tensor]]


def averaged(pairs: Pairs, figure: Callable[[Tensor, Tensor], float]) -> tuple[float, float | None]:
    """Return the mean of a figure over pairs of sets and how much it varies from one to the next, if there are several."""
    values = [figure(x, y) for x, y in pairs]
    return float(np.mean(values)), float(np.std(values, ddof=1)) if len(values) > 1 else None


def _frechet(m: Material) -> dict[str, Any]:
    many = m.effort.resamples // (1 if m.of_train.shape[1] <= CHEAP else 4)
    pairs, floors = list(m.pairs()), list(m.floors())
    ours, (floor, varies) = averaged(pairs, frechet_distance)[0], averaged(floors, frechet_distance)
    errors = [frechet_spread(*pairs[0], many, m.seed)[0], varies or frechet_spread(*floors[0], many, m.seed)[0]]
    error, interval = frechet_spread(m.of_samples, m.of_train, many, m.seed)
    return {
        "frechet": score(ours, errors[0], floor, errors[1], samples=m.shared),
        "frechet_all": score(
            frechet_distance(m.of_samples, m.of_train), error, interval=list(interval), samples=len(m.of_samples)
        ),
        "frechet_resamples": many,
    }


def distance_by_kernel(m: Material, features: Tensor) -> tuple[float, float]:
    """Return the KID of features to those of the training data, in units of the latter, and its standard error."""
    found = kid(features / m.unit, m.of_train / m.unit)
    return float(found.value), found.standard_error


def kid_floor(m: Material, count: int) -> tuple[float, float]:
    """Return the KID that so many fresh data would have, and its standard error.

    Between random parts of one set it is 0 on average, whatever the counts, and varies with 1/n + 1/m.
    """
    if not m.parted:
        return distance_by_kernel(m, m.of_held)
    _, varies = averaged(list(m.floors()), lambda x, y: float(kid(x / m.unit, y / m.unit).value))
    assert varies is not None
    return 0.0, varies * (1 / count + 1 / len(m.of_train)) / (2 / m.shared)


def _kid(m: Material) -> dict[str, Any]:
    ours, floor = distance_by_kernel(m, m.of_samples), kid_floor(m, len(m.samples))
    return {"kid": score(*ours, *floor), "kid_feature_unit": m.unit}


def _detail(m: Material) -> dict[str, Any]:
    fine, truth, held = (detail(x) for x in (m.samples, m.some(m.train), m.some(m.held)))
    if not (usual := float(truth.mean())):
        return {}
    errors = [float(x.std() / usual / len(x) ** 0.5) if len(x) > 1 else None for x in (fine, held)]
    floor = float(held.mean()) / usual
    if m.parted:  # as many fresh data would have what the training data have, give or take the chance of both
        floor, errors[1] = 1.0, float(truth.std() / usual * (1 / len(fine) + 1 / len(truth)) ** 0.5)
    return {"detail": score(float(fine.mean()) / usual, errors[0], floor, errors[1])}


def quality_section(m: Material) -> Section:
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
    return Section("quality", "Distance to the data", faults("quality", figures), words, figures)


def distances_section(m: Material) -> Section:
    """Each line of DISTANCES, beside that of real data."""
    random = torch.Generator().manual_seed(m.seed)
    ours, floors = ([(x[:MOST_COMPARED], y[:MOST_COMPARED]) for x, y in pairs] for pairs in (m.pairs(), m.floors()))

    def varies(of: Callable[[Tensor, Tensor], float], pair: tuple[Tensor, Tensor]) -> float:
        """Return how much a distance varies when both sets are drawn anew from themselves."""
        again = [[z[torch.randint(len(z), (len(z),), generator=random)] for z in pair] for _ in range(m.effort.resamples // 10)]
        return float(np.std([of(*drawn) for drawn in again], ddof=1))

    figures: dict[str, Any] = {}
    for name, distance in DISTANCES.items():
        m.tell("more distances", len(figures), len(DISTANCES))
        means = [averaged(pairs, distance.of)[0] for pairs in (ours, floors)]
        figures[name] = score(means[0], varies(distance.of, ours[0]), means[1], varies(distance.of, floors[0]))
    figures |= {**m.facts(), "compared_count": min(m.shared, MOST_COMPARED)}
    return Section("distances", "More distances", faults("distances", figures), (m.about_floors(),), figures)


def variety_section(m: Material) -> Section:
    """Precision, recall, density and coverage, each beside that of real data at the same counts."""
    most = m.effort.balls
    ours, floors = ([manifold(x[:most], y[:most], NEIGHBOURS) for x, y in pairs] for pairs in (m.pairs(), m.floors()))

    def of(name: str) -> dict[str, Any]:
        theirs = [found.values[name] for found in floors]
        varies = max(float(np.std(theirs, ddof=1)), 1 / m.shared) if len(theirs) > 1 else floors[0].errors[name]
        return score(
            float(np.mean([found.values[name] for found in ours])), ours[0].errors[name], float(np.mean(theirs)), varies
        )

    figures = {
        **{name: of(name) for name in NAMES}, "neighbours": NEIGHBOURS, **m.facts(), "compared_count": min(m.shared, most),
        "training_data": min(most, m.shared if m.parted else len(m.of_train)),
    }  # fmt: skip
    words = (
        "Precision: the share of samples among real data. Recall: the share of real data among samples. Density and"
        " coverage say the same and mind outliers less. All depend on the counts, so compare with the figure beside.",
        m.about_floors(),
    )
    return Section("variety", "Precision and variety", faults("variety", figures), words, figures)


def two_sample_section(m: Material) -> Section:
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
    return Section("two_sample", "Can samples be told from data?", faults("two_sample", figures), words, figures)


def labels_section(m: Material) -> Section | None:
    """How many samples show what they were asked to, by a classifier of the data."""
    if m.labels is None or m.kind != "images":
        return None
    net, facts = own_classifier(*m.taught, m.tell)
    right = answers(net, m.samples)[1] == m.labels
    x, labels = m.held.batch(torch.arange(min(len(m.held), JUDGED)))
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
    return Section("labels", "Do samples show their labels?", faults("labels", figures), words, figures)
