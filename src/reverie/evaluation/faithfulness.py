"""Do samples show what their captions say?  Judges that learned from real images are asked about one attribute each."""

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

NAME, TITLE = "captions", "Do samples show what their captions say?"
TAUGHT = 0.8  # of the images whose combinations were left out, judges learn from so many; the rest tells how good they are
COMMON, MOST_WORDS = 0.05, 8  # share of captions that have a word that is judged, and lack it; and how many words, at most
DRAWN = 512  # samples of captions that were left out
Sets = Mapping[str, tuple[Tensor, Sequence[str]]]  # images (N, C, H, W) in [0, 1] and their captions, by what they are


@dataclass(frozen=True)
class AttributeClassifier:
    """A classifier of one attribute.  accuracy: of its answers about real images that it has not seen, of `asked` of them."""

    attribute: Attribute
    net: LeNet
    accuracy: float
    asked: int

    def agreement(self, x: Tensor, captions: Sequence[str]) -> tuple[float, int]:
        """Return the share of images that show what their captions say of the attribute, and of how many that say anything."""
        wanted = word_labels(self.attribute, captions)
        mentioned = wanted >= 0
        if not bool(mentioned.any()):
            return math.nan, 0
        right = features_and_classes(self.net, x[mentioned])[1] == wanted[mentioned]
        return float(right.double().mean()), int(mentioned.sum())


def word_labels(attribute: Attribute, captions: Sequence[str]) -> Tensor:
    """Return which word each caption has, -1 for none; of a single word, 1 where it is said and 0 where not."""
    found = attribute.of(captions)
    return found + 1 if len(attribute.words) == 1 else found


def attributes_of(data: Dataset) -> tuple[Attribute, ...]:
    """Return what judges are asked about: what the data say, or else the words that tell captions apart best."""
    assert data.conditions is not None
    if data.conditions.attributes:
        return data.conditions.attributes
    counts = Counter(word for caption in data.conditions.captions for word in set(normalize_caption(caption).split()))
    total = len(data.conditions.captions)
    common = [word for word, n in counts.items() if COMMON <= n / total <= 1 - COMMON and len(word) > 1]
    common.sort(key=lambda word: (abs(counts[word] / total - 0.5), word))
    return tuple(Attribute(word, (word,)) for word in common[:MOST_WORDS])


def _real(train: Dataset, held: Dataset) -> tuple[tuple[Tensor, tuple[str, ...]], tuple[Tensor, tuple[str, ...]]]:
    """Return the images and captions that judges learn from, and those that they are tried on."""
    told, other = train.conditions, held.conditions
    assert told is not None and other is not None and isinstance(train.x, Tensor) and isinstance(held.x, Tensor)
    if told.unseen_images is None:
        return (train.x, told.captions), (held.x, other.captions)
    count = round(TAUGHT * len(told.unseen))
    learned = torch.cat([train.x, told.unseen_images[:count]]), (*told.captions, *told.unseen[:count])
    return learned, (torch.cat([held.x, told.unseen_images[count:]]), (*other.captions, *told.unseen[count:]))


def train_attribute_classifiers(
    train: Dataset, held: Dataset, tell: OnProgress = silent, seconds: float = math.inf
) -> list[AttributeClassifier]:
    """Return a judge of each attribute, taught by real images and their captions, those left out of the training among them.

    seconds: that all of them may be trained for.
    """
    if isinstance(train.x, LazyImages) or isinstance(held.x, LazyImages):
        raise UserError("the images are too many for memory, and judges of captions learn from images in memory")
    learned, tried = _real(train, held)
    found, attributes = [], attributes_of(train)
    for attribute in attributes:
        words = attribute.words if len(attribute.words) > 1 else (f"not {attribute.name}", attribute.name)
        sets = []
        for x, captions in (learned, tried):
            labels = word_labels(attribute, captions)
            sets.append(Dataset(attribute.name, x[labels >= 0], labels[labels >= 0], words))
        if len(sets[0].labels.unique() if sets[0].labels is not None else ()) < 2 or not len(sets[1]):
            continue
        net, facts = dataset_classifier(sets[0], sets[1], tell, seconds=seconds / len(attributes))
        found.append(AttributeClassifier(attribute, net, facts["held_out_accuracy"], facts["held_out_count"]))
    if not found:
        raise UserError("no word is common enough among the captions to be judged by")
    return found


def sample_captions(run: Run, captions: Sequence[str], seed: int, options: Options, tell: OnProgress = silent) -> Tensor:
    """Return an image of each caption, (N, C, H, W) in [0, 1]."""
    form = run.config.data.condition
    assert form is not None
    rows, seeds = torch.stack([form.vector(caption) for caption in captions]), image_seeds(seed, len(captions))
    own = run.with_defaults(options)
    parts = []
    for part in torch.arange(len(rows)).split(run.batch_size()):
        wanted = SamplingInputs(seeds[part], rows[part], options=own, weak=run.early, mean_error=run.mean_error)
        *_, last = run.model.frames(wanted)
        parts.append(run.model.decode(last.x0).float().cpu())
        tell("drawing captions", int(part[-1]) + 1, len(rows))
    return torch.cat(parts).clamp(0, 1)


def caption_accuracy(classifiers: Sequence[AttributeClassifier], sets: Sets, seed: int = 0) -> dict[str, Any]:
    """Return, for each set and attribute, how often judges see what the captions say, and the same of shuffled captions.

    The floor is the judge's own accuracy on real images; chance is one in as many words.
    """
    figures: dict[str, Any] = {}
    for name, (x, captions) in sets.items():
        order = torch.randperm(len(captions), generator=torch.Generator().manual_seed(seed)).tolist()
        for classifier in classifiers:
            share, count = classifier.agreement(x, captions)
            if not count:
                continue
            shuffled, _ = classifier.agreement(x, [captions[k] for k in order])
            errors = [
                math.sqrt(max(p * (1 - p), 1 / n) / n) for p, n in ((share, count), (classifier.accuracy, classifier.asked))
            ]
            chance = 1 / max(2, len(classifier.attribute.words))
            more = {"shuffled": shuffled, "chance": chance, "count": count}
            figures[f"{classifier.attribute.name}, {name}"] = score(share, errors[0], classifier.accuracy, errors[1], **more)
    return figures


def captions_section(
    run: Run, train: Dataset, held: Dataset, samples: Tensor, captions: Sequence[str], options: Options, *, quick: bool,
    seed: int, tell: OnProgress, seconds: float = math.inf,
) -> ReportSection:  # fmt: skip
    """Ask judges of real images about samples of captions, and about words never seen together, if there are any."""
    told = train.conditions
    assert told is not None
    try:
        classifiers = train_attribute_classifiers(train, held, tell, seconds)
        sets: dict[str, tuple[Tensor, Sequence[str]]] = {"seen": (samples, captions)}
        if told.unseen:
            order = torch.randperm(len(told.unseen), generator=torch.Generator().manual_seed(seed))
            asked = [told.unseen[int(k)] for k in order[: DRAWN // 4 if quick else DRAWN]]
            sets["never seen"] = sample_captions(run, asked, seed + 1, options, tell), asked
        figures = caption_accuracy(classifiers, sets, seed)
    except UserError as error:
        return ReportSection(NAME, TITLE, figures={"not_computable": str(error)})
    words = tuple(
        f"{name}: {f['value']:.1%} ± {f['error']:.1%} of {f['count']:,} samples show it, of real images {f['floor']:.1%};"
        f" shuffled captions {f['shuffled']:.1%}, chance {f['chance']:.0%}."
        for name, f in figures.items()
    )
    about = "Each judge is a LeNet-5 that learned one attribute from real images; what it misses there it misses here too."
    return ReportSection(NAME, TITLE, find_faults(NAME, figures), (*words, about), figures)
