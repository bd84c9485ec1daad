"""The configuration of a run: the schema of config.toml, from which the model is built."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, SerializeAsAny, field_validator, model_validator
from typing_extensions import TypedDict  # pydantic needs it before Python 3.12

from reverie.base.config_section import ConfigSection, OptionName
from reverie.base.deprecations import current_options
from reverie.base.errors import UserError
from reverie.base.tensors import TensorSpec
from reverie.data.cells import MAX_NAME, distinct_names
from reverie.data.conditions import ConditionForm
from reverie.data.kind import DIMENSIONS, WRITTEN, Kind, kind_of
from reverie.data.time_series import MAX_WINDOW
from reverie.families import FAMILIES
from reverie.families.model import Family, FamilySettings, Model

MAX_STEPS, MAX_MINUTES = 10**9, 10**6  # upper limits of a training
Count = Annotated[int, Field(ge=1, le=10**9)]
Seed = Annotated[int, Field(ge=0, lt=2**31)]
# Format 1 had no table [family]: its keys were at the top level, or in the table [training].
OF_FORMAT_1 = ("target", "sigma_data", "codec", "schedule", "network")
OF_TRAINING_1 = ("weight", "times", "label_dropout", "augment")
OPTION_TABLES = ("training", "family", "requested")  # tables of options, which may have old names, see `base.deprecations`
# Keys of older versions, as file -> path of tables with the old key -> new key.  Lists of tables are searched too.
RENAMED_KEYS: Mapping[str, Mapping[str, str]] = {
    "config.toml": {
        "asked": "requested",
        "data.condition.numbers.spread": "std",
        "family.augment.told": "conditioned",
        "family.network.told": "cond_dim",
        "family.network.seen": "cond_channels",
        "family.network.words": "vocabulary",
    },
    "metrics.jsonl": {
        "look.nearest": "nearest_neighbor",
        "look.spread": "std",
        "look": "appearance",
        "seen": "train_loss",
        "seen_levels": "train_levels",
    },
}


def _from_format_1(table: dict[str, Any]) -> dict[str, Any]:
    rest = dict(table)
    if rest.pop("family", "diffusion") != "diffusion":
        raise ValueError("format 1 has only the family diffusion")
    training = dict(rest.get("training", {})) if isinstance(rest.get("training"), dict) else {}
    family = {key: rest.pop(key) for key in OF_FORMAT_1 if key in rest}
    family |= {key: training.pop(key) for key in OF_TRAINING_1 if key in training}
    return {**rest, "format": 2, "family": {"name": "diffusion", **family}, "training": training}


def with_present_keys(value: Any, file: str, within: str = "") -> Any:
    """Return a table of a file with the keys of this version.  within: path of the table in the file."""
    renamed, prefix = RENAMED_KEYS[file], f"{within}." if within else ""

    def convert(part: Any, path: str) -> Any:
        if isinstance(part, list | tuple):
            return [convert(item, path) for item in part]
        if not isinstance(part, dict) or not any(old.startswith(path) for old in renamed):
            return part
        table = {key: convert(item, f"{path}{key}.") for key, item in part.items()}
        return {new if (new := renamed.get(f"{path}{key}", key)) not in table else key: item for key, item in table.items()}

    return convert(value, prefix)


def present_family(table: Mapping[str, Any]) -> dict[str, Any]:
    """Return a table [family] with the keys and values of this version."""
    return current_options(with_present_keys(dict(table), "config.toml", "family"))


class Reading(TypedDict, total=False):
    """The table [data.reading]: the options of `load_data` that were given."""

    __pydantic_config__ = ConfigDict(extra="forbid")  # type: ignore[misc]

    points: Annotated[int, Field(ge=1, le=10**9)]
    size: str
    fit: Literal["auto", "crop", "pad", "stretch"]
    channels: Literal[1, 3, 4]
    labels: str
    data_dir: str
    window: Annotated[int, Field(ge=2, le=MAX_WINDOW)]
    text: str
    condition_columns: str
    condition_image: str
    pairs: str
    columns: str


class DataConfig(ConfigSection):
    """The data of a run.

    source: the name or absolute path; reading: the options of reading; kind: by default derived from the shape; condition: the
    form of conditions other than labels; columns: names of the coordinates of points or of the values of a time step.
    """

    name: str
    source: str = ""
    count: Count
    seed: Seed = 0
    shape: tuple[Annotated[int, Field(ge=1, le=16384)], ...] = Field(min_length=1, max_length=3)
    labels: tuple[str, ...] = Field(default=(), max_length=100_000)
    label_counts: tuple[Annotated[int, Field(ge=0)], ...] = ()
    fingerprint: str = ""
    reading: Reading = Field(default_factory=Reading)
    kind: Kind = "points"
    condition: ConditionForm | None = None
    columns: tuple[Annotated[str, Field(max_length=MAX_NAME + 8)], ...] = Field(default=(), max_length=16384)

    @model_validator(mode="before")
    @classmethod
    def _by_its_shape(cls, table: Any) -> Any:
        if isinstance(table, dict) and "kind" not in table and isinstance(table.get("shape"), list | tuple) and table["shape"]:
            return {**table, "kind": DIMENSIONS.get(len(table["shape"]), "points")}
        return table

    @model_validator(mode="after")
    def _kind_fits(self) -> DataConfig:
        written = len(self.shape) == WRITTEN.get(self.kind)
        if not written and self.kind != kind_of(self.shape):
            raise ValueError(f"the shape {self.shape} does not fit the kind {self.kind}")
        return self

    @model_validator(mode="after")
    def _counts_match(self) -> DataConfig:
        if len(self.labels) != len(self.label_counts):
            raise ValueError("labels and label_counts must have the same length")
        return self

    @field_validator("columns")
    @classmethod
    def _shown(cls, columns: tuple[str, ...]) -> tuple[str, ...]:
        """Refuse duplicate names and control characters, as names are printed and written to files."""
        return distinct_names(columns)

    @model_validator(mode="after")
    def _columns_fit(self) -> DataConfig:
        if self.columns and (self.kind not in ("points", "series") or len(self.columns) != self.shape[-1]):
            raise ValueError(f"{len(self.columns)} column names do not fit {self.kind} of shape {self.shape}")
        return self


class TrainingConfig(ConfigSection):
    """Length and hyperparameters of a training.

    clock: whether minutes are wall time or CPU time, which other programs do not affect; keep: the last weights, or the best
    on held-out data; lora: rank of adapters, if only these are trained; micro_batches: parts of a batch, for several processes;
    exact: whether gradients are summed in a fixed order, so that the weights do not depend on the number of processes.
    """

    steps: Annotated[int, Field(ge=1, le=MAX_STEPS)] | None = None
    minutes: Annotated[float, Field(gt=0, le=MAX_MINUTES)] | None = None
    batch: Annotated[int, Field(ge=1, le=10**6)] = 512
    optimizer: Literal["adamw", "muon"] = "adamw"
    learning_rate: Annotated[float, Field(gt=0, le=10)] = 5e-3
    warmup: Annotated[float, Field(ge=0, le=0.5)] = 0.02
    ema_share: Annotated[float, Field(gt=0, le=1)] = 0.05
    gradient_clip: Annotated[float, Field(gt=0)] = 1.0
    accumulate: Annotated[int, Field(ge=1, le=10_000)] = 1
    micro_batches: Annotated[int, Field(ge=1, le=10_000)] = 1
    exact: bool = False
    decay: Literal["cosine", "step"] = "cosine"
    until: Literal["end", "converged"] = "end"
    clock: Literal["wall", "processor"] = "wall"
    keep: Literal["last", "best"] = "last"
    weight_decay: Annotated[float, Field(ge=0, le=10)] = 0.0
    precision: Literal["fp32", "bf16"] = "fp32"
    lora: Annotated[int, Field(ge=1, le=1024)] | None = None
    seed: Seed = 0

    @field_validator("lora", mode="before")
    @classmethod
    def _rank(cls, rank: Any) -> Any:
        """Accept `rank=8`, the form of the command line."""
        return rank.removeprefix("rank=") if isinstance(rank, str) else rank

    @model_validator(mode="after")
    def _one_length(self) -> TrainingConfig:
        if (self.steps is None) == (self.minutes is None):
            raise ValueError("give either steps or minutes")
        if self.micro_batches > self.batch:
            raise ValueError(
                f"a batch of {self.batch} cannot be split into {self.micro_batches} micro-batches; lower --micro-batches"
            )
        if self.lora is not None and self.optimizer != "adamw":
            raise ValueError("lora needs the optimizer adamw")
        return self


class StartConfig(ConfigSection):
    """A reference to a run with the initial weights or the codec: its path and a hash of its weights."""

    run: str
    weights: str


class Config(ConfigSection):
    """The configuration of a run, as stored in config.toml.

    family: its name and options, checked by the family; start: the run with the initial weights; codec: the run with the
    autoencoder; requested: the options given by the user, as on the command line (all others were planned).
    """

    format: Literal[2] = 2
    versions: dict[str, str] = Field(default_factory=dict)
    data: DataConfig
    family: SerializeAsAny[FamilySettings]
    training: TrainingConfig
    start: StartConfig | None = None
    codec: StartConfig | None = None
    requested: dict[OptionName, bool | int | float | str] = Field(default_factory=dict, max_length=64)

    @model_validator(mode="before")
    @classmethod
    def _from_older_versions(cls, table: Any) -> Any:
        """Convert format 1, which had only diffusion models, and old names of keys and values."""
        if not isinstance(table, dict):
            return table
        if table.get("format") == 1:
            table = _from_format_1(table)
        table = with_present_keys(table, "config.toml")
        present = {key: current_options(table[key]) for key in OPTION_TABLES if isinstance(table.get(key), dict)}
        data = table.get("data")
        if isinstance(data, dict) and isinstance(data.get("reading"), dict):
            present["data"] = {**data, "reading": current_options(data["reading"])}
        return {**table, **present}

    @field_validator("family", mode="before")
    @classmethod
    def _by_its_family(cls, table: Any) -> Any:
        if isinstance(table, FamilySettings):
            return table
        if not isinstance(table, dict) or not isinstance(table.get("name"), str):
            raise ValueError("the table [family] needs a name")
        if table["name"] not in FAMILIES:
            raise ValueError(f"unknown family {table['name']!r}; known are {', '.join(FAMILIES)}")
        return FAMILIES[table["name"]].settings.read(table)

    @property
    def label_names(self) -> tuple[str, ...]:
        """The labels for sampling: those of the data, if the family has labels."""
        return self.data.labels if "labels" in self.model_family.capabilities else ()

    @property
    def model_family(self) -> Family[Any]:
        """The family of the model."""
        return FAMILIES[self.family.name]

    def as_table(self) -> dict[str, Any]:
        """Return values for TOML, without None."""
        return self.model_dump(mode="json", exclude_none=True)


def _data_of(config: Config) -> tuple[tuple[int, ...], int]:
    """Return the shape of the data and the number of labels."""
    if config.data.labels and not sum(config.data.label_counts):
        raise UserError("the data have labels, but no datum has one; train with --labels none")
    return config.data.shape, len(config.data.labels)


def build_model(config: Config) -> Model:
    """Build the model of a configuration, with initial weights from the training seed."""
    return config.model_family.build(config.family, *_data_of(config), config.training.seed)


def model_forms(config: Config) -> dict[str, TensorSpec]:
    """Return the specs of the tensors of the model, without building it."""
    return config.model_family.tensor_specs(config.family, *_data_of(config))
