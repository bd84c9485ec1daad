"""How near samples are to data: distances of features, variety, and whether they can be told apart."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from reverie.evaluation.judge import faults
from reverie.evaluation.material import Material
from reverie.evaluation.score import score
from reverie.evaluation.section import Section
from reverie.metrics.features import own_classifier
from reverie.metrics.frechet import frechet_distance, frechet_spread
from reverie.metrics.kid import kid
from reverie.metrics.manifold import NAMES, manifold
from reverie.metrics.twosample import two_sample

ENOUGH = 2048  # samples from which on a Fréchet distance leads
NEIGHBOURS = 5
MOST_BALLS = {False: 4000, True: 2000}  # real data, and samples at once, whose neighbourhoods are compared


def detail(images: Tensor) -> Tensor:
    """Return how much neighbouring pixels differ, for each image: (N,) mean squares."""
    down, right = images.diff(dim=-2).square(), images.diff(dim=-1).square()
    parts = [d.flatten(1) for d in (down, right) if d.numel()]
    return torch.cat(parts, 1).mean(1).double()


def _frechet(m: Material) -> dict[str, object]:
    error, interval = frechet_spread(m.of_samples, m.of_train, m.effort.resamples, m.seed)
    return score(
        frechet_distance(m.of_samples, m.of_train), error, frechet_distance(m.of_held[: m.shared], m.of_train),
        frechet_spread(m.of_held[: m.shared], m.of_train, m.effort.resamples, m.seed)[0],
        interval=list(interval), at_floor_count=float(np.mean([frechet_distance(p, m.of_train) for p in m.parts()])),
        floor_count=m.shared, resamples=m.effort.resamples,
    )  # fmt: skip


def quality_section(m: Material) -> Section:
    """KID and Fréchet distance of features, each beside that of held-out data, and the detail of the images."""
    unit = float(m.of_train.square().mean().sqrt()) or 1.0  # so that KID does not depend on how large features are
    ours, floor = (kid(x / unit, m.of_train / unit) for x in (m.of_samples, m.of_held))
    fine, truth, held = (detail(x) for x in (m.samples, m.some(m.train), m.some(m.held)))
    many = min(len(m.samples), len(m.of_train))
    m.tell("Fréchet distance", 0, 1)
    figures = {
        "leads": "frechet" if many >= ENOUGH else "kid",
        "kid": score(float(ours.value), ours.standard_error, float(floor.value), floor.standard_error, feature_unit=unit),
        "frechet": _frechet(m),
        **m.facts(),
    }
    m.tell("Fréchet distance", 1, 1)
    if float(truth.mean()) > 0:
        usual = float(truth.mean())
        spreads = [float(x.std() / usual / len(x) ** 0.5) if len(x) > 1 else None for x in (fine, held)]
        figures["detail"] = score(float(fine.mean()) / usual, spreads[0], float(held.mean()) / usual, spreads[1])
    words = [
        f"KID leads, because a Fréchet distance of fewer than {ENOUGH:,} samples or data is mostly bias; KID is right on"
        " average at any count." if many < ENOUGH else
        f"With {ENOUGH:,} samples and data or more the Fréchet distance leads; KID stands beside it.",
        "The floor is the same figure for held-out data: a perfect model scores there, within the error bars.",
        f"The Fréchet distance falls as the count grows; its floor is taken at {m.shared:,}, where the samples have"
        f" {figures['frechet']['at_floor_count']:.3g}.",
        f"Features: {figures['net']}." + (
            f" It is right about {figures['held_out_accuracy']:.1%} of {figures['held_out_count']:,} held-out images."
            if "held_out_accuracy" in figures else ""),
    ]  # fmt: skip
    return Section("quality", "Distance to the data", faults("quality", figures), tuple(words), figures)


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
    net, facts = own_classifier(m.train, m.held, m.tell)
    with torch.no_grad():
        right = torch.cat([net(x)[1].argmax(1) for x in m.samples.split(1000)]) == m.labels
    share, floor = float(right.double().mean()), float(facts["held_out_accuracy"])
    errors = [float(np.sqrt(max(p * (1 - p), 1 / n) / n)) for p, n in ((share, len(right)), (floor, facts["held_out_count"]))]
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
