"""Everything that is needed to build a model again, checked field by field."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from reverie.base.spec import Spec
from reverie.data.kind import Kind, kind_of

Count = Annotated[int, Field(ge=1, le=10**9)]
Seed = Annotated[int, Field(ge=0, lt=2**31)]


class Section(BaseModel):
    """A part of the configuration: unknown keys, infinities and later changes are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class DataConfig(Section):
    """Which data, and what they looked like.

    source: the name or the whole path they were read from; reading: the options they were read with, as in `load_data`.
    """

    name: str
    source: str = ""
    count: Count
    seed: Seed = 0
    shape: tuple[Annotated[int, Field(ge=1, le=16384)], ...] = Field(min_length=1, max_length=3)
    labels: tuple[str, ...] = Field(default=(), max_length=100_000)
    label_counts: tuple[Annotated[int, Field(ge=0)], ...] = ()
    fingerprint: str = ""
    reading: dict[str, str | int] = Field(default_factory=dict, max_length=16)

    @property
    def kind(self) -> Kind:
        """What one datum is."""
        return kind_of(self.shape)

    @model_validator(mode="after")
    def _counts_match(self) -> DataConfig:
        if len(self.labels) != len(self.label_counts):
            raise ValueError("labels and label_counts must be of one length")
        return self


class TrainingConfig(Section):
    """How long and how to train.  Either steps or minutes."""

    steps: Count | None = None
    minutes: Annotated[float, Field(gt=0, le=10**6)] | None = None
    batch: Annotated[int, Field(ge=1, le=10**6)] = 512
    optimizer: Literal["adamw", "muon"] = "adamw"
    learning_rate: Annotated[float, Field(gt=0, le=10)] = 5e-3
    warmup: Annotated[float, Field(ge=0, le=0.5)] = 0.02
    ema_share: Annotated[float, Field(gt=0, le=1)] = 0.05
    gradient_limit: Annotated[float, Field(gt=0)] = 1.0
    accumulate: Annotated[int, Field(ge=1, le=10_000)] = 1
    decay: Literal["cosine", "step"] = "cosine"
    until: Literal["end", "good"] = "end"
    weight_decay: Annotated[float, Field(ge=0, le=10)] = 0.0
    precision: Literal["fp32", "bf16"] = "fp32"
    weight: str = "uniform"
    times: str = "stratified"
    label_dropout: Annotated[float, Field(ge=0, le=1)] = 0.1
    augment: tuple[Spec, ...] = Field(default=(), max_length=16)
    seed: Seed = 0

    @model_validator(mode="after")
    def _one_length(self) -> TrainingConfig:
        if (self.steps is None) == (self.minutes is None):
            raise ValueError("give either steps or minutes")
        return self


class StartConfig(Section):
    """The run whose weights a training started from: its path then, and a hash of the weights."""

    run: str
    weights: str


class Config(Section):
    """The whole configuration of a run, as stored in config.toml.

    asked: the settings that a person chose, as they are given on the command line; all others were planned.
    """

    format: Literal[1] = 1
    family: Literal["diffusion"] = "diffusion"
    versions: dict[str, str] = Field(default_factory=dict)
    target: str = "v"
    sigma_data: Annotated[float, Field(gt=0, le=10**6)] = 1.0
    data: DataConfig
    codec: Spec
    schedule: Spec
    network: Spec
    training: TrainingConfig
    start: StartConfig | None = None
    asked: dict[str, bool | int | float | str] = Field(default_factory=dict, max_length=64)

    def as_table(self) -> dict[str, Any]:
        """Return plain values for TOML, which knows no None."""
        return self.model_dump(mode="json", exclude_none=True)
