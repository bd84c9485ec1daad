"""The options of a training with their types, for editors and type checkers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal, TypedDict

from reverie.base.progress import OnProgress
from reverie.base.spec import Spec


class ReadingOptions(TypedDict, total=False):
    """Options of reading data.

    points: number of generated data; size: "32" or "64x48" (height x width); fit: "crop", "pad", "stretch" or
    "auto"; channels: 1 grey, 3 colour, 4 with transparency; labels: "auto", "none", their source, or a column of a
    table; data_dir: folder of the files of named data sets; strict: raise an error for broken files instead of skipping them;
    on_progress: called with (what, done, of); window: length of the windows of a time series, in rows, or of text, in
    characters; text: the column of a table, or field, that holds text; condition_columns,
    condition_image: columns of metadata that the model is conditioned on; pairs: the columns of sources and targets,
    separated by a comma, or the file of the targets; columns: of a table that are coordinates, or "all".
    """

    points: int
    size: str | None
    fit: str
    channels: int | None
    labels: str
    data_dir: str | Path | None
    strict: bool
    on_progress: OnProgress | None
    window: int | None
    text: str | None
    condition_columns: str | None
    condition_image: str | None
    pairs: str | None
    columns: str | Sequence[str] | None


class TrainingOptions(ReadingOptions, total=False):
    """Options of training; the family chooses those that are not given, for the data and the time.

    steps, minutes, epochs: length, one of them; until: "converged" stops when metrics stop improving; clock: wall or CPU time;
    keep: the last weights or the best on held-out data; extend: train a finished run for longer; start_from: a run with the
    initial weights; keep_data: store a copy of the data in the run; overwrite: replace a run in the folder; family: a name
    with its own options, like "mixture:components=8"; purpose, schedule, network, target, augment, loss, weight, variance,
    times, label_dropout, clusters, sigma_data, codec: options of the family diffusion, by name, like "linear:steps=40";
    latent_space: latent diffusion, with an autoencoder that is trained first or that of the run given as codec; beta,
    free_bits, kl_warmup: of vae and hvae; tokenizer: of language models, like "bpe:size=1000"; processes: number of processes
    on this machine; shard: whether they also share the state of the training; the others are fields of
    `reverie.runs.config.TrainingConfig`.
    """

    family: str | Spec
    steps: int | None
    minutes: float | None
    epochs: float | None
    until: Literal["end", "converged"]
    clock: Literal["wall", "processor"]
    keep: Literal["last", "best"]
    extend: bool
    seed: int
    device: str
    start_from: str | Path | None
    keep_data: bool
    overwrite: bool
    tensorboard: bool
    purpose: Literal["samples", "likelihood"]
    schedule: str | Spec | None
    network: str | Spec | None
    target: str | None
    augment: str | Sequence[str | Spec]
    loss: str | Spec
    weight: str
    variance: Literal["fixed", "learned"]
    times: str
    batch: int
    accumulate: int
    micro_batches: int
    exact: bool
    processes: int
    shard: bool
    optimizer: Literal["adamw", "muon"]
    learning_rate: float
    decay: Literal["cosine", "step"]
    warmup: float
    ema_share: float
    gradient_clip: float
    weight_decay: float
    precision: Literal["fp32", "bf16"]
    lora: str | int | None
    label_dropout: float
    clusters: int
    sigma_data: float
    codec: str | Path | Spec
    latent_space: bool | None
    beta: float
    free_bits: float
    kl_warmup: float
    tokenizer: str | Spec


class DistilOptions(TypedDict, total=False):
    """Options of distillation, see `reverie.runs.config.TrainingConfig`."""

    batch: int
    accumulate: int
    optimizer: Literal["adamw", "muon"]
    learning_rate: float
    warmup: float
    ema_share: float
    gradient_clip: float
    weight_decay: float
    clock: Literal["wall", "processor"]
    keep: Literal["last", "best"]
    precision: Literal["fp32", "bf16"]
