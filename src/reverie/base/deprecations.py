"""Old names of the Python interface and of options, which keep working for one release."""

from __future__ import annotations

import functools
import inspect
import warnings
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any, ParamSpec, TypeVar

from reverie.base.errors import ReverieWarning, UserError

P = ParamSpec("P")
R = TypeVar("R")

RENAMED: dict[str, dict[str, str]] = {  # module -> old name -> new name, with its module where that changed
    "reverie.autodiff": {
        "Programme": "LinearProgram", "linear_programme": "linear_program", "of_parameters": "functionalize",
    },
    "reverie.diffusion.denoiser": {"Given": "WithCondition", "Told": "WithConditioning"},
    "reverie.diffusion.likelihood": {"step_cost": "step_kl"},
    "reverie.diffusion.likelihood.bound": {
        "denoising_cost": "denoising_kl", "prior_cost": "prior_kl", "reconstruction_cost": "reconstruction_nll",
    },
    "reverie.diffusion.process": {"bayes": "gaussian_posterior"},
    "reverie.families.graph": {"Graph": "reverie.families.bayes_net.BayesNet", "Plate": "reverie.families.bayes_net.Plate"},
    "reverie.families.language.choice": {"Choice": "reverie.families.language.token_sampling.TokenSampling"},
    "reverie.lessons": {"LESSONS": "reverie.demos.DEMOS", "Lesson": "reverie.demos.Demo"},
    "reverie.kernels": {
        "Function": "RKHSFunction", "Unit": "Normalized", "Words": "BagOfWords", "gram_times": "gram_product",
        "is_positive": "is_positive_semidefinite", "section": "representer",
    },
    "reverie.nets.condition": {"CrossAttention": "TextCrossAttention", "TextLayer": "TextEncoderLayer"},
    "reverie.nets.sequence": {"rotated": "apply_rotary", "rotations": "rotary_angles"},
    "reverie.transport": {"costing": "problem_from_costs"},
}  # fmt: skip

# Options of the command line (with - for _), parameters of verbs, keys of --config files and of stored configurations.
OPTIONS: dict[str, str] = {  # old name -> new name
    "avoid": "negative_prompt", "condition_number": "condition_columns", "for": "purpose", "gradient_limit": "gradient_clip",
    "micro": "micro_batches", "told": "condition",
}  # fmt: skip
PARAMETERS: dict[str, str] = {"say": "notify"}  # of verbs in Python only: old name -> new name
VALUES: dict[str, dict[str, str]] = {  # option -> old value -> new value
    "purpose": {"pictures": "samples"},
    "until": {"good": "converged"},
}
SPEC_OPTIONS: dict[str, dict[str, str]] = {"flip": {"told": "conditioned"}}  # name of a spec -> old option -> new option
REPORT_KEYS: dict[str, str] = {  # of evaluations: old key -> new key
    "nearest": "nearest_distance", "spread": "diversity", "told_apart": "two_sample_accuracy",
}  # fmt: skip


class RenamedWarning(ReverieWarning, DeprecationWarning):
    """An old name or value of an option was used."""


def flag(option: str) -> str:
    """Return an option as the command line writes it."""
    return "--" + option.replace("_", "-")


def warn_renamed(old: str, new: str, stacklevel: int = 2) -> None:
    """Warn that an old name was used, and name the new one."""
    warnings.warn(f"{old} is deprecated; use {new}", RenamedWarning, stacklevel=stacklevel + 1)


def current_report_key(key: str) -> str:
    """Return a key of an evaluation under its present name, with a warning if it is an old one."""
    for old, new in REPORT_KEYS.items():
        if key == old or (key.startswith(f"{old}_") and not key.startswith(new)):
            warn_renamed(key, new + key.removeprefix(old), stacklevel=3)
            return new + key.removeprefix(old)
    return key


def current_options(stored: Mapping[str, Any]) -> dict[str, Any]:
    """Return stored options under their present names and with present values, without a warning."""
    present: dict[str, Any] = {}
    for key, value in stored.items():
        name = OPTIONS.get(key, key)
        present[name] = VALUES.get(name, {}).get(value, value) if isinstance(value, str) else value
    return present


def current_spec_options(name: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of a spec under their present names, with a warning."""
    present: dict[str, Any] = {}
    for key, value in options.items():
        new = SPEC_OPTIONS.get(name, {}).get(key, key)
        if new != key:
            warn_renamed(f"{name}:{key}", f"{name}:{new}", stacklevel=4)
        present[new] = value
    return present


def renamed_options(verb: Callable[P, R]) -> Callable[P, R]:
    """Let a verb take its options under their old names and values, with a warning."""
    own, renamed = set(inspect.signature(verb).parameters), {**OPTIONS, **PARAMETERS}

    @functools.wraps(verb)
    def called(*args: P.args, **kwargs: P.kwargs) -> R:
        options: dict[str, Any] = kwargs
        for old in [key for key in options if key in renamed and key not in own]:
            new = renamed[old]
            if new in options:
                raise UserError(f"{old} is the old name of {new}; give only {new}")
            warn_renamed(old, new)
            options[new] = options.pop(old)
        for name in VALUES.keys() & options.keys():
            value = options[name]
            if isinstance(value, str) and value in VALUES[name]:
                warn_renamed(f"{name}={value!r}", repr(VALUES[name][value]))
                options[name] = VALUES[name][value]
        return verb(*args, **kwargs)

    return called


def deprecated_names(module: str) -> Callable[[str], Any]:
    """Return the `__getattr__` of a module, which resolves its old names with a DeprecationWarning."""

    def __getattr__(name: str) -> Any:
        new = RENAMED[module].get(name)
        if new is None:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        owner, _, attribute = new.rpartition(".")
        owner = owner or module
        warnings.warn(f"{module}.{name} is deprecated; use {owner}.{attribute}", DeprecationWarning, stacklevel=2)
        return getattr(import_module(owner), attribute)

    return __getattr__
