"""A run: a trained model with its folder, and sampling from it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Unpack

import numpy as np
from torch import Tensor

from reverie.base.busy import few_threads_when_busy
from reverie.base.deprecations import renamed_options
from reverie.base.errors import UserError
from reverie.base.noise import image_seeds
from reverie.base.progress import OnProgress
from reverie.data.kind import format_count
from reverie.data.text_windows import END_OF_TEXT
from reverie.diffusion.classifier import Classifier
from reverie.diffusion.denoiser import Denoiser, Steer
from reverie.diffusion.error_curve import ErrorCurve
from reverie.diffusion.samplers import Frame, Sampler
from reverie.draw.picture import FILM_FRAMES, channels_last
from reverie.families.diffusion.model import Diffusion
from reverie.families.diffusion.sampling import (
    STEERING,
    SamplerChoice,
    SamplingProfile,
    build_guidance,
    build_sampling,
    chosen_sampling,
    default_sampling,
)
from reverie.families.diffusion.sampling_record import SamplingRecord, explain_sampling, suggest_sampling
from reverie.families.diffusion.settings import DiffusionSettings
from reverie.families.language.model import LanguageModel
from reverie.families.model import Model, SamplingInputs
from reverie.families.seq2seq.model import Answer, PairModel
from reverie.runs import folder
from reverie.runs.classifier_file import read_classifier
from reverie.runs.destinations import check_film
from reverie.runs.device import choose_device
from reverie.runs.error_curve_file import load_error_curve
from reverie.runs.prompts import has_condition, with_guidance
from reverie.runs.samples import Samples
from reverie.runs.sampling_options import Options, check_count, check_first
from reverie.runs.trained import TrainedRun
from reverie.runs.weights import read_weights

BATCH_VALUES = 2**17  # values of a sampled batch or of its latents; batches of more than 64 images of 28 x 28 are not faster
MAX_HELD = 8  # largest number of tokens that are buffered until they form complete characters


def concatenate(parts: Sequence[np.ndarray]) -> np.ndarray:
    """Concatenate arrays; shorter texts are padded with END_OF_TEXT."""
    widest = max(part.shape[-1] for part in parts)
    if all(part.shape[-1] == widest for part in parts):
        return np.concatenate(parts)
    unpadded = ((0, 0),) * (parts[0].ndim - 1)
    return np.concatenate([np.pad(p, (*unpadded, (0, widest - p.shape[-1])), constant_values=END_OF_TEXT) for p in parts])


@dataclass
class Run(TrainedRun):
    """A trained model with its folder and sampling methods; for fields see `TrainedRun`."""

    _early: Model | None = field(default=None, init=False, repr=False, compare=False)
    _mean_error: ErrorCurve | None = field(default=None, init=False, repr=False, compare=False)

    def __repr__(self) -> str:
        data = self.config.data
        count = format_count(data.count, data.shape, data.kind)
        return f"Run({str(self.path)!r}, {self.config.family.name} of {data.name}: {count})"

    @property
    def record(self) -> SamplingRecord | None:
        """The recorded default sampling."""
        return self.config.family.sampling if isinstance(self.config.family, DiffusionSettings) else None

    def chosen_sampling(self, options: Mapping[str, Any], steered: bool = False) -> SamplerChoice:
        """Return sampler, steps and time grid: those of the options, the record, or the defaults."""
        recorded = self.record.choice if self.record is not None else None
        combined = {**options, "steer": steered or options.get("steer")}
        return chosen_sampling(self.config.data.shape, combined, self.profile, recorded)

    def explain_sampling(self, options: Mapping[str, Any]) -> str:
        """Describe the sampling with these options and the reason."""
        if "sampler" not in self.config.model_family.options:
            return f"the family {self.config.family.name} samples without steps"
        return explain_sampling(self.config.data.shape, options, self.profile, self.record)

    def newer_default(self, options: Mapping[str, Any]) -> str:
        """Return a line that suggests the present defaults if those of an earlier version are used; otherwise empty."""
        default = default_sampling(self.config.data.shape, self.profile)
        is_given = any(options.get(key) is not None for key in ("sampler", "steps", "grid"))
        if self.record is None or self.record.source == "selected" or is_given or self.record.choice == default:
            return ""
        return suggest_sampling(self.record.choice, default)

    def sampling(self, options: Options) -> tuple[Sampler, Tensor]:
        """Return the sampler and the time grid of the options; refuse invalid combinations."""
        self.check_options(options)
        sampler, steps, grid = self.chosen_sampling(options)
        combined = {**options, "sampler": sampler, "steps": steps, "grid": grid}
        return build_sampling(self.config.data.shape, self.diffusion.denoiser.schedule, combined, self.profile)

    def with_defaults(self, options: Mapping[str, Any]) -> dict[str, Any]:
        """Return the options of the run's family, with recorded values for those not given."""
        combined = {key: value for key, value in options.items() if key in self.config.model_family.options}
        if "sampler" not in self.config.model_family.options:
            return combined
        combined |= dict(zip(("sampler", "steps", "grid"), self.chosen_sampling(combined), strict=True))
        if any(combined.get(key) is not None for key in STEERING):
            return combined
        if combined.get("autoguidance") is None:
            combined["autoguidance"] = self.autoguidance
        if combined.get("precision") is None and self.record is not None:
            combined["precision"] = self.record.precision
        return combined

    @renamed_options
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
        """Sample data first .. first + n - 1 of the seed in one batch and yield each frame, in model units.

        steer and origin: as in `Diffusion.sample`; times: a time grid instead of that of the options.
        """
        check_count(n)
        combined: dict[str, Any] = {**options, "steer": steer, "origin": origin, "times": times}
        self.check_options(combined)
        combined = with_guidance(combined)
        seeds = image_seeds(options.get("seed", 0), n, first)
        cond, weights = self.condition(combined, n, first), self.weights(combined)
        if first == 0:  # once for all batches
            self.model.warn()
        with_defaults = self.with_defaults(combined)
        return self.model.frames(
            SamplingInputs(seeds, cond, weights, with_defaults, self.classifier, self.early, self.mean_error)
        )

    @property
    def profile(self) -> SamplingProfile:
        """The profile of a diffusion model, which determines the default sampler."""
        return self.model.profile if isinstance(self.model, Diffusion) else "data"

    @property
    def distilled(self) -> bool:
        """Whether the model is a distilled student."""
        return isinstance(self.config.family, DiffusionSettings) and self.config.family.distilled is not None

    def require_means(self) -> None:
        """Refuse a distilled student."""
        if self.distilled:
            raise UserError(
                "a student predicts no posterior means, so it has no likelihood and no loss by noise level; use its teacher"
            )

    @property
    def autoguidance(self) -> float:
        """The default scale of autoguidance; 1 is none."""
        return self.config.family.autoguidance if isinstance(self.config.family, DiffusionSettings) else 1.0

    def early(self) -> Model:
        """Return the weak model of autoguidance: an early checkpoint."""
        if self._early is None:
            if not (self.path / folder.EARLY_FILE).is_file():
                raise UserError(
                    f"{self.path} has no {folder.EARLY_FILE}, which autoguidance needs;"
                    " sample with --autoguidance 1, or train it again"
                )
            model = read_weights(self.path, self.config, folder.EARLY_FILE)
            if isinstance(model, Diffusion) and isinstance(self.model, Diffusion):  # a learned schedule has changed since
                model.denoiser.schedule = self.model.denoiser.schedule
            self._early = model.to(self.model.device).eval()
        return self._early

    def mean_error(self) -> ErrorCurve:
        """Return the error curve on training data, for the optimal variance of DDPM steps."""
        if self._mean_error is None:
            self._mean_error = load_error_curve(self)
        return self._mean_error

    def _early_denoiser(self) -> Denoiser:
        early = self.early()
        assert isinstance(early, Diffusion)
        return early.denoiser

    def guidance(self, options: Options) -> Steer:
        """Return the guidance of the options as a wrapper of denoisers; refuse invalid combinations."""
        combined = with_guidance(options)
        return build_guidance(
            self.kind, self.conditional, combined, self.weights(combined), self.classifier, self._early_denoiser
        )

    def classifier(self) -> Classifier:
        """Return the noise-aware classifier of the run, see `reverie train-classifier`."""
        return read_classifier(self.path, self.config).to(self.model.device)

    def batch_size(self) -> int:
        """Return the batch size of sampling."""
        shape = self.model.model_shape if isinstance(self.model, Diffusion) else self.config.data.shape
        return max(1, BATCH_VALUES // math.prod(shape))

    @renamed_options
    def batches(
        self, n: int = 16, first: int = 0, *, on_progress: OnProgress | None = None, **options: Unpack[Options]
    ) -> Iterator[Samples]:
        """Sample data first .. first + n - 1 of the seed in batches, and yield each."""
        check_count(n)
        check_first(first)
        for _, batch in self.numbered(n, first, range(self.batch_count(n)), on_progress, options):
            yield batch

    def batch_count(self, n: int) -> int:
        """Return the number of batches for n data."""
        return math.ceil(n / self.batch_size())

    def numbered(
        self, n: int, first: int, numbers: Sequence[int], on_progress: OnProgress | None, options: Options
    ) -> Iterator[tuple[int, Samples]]:
        """Sample the batches with these numbers of data first .. first + n - 1, and yield each with its number."""
        for number in numbers:
            yield number, self.numbered_batch(n, first, number, on_progress, options)

    def numbered_batch(self, n: int, first: int, number: int, on_progress: OnProgress | None, options: Options) -> Samples:
        """Sample one batch, which depends only on its number, bit for bit."""
        done = number * self.batch_size()
        return self._sample_batch(min(self.batch_size(), n - done), first, done, n, on_progress, options)

    @renamed_options
    def sample(
        self,
        n: int = 16,
        first: int = 0,
        *,
        film: bool = False,
        on_progress: OnProgress | None = None,
        **options: Unpack[Options],
    ) -> Samples:
        """Sample data first .. first + n - 1 of the seed in user units: `run.sample(1, first=7)` is the eighth.

        film: sample in one batch and keep the frames; on_progress: called with ("sampling", done, n).
        """
        if film:
            check_first(first)
            check_film(n, self.config.data.shape)
            frames: list[tuple[float, np.ndarray, np.ndarray]] = []
            return replace(self._sample_batch(n, first, 0, n, on_progress, options, frames), film=tuple(frames))
        parts = list(self.batches(n, first, on_progress=on_progress, **options))
        labels = [name for part in parts for name in part.labels or ()] or None
        titles = labels if parts[0].titles is not None else None
        return Samples(concatenate([part.x for part in parts]), labels, titles=titles, **self._form)

    def _sample_batch(
        self, n: int, first: int, done: int, of: int, on_progress: OnProgress | None, options: Options,
        film: list[tuple[float, np.ndarray, np.ndarray]] | None = None,
    ) -> Samples:  # fmt: skip
        """Sample a batch of n data; `done` of `of` data, from number `first` on, precede it.  Appends its frames to `film`.

        Progress within a batch counts the completed share of its steps.
        """
        first += done
        with few_threads_when_busy() as adapt_threads:
            for frame in self.frames(n, first, **options):
                adapt_threads()
                if film is not None and (frame.i * FILM_FRAMES >= len(film) * frame.of or frame.i == frame.of - 1):
                    film.append((float(frame.t), self.decode(frame.x), self.decode(frame.x0)))
                if on_progress:
                    on_progress("sampling", done + n * (frame.i + 1) // frame.of, of)
                last = frame
        return self.as_samples(self.decode_final(last), first, options)

    def as_samples(self, x: np.ndarray, first: int, options: Options) -> Samples:
        """Return samples from number `first` of the seed on, with their labels or conditions."""
        names = self.names(self.condition(options, len(x), first), options)
        has_own = self.config.data.condition is not None and not has_condition(options)  # each sample has its own condition
        titles = names if has_own or self.is_each_label(options.get("label")) else None
        return Samples(x, names, titles=titles, **self._form)

    @property
    def _form(self) -> dict[str, Any]:
        """Properties of samples that their shape does not determine."""
        return {"series": self.kind == "series", "text": self.kind == "text", "paired": self.kind == "pairs",
                "columns": self.config.data.columns}  # fmt: skip

    @renamed_options
    def written(self, first: int = 0, **options: Unpack[Options]) -> Iterator[str]:
        """Generate text number `first` of the seed and yield it in pieces, the prompt first."""
        model = self.model
        if isinstance(model, PairModel):
            yield from self._answer_pieces(model, first, options)
            return
        if not isinstance(model, LanguageModel):
            raise UserError(f"{self.path} is a run of {self.kind}; generating text needs a run of text")
        check_first(first)
        requested, done = options.get("length"), 0
        length = model.shape[0] if requested is None else requested
        yield options.get("prompt") or ""
        tokens = list[int]()
        for frame in self.frames(1, first, **options):
            token = int(frame.x0[0, -1])
            tokens.append(token)
            piece = model.tokenizer.decode(k for k in tokens if k >= 0)
            is_complete = not piece.endswith("\ufffd") or len(tokens) > MAX_HELD
            if is_complete or frame.i + 1 == frame.of:
                piece, tokens = piece[: length - done], []
                done += len(piece)
                yield piece

    def _answer_pieces(self, model: PairModel, first: int, options: Options) -> Iterator[str]:
        """Yield an answer in pieces; without a prompt, the source first."""
        check_first(first)
        has_source, done = options.get("prompt") is not None, 0
        for frame in self.frames(1, first, **options):
            source, answer = (model.spelled(row) for row in frame.x0[0].cpu().numpy())
            if not has_source:
                yield f"{source} \u2192 "
                has_source = True
            if not answer.endswith("\ufffd") or frame.i + 1 == frame.of:
                yield answer[done:]
                done = len(answer)

    def answers(self, source: str, beams: int = 1, length: int | None = None) -> list[Answer]:
        """Return the most likely answers to a text by beam search, each with its log-probability."""
        if not isinstance(self.model, PairModel):
            raise UserError(f"{self.path} is a run of {self.kind}; answers need a run of pairs of texts")
        return self.model.answers(source, beams, length)

    def decode_final(self, last: Frame) -> np.ndarray:
        """Return the samples of the last frame in user units; refuse values that are not finite."""
        x0 = self.decode(last.x0)
        if not np.isfinite(x0).all():
            raise UserError(f"samples of {self.path} are not finite; reduce guidance, or train it again")
        return x0

    def decode(self, z: Tensor) -> np.ndarray:
        """Return model units as an array in user units: (N, D), (N, H, W) or (N, H, W, C)."""
        return channels_last(self.model.decode(z).float().cpu().numpy())


def load(path: str | Path, device: str = "auto") -> Run:
    """Open a run folder: `reverie.load("runs/spiral").sample(2000)`."""
    path = Path(path)
    config = folder.read_config(path)
    target = choose_device(device)
    return Run(config, read_weights(path, config).to(target).eval(), path)
