"""A run as one HTML file that draws in anyone's browser, from file://, without a server and without a network."""

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
WORKER = ("kernel.js", "noise.js", "network.js", "worker.js")  # what computes, beside the page
SCRIPTS = ("noise.js", "page.js", "paint.js")
DRAWN_BY = (UNet, Transformer, ConditionalMLP, RBF)  # the networks that network.js knows
MOST_BYTES = 200 * 2**20  # of weights; a browser would choke on more
# Samplers and numbers of steps that the page offers beside the one that was asked for, and the grid for painting (RePaint).
OFFERED = (("ddim", (5, 10, 20, 40)), ("ddpm", (20, 40, 80)), ("dpm++sde", (12, 20)), ("dpm++2m", (8, 16)))
PAINTING = {"sampler": "ddpm", "steps": 30, "grid": "zigzag:jump=6,repeats=3"}
PLACES = 9  # digits of the numbers of a table, more than a float32 has
# A page may do what stands in it and nothing else: no network, no other file, no form, no frame.
POLICY = (
    "default-src 'none'; script-src {scripts} 'wasm-unsafe-eval'; style-src {styles}; worker-src blob:; img-src data: blob:;"
    " base-uri 'none'; form-action 'none'"
)


def step_of(evaluation: SolverStep, denoiser: NetDenoiser) -> dict[str, Any]:
    """Return an evaluation with all that is known of it before: what the network sees, and what its output y says.

    x0 = x0_x x + x0_y y and eps = eps_x x + eps_y y, by `decode`; the network sees c_in x.
    """
    alpha, sigma, k = evaluation.alpha, evaluation.sigma, denoiser.sigma_data
    size = (alpha**2 + sigma**2) ** 0.5
    a, b = (float(c) for c in row(denoiser.target, alpha / size, sigma / size, k))
    d = alpha * b - sigma * a
    numbers = {
        "t": evaluation.t, "alpha": alpha, "sigma": sigma, "level": float(noise_level(alpha, sigma)),
        "c_in": (alpha**2 * k**2 + sigma**2) ** -0.5,
        "x0_x": b / d, "x0_y": -sigma / d, "eps_x": -a / d, "eps_y": alpha / d,
    }  # fmt: skip
    terms = {key: [[j, _short(w)] for j, w in getattr(evaluation, key)] for key in ("x0", "eps", "noise")}
    return {key: _short(value) for key, value in numbers.items()} | terms | {"frame": evaluation.frame}


def _short(value: float) -> float:
    return float(f"{value:.{PLACES}g}")


def tables_of(parts: ExportParts, options: Options) -> list[dict[str, Any]]:
    """Return the table of every sampler that the page offers, first the one that was asked for."""
    chosen = parts.run.chosen_sampling(options)
    wanted = [chosen, *((name, steps, chosen[2]) for name, counts in OFFERED for steps in counts)]
    found = []
    for name, steps, grid in dict.fromkeys(wanted):
        made = parts.solver_steps({"sampler": name, "steps": steps, "grid": grid})
        found.append({"sampler": name, "steps": steps, "rows": [step_of(e, parts.model.denoiser) for e in made]})
    return found


def _painting(parts: ExportParts) -> list[dict[str, Any]]:
    schedule = parts.model.denoiser.schedule
    sampler, grid = build_sampling(parts.model.shape, schedule, PAINTING)
    return [step_of(e, parts.model.denoiser) for e in solver_steps(sampler, schedule, grid)]


def weights_of(denoisers: Mapping[str, NetDenoiser]) -> tuple[dict[str, Any], bytes]:
    """Return where each tensor lies, by name, and all of them as float32, one after another."""
    where: dict[str, Any] = {}
    parts: list[bytes] = []
    at = 0
    for prefix, denoiser in denoisers.items():
        for name, tensor in denoiser.net.state_dict().items():
            values: Tensor = tensor.detach().cpu().to(torch.float32).contiguous()
            where[f"{prefix}.{name}"] = {"shape": list(values.shape), "at": at}
            at += values.numel()
            parts.append(values.numpy().astype("<f4").tobytes())
    return where, b"".join(parts)


def check_drawable(parts: ExportParts) -> None:
    """Refuse a network that the page cannot compute."""
    settings = parts.run.diffusion_settings
    if not isinstance(parts.model.denoiser.net, DRAWN_BY):
        raise UserError(f"the page cannot compute the network {settings.network['name']!r}; export it as .onnx")
    if parts.run.kind == "points" and parts.model.shape != (2,):
        raise UserError(f"a page shows points of the plane, and {parts.run.path} has {parts.model.shape[0]} coordinates")


def model_of(parts: ExportParts, options: Options) -> tuple[dict[str, Any], bytes]:
    """Return what the page has to know of a model, and its weights."""
    denoisers = {"strong": parts.model.denoiser} | ({} if parts.weak is None else {"weak": parts.weak})
    tensors, weights = weights_of(denoisers)
    if len(weights) > MOST_BYTES:
        raise UserError(f"the weights have {len(weights) >> 20} MiB, and a page holds at most {MOST_BYTES >> 20}")
    shape = list(parts.model.shape)
    facts = {
        **parts.facts(options), "network": parts.run.diffusion_settings.network, "tensors": tensors,
        "shape": shape if len(shape) == 3 else [shape[0], 1, 1], "tables": tables_of(parts, options),
        "guidance": options.get("guidance", 1.0), "seed": options.get("seed", 0), "count": parts.run.config.data.count,
        "painting": _painting(parts) if parts.run.kind == "images" else [],
    }  # fmt: skip
    return facts, weights


def export_html(run: Run, out: Path, options: Options) -> Path:
    """Write the page, whole or not at all."""
    parts = split_run(run, options, "a page")
    check_drawable(parts)
    facts, weights = model_of(parts, options)
    with atomic(out) as aside:
        aside.write_text(page_of(facts, weights), encoding="utf-8")
    return out


def page_of(facts: dict[str, Any], weights: bytes) -> str:
    """Return the text of the page: its own code, and the model as text that nothing runs."""
    style, script = (PAGE / "style.css").read_text("utf-8"), "\n".join((PAGE / name).read_text("utf-8") for name in SCRIPTS)
    policy = POLICY.format(scripts=_allowed(script), styles=_allowed(style))
    values = {
        "policy": policy, "title": html.escape(visible(str(facts["data"]))), "style": style, "script": script,
        "worker": "\n".join((PAGE / name).read_text("utf-8") for name in WORKER),
        "model": json.dumps(facts, separators=(",", ":")).replace("<", "\\u003c"),  # so that no name can end the element
        "weights": base64.b64encode(weights).decode(),
    }  # fmt: skip
    # at once, so that nothing in a value is taken for a place to fill
    return re.sub(r"\{\{(\w+)\}\}", lambda place: values[place[1]], (PAGE / "page.html").read_text("utf-8"))


def _allowed(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
