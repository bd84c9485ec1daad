"""How near samples are to data: distances of features, variety, and whether they can be told apart."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from reverie.evaluation.judge import faults
from reverie.evaluation.material import Material
from reverie.evaluation.score import score
from reverie.evaluation.section import Section
from reverie.metrics.classifier import accuracy, answers
from reverie.metrics.features import JUDGED, own_classifier
from reverie.metrics.frechet import frechet_distance, frechet_spread
from reverie.metrics.kid import kid
from reverie.metrics.manifold import NAMES, manifold
from reverie.metrics.twosample import two_sample

ENOUGH = 2048  # samples from which on a Fréchet distance leads
NEIGHBOURS = 5
CHEAP = 128  # features up to which a Fréchet distance takes no time
MOST_BALLS = {False: 4000, True: 2000}  # real data, and samples at once, whose neighbourhoods are compared


def detail(images: Tensor) -> Tensor:
    """Return how much neighbouring pixels differ, for each image: (N,) mean squares."""
    down, right = images.diff(dim=-2).square(), images.diff(dim=-1).square()
    parts = [d.flatten(1) for d in (down, right) if d.numel()]
    return torch.cat(parts, 1).mean(1).double()


def _frechet(m: Material) -> dict[str, Any]:
    many = m.effort.resamples // (1 if m.of_train.shape[1] <= CHEAP else 4)
    held, parts = m.of_held[: m.shared], list(m.parts())
    ours, floor = float(np.mean([frechet_distance(part, m.of_train) for part in parts])), frechet_distance(held, m.of_train)
    errors = [frechet_spread(x, m.of_train, many, m.seed)[0] for x in (parts[0], held)]
    error, interval = frechet_spread(m.of_samples, m.of_train, many, m.seed)
    return {
        "frechet": score(ours, errors[0], floor, errors[1], samples=m.shared),
        "frechet_all": score(
            frechet_distance(m.of_samples, m.of_train), error, interval=list(interval), samples=len(m.of_samples)
        ),
        "frechet_resamples": many,
    }


def _kid(m: Material) -> dict[str, Any]:
    unit = float(m.of_train.square().mean().sqrt()) or 1.0  # so that KID does not depend on how large features are
    ours, floor = (kid(x / unit, m.of_train / unit) for x in (m.of_samples, m.of_held))
    found = score(float(ours.value), ours.standard_error, float(floor.value), floor.standard_error)
    return {"kid": found, "kid_feature_unit": unit}


def _detail(m: Material) -> dict[str, Any]:
    fine, truth, held = (detail(x) for x in (m.samples, m.some(m.train), m.some(m.held)))
    if not (usual := float(truth.mean())):
        return {}
    errors = [float(x.std() / usual / len(x) ** 0.5) if len(x) > 1 else None for x in (fine, held)]
    return {"detail": score(float(fine.mean()) / usual, errors[0], float(held.mean()) / usual, errors[1])}


def quality_section(m: Material) -> Section:
    """KID and Fréchet distance of features, each beside that of held-out data, and the detail of the images."""
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
    words = (
        why,
        "The floor is the same figure for held-out data: a perfect model scores there, within the error bars.",
        f"The Fréchet distance falls as the count grows; it and its floor are taken at {m.shared:,}. All"
        f" {len(m.samples):,} samples at once have {by_moments['frechet_all']['value']:.3g}.",
        f"Features: {net['net']}{known}.",
    )
    return Section("quality", "Distance to the data", faults("quality", figures), words, figures)


def variety_section(m: Material) -> Section:
    """Precision, recall, density and coverage, each beside that of held-out data at the same count."""
    most = MOST_BALLS[m.effort.quick]
    count = min(m.shared, most)
    ours, floor = (manifold(x[:count], m.of_train[:most], NEIGHBOURS) for x in (m.of_samples, m.of_held))
    figures = {
        **{name: score(ours.values[name], ours.errors[name], floor.values[name], floor.errors[name]) for name in NAMES},
        "neighbours": NEIGHBOURS, **m.facts(), "compared_count": count, "training_data": min(most, len(m.of_train)),
    }  # fmt: skip
    words = (
        "Precision: the share of samples among training data. Recall: the share of training data among samples. Density and"
        " coverage say the same and mind outliers less. All depend on the counts, so compare with the floor, held-out data.",
    )
    return Section("variety", "Precision and variety", faults("variety", figures), words, figures)


def two_sample_section(m: Material) -> Section:
    """Whether a classifier can tell samples from held-out data, and from what it would say of real data."""
    found = two_sample(m.of_samples, m.of_held, m.seed)
    figures = {
        "told_apart": score(found.accuracy, found.standard_error, 0.5, 0.0, p_value=found.p_value),
        "asked": found.asked, "trained": found.trained, **m.facts(),
    }  # fmt: skip
    words = (
        f"A logistic classifier saw {found.trained:,} features of samples and held-out data and was asked about"
        f" {found.asked:,} others: right in {found.accuracy:.1%} of cases, by luck with probability {found.p_value:.2g}."
        " 50 % means that it cannot tell them apart; this test is hard, and a good model may well fail it.",
    )
    return Section("two_sample", "Can samples be told from data?", faults("two_sample", figures), words, figures)


def labels_section(m: Material) -> Section | None:
    """How many samples show what they were asked to, by a classifier of the data."""
    if m.labels is None or not m.is_images:
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
        f"The classifier sees the wanted label in {share:.1%} of the samples, and in {floor:.1%} of held-out data;"
        f" least often for {worst!r}, {by_label[worst]:.1%}.",
    )
    return Section("labels", "Do samples show their labels?", faults("labels", figures), words, figures)
