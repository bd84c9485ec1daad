"""Reverie trains, samples, steers and measures denoising diffusion models on your own small data.

    import reverie
    run = reverie.train("spiral", "runs/spiral")
    points = run.sample(2000)

The verbs load torch when they are first used, so that importing the package is quick.
"""

from __future__ import annotations

from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from reverie.base.errors import ReverieWarning, UserError

if TYPE_CHECKING:
    from reverie.api import (
        answers,
        compress,
        decompress,
        distil,
        edit,
        evaluate,
        export,
        illusion,
        import_model,
        inpaint,
        inspect,
        interpolate,
        invert,
        pack,
        restore,
        sample,
        text_cost,
        train,
        train_classifier,
    )
    from reverie.runs.run import load

__version__ = version("reverie")
__all__ = [
    "ReverieWarning", "UserError", "__version__", "answers", "compress", "decompress", "distil", "edit", "evaluate", "export",
    "illusion", "import_model", "inpaint", "inspect", "interpolate", "invert", "load", "pack", "restore", "sample",
    "text_cost", "train", "train_classifier",
]  # fmt: skip

_VERBS = frozenset(__all__) - {"ReverieWarning", "UserError", "__version__"}


def __dir__() -> list[str]:
    return sorted(__all__)


def __getattr__(name: str) -> Any:
    if name in _VERBS:
        from reverie import api

        return getattr(api, name)
    raise AttributeError(f"module 'reverie' has no attribute {name!r}")
