"""Sections computed on features: distances, precision and recall, the two-sample test, and label accuracy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from reverie.data.appearance import detail
from reverie.data.classifiers import MAX_HELD_OUT
from reverie.evaluation.evaluation_data import EvaluationData, classifier_seconds
from reverie.evaluation.metrics.distances import DISTANCES
from reverie.evaluation.metrics.diversity import mean_distance
from reverie.evaluation.metrics.features import dataset_classifier
from reverie.evaluation.metrics.frechet import frechet_bootstrap, frechet_distance, frechet_to
from reverie.evaluation.metrics.kid import kid
from reverie.evaluation.metrics.manifold import NAMES, Manifold, manifold
from reverie.evaluation.metrics.sampling_error import (
    Figure,
    error_with_new_samples,
    null_variance,
    permuted_figures,
    sampling_errors,
    variance,
)
from reverie.evaluation.metrics.twosample import two_sample
from reverie.evaluation.report_section import ReportSection
from reverie.evaluation.scores import score
from reverie.evaluation.verdicts import find_faults
from reverie.nets.lenet import accuracy, features_and_classes

MIN_FRECHET = 2048  # samples from which the Fréchet distance is the primary metric, instead of KID
NEIGHBOURS = 5
MAX_FAST_FEATURES = 128  # features up to which a Fréchet distance takes negligible time
MAX_COMPARED = 1000  # data per set for the distances of DISTANCES


def mean_over_pairs(pairs: Sequence[tuple[Tensor, Tensor]], figure: Callable[[Tensor, Tensor], float]) -> tuple[float, float]:
    """Return the mean and the variance of a figure over pairs of sets; the variance of a single pair is 0."""
    values = [figure(x, y) for x, y in pairs]
    return float(np.mean(values)), float(np.var(values, ddof=1)) if len(values) > 1 else 0.0


def distance_score(
    m: EvaluationData, to: Callable[[Tensor], Figure], times: int, most: int | None = None, **more: Any
) -> dict[str, Any]:
    """Return a squared distance of samples to real data with its floor, as a score with both errors.

    to(y): the distance to y as a function; times: permutations for a variance; most: the largest size of a set.  The error is
    over new samples with fixed real data, as in a comparison of runs.  The errors of the floor and of the gap are over real
    data.  With random splits, distances between parts of one set have the variance 2 s (1/n + 1/m)², which yields s.
    """
    pairs, floors = ([(x[:most], y[:most]) for x, y in sets] for sets in (m.feature_pairs(), m.floor_pairs()))
    random = torch.Generator().manual_seed(m.seed)
    (distance, distance_variance), (floor, floor_variance) = (
        mean_over_pairs(sets, lambda x, y: to(y)(x)) for sets in (pairs, floors)
    )
    if not m.splits_real:
        error, null = sampling_errors(to(pairs[0][1]), pairs[0][0], floors[0][0], len(pairs[0][1]), times, random)
        gap = null * (1 + 1 / len(pairs)) ** 0.5
        return score(distance, error / len(pairs) ** 0.5, floor, gap, gap_error=gap, **more)
    samples, real, size = m.sample_features, m.real_features[:most], len(pairs[0][0])
    s, n, r, half = floor_variance * size**2 / 8, len(samples), len(m.real_features), len(samples[:most]) // 2
    own = s * null_variance(n, r)
    if half > 1:  # estimate the variance over samples
        shuffled = samples[torch.randperm(n, generator=random)[: 2 * half]]
        halves = variance(permuted_figures(to(real), shuffled[:half], shuffled[half:], times, random))
        own = error_with_new_samples(halves, own, s * null_variance(half, len(real)), half / n) ** 2
    split_variance = (distance_variance + floor_variance) / len(pairs)  # the variance from the finite number of splits
    gap = (2 * s * (1 / n + 1 / r) ** 2 + split_variance) ** 0.5
    error = (own + distance_variance / len(pairs)) ** 0.5
    return score(distance, error, floor, gap, gap_error=gap, **more)


def _frechet(m: EvaluationData) -> dict[str, Any]:
    resamples = m.limits.resamples // (1 if m.train_features.shape[1] <= MAX_FAST_FEATURES else 4)
    error, interval = frechet_bootstrap(m.sample_features, m.train_features, resamples, m.seed)
    return {
        "frechet": distance_score(m, frechet_to, resamples, samples=m.compared_count),
        "frechet_all": score(
            frechet_distance(m.sample_features, m.train_features),
            error,
            interval=list(interval),
            samples=len(m.sample_features),
        ),
        "frechet_resamples": resamples,
    }


def distance_by_kernel(m: EvaluationData, features: Tensor) -> tuple[float, float]:
    """Return the KID of features to the training features, in `feature_unit`, and its standard error over new samples."""
    estimate = kid(features / m.feature_unit, m.train_features / m.feature_unit)
    return float(estimate.value), estimate.error_given_y


def kid_floor(m: EvaluationData, count: int) -> tuple[float, float]:
    """Return the floor of KID and its standard error for `count` real data.

    With random splits the floor is 0, the expectation for parts of one set at any count.
    """
    x, y = next(m.floor_pairs())
    estimate = kid(x / m.feature_unit, y / m.feature_unit)
    s = estimate.error_if_equal**2 / (2 * (1 / len(x) + 1 / len(y)) ** 2)
    n, r = count, len(m.train_features)
    if m.splits_real:
        return 0.0, (2 * s) ** 0.5 * (1 / n + 1 / r)
    error = (s * (null_variance(n, r) + null_variance(len(m.held_out_features), r))) ** 0.5
    return distance_by_kernel(m, m.held_out_features)[0], error


def _kid(m: EvaluationData) -> dict[str, Any]:
    distance, (floor, gap) = distance_by_kernel(m, m.sample_features), kid_floor(m, len(m.samples))
    return {"kid": score(*distance, floor, gap, gap_error=gap), "kid_feature_unit": m.feature_unit}


def _detail(m: EvaluationData) -> dict[str, Any]:
    of_samples, of_train, of_held_out = (detail(x) for x in (m.samples, m.subset(m.train), m.subset(m.held)))
    if not (scale := float(of_train.mean())):
        return {}
    errors = [float(x.std() / scale / len(x) ** 0.5) if len(x) > 1 else None for x in (of_samples, of_held_out)]
    floor = float(of_held_out.mean()) / scale
    if m.splits_real:  # the floor of new data is that of the training data, within their error
        floor, errors[1] = 1.0, float(of_train.std() / scale / len(of_train) ** 0.5)
    return {"detail": score(float(of_samples.mean()) / scale, errors[0], floor, errors[1])}


def quality_section(m: EvaluationData) -> ReportSection:
    """KID, Fréchet distance and detail, each with its floor."""
    m.on_progress("distances of features", 0, 2)
    by_kernel = _kid(m)
    m.on_progress("distances of features", 1, 2)
    by_moments = _frechet(m)
    m.on_progress("distances of features", 2, 2)
    by_frechet = min(len(m.samples), len(m.train_features)) >= MIN_FRECHET
    first, second = (by_moments, by_kernel) if by_frechet else (by_kernel, by_moments)
    figures = {"primary_metric": next(iter(first)), **first, **second, **_detail(m), **m.facts()}
    why = (
        f"The primary metric is the Fréchet distance, with {MIN_FRECHET:,} samples and data or more." if by_frechet else
        f"The primary metric is KID, which is unbiased at any count; with fewer than {MIN_FRECHET:,} samples or data the"
        " Fréchet distance is mostly bias."
    )  # fmt: skip
    net = figures["features"]
    accuracy_note = f", accuracy {net['held_out_accuracy']:.1%} on held-out images" if "held_out_accuracy" in net else ""
    reason = f" Chosen because {net['chosen_because']}." if "chosen_because" in net else ""
    notes = (
        why,
        m.describe_floors() + (" The expected KID of such splits is 0; its ± is for as many samples." if m.splits_real else ""),
        f"The Fréchet distance decreases with the count; that of samples and that of real data are for {m.compared_count:,}."
        f" All {len(m.samples):,} samples together have {by_moments['frechet_all']['value']:.3g}.",
        f"Features: {net['net']}{accuracy_note}.{reason}",
    )
    return ReportSection("quality", "Distance to the data", find_faults("quality", figures), notes, figures)


def distances_section(m: EvaluationData) -> ReportSection:
    """Each distance of DISTANCES, with its floor."""
    figures: dict[str, Any] = {}

    def to(of: Callable[[Tensor, Tensor], float]) -> Callable[[Tensor], Figure]:
        return lambda y: lambda x: of(x, y)

    for name, distance in DISTANCES.items():
        m.on_progress("more distances", len(figures), len(DISTANCES))
        figures[name] = distance_score(m, to(distance.of), m.limits.resamples // 4, MAX_COMPARED)
    figures |= {**m.facts(), "compared_count": min(m.compared_count, MAX_COMPARED)}
    return ReportSection("distances", "More distances", find_faults("distances", figures), (m.describe_floors(),), figures)


def _diversity(m: EvaluationData) -> dict[str, Any]:
    """Return the mean pairwise distance of samples relative to that of training data, with held-out data as the floor."""
    if min(len(m.samples), len(m.train)) < 2:
        return {}
    of_train, error = mean_distance(m.subset(m.train, MAX_COMPARED))
    if not of_train:
        return {}
    of_samples, samples_error = mean_distance(m.samples[:MAX_COMPARED])
    floor, floor_error = (of_train, error) if m.splits_real else mean_distance(m.subset(m.held, MAX_COMPARED))
    return {"diversity": score(of_samples / of_train, samples_error / of_train, floor / of_train, floor_error / of_train)}


def precision_recall_section(m: EvaluationData) -> ReportSection:
    """Precision, recall, density, coverage and diversity, each with its floor at the same counts."""
    most = m.limits.neighbourhoods
    pairs, manifolds = [*m.feature_pairs(), *m.floor_pairs()], list[Manifold]()
    for x, y in pairs:
        m.on_progress("neighbourhoods", len(manifolds), len(pairs))
        manifolds.append(manifold(x[:most], y[:most], NEIGHBOURS))
    sample_pairs = len(pairs) - (m.limits.splits if m.splits_real else 1)
    of_samples, of_floor = manifolds[:sample_pairs], manifolds[sample_pairs:]

    size, n, r = min(m.compared_count, most), len(m.sample_features), len(m.real_features)

    def of(name: str) -> dict[str, Any]:
        """Return the mean over pairs; its error is that of one pair, scaled to all samples and data."""
        both = []
        for group, count in (
            (of_samples, n if m.splits_real else size * len(of_samples)),
            (of_floor, r if m.splits_real else size),
        ):
            values, errors = (np.array([getattr(result, part)[name] for result in group]) for part in ("values", "errors"))
            split_variance = float(np.var(values, ddof=1)) / len(values) if m.splits_real else 0.0
            both += [float(values.mean()), float(np.mean(errors**2) * size / count + split_variance) ** 0.5]
        return score(*both)

    figures = {
        **{name: of(name) for name in NAMES}, **_diversity(m), "neighbours": NEIGHBOURS, **m.facts(),
        "compared_count": min(m.compared_count, most),
        "training_data": min(most, m.compared_count if m.splits_real else len(m.train_features)),
    }  # fmt: skip
    notes = (
        "Precision: the share of samples in the neighbourhoods of real data. Recall: the share of real data in the"
        " neighbourhoods of samples. Density and coverage are their variants that are robust to outliers. All four depend on"
        " the counts.",
        "Diversity: the mean pairwise distance of samples divided by that of training data, in user units. A value below 1"
        " indicates blur or mode collapse, which a distance to the data may miss.",
        m.describe_floors(),
    )
    title = "Precision, recall and diversity"
    return ReportSection("precision_recall", title, find_faults("precision_recall", figures), notes, figures)


def two_sample_section(m: EvaluationData) -> ReportSection:
    """A classifier two-sample test of samples against held-out data, or against all real data if few are held out."""
    test = two_sample(m.sample_features, m.real_features if m.splits_real else m.held_out_features, m.seed)
    figures = {
        "two_sample_accuracy": score(test.accuracy, test.standard_error, 0.5, p_value=test.p_value),
        "test_count": test.test_count, "train_count": test.train_count, **m.facts(),
    }  # fmt: skip
    notes = (
        f"A logistic classifier, trained on the features of {test.train_count:,} samples and real data, has accuracy"
        f" {test.accuracy:.1%} on {test.test_count:,} others (p = {test.p_value:.2g}). 50% is chance. The test is strict:"
        " good models often fail it.",
    )
    return ReportSection("two_sample", "Two-sample test", find_faults("two_sample", figures), notes, figures)


def labels_section(m: EvaluationData) -> ReportSection | None:
    """The share of samples that a classifier of the data assigns to their requested labels."""
    if m.labels is None or m.kind != "images":
        return None
    cached_only = m.deadline.limited and m.features.name != "classifier"
    seconds = classifier_seconds(m.deadline)
    net, facts = dataset_classifier(*m.classifier_data, m.on_progress, seconds=seconds, cached_only=cached_only)
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
    notes = (
        f"The classifier finds the requested label in {share:.1%} of the samples and in {floor:.1%} of {len(x):,} held-out"
        f" data; least often for {worst!r}: {by_label[worst]:.1%}.",
        f"It is {facts['net'].split(',')[0]}. Its own errors lower both shares, so compare one with the other.",
    )
    return ReportSection("labels", "Label accuracy", find_faults("labels", figures), notes, figures)
