"""The functions behind the commands, the studio and `import reverie`.

Each function imports what it needs when it is called, so sampling does not load training or evaluation.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from reverie.api.archives import compress, decompress
from reverie.api.evaluation import compare_families, evaluate
from reverie.api.kinds import KINDS, entries, families_by_kind, names, names_of
from reverie.api.processes import is_resumable, process_group, serve_if_worker
from reverie.api.sampling import answers, sample, sample_to, text_cost, write_text
from reverie.api.training import begin, distil, train, train_classifier
from reverie.base.loading import no_collection
from reverie.base.name_tables import NameEntry

if TYPE_CHECKING:
    from reverie.data import READERS, Dataset
    from reverie.data.peek import kind_of_data
    from reverie.data.shards.packing import pack
    from reverie.data.single_image import read_picture
    from reverie.data.sources import is_image
    from reverie.demos import DEMOS, Demo
    from reverie.evaluation.compare import compare
    from reverie.evaluation.html_report import check_report
    from reverie.evaluation.inspection import inspect
    from reverie.evaluation.reports import EvaluationStopped
    from reverie.exchange.backend import with_backend
    from reverie.exchange.formats import export, import_model
    from reverie.gallery import gallery
    from reverie.runs.adapters import with_adapters
    from reverie.runs.config import Config
    from reverie.runs.confine import check_place, confined
    from reverie.runs.folder import read_config, read_findings, read_metrics
    from reverie.runs.lock import holder, interrupt
    from reverie.runs.run import Run, load
    from reverie.runs.samples import Samples
    from reverie.runs.sampling_options import Options
    from reverie.runs.screen import Screen, format_duration
    from reverie.runs.source_data import load_source_data
    from reverie.runs.step import Step
    from reverie.steering.entry_points import begin_classifier, edit, illusion, interpolate, invert
    from reverie.steering.restoration_results import Restored, check_results
    from reverie.steering.restore import inpaint, restore
    from reverie.training.distil import prepare_distillation
    from reverie.training.overview import Overview, find_runs, overview, runs
    from reverie.training.prepare import prepare
    from reverie.training.resume import check_resumable
    from reverie.training.suggestions import rerun_settings
    from reverie.training.summary import verdict
    from reverie.training.trainer import Training

# Functions and types that other packages define: module -> names, imported on first use.
LAZY = {
    "data": ("READERS", "Dataset"),
    "data.peek": ("kind_of_data",),
    "data.shards.packing": ("pack",),
    "data.single_image": ("read_picture",),
    "data.sources": ("is_image",),
    "evaluation.compare": ("compare",),
    "evaluation.reports": ("EvaluationStopped",),
    "evaluation.html_report": ("check_report",),
    "evaluation.inspection": ("inspect",),
    "exchange.backend": ("with_backend",),
    "exchange.formats": ("export", "import_model"),
    "gallery": ("gallery",),
    "runs.adapters": ("with_adapters",),
    "demos": ("DEMOS", "Demo"),
    "runs.config": ("Config",),
    "runs.confine": ("check_place", "confined"),
    "runs.folder": ("read_config", "read_findings", "read_metrics"),
    "runs.lock": ("holder", "interrupt"),
    "runs.sampling_options": ("Options",),
    "runs.source_data": ("load_source_data",),
    "runs.run": ("Run", "load"),
    "runs.samples": ("Samples",),
    "runs.step": ("Step",),
    "steering.restore": ("inpaint", "restore"),
    "steering.restoration_results": ("Restored", "check_results"),
    "steering.entry_points": ("begin_classifier", "edit", "illusion", "interpolate", "invert"),
    "training.distil": ("prepare_distillation",),
    "training.overview": ("Overview", "find_runs", "overview", "runs"),
    "training.prepare": ("prepare",),
    "training.resume": ("check_resumable",),
    "training.suggestions": ("rerun_settings",),
    "runs.screen": ("Screen", "format_duration"),
    "training.summary": ("verdict",),
    "training.trainer": ("Training",),
}


def __getattr__(name: str) -> Any:
    for module, exports in LAZY.items():
        if name in exports:
            with no_collection():
                return getattr(import_module(f"reverie.{module}"), name)
    raise AttributeError(f"module 'reverie.api' has no attribute {name!r}")


def load_all() -> None:
    """Import all modules behind the functions, as programs with several threads must do first.

    Two threads that import modules with circular imports may see one of them partially initialized.
    """
    for module in LAZY:
        import_module(f"reverie.{module}")


__all__ = [
    "DEMOS", "KINDS", "READERS", "Config", "Dataset", "Demo", "EvaluationStopped", "NameEntry", "Options", "Overview",
    "Restored", "Run", "Samples", "Screen", "Step", "Training", "answers", "begin", "begin_classifier", "check_place",
    "check_report", "check_results", "check_resumable", "compare", "compare_families", "compress", "confined", "decompress",
    "distil", "edit", "entries", "evaluate", "export", "families_by_kind", "find_runs", "format_duration", "gallery", "holder",
    "illusion", "import_model", "inpaint", "inspect", "interpolate", "interrupt", "invert", "is_image", "is_resumable",
    "kind_of_data", "load", "load_all", "load_source_data", "names", "names_of", "overview", "pack", "prepare",
    "prepare_distillation", "process_group", "read_config", "read_findings", "read_metrics", "read_picture", "rerun_settings",
    "restore", "runs", "sample", "sample_to", "serve_if_worker", "text_cost", "train", "train_classifier", "verdict",
    "with_adapters", "with_backend", "write_text",
]  # fmt: skip
