"""A run as an ONNX file: the guided denoiser, with the solver steps in its metadata."""

from __future__ import annotations

import copy
import json
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from reverie.base.errors import UserError
from reverie.base.files import atomic
from reverie.base.scalar import Coefficient, Time
from reverie.diffusion.condition import NULL
from reverie.diffusion.denoiser import NetDenoiser
from reverie.diffusion.pair import Pair
from reverie.diffusion.schedule import Schedule
from reverie.exchange.export_parts import ExportParts, split_run
from reverie.runs.run import Run
from reverie.runs.sampling_options import Options

FORMAT = 1  # of the metadata
FIXED = 3  # inputs of every file: x, alpha, sigma
KEY = "reverie"  # of the metadata
NEEDED = "pip install 'reverie[exchange]'"


class TabulatedSchedule(Schedule):
    """A schedule whose time is a pair (alpha, sigma), which the caller reads from a table."""

    def __init__(self) -> None:
        super().__init__()

    def forward(self, t: Time) -> tuple[Coefficient, Coefficient]:
        """Return the given pair."""
        return cast(tuple[Coefficient, Coefficient], t)


class Guided(nn.Module):
    """The guided denoiser: x, alpha, sigma and, if they exist, label, guidance, cluster, autoguidance -> x0, eps, sample.

    none + guidance (conditional - none) of the model and of the weak model, then weak + autoguidance (strong - weak).
    x: (B, ...) in model units; alpha, sigma: () float64; label, cluster: (B,) int64, -1 for none; sample: x0 in user units.
    With labels, the null label also hides the cluster.
    """

    def __init__(self, parts: ExportParts) -> None:
        super().__init__()
        self.strong, self.weak = (None if d is None else _tabulated(d) for d in (parts.model.denoiser, parts.weak))
        self.codec, self.labels, self.clips = parts.model.codec, bool(parts.model.label_count), parts.model.clips
        self.clusters, self.before = len(parts.model.clusters or ()), parts.model.augmentation_width

    def forward(self, x: Tensor, alpha: Tensor, sigma: Tensor, *more: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the guided estimate, and x0 in user units."""
        inputs = list(more)
        label, guidance = (inputs.pop(0), inputs.pop(0)) if self.labels else (None, None)
        conditioning = self.conditioning(inputs.pop(0), label) if self.clusters else None
        assert self.strong is not None
        pair = _guided(self.strong, x, alpha, sigma, label, guidance, conditioning)
        x0, eps = pair.x0, pair.eps
        if self.weak is not None:
            scale, other = inputs.pop(0), _guided(self.weak, x, alpha, sigma, label, guidance, conditioning)
            x0, eps = scale * x0 + (1 - scale) * other.x0, scale * eps + (1 - scale) * other.eps
        if self.clips:
            x0 = x0.clamp(-1, 1)
            eps = ((x - alpha * x0) / sigma).to(x.dtype)
        return x0, eps, self.codec.decode(x0)

    def conditioning(self, cluster: Tensor, label: Tensor | None) -> Tensor:
        """Return the one-hot clusters, (B, before + K), with zeros for no cluster."""
        visible = cluster if label is None else torch.where(label == NULL, NULL, cluster)
        return functional.pad((visible[:, None] == torch.arange(self.clusters)).float(), (self.before, 0))


def _tabulated(denoiser: NetDenoiser) -> NetDenoiser:
    tabulated = copy.deepcopy(denoiser).cpu().float().eval()
    tabulated.schedule = TabulatedSchedule()
    return tabulated


def _guided(
    denoiser: NetDenoiser,
    x: Tensor,
    alpha: Tensor,
    sigma: Tensor,
    label: Tensor | None,
    guidance: Tensor | None,
    conditioning: Tensor | None,
) -> Pair:
    t = cast(Time, (alpha, sigma))
    if label is None or guidance is None:
        return denoiser.estimate(x, t, None, conditioning)
    labels = torch.cat([label, torch.full_like(label, NULL)])
    doubled = None if conditioning is None else torch.cat([conditioning, torch.zeros_like(conditioning)])
    estimates = denoiser.estimate(torch.cat([x, x]), t, labels, doubled)
    x0, eps = (  # halves by a reshape, because chunk would fix the batch size
        (none + guidance * (conditional - none))
        for conditional, none in (z.unflatten(0, (2, -1)).unbind(0) for z in (estimates.x0, estimates.eps))
    )
    return Pair(x0, eps)


def example_inputs(parts: ExportParts) -> list[tuple[str, Tensor, bool]]:
    """Return the name of each input, an example, and whether its first dimension is the batch."""
    x = torch.zeros(2, *parts.model.model_shape)
    amplitude = torch.tensor(0.7, dtype=torch.float64)
    inputs = [("x", x, True), ("alpha", amplitude, False), ("sigma", amplitude.clone(), False)]
    if parts.model.label_count:
        inputs += [("label", torch.tensor([0, NULL]), True), ("guidance", torch.tensor(1.0), False)]
    if parts.model.clusters is not None:
        inputs.append(("cluster", torch.tensor([0, NULL]), True))
    return inputs if parts.weak is None else [*inputs, ("autoguidance", torch.tensor(parts.autoguidance), False)]


def export_onnx(run: Run, out: Path, options: Options) -> Path:
    """Write the file atomically and return its path."""
    parts = split_run(run, options, "an ONNX file")
    facts = {"format": FORMAT, **parts.facts(options)}
    facts["evaluations"] = [e.as_dict() for e in parts.solver_steps(options)]
    inputs = example_inputs(parts)
    program = export_module(Guided(parts), inputs, ["x0", "eps", "sample"])
    program.model.metadata_props[KEY] = json.dumps(facts)
    with atomic(out) as temporary:
        program.save(str(temporary), external_data=False)
    return out


def export_module(module: nn.Module, inputs: list[tuple[str, Tensor, bool]], outputs: list[str], fixed: int = FIXED) -> Any:
    """Return the ONNX program of a module, with a dynamic batch dimension.

    fixed: number of named arguments; the others form one variadic argument.
    """
    try:
        import onnxscript  # noqa: F401  torch.onnx imports it
    except ImportError:
        raise UserError(f"writing ONNX needs onnx and onnxscript: {NEEDED}") from None
    batch = torch.export.Dim("batch", min=1, max=2**20)
    shapes: Any = tuple({0: batch} if batched else None for _, _, batched in inputs)
    first, rest = shapes[:fixed], shapes[fixed:]
    shapes = (*first, rest) if rest else first
    with torch.no_grad(), _quietly():
        exported = torch.export.export(
            module.eval(), tuple(example for _, example, _ in inputs), dynamic_shapes=shapes, strict=False
        )
        program = torch.onnx.export(
            exported, dynamo=True, input_names=[name for name, _, _ in inputs], output_names=outputs, verbose=False
        )
    assert program is not None
    for node in program.model.graph.all_nodes():  # torch annotates them with source files
        node.metadata_props.clear()
        node.doc_string = None
        for value in node.outputs:
            value.metadata_props.clear()
    for value in (*program.model.graph.inputs, *program.model.graph.initializers.values()):
        value.metadata_props.clear()
    program.model.graph.metadata_props.clear()
    return program


@contextmanager
def _quietly() -> Iterator[None]:
    """Silence the messages of torch during an export."""
    logger = logging.getLogger("torch.onnx")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(before)
