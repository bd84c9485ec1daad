"""Old names of the Python interface, which keep working for one release."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from importlib import import_module
from typing import Any

RENAMED: dict[str, dict[str, str]] = {  # module -> old name -> new name
    "reverie.autodiff": {
        "Programme": "LinearProgram", "linear_programme": "linear_program", "of_parameters": "functionalize",
    },
    "reverie.diffusion.denoiser": {"Given": "WithCondition", "Told": "WithConditioning"},
    "reverie.diffusion.process": {"bayes": "gaussian_posterior"},
    "reverie.kernels": {
        "Function": "RKHSFunction", "Unit": "Normalized", "Words": "BagOfWords", "gram_times": "gram_product",
        "is_positive": "is_positive_semidefinite", "section": "representer",
    },
    "reverie.nets.condition": {"CrossAttention": "TextCrossAttention", "TextLayer": "TextEncoderLayer"},
    "reverie.nets.sequence": {"rotated": "apply_rotary", "rotations": "rotary_angles"},
    "reverie.transport": {"costing": "problem_from_costs"},
}  # fmt: skip


def deprecated_names(module: str) -> Callable[[str], Any]:
    """Return the `__getattr__` of a module, which resolves its old names with a DeprecationWarning."""

    def __getattr__(name: str) -> Any:
        new = RENAMED[module].get(name)
        if new is None:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        warnings.warn(f"{module}.{name} is deprecated; use {module}.{new}", DeprecationWarning, stacklevel=2)
        return getattr(import_module(module), new)

    return __getattr__
