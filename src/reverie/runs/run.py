"""A run: a trained model and the folder it lives in, which is all that sampling needs."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypedDict, Unpack

import numpy as np
import torch
from torch import Tensor

from reverie.base.busy import few_threads_when_busy
from reverie.base.errors import UserError, unknown
from reverie.base.noise import Noise, image_seeds
from reverie.base.progress import Tell
from reverie.base.team import world_size
from reverie.data.kind import WRITTEN, Kind, counted
from reverie.data.windows import END_OF_TEXT
from reverie.diffusion.classifier import Classifier
from reverie.diffusion.denoiser import Denoiser, Steer
from reverie.diffusion.samplers import Frame, Sampler
from reverie.diffusion.spread import MeanError
from reverie.draw.picture import FILM_FRAMES, channels_last
from reverie.families import FAMILIES
from reverie.families.diffusion.model import Diffusion
from reverie.families.diffusion.sampling import OPTIONS, build_guidance, build_sampling, chosen_sampling, why_sampling
from reverie.families.diffusion.settings import DiffusionSettings, settings_of
from reverie.families.language.choice import PAIR_OPTIONS as TEXT_OPTIONS
from reverie.families.language.model import LanguageModel
from reverie.families.model import DrawRequest, Model
from reverie.families.seq2seq.model import Answer, PairModel
from reverie.runs import folder
from reverie.runs.classifier import read_classifier
from reverie.runs.config import Config
from reverie.runs.destinations import check_film
from reverie.runs.labels import read_label
from reverie.runs.prompts import ASKED, asks, rows_of, weights_of, with_guidance
from reverie.runs.samples import Samples
from reverie.runs.spread import mean_error_of
from reverie.runs.weights import read_weights

MOST_SAMPLES, MOST_FIRST = 10_000_000, 10**12
BATCH_VALUES = 2**17  # numbers of data, or of codes, sampled at once; beyond 64 images of 28 x 28 the speed is the same
MOST_HELD = 8  # tokens that are held back, at most, until they spell whole characters
LABEL_DRAW = 2**30  # the number of the draw, of each image's own stream, that decides its label


def choose_device(name: str = "auto") -> torch.device:
    """Return the device asked for; "auto" is CUDA, else MPS, else the CPU."""
    usable = ["cpu"]
    if torch.backends.mps.is_available():
        usable.insert(0, "mps")
    if torch.cuda.is_available():
        usable.insert(0, "cuda")
    if name == "auto":
        return torch.device(usable[0])
    if name.partition(":")[0] not in usable:
        raise UserError(f"the device {name!r} is not usable on this machine; choose from: auto, {', '.join(usable)}")
    try:
        return torch.device(name)
    except RuntimeError:
        raise UserError(f"cannot read the device {name!r}; write it like cpu, cuda or cuda:0") from None


def device_for(name: str = "auto") -> torch.device:
    """Return where this process works: each has a GPU of its own where there are several processes."""
    where = choose_device(name)
    return torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0"))) if where.type == "cuda" and world_size() > 1 else where


class Options(TypedDict, total=False):
    """How to sample.

    label: a name, "all" for each in turn, or weighted names such as "6:1.5,8:-1"; prompt: a text, or weighted ones such as
    "a seven::1.5, slanted::-0.5"; avoid: a text to be led away from; told: numbers by name, "angle=0.5"; condition_image: a
    picture, all of what a model was trained to be told; guidance: 1 is none;
    guidance_interval: the times it is limited to, "LOW,HIGH"; guidance_rescale, classifier_guidance: see
    `reverie.diffusion.guidance`, 0 is none; autoguidance: its scale, 1 is none, None what the training chose;
    precision: "fp32", or "bf16" for faster and slightly other images, None the one that is quick here; seed: image k of a
    seed is always the same image.
    Of text: prompt: what it goes on from, or what is answered; temperature: 1 as it was learned, less surer, 0 always the
    likeliest, if not given 1 and of answers 0; top_k, top_p: only the k likeliest tokens, or the fewest whose share is p;
    length: characters, at most; beams: answers that a search keeps at a time.
    """

    label: str | None
    prompt: str | None
    avoid: str | None
    told: str | Mapping[str, float] | None
    condition_image: str | Path | np.ndarray | None
    guidance: float
    guidance_interval: str | tuple[float, float] | None
    guidance_rescale: float
    classifier_guidance: float
    autoguidance: float | None
    precision: str | None
    seed: int
    sampler: str | None
    steps: int | None
    grid: str | None
    temperature: float | None
    top_k: int | None
    top_p: float
    length: int | None
    beams: int | None


def together(parts: Sequence[np.ndarray]) -> np.ndarray:
    """Return arrays as one; texts of different lengths have ends after their last character."""
    widest = max(part.shape[-1] for part in parts)
    if all(part.shape[-1] == widest for part in parts):
        return np.concatenate(parts)
    none = ((0, 0),) * (parts[0].ndim - 1)
    return np.concatenate([np.pad(p, (*none, (0, widest - p.shape[-1])), constant_values=END_OF_TEXT) for p in parts])


def check_count(n: int) -> None:
    """Refuse a number of samples that cannot be drawn."""
    if not isinstance(n, int) or not 1 <= n <= MOST_SAMPLES:
        raise UserError(f"the number of samples must be a whole number, at least 1 and at most {MOST_SAMPLES:,}, got {n}")


def check_first(first: int) -> None:
    """Refuse a number of the first sample that a seed does not have."""
    if not isinstance(first, int) or not 0 <= first < MOST_FIRST:
        raise UserError(f"the number of the first sample must be a whole number from 0 up to {MOST_FIRST:,}, got {first}")


@dataclass
class Run:
    """A trained model and where it lives.  changes: what was done to it since, as it is asked for: "adapter runs/hoda:0.7"."""

    config: Config
    model: Model
    path: Path
    changes: tuple[str, ...] = ()
    _early: Model | None = field(default=None, init=False, repr=False, compare=False)
    _mean_error: MeanError | None = field(default=None, init=False, repr=False, compare=False)

    def __repr__(self) -> str:
        data = self.config.data
        return (
            f"Run({str(self.path)!r}, {self.config.family.name} of {data.name}: {counted(data.count, data.shape, data.kind)})"
        )

    @property
    def fit(self) -> str:
        """How the data were brought to their size, and so how a picture is that is given to the run."""
        return str(self.config.data.reading.get("fit", "crop"))

    def metrics(self) -> list[dict[str, Any]]:
        """Return the rows of metrics.jsonl."""
        return folder.read_metrics(self.path)

    def labels(self, label: str | None, n: int, seed: int, first: int = 0) -> Tensor | None:
        """Return the labels of n images from number `first` on: one name, "all" in turn, or as often as in the data.

        Returns (n,), or (n, K) where K labels are composed.
        """
        names = self.config.data.labels
        if not names:
            if label is not None:
                raise UserError(f"the run {self.path} was trained without labels, so it cannot draw {label!r}")
            return None
        if self.in_turn(label):
            return torch.arange(first, first + n) % len(names)
        if label is not None:
            labels = torch.tensor(read_label(label, names).labels).expand(n, -1)
            return labels[:, 0] if labels.shape[1] == 1 else labels
        shares = torch.tensor(self.config.data.label_counts, dtype=torch.float64).cumsum(0)
        u = Noise(image_seeds(seed, n, first), draws=LABEL_DRAW).uniform(1)[0][:, 0]
        return torch.bucketize(u * shares[-1], shares, right=True)

    def condition(self, options: Mapping[str, Any], n: int, first: int = 0) -> Tensor | None:
        """Return the conditions of n images from number `first` on: labels, or rows as options ask, or as in the data.

        Labels: see `labels`; rows: (n, R), or (n, K, R) where K are composed.
        """
        form, label, seed = self.config.data.condition, options.get("label"), options.get("seed", 0)
        if form is None:
            if any(options.get(key) is not None for key in ASKED if key not in self.config.model_family.options):
                having, do = ("labels", "give --label") if self.config.data.labels else (f"{self.kind} alone", "leave it out")
                raise UserError(f"the run {self.path} was trained with {having}, so it is told no words, number or image; {do}")
            return self.labels(label, n, seed, first)
        if label is not None:
            raise UserError(f"the run {self.path} was trained without labels; say what to draw with --prompt, not --label")
        if asks(options):
            rows = rows_of(form, options, self.fit).expand(n, -1, -1)
            return rows[:, 0] if rows.shape[1] == 1 else rows
        return self.diffusion.example(Noise(image_seeds(seed, n, first), draws=LABEL_DRAW).uniform(1)[0][:, 0]).cpu()

    def weights(self, options: Mapping[str, Any]) -> tuple[float, ...]:
        """Return the weights of the conditions that options ask for."""
        if self.config.data.condition is not None:
            return weights_of(options)
        label, names = options.get("label"), self.config.data.labels
        return (1.0,) if label is None or self.in_turn(label) or not names else read_label(label, names).weights

    @property
    def conditional(self) -> bool:
        """Whether it was trained with labels or other conditions."""
        return bool(self.config.data.labels) or self.config.data.condition is not None

    @property
    def kind(self) -> Kind:
        """What one datum is."""
        return self.config.data.kind

    @property
    def diffusion(self) -> Diffusion:
        """The model, if it is of diffusion; else a refusal that says which families can do more."""
        if not isinstance(self.model, Diffusion):
            raise self.unable("do that")
        return self.model

    @property
    def diffusion_settings(self) -> DiffusionSettings:
        """The settings of a diffusion model."""
        return settings_of(self.config.family)

    def require(self, ability: str) -> None:
        """Refuse what the family of the run cannot do."""
        if ability not in self.config.model_family.can:
            raise self.unable(ability)

    def unable(self, ability: str) -> UserError:
        """Return the refusal of something that the family of the run cannot do, with the families that can."""
        able = ", ".join(name for name, family in FAMILIES.items() if ability in family.can) or "diffusion"
        return UserError(
            f"{self.path} is a run of the family {self.config.family.name}, which cannot {ability}; families that can: {able}"
        )

    def chosen_sampling(self, options: Options, steered: bool = False) -> tuple[str, int, str]:
        """Return the names of sampler and grid and the number of steps: those asked for, or else the defaults."""
        return chosen_sampling(self.config.data.shape, {**options, "steer": steered or None}, self.distilled)

    def why_sampling(self, options: Mapping[str, Any]) -> str:
        """Say what samples are drawn with under the options, and why."""
        if "sampler" not in self.config.model_family.options:
            return f"the family {self.config.family.name} draws at once, without steps"
        return why_sampling(self.config.data.shape, options, self.distilled)

    def sampling(self, options: Options) -> tuple[Sampler, Tensor]:
        """Build the sampler and the times that the options ask for, and refuse what does not go together."""
        self.check_options(options)
        return build_sampling(self.config.data.shape, self.diffusion.denoiser.schedule, options, self.distilled)

    def check_options(self, options: Mapping[str, Any]) -> None:
        """Refuse options of sampling that no family has, or that are given to a family that has no such option."""
        every = {**OPTIONS, **TEXT_OPTIONS}
        known = {**every, **dict.fromkeys(("label", "seed", *ASKED))}
        if wrong := sorted(set(options) - set(known)):
            raise unknown(wrong[0], Options.__annotations__, "option of sampling")
        mine = self.config.model_family.options
        if "captions" in self.config.model_family.can:  # which `condition` reads
            every.pop("prompt")
        for key, value in options.items():
            if key in every and key in TEXT_OPTIONS and key in mine and self.kind not in WRITTEN and value != TEXT_OPTIONS[key]:
                raise UserError(f"--{key.replace('_', '-')} is for text, and {self.path} is a run of {self.kind}; leave it out")
            if key in every and key not in mine and value != every[key]:
                able = ", ".join(name for name, family in FAMILIES.items() if key in family.options)
                raise UserError(
                    f"{self.path} is a run of the family {self.config.family.name}, which has no --{key.replace('_', '-')};"
                    f" families that have: {able}"
                )

    def frames(
        self,
        n: int = 16,
        first: int = 0,
        *,
        steer: Steer | None = None,
        origin: Tensor | None = None,
        times: Tensor | None = None,
        **options: Unpack[Options],
    ) -> Iterator[Frame]:
        """Draw images first .. first + n - 1 of the seed at once and yield every frame, in model units.

        steer and origin: as in `Diffusion.sample`; times: a grid to be used instead of the one that the options ask for.
        """
        check_count(n)
        given: dict[str, Any] = {**options, "steer": steer, "origin": origin, "times": times}
        self.check_options(given)
        given = with_guidance(given)
        seeds = image_seeds(options.get("seed", 0), n, first)
        cond, weights = self.condition(given, n, first), self.weights(given)
        if first == 0:  # once for all batches
            self.model.warn()
        if options.get("autoguidance") is None and steer is None and origin is None and times is None:
            given["autoguidance"] = self.autoguidance
        own = {key: value for key, value in given.items() if key in self.config.model_family.options}
        return self.model.frames(DrawRequest(seeds, cond, weights, own, self.classifier, self.early, self.mean_error))

    @property
    def distilled(self) -> bool:
        """Whether it is a student that draws in a few evaluations."""
        return isinstance(self.config.family, DiffusionSettings) and self.config.family.distilled is not None

    @property
    def autoguidance(self) -> float:
        """The scale of autoguidance when nothing is said: 1 is none."""
        return self.config.family.autoguidance if isinstance(self.config.family, DiffusionSettings) else 1.0

    def early(self) -> Model:
        """Return the model as it was early in its training."""
        if self._early is None:
            if not (self.path / folder.EARLY_FILE).is_file():
                raise UserError(
                    f"{self.path} has no {folder.EARLY_FILE}, which autoguidance needs;"
                    " sample with --autoguidance 1, or train it again"
                )
            model = read_weights(self.path, self.config, folder.EARLY_FILE)
            if isinstance(model, Diffusion) and isinstance(self.model, Diffusion):  # one that is learned was another one then
                model.denoiser.schedule = self.model.denoiser.schedule
            self._early = model.to(self.model.device).eval()
        return self._early

    def mean_error(self) -> MeanError:
        """Return how far the estimates are off on training data, by which the variance "optimal" of DDPM's steps goes."""
        if self._mean_error is None:
            self._mean_error = mean_error_of(self)
        return self._mean_error

    def _early_denoiser(self) -> Denoiser:
        early = self.early()
        assert isinstance(early, Diffusion)
        return early.denoiser

    def guidance(self, options: Options) -> Steer:
        """Return the wrapper that guides the model's denoiser as the options ask, and refuse what has no meaning."""
        given = with_guidance(options)
        return build_guidance(self.kind, self.conditional, given, self.weights(given), self.classifier, self._early_denoiser)

    def unconditional_by_default(self, options: Options) -> Options:
        """Return a copy of options that goes by no condition where no label is given, instead of by one drawn by chance."""
        chosen = Options(**options)
        if self.conditional and options.get("label") is None and not asks(options):
            limits = [options.get(key) for key in ("classifier_guidance", "guidance_interval", "guidance_rescale")]
            if options.get("guidance", 1.0) != 1 or any(limits):
                needed = "a label to steer by; give one with --label"
                if not self.config.data.labels:
                    needed = "something to steer by; say what with --prompt"
                raise UserError(f"guidance needs {needed}")
            chosen["guidance"] = 0.0
        return chosen

    def classifier(self) -> Classifier:
        """Return the classifier of noised data that `train-classifier` left in the run."""
        return read_classifier(self.path, self.config).to(self.model.device)

    def batch_size(self) -> int:
        """Return how many data are sampled at once."""
        shape = self.model.model_shape if isinstance(self.model, Diffusion) else self.config.data.shape
        return max(1, BATCH_VALUES // math.prod(shape))

    def batches(
        self, n: int = 16, first: int = 0, *, on_progress: Tell | None = None, **options: Unpack[Options]
    ) -> Iterator[Samples]:
        """Draw data first .. first + n - 1 of the seed in batches of a size that suits the machine, and yield each."""
        check_count(n)
        check_first(first)
        for _, batch in self.numbered(n, first, range(self.batch_count(n)), on_progress, options):
            yield batch

    def batch_count(self, n: int) -> int:
        """Return in how many batches n data are sampled."""
        return math.ceil(n / self.batch_size())

    def numbered(
        self, n: int, first: int, numbers: Sequence[int], tell: Tell | None, options: Options
    ) -> Iterator[tuple[int, Samples]]:
        """Draw the batches of these numbers, of data first .. first + n - 1 of the seed, and yield each with its number."""
        for number in numbers:
            yield number, self.numbered_batch(n, first, number, tell, options)

    def numbered_batch(self, n: int, first: int, number: int, tell: Tell | None, options: Options) -> Samples:
        """Draw one batch: what is in it, and so every image in all its bits, is a function of its number alone."""
        done = number * self.batch_size()
        return self._draw(min(self.batch_size(), n - done), first, done, n, tell, options)

    def sample(
        self, n: int = 16, first: int = 0, *, film: bool = False, on_progress: Tell | None = None, **options: Unpack[Options]
    ) -> Samples:
        """Draw data first .. first + n - 1 of the seed in user units: `run.sample(1, first=7)` is the eighth alone.

        film: draw all at once and keep the frames; on_progress is told ("sampling", drawn, n).
        """
        if film:
            check_first(first)
            check_film(n, self.config.data.shape)
            kept: list[tuple[float, np.ndarray, np.ndarray]] = []
            return replace(self._draw(n, first, 0, n, on_progress, options, kept), film=tuple(kept))
        parts = list(self.batches(n, first, on_progress=on_progress, **options))
        labels = [name for part in parts for name in part.labels or ()] or None
        titles = labels if parts[0].titles is not None else None
        return Samples(together([part.x for part in parts]), labels, titles=titles, **self._form)

    def _draw(
        self, n: int, first: int, done: int, of: int, on_progress: Tell | None, options: Options,
        kept: list[tuple[float, np.ndarray, np.ndarray]] | None = None,
    ) -> Samples:  # fmt: skip
        """Draw n data at once, after those `done` before `of` all from number `first` on; what is on the way goes into `kept`.

        Data that are drawn at once are all finished at once, so progress between is that share of them.
        """
        first += done
        with few_threads_when_busy() as mind_threads:
            for frame in self.frames(n, first, **options):
                mind_threads()
                if kept is not None and (frame.i * FILM_FRAMES >= len(kept) * frame.of or frame.i == frame.of - 1):
                    kept.append((float(frame.t), self.decode(frame.x), self.decode(frame.x0)))
                if on_progress:
                    on_progress("sampling", done + n * (frame.i + 1) // frame.of, of)
                last = frame
        return self.as_samples(self.decode_final(last), first, options)

    def as_samples(self, x: np.ndarray, first: int, options: Options) -> Samples:
        """Return what was drawn from number `first` of the seed on with what it was asked to be."""
        names = self.names(self.condition(options, len(x), first), options)
        each = self.config.data.condition is not None and not asks(options)  # is something else
        titles = names if each or self.in_turn(options.get("label")) else None
        return Samples(x, names, titles=titles, **self._form)

    @property
    def _form(self) -> dict[str, Any]:
        """What samples do not show by their shape."""
        return {"series": self.kind == "series", "text": self.kind == "text", "paired": self.kind == "pairs"}

    def written(self, first: int = 0, **options: Unpack[Options]) -> Iterator[str]:
        """Write text number `first` of the seed and yield it piece by piece as it is written, the prompt first."""
        model = self.model
        if isinstance(model, PairModel):
            yield from self._answered(model, first, options)
            return
        if not isinstance(model, LanguageModel):
            raise UserError(f"{self.path} is a run of {self.kind}; text is written by runs of text")
        check_first(first)
        given, done = options.get("length"), 0
        length = model.shape[0] if given is None else given
        yield options.get("prompt") or ""
        held = list[int]()
        for frame in self.frames(1, first, **options):
            token = int(frame.x0[0, -1])
            held.append(token)
            piece = model.tokenizer.decode(k for k in held if k >= 0)
            whole = not piece.endswith("\ufffd") or len(held) > MOST_HELD
            if whole or frame.i + 1 == frame.of:
                piece, held = piece[: length - done], []
                done += len(piece)
                yield piece

    def _answered(self, model: PairModel, first: int, options: Options) -> Iterator[str]:
        """Yield an answer piece by piece; where nothing was asked, the source first."""
        check_first(first)
        told, done = options.get("prompt") is not None, 0
        for frame in self.frames(1, first, **options):
            source, answer = (model.spelled(row) for row in frame.x0[0].cpu().numpy())
            if not told:
                yield f"{source} \u2192 "
                told = True
            if not answer.endswith("\ufffd") or frame.i + 1 == frame.of:
                yield answer[done:]
                done = len(answer)

    def answers(self, source: str, beams: int = 1, length: int | None = None) -> list[Answer]:
        """Return the likeliest answers to a text that so many beams find, each with its log-probability."""
        if not isinstance(self.model, PairModel):
            raise UserError(f"{self.path} is a run of {self.kind}; texts are answered by runs of pairs of texts")
        return self.model.answers(source, beams, length)

    def in_turn(self, label: str | None) -> bool:
        """Tell whether a label asks for each one in turn."""
        return label == "all" and "all" not in self.config.data.labels

    def names(self, cond: Tensor | None, options: Options) -> list[str] | None:
        """Return what each datum of a batch was asked to be; a composition as it was written.  cond: as of `condition`."""
        if cond is None:
            return None
        if (form := self.config.data.condition) is not None:
            asked = ", ".join(str(options[key]) for key in ("prompt", "told") if options.get(key) is not None)
            names = [asked] * len(cond) if asks(options) else [form.described(row) for row in cond]
            return names if any(names) else None
        if cond.ndim > 1:
            return [str(options.get("label"))] * len(cond)
        return [self.config.data.labels[int(c)] for c in cond]

    def decode_final(self, last: Frame) -> np.ndarray:
        """Return what the last frame of a trajectory drew, in user units, and refuse what is not finite."""
        x0 = self.decode(last.x0)
        if not np.isfinite(x0).all():
            raise UserError(f"the model of {self.path} drew values that are not finite; steer it less, or train it again")
        return x0

    def decode(self, z: Tensor) -> np.ndarray:
        """Return model units as an array in user units: (N, D), (N, H, W) or (N, H, W, C)."""
        return channels_last(self.model.decode(z).float().cpu().numpy())


def load(path: str | Path, device: str = "auto") -> Run:
    """Open a run folder: `reverie.load("runs/spiral").sample(2000)`."""
    path = Path(path)
    config = folder.read_config(path)
    where = choose_device(device)
    return Run(config, read_weights(path, config).to(where).eval(), path)
