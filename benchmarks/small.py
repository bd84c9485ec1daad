"""Small data sets: training with and without augmentation, and from the weights of another run or from scratch.

    python -m benchmarks.small --photos DIR --emoji DIR --data-dir DIR --steps 3000 [--augment none auto --rates 5e-3]

Lengths are in steps, so the load of the machine does not matter.  All figures refer to one held-out set.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch import Tensor

import reverie
from benchmarks.measure import machine
from reverie.data import Dataset, load_data
from reverie.diffusion.condition import NULL
from reverie.evaluation.evaluation_data import samples_tensor
from reverie.evaluation.metrics.features import choose_features
from reverie.evaluation.metrics.kid import kid
from reverie.evaluation.metrics.neighbours import neighbours
from reverie.families.diffusion.family import DATA_OPTIONS
from reverie.families.diffusion.noise_levels import noised_losses
from reverie.runs.run import Run

AUGMENTATIONS = ("none", "auto", "shift", "rotate", "zoom", "colour", "flip", "flip:conditioned=no")
LOSS_SEEDS = 4  # batches of 512 noised images for the held-out loss
HEAD = ["| what | images | held-out loss | KID | KID of training images | copies |", "|---|---|---|---|---|---|"]


@dataclass(frozen=True)
class Split:
    """Training images, written into a folder with their labels as folder names, and images to measure with."""

    folder: Path
    train: Dataset
    test: Dataset


def divided(data: Dataset, count: int, folder: Path) -> Split:
    """Choose training images at random; all others are for measuring."""
    order = torch.randperm(len(data), generator=torch.Generator().manual_seed(0))
    train, test = data.take(order[:count]), data.take(order[count:])
    x, labels = train.batch(torch.arange(len(train)))
    for k, image in enumerate((255 * x).round().byte().movedim(1, -1).numpy()):
        place = folder / (data.label_names[int(labels[k])] if labels is not None else "")
        place.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image[..., 0] if image.shape[-1] == 1 else image).save(place / f"{k}.png")
    return Split(folder, train, test)


def as_known(data: Dataset, run: Run) -> Dataset:
    """Return data with the label numbers of a run."""
    names = run.config.data.labels
    if data.labels is None or not names:
        return Dataset(data.name, data.x)
    number = torch.tensor([names.index(name) if name in names else NULL for name in data.label_names])
    return replace(data, labels=number[data.labels], label_names=names)


@dataclass(frozen=True)
class Bench:
    """Folder of the runs, steps of the longest, count of samples, and what is compared."""

    place: Path
    steps: int
    count: int
    augmentations: Sequence[str] = ()
    rates: Sequence[float] = ()

    def trained(self, split: Split, name: str, steps: int | None = None, **options: Any) -> Run:
        """Train unless the run exists, and print a row of figures on held-out images."""
        steps = steps or self.steps
        path = self.place / "runs" / name
        run = reverie.load(path) if path.exists() else reverie.train(str(split.folder), path, steps=steps, **options)
        test = as_known(split.test, run)
        losses = torch.cat([noised_losses(run.diffusion, test, seed)[1] for seed in range(LOSS_SEEDS)])
        samples, train = samples_tensor(run.sample(self.count).x), some(split.train)
        features = choose_features("general", split.train, split.test)
        sampled, seen, unseen = (features.of(x) for x in (samples, train[: self.count], some(split.test, self.count)))
        unit = float(unseen.square().mean().sqrt())  # as in evaluate: KID does not depend on the scale of features
        ours, real = (kid(x / unit, unseen / unit) for x in (sampled, seen))
        found = neighbours(samples, lambda: train.split(512), lambda index: train[index])
        print(
            f"| {name}, {steps:,} steps | {len(split.train):,} | {losses.mean():.4f} ± {losses.std() / len(losses) ** 0.5:.4f}",
            f"{ours.value:.3f} ± {ours.standard_error:.3f}",
            f"{real.value:.3f} ± {real.standard_error:.3f}",
            f"{found.share:.1%} ± {found.standard_error:.1%} |", sep=" | ", flush=True,
        )  # fmt: skip
        return run

    def augmentation(self, split: Split) -> None:
        """Compare the default augmentation with none, and with each of its parts alone."""
        for augmentation in self.augmentations:
            self.trained(split, f"{split.folder.name} {augmentation}", augment=augmentation)

    def starting(self, first: Run, split: Split) -> None:
        """Compare training from a run, at several learning rates, with training from scratch, for two lengths."""
        network = {key: value for key, value in first.diffusion_settings.network.items() if key not in DATA_OPTIONS}
        for steps in (self.steps // 10, self.steps // 3):
            self.trained(split, f"{split.folder.name} from scratch {steps}", steps, network=network)
            for rate in self.rates:
                name = f"{split.folder.name} from {first.path.name} at rate {rate:g} {steps}"
                self.trained(split, name, steps, start_from=first.path, learning_rate=rate)

    def photos(self, path: str, size: str) -> None:
        """Photos: three quarters for training."""
        data = load_data(path, size=size)
        self.augmentation(divided(data, len(data) * 3 // 4, self.place / "photos"))

    def emoji(self, path: str, size: str, label: str) -> None:
        """Emoji with their labels; then half of one label, from scratch and from a run of all others."""
        data = load_data(path, size=size)
        assert data.labels is not None
        self.augmentation(divided(data, len(data) * 3 // 4, self.place / "emoji"))
        if not self.rates:
            return
        mine = data.labels == data.label_names.index(label)
        others, one = data.take(~mine), Dataset(label, data.take(mine).x)
        first = self.trained(divided(others, len(others) * 9 // 10, self.place / "others"), "others")
        self.starting(first, divided(one, len(one) // 2, self.place / label))

    def hoda(self, folder: str, images: int = 500) -> None:
        """Few Persian digits, from scratch and from an MNIST run."""
        first = reverie.train("mnist", self.place / "runs" / "mnist", steps=self.steps, data_dir=folder)
        data = load_data("hoda", size="28", data_dir=folder)
        known = data.take(torch.randperm(len(data), generator=torch.Generator().manual_seed(1))[: images + 5000])
        self.starting(first, divided(known, images, self.place / "hoda"))


def some(data: Dataset, most: int = 10**6) -> Tensor:
    """Return at most count images."""
    return data.batch(torch.arange(min(most, len(data))))[0]


def main() -> None:
    """Measure the data sets that were given."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--photos", help="folder of photos")
    parser.add_argument("--emoji", help="folder of emoji with a folder for each label")
    parser.add_argument("--label", default="Food and Drink", help="the label that is trained after the others")
    parser.add_argument("--data-dir", help="folder of the MNIST and Hoda files")
    parser.add_argument("--size", default="32", help="of photos and emoji")
    parser.add_argument("--steps", type=int, default=3000, help="steps of the longest trainings")
    parser.add_argument("--count", type=int, default=512, help="samples to measure")
    parser.add_argument("--out", help="folder of images and runs; default: a temporary one")
    parser.add_argument("--augment", nargs="*", default=AUGMENTATIONS, help="augmentations to compare")
    parser.add_argument(
        "--rates",
        type=float,
        nargs="*",
        default=(1e-2, 5e-3, 3e-3),
        help="learning rates of training from another run; none to skip it",
    )
    args = parser.parse_args()
    print(machine(), *HEAD, sep="\n", flush=True)
    with tempfile.TemporaryDirectory() as aside:
        bench = Bench(Path(args.out or aside), args.steps, args.count, args.augment, args.rates)
        if args.photos:
            bench.photos(args.photos, args.size)
        if args.emoji:
            bench.emoji(args.emoji, args.size, args.label)
        if args.data_dir:
            bench.hoda(args.data_dir)


if __name__ == "__main__":
    main()
