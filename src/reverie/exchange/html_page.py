"""A run as one HTML file that samples in a browser, from file://, without a server or network access."""

from __future__ import annotations

import base64
import hashlib
import html
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from reverie.base.errors import UserError
from reverie.base.files import atomic
from reverie.base.visible import visible
from reverie.diffusion.denoiser import NetDenoiser, noise_level
from reverie.diffusion.pair import row
from reverie.exchange.export_parts import ExportParts, split_run
from reverie.exchange.solver_steps import SolverStep, solver_steps
from reverie.families.diffusion.sampling import build_sampling
from reverie.nets.mlp import RBF, ConditionalMLP
from reverie.nets.transformer import Transformer
from reverie.nets.unet import UNet
from reverie.runs.run import Run
from reverie.runs.sampling_options import Options

PAGE = Path(__file__).parent / "page"
WORKER = ("kernel.js", "noise.js", "network.js", "worker.js")  # code of the web workers
SCRIPTS = ("noise.js", "page.js", "paint.js")
SUPPORTED = (UNet, Transformer, ConditionalMLP, RBF)  # networks that network.js implements
MAX_BYTES = 200 * 2**20  # of weights; browsers cannot load more
# Samplers and numbers of steps that the page offers in addition to the requested one, and the grid of inpainting (RePaint).
OFFERED = (("ddim", (5, 10, 20, 40)), ("ddpm", (20, 40, 80)), ("dpm++sde", (12, 20)), ("dpm++2m", (8, 16)))
PAINTING = {"sampler": "ddpm", "steps": 30, "grid": "zigzag:jump=6,repeats=3"}
DIGITS = 9  # significant digits in a table; float32 needs no more
# The page may only run its own code: no network access, other files, forms or frames.
POLICY = (
    "default-src 'none'; script-src {scripts} 'wasm-unsafe-eval'; style-src {styles}; worker-src blob:; img-src data: blob:;"
    " base-uri 'none'; form-action 'none'"
)


def page_step(step: SolverStep, denoiser: NetDenoiser) -> dict[str, Any]:
    """Return a solver step with its precomputed coefficients, where y is the output of the network for c_in x.

    x0 = x0_x x + x0_y y and eps = eps_x x + eps_y y, by `decode`.
    """
    alpha, sigma, k = step.alpha, step.sigma, denoiser.sigma_data
    size = (alpha**2 + sigma**2) ** 0.5
    a, b = (float(c) for c in row(denoiser.target, alpha / size, sigma / size, k))
    d = alpha * b - sigma * a
    numbers = {
        "t": step.t, "alpha": alpha, "sigma": sigma, "level": float(noise_level(alpha, sigma)),
        "c_in": (alpha**2 * k**2 + sigma**2) ** -0.5,
        "x0_x": b / d, "x0_y": -sigma / d, "eps_x": -a / d, "eps_y": alpha / d,
    }  # fmt: skip
    terms = {key: [[j, _rounded(w)] for j, w in getattr(step, key)] for key in ("x0", "eps", "noise")}
    return {key: _rounded(value) for key, value in numbers.items()} | terms | {"frame": step.frame}


def _rounded(value: float) -> float:
    return float(f"{value:.{DIGITS}g}")


def tables_of(parts: ExportParts, options: Options) -> list[dict[str, Any]]:
    """Return the table of every sampler of the page, the requested one first."""
    chosen = parts.run.chosen_sampling(options)
    samplings = [chosen, *((name, steps, chosen[2]) for name, counts in OFFERED for steps in counts)]
    tables = []
    for name, steps, grid in dict.fromkeys(samplings):
        solver = parts.solver_steps({"sampler": name, "steps": steps, "grid": grid})
        tables.append({"sampler": name, "steps": steps, "rows": [page_step(step, parts.model.denoiser) for step in solver]})
    return tables


def _inpainting_table(parts: ExportParts) -> list[dict[str, Any]]:
    schedule = parts.model.denoiser.schedule
    sampler, grid = build_sampling(parts.model.shape, schedule, PAINTING)
    return [page_step(step, parts.model.denoiser) for step in solver_steps(sampler, schedule, grid)]


def weights_of(denoisers: Mapping[str, NetDenoiser]) -> tuple[dict[str, Any], bytes]:
    """Return shape and offset of each tensor by name, and all tensors as float32 in sequence."""
    layout: dict[str, Any] = {}
    parts: list[bytes] = []
    offset = 0
    for prefix, denoiser in denoisers.items():
        for name, tensor in denoiser.net.state_dict().items():
            values: Tensor = tensor.detach().cpu().to(torch.float32).contiguous()
            layout[f"{prefix}.{name}"] = {"shape": list(values.shape), "at": offset}
            offset += values.numel()
            parts.append(values.numpy().astype("<f4").tobytes())
    return layout, b"".join(parts)


def check_page_support(parts: ExportParts) -> None:
    """Refuse a model that the page cannot compute or show."""
    settings = parts.run.diffusion_settings
    if not isinstance(parts.model.denoiser.net, SUPPORTED):
        raise UserError(f"a page cannot compute the network {settings.network['name']!r}; export to .onnx")
    if parts.run.kind == "points" and parts.model.shape != (2,):
        raise UserError(f"a page shows points in the plane, and {parts.run.path} has {parts.model.shape[0]} coordinates;"
                        " export to .onnx")  # fmt: skip


def model_of(parts: ExportParts, options: Options) -> tuple[dict[str, Any], bytes]:
    """Return the facts of a model for the page, and its weights."""
    denoisers = {"strong": parts.model.denoiser} | ({} if parts.weak is None else {"weak": parts.weak})
    tensors, weights = weights_of(denoisers)
    if len(weights) > MAX_BYTES:
        raise UserError(f"a page contains at most {MAX_BYTES >> 20} MiB of weights, got {len(weights) >> 20}; export to .onnx")
    shape = list(parts.model.shape)
    facts = {
        **parts.facts(options), "network": parts.run.diffusion_settings.network, "tensors": tensors,
        "shape": shape if len(shape) == 3 else [shape[0], 1, 1], "tables": tables_of(parts, options),
        "guidance": options.get("guidance", 1.0), "seed": options.get("seed", 0), "count": parts.run.config.data.count,
        "painting": _inpainting_table(parts) if parts.run.kind == "images" else [],
    }  # fmt: skip
    return facts, weights


def export_html(run: Run, out: Path, options: Options) -> Path:
    """Write the page atomically and return its path."""
    parts = split_run(run, options, "a page")
    check_page_support(parts)
    facts, weights = model_of(parts, options)
    with atomic(out) as temporary:
        temporary.write_text(page_of(facts, weights), encoding="utf-8")
    return out


def page_of(facts: dict[str, Any], weights: bytes) -> str:
    """Return the page: its code, and the model as inert text."""
    style, script = (PAGE / "style.css").read_text("utf-8"), "\n".join((PAGE / name).read_text("utf-8") for name in SCRIPTS)
    policy = POLICY.format(scripts=_source_hash(script), styles=_source_hash(style))
    values = {
        "policy": policy, "title": html.escape(visible(str(facts["data"]))), "style": style, "script": script,
        "worker": "\n".join((PAGE / name).read_text("utf-8") for name in WORKER),
        "model": json.dumps(facts, separators=(",", ":")).replace("<", "\\u003c"),  # so that no string closes the element
        "weights": base64.b64encode(weights).decode(),
    }  # fmt: skip
    # in one pass, so that placeholders inside values are not replaced
    return re.sub(r"\{\{(\w+)\}\}", lambda match: values[match[1]], (PAGE / "page.html").read_text("utf-8"))


def _source_hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
