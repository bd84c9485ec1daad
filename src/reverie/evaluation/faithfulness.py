"""Caption accuracy: the share of samples with the attributes of their captions, by classifiers trained on real images."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from reverie.base.errors import UserError
from reverie.base.noise import image_seeds
from reverie.base.progress import OnProgress, silent
from reverie.data import Dataset, LazyImages
from reverie.data.conditions import Attribute, normalize_caption
from reverie.evaluation.metrics.features import dataset_classifier
from reverie.evaluation.report_section import ReportSection
from reverie.evaluation.scores import score
from reverie.evaluation.verdicts import find_faults
from reverie.families.model import SamplingInputs
from reverie.nets.lenet import LeNet, features_and_classes
from reverie.runs.run import Run
from reverie.runs.sampling_options import Options

NAME, TITLE = "captions", "Caption accuracy"
TRAIN_SHARE = 0.8  # of the images with held-out combinations; the rest tests the classifiers
MIN_WORD_SHARE = 0.05  # minimum share of captions with, and of captions without, a classified word
MAX_WORDS = 8  # classified words
MAX_CAPTIONS = 512  # with held-out combinations
Sets = Mapping[str, tuple[Tensor, Sequence[str]]]  # images (N, C, H, W) in [0, 1] and their captions, by name


@dataclass(frozen=True)
class AttributeClassifier:
    """A classifier of one attribute with its accuracy on `test_count` real test images."""

    attribute: Attribute
    net: LeNet
    accuracy: float
    test_count: int

    def agreement(self, x: Tensor, captions: Sequence[str]) -> tuple[float, int]:
        """Return the share of images that match their captions in the attribute, and the number of captions that state it."""
        expected = word_labels(self.attribute, captions)
        mentioned = expected >= 0
        if not bool(mentioned.any()):
            return math.nan, 0
        right = features_and_classes(self.net, x[mentioned])[1] == expected[mentioned]
        return float(right.double().mean()), int(mentioned.sum())


def word_labels(attribute: Attribute, captions: Sequence[str]) -> Tensor:
    """Return the index of the attribute's word in each caption, -1 for none; for a single word, 1 if present, else 0."""
    found = attribute.of(captions)
    return found + 1 if len(attribute.words) == 1 else found


def attributes_of(data: Dataset) -> tuple[Attribute, ...]:
    """Return the attributes of the data, or else the words that divide the captions most evenly."""
    assert data.conditions is not None
    if data.conditions.attributes:
        return data.conditions.attributes
    counts = Counter(word for caption in data.conditions.captions for word in set(normalize_caption(caption).split()))
    total = len(data.conditions.captions)
    common = [word for word, n in counts.items() if MIN_WORD_SHARE <= n / total <= 1 - MIN_WORD_SHARE and len(word) > 1]
    common.sort(key=lambda word: (abs(counts[word] / total - 0.5), word))
    return tuple(Attribute(word, (word,)) for word in common[:MAX_WORDS])


def _classifier_sets(train: Dataset, held: Dataset) -> tuple[tuple[Tensor, tuple[str, ...]], tuple[Tensor, tuple[str, ...]]]:
    """Return the images and captions for training the classifiers, and those for testing them."""
    conditions, held_conditions = train.conditions, held.conditions
    assert conditions is not None and held_conditions is not None and isinstance(train.x, Tensor) and isinstance(held.x, Tensor)
    if conditions.unseen_images is None:
        return (train.x, conditions.captions), (held.x, held_conditions.captions)
    count = round(TRAIN_SHARE * len(conditions.unseen))
    training = torch.cat([train.x, conditions.unseen_images[:count]]), (*conditions.captions, *conditions.unseen[:count])
    return training, (
        torch.cat([held.x, conditions.unseen_images[count:]]),
        (*held_conditions.captions, *conditions.unseen[count:]),
    )


def train_attribute_classifiers(
    train: Dataset, held: Dataset, on_progress: OnProgress = silent, seconds: float = math.inf
) -> list[AttributeClassifier]:
    """Return a classifier of each attribute, trained on real images, including those of held-out combinations.

    seconds: the time limit for all of them.
    """
    if isinstance(train.x, LazyImages) or isinstance(held.x, LazyImages):
        raise UserError("the images do not fit into memory, which the classifiers of captions require; use fewer images")
    training, test = _classifier_sets(train, held)
    classifiers, attributes = [], attributes_of(train)
    for attribute in attributes:
        words = attribute.words if len(attribute.words) > 1 else (f"not {attribute.name}", attribute.name)
        sets = []
        for x, captions in (training, test):
            labels = word_labels(attribute, captions)
            sets.append(Dataset(attribute.name, x[labels >= 0], labels[labels >= 0], words))
        if len(sets[0].labels.unique() if sets[0].labels is not None else ()) < 2 or not len(sets[1]):
            continue
        net, facts = dataset_classifier(sets[0], sets[1], on_progress, seconds=seconds / len(attributes))
        classifiers.append(AttributeClassifier(attribute, net, facts["held_out_accuracy"], facts["held_out_count"]))
    if not classifiers:
        raise UserError("no word is common enough in the captions to train a classifier")
    return classifiers


def sample_captions(run: Run, captions: Sequence[str], seed: int, options: Options, on_progress: OnProgress = silent) -> Tensor:
    """Return a sample of each caption, (N, C, H, W) in [0, 1]."""
    form = run.config.data.condition
    assert form is not None
    conditions, seeds = torch.stack([form.vector(caption) for caption in captions]), image_seeds(seed, len(captions))
    defaults = run.with_defaults(options)
    parts = []
    for part in torch.arange(len(conditions)).split(run.batch_size()):
        inputs = SamplingInputs(seeds[part], conditions[part], options=defaults, weak=run.early, mean_error=run.mean_error)
        *_, last = run.model.frames(inputs)
        parts.append(run.model.decode(last.x0).float().cpu())
        on_progress("sampling captions", int(part[-1]) + 1, len(conditions))
    return torch.cat(parts).clamp(0, 1)


def caption_accuracy(classifiers: Sequence[AttributeClassifier], sets: Sets, seed: int = 0) -> dict[str, Any]:
    """Return the accuracy of each set and attribute, and the same for shuffled captions.

    The floor is the accuracy of the classifier on real images; chance is 1 / the number of words.
    """
    figures: dict[str, Any] = {}
    for name, (x, captions) in sets.items():
        order = torch.randperm(len(captions), generator=torch.Generator().manual_seed(seed)).tolist()
        for classifier in classifiers:
            share, count = classifier.agreement(x, captions)
            if not count:
                continue
            shuffled, _ = classifier.agreement(x, [captions[k] for k in order])
            counts = (share, count), (classifier.accuracy, classifier.test_count)
            errors = [math.sqrt(max(p * (1 - p), 1 / n) / n) for p, n in counts]
            chance = 1 / max(2, len(classifier.attribute.words))
            details = {"shuffled": shuffled, "chance": chance, "count": count}
            figures[f"{classifier.attribute.name}, {name}"] = score(share, errors[0], classifier.accuracy, errors[1], **details)
    return figures


def captions_section(
    run: Run, train: Dataset, held: Dataset, samples: Tensor, captions: Sequence[str], options: Options, *, quick: bool,
    seed: int, on_progress: OnProgress, seconds: float = math.inf,
) -> ReportSection:  # fmt: skip
    """Measure caption accuracy on samples, and on samples of held-out combinations of words, if there are any."""
    conditions = train.conditions
    assert conditions is not None
    try:
        classifiers = train_attribute_classifiers(train, held, on_progress, seconds)
        sets: dict[str, tuple[Tensor, Sequence[str]]] = {"seen": (samples, captions)}
        if conditions.unseen:
            order = torch.randperm(len(conditions.unseen), generator=torch.Generator().manual_seed(seed))
            unseen = [conditions.unseen[int(k)] for k in order[: MAX_CAPTIONS // 4 if quick else MAX_CAPTIONS]]
            sets["unseen"] = sample_captions(run, unseen, seed + 1, options, on_progress), unseen
        figures = caption_accuracy(classifiers, sets, seed)
    except UserError as error:
        return ReportSection(NAME, TITLE, figures={"not_computable": str(error)})
    notes = tuple(
        f"{name}: accuracy {f['value']:.1%} ± {f['error']:.1%} on {f['count']:,} samples, {f['floor']:.1%} on real images,"
        f" {f['shuffled']:.1%} with shuffled captions; chance {f['chance']:.0%}."
        for name, f in figures.items()
    )
    about = "Each classifier is a LeNet-5 trained on real images; its own errors lower both accuracies."
    return ReportSection(NAME, TITLE, find_faults(NAME, figures), (*notes, about), figures)
