"""A trained model with its folder: its capabilities, options and conditions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from reverie.base.errors import UserError, unknown
from reverie.base.noise import Noise, image_seeds
from reverie.data.kind import WRITTEN, Kind
from reverie.families import FAMILIES
from reverie.families.diffusion.model import Diffusion
from reverie.families.diffusion.sampling import OPTIONS
from reverie.families.diffusion.settings import DiffusionSettings, settings_of
from reverie.families.language.token_sampling import PAIR_OPTIONS as TEXT_OPTIONS
from reverie.families.model import Model
from reverie.runs import folder
from reverie.runs.config import Config
from reverie.runs.labels import read_label
from reverie.runs.prompts import CONDITION_OPTIONS, composition_weights, condition_vectors, has_condition
from reverie.runs.sampling_options import Options

LABEL_DRAW = 2**30  # index into the random stream of each sample that determines its label


@dataclass
class TrainedRun:
    """A trained model with its folder.  changes: modifications since training, such as "adapter runs/hoda:0.7"."""

    config: Config
    model: Model
    path: Path
    changes: tuple[str, ...] = ()

    @property
    def fit(self) -> str:
        """How images are resized for the run."""
        return str(self.config.data.reading.get("fit", "crop"))

    @property
    def kind(self) -> Kind:
        """The kind of data."""
        return self.config.data.kind

    @property
    def label_names(self) -> tuple[str, ...]:
        """The labels for sampling: those of the data, if the family has labels."""
        return self.config.label_names

    @property
    def conditional(self) -> bool:
        """Whether the model was trained with labels or other conditions."""
        return bool(self.config.data.labels) or self.config.data.condition is not None

    def metrics(self) -> list[dict[str, Any]]:
        """Return the rows of metrics.jsonl."""
        return folder.read_metrics(self.path)

    @property
    def diffusion(self) -> Diffusion:
        """The model if it is a diffusion model; otherwise raises a UserError that names other families."""
        if not isinstance(self.model, Diffusion):
            raise self.unsupported("do that")
        return self.model

    @property
    def diffusion_settings(self) -> DiffusionSettings:
        """The settings of a diffusion model."""
        return settings_of(self.config.family)

    def require(self, capability: str) -> None:
        """Refuse a capability that the family of the run lacks."""
        if capability not in self.config.model_family.capabilities:
            raise self.unsupported(capability)

    def unsupported(self, capability: str, what: str | None = None) -> UserError:
        """Return the error for a capability that the family lacks, with the families that have it.

        what: the name of the capability in the message.
        """
        supporting = ", ".join(name for name, family in FAMILIES.items() if capability in family.capabilities) or "diffusion"
        return UserError(
            f"{self.path} is a run of the family {self.config.family.name}, which cannot {what or capability};"
            f" families that can: {supporting}"
        )

    def check_options(self, options: Mapping[str, Any]) -> None:
        """Refuse unknown sampling options, and options that the family of the run does not have."""
        defaults = {**OPTIONS, **TEXT_OPTIONS}
        names = {**defaults, **dict.fromkeys(("label", "seed", *CONDITION_OPTIONS))}
        if invalid := sorted(set(options) - set(names)):
            raise unknown(invalid[0], Options.__annotations__, "option of sampling")
        supported = self.config.model_family.options
        if "captions" in self.config.model_family.capabilities:  # which `condition` reads
            defaults.pop("prompt")
        for key, value in options.items():
            if (
                key in defaults
                and key in TEXT_OPTIONS
                and key in supported
                and self.kind not in WRITTEN
                and value != TEXT_OPTIONS[key]
            ):
                raise UserError(f"--{key.replace('_', '-')} is for text, and {self.path} is a run of {self.kind}; omit it")
            if key in defaults and key not in supported and value != defaults[key]:
                supporting = ", ".join(name for name, family in FAMILIES.items() if key in family.options)
                raise UserError(
                    f"{self.path} is a run of the family {self.config.family.name}, which has no --{key.replace('_', '-')};"
                    f" families that have: {supporting}"
                )

    def labels(self, label: str | None, n: int, seed: int, first: int = 0) -> Tensor | None:
        """Return the labels of n samples from number `first` on: one label, "all" in turn, or random by frequency.

        Returns (n,), or (n, K) where K labels are composed.
        """
        names = self.config.data.labels
        if not names:
            if label is not None:
                raise UserError(f"the run {self.path} was trained without labels; omit --label {label}")
            return None
        if label is not None and not self.label_names:
            raise self.unsupported("labels", f"sample the label {label!r}")
        if self.is_each_label(label):
            return torch.arange(first, first + n) % len(names)
        if label is not None:
            labels = torch.tensor(read_label(label, names).labels).expand(n, -1)
            return labels[:, 0] if labels.shape[1] == 1 else labels
        shares = torch.tensor(self.config.data.label_counts, dtype=torch.float64).cumsum(0)
        u = Noise(image_seeds(seed, n, first), draws=LABEL_DRAW).uniform(1)[0][:, 0]
        return torch.bucketize(u * shares[-1], shares, right=True)

    def condition(self, options: Mapping[str, Any], n: int, first: int = 0) -> Tensor | None:
        """Return the conditions of n samples from number `first` on: labels, or condition vectors of options or data.

        For labels see `labels`; vectors: (n, R), or (n, K, R) if K are composed.
        """
        form, label, seed = self.config.data.condition, options.get("label"), options.get("seed", 0)
        if form is None:
            if any(options.get(key) is not None for key in CONDITION_OPTIONS if key not in self.config.model_family.options):
                conditions, advice = (
                    ("labels", "give --label") if self.config.data.labels else (f"{self.kind} alone", "omit it")
                )
                raise UserError(f"the run {self.path} was trained with {conditions}, so it has no other conditions; {advice}")
            return self.labels(label, n, seed, first)
        if label is not None:
            raise UserError(f"the run {self.path} was trained without labels; use --prompt instead of --label")
        if has_condition(options):
            vectors = condition_vectors(form, options, self.fit).expand(n, -1, -1)
            return vectors[:, 0] if vectors.shape[1] == 1 else vectors
        return self.diffusion.example(Noise(image_seeds(seed, n, first), draws=LABEL_DRAW).uniform(1)[0][:, 0]).cpu()

    def weights(self, options: Mapping[str, Any]) -> tuple[float, ...]:
        """Return the weights of the conditions of the options."""
        if self.config.data.condition is not None:
            return composition_weights(options)
        label, names = options.get("label"), self.config.data.labels
        return (1.0,) if label is None or self.is_each_label(label) or not names else read_label(label, names).weights

    def is_each_label(self, label: str | None) -> bool:
        """Return whether a label stands for all labels in turn."""
        return label == "all" and "all" not in self.config.data.labels

    def names(self, cond: Tensor | None, options: Options) -> list[str] | None:
        """Return the label or condition of each sample; a composition as the user wrote it.  cond: see `condition`."""
        if cond is None or (self.config.data.labels and not self.label_names):
            return None
        if (form := self.config.data.condition) is not None:
            text = ", ".join(str(options[key]) for key in ("prompt", "condition") if options.get(key) is not None)
            names = [text] * len(cond) if has_condition(options) else [form.describe_vector(row) for row in cond]
            return names if any(names) else None
        if cond.ndim > 1:
            return [str(options.get("label"))] * len(cond)
        return [self.config.data.labels[int(c)] for c in cond]

    def unconditional_by_default(self, options: Options) -> Options:
        """Return a copy of options that samples unconditionally if no label is given, instead of with random labels."""
        chosen = Options(**options)
        if self.conditional and options.get("label") is None and not has_condition(options):
            limits = [options.get(key) for key in ("classifier_guidance", "guidance_interval", "guidance_rescale")]
            if options.get("guidance", 1.0) != 1 or any(limits):
                needed = "a label; add --label"
                if not self.config.data.labels:
                    needed = "a condition; add --prompt"
                raise UserError(f"guidance needs {needed}")
            chosen["guidance"] = 0.0
        return chosen
