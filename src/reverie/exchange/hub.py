"""A run as a folder for model hubs, with safetensors, config and a model card, and its import."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from reverie.base.atomic_folders import atomic_folder
from reverie.base.errors import UserError
from reverie.base.visible import visible
from reverie.data.kind import describe_shape, format_count
from reverie.evaluation.reports import Evaluation, evaluate_run
from reverie.exchange.folders import write_run
from reverie.runs import folder
from reverie.runs.config import Config
from reverie.runs.run import Run, load
from reverie.runs.sampling_options import Options
from reverie.runs.weights import read_weights, write_weights

CARD, GRID = "README.md", "samples.png"
WRITTEN = (CARD, GRID, folder.CONFIG, folder.WEIGHTS_FILE, folder.EARLY_FILE)
# Characters with a meaning in Markdown or on GitHub.
MARKS = re.compile(r"[\\`*_\[\]<>|~&@#!]|:(?=//)|(?<=www)\.", re.IGNORECASE)
SHOWN = 64  # images of the sample grid
POINTS = 2000


@dataclass(frozen=True)
class ModelCard:
    """Options of the model card.  licence: its identifier on hubs, such as mit; measure: whether to evaluate samples."""

    licence: str = "unknown"
    measure: bool = False


def without_paths(config: Config) -> Config:
    """Return a configuration without the local paths of data and of other runs."""
    data = config.data
    source = data.source if "/" not in data.source and "\\" not in data.source else ""
    reading = {key: value for key, value in data.reading.items() if key != "data_dir"}
    requested = {key: value for key, value in config.requested.items() if key not in ("from", "codec", "data_dir")}
    cleaned = data.model_copy(update={"source": source, "name": Path(data.name).name, "reading": reading})
    start = None if config.start is None else config.start.model_copy(update={"run": Path(config.start.run).name})
    codec = None if config.codec is None else config.codec.model_copy(update={"run": Path(config.codec.run).name})
    return config.model_copy(update={"data": cleaned, "requested": requested, "start": start, "codec": codec})


def export_hub(run: Run, out: Path, card: ModelCard, options: Options, overwrite: bool) -> Path:
    """Write the folder atomically and return its path."""
    if "\n" in card.licence or len(card.licence) > 100:
        raise UserError("--licence must be one short identifier, such as mit or cc-by-4.0")
    config = without_paths(run.config)
    measured = evaluate_run(run, quick=True, options=options) if card.measure else None
    with atomic_folder(out, lambda name: name in WRITTEN, overwrite) as temporary:
        folder.write_config(temporary, config)
        write_weights(temporary, config, run.model)
        if run.autoguidance != 1:
            write_weights(temporary, config, run.early(), folder.EARLY_FILE)
        chosen: Options = {**options}
        if run.label_names:
            chosen["label"] = "all"
        run.sample(SHOWN if run.kind == "images" else POINTS, **chosen).save(temporary / GRID)
        (temporary / CARD).write_text(card_text(run, config, card, measured), encoding="utf-8")
    return out


def card_text(run: Run, config: Config, card: ModelCard, measured: Evaluation | None) -> str:
    """Return the model card: front matter for hubs, then use, data, model, metrics and limits."""
    data, facts = config.data, run.model.facts()
    task = "unconditional-image-generation" if data.kind == "images" else None
    tags = ["reverie", config.family.name, data.kind]
    front = {"library_name": "reverie", "license": card.licence, "pipeline_tag": task, "tags": tags}
    lines = ["---", *(f"{key}: {json.dumps(value, ensure_ascii=False)}" for key, value in front.items() if value), "---", ""]
    # an imported model has no record of its data
    origin = (
        f"trained with Reverie on {format_count(data.count, data.shape)}"
        if data.fingerprint
        else f"of {describe_shape(data.shape)}"
    )
    lines += [f"# {_cell(data.name)}", "", f"A generative model of the family {config.family.name}, {origin}.", ""]
    lines += [f"![Samples]({GRID})", "", "## Use", "", "```", "reverie import THIS_FOLDER --out runs/model",
              "reverie sample runs/model -n 16 --out samples.png", "```", ""]  # fmt: skip
    lines += ["## Data", "", "| | |", "|---|---|", f"| name | {_cell(data.name)} |",
              f"| count | {data.count if data.fingerprint else 'unknown'} |", f"| shape | {' x '.join(map(str, data.shape))} |",
              f"| fingerprint | {data.fingerprint or 'unknown'} |"]  # fmt: skip
    if data.labels:
        shown = ", ".join(map(_cell, data.labels[:20]))
        lines.append(f"| labels | {len(data.labels)}: {shown}{' ...' if len(data.labels) > 20 else ''} |")
    training = config.training
    length = f"{training.steps:,} steps" if training.steps else f"{training.minutes:g} minutes"
    lines += ["", "## Model", "", "| | |", "|---|---|", f"| parameters | {facts['parameters']:,} |",
              f"| trained for | {length}, batch {training.batch}, seed {training.seed} |"]  # fmt: skip
    settings = config.family.model_dump(mode="json")
    keys = [key for key in ("target", "schedule", "network", "clusters") if settings.get(key)]
    lines += [f"| {key} | {_cell(_format_setting(settings[key]))} |" for key in keys]
    lines += ["", "## Metrics", "", *_metrics(measured), "", "## Limits", "", *_limits(run), ""]
    return "\n".join(lines)


def _format_setting(value: Any) -> str:
    if not isinstance(value, Mapping):
        return str(value)
    return f"{value['name']}: " + ", ".join(f"{k}={v}" for k, v in value.items() if k != "name")


def _cell(text: object) -> str:
    """Return text escaped for a Markdown table: without HTML, links and other markup."""
    return MARKS.sub(r"\\\g<0>", visible(str(text)))


def _metrics(measured: Evaluation | None) -> list[str]:
    if measured is None:
        return [
            "Not measured. `reverie evaluate RUN` evaluates samples; `reverie export --measure` adds the metrics to this card."
        ]
    facts = measured.facts
    head = f"{facts['samples']:,} samples, seed {facts['seed']}, quick evaluation; the floor is the figure of real data."
    rows = [f"| {_cell(title)} | {_cell(samples)} | {_cell(floor)} |" for title, samples, floor in measured.table()]
    return [head, "", *map(_cell, measured.verdict), "", "| metric | samples | real data |", "|---|---|---|", *rows]


def _limits(run: Run) -> list[str]:
    limits = ["- The model reproduces the gaps, errors and biases of its training data.",
              "- Samples may be near-copies of training data, most of all with few data: see `reverie evaluate`."]  # fmt: skip
    if run.model.lossy:
        limits.append("- Images pass through a lossy autoencoder.")
    return limits


def import_hub(source: Path, out: Path, overwrite: bool) -> Run:
    """Import an exported folder as a run; all files are validated and rewritten."""
    loaded = load(source, "cpu")
    early = read_weights(source, loaded.config, folder.EARLY_FILE) if (source / folder.EARLY_FILE).is_file() else None
    if early is None and loaded.autoguidance != 1:
        raise UserError(f"{source} has no {folder.EARLY_FILE}, which its autoguidance needs; export it again")

    def write_early(run_folder: Path) -> None:
        if early is not None:
            write_weights(run_folder, loaded.config, early, folder.EARLY_FILE)

    return write_run(out, loaded.config, loaded.model, write_early, overwrite)
