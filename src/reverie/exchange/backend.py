"""Sampling with ONNX Runtime: an inference session replaces the network of a run.

On one core it was 1.6 to 1.7 times as fast as torch for batches of digits; building the session takes about nine seconds of
CPU time, so it is worthwhile for several hundred images or more.
"""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from reverie.base.errors import UserError, pick
from reverie.diffusion.condition import NULL
from reverie.exchange.onnx import NEEDED, export_module
from reverie.families.diffusion.model import Diffusion
from reverie.runs.run import Run

BACKENDS = {"torch": False, "onnx": True}  # whether ONNX Runtime computes the network


class BareNetwork(nn.Module):
    """A network with the inputs of ONNX: x, level, and, if the model has them, a label and a conditioning vector."""

    def __init__(self, net: nn.Module, labels: int) -> None:
        super().__init__()
        self.net, self.labels = net, labels

    def forward(self, x: Tensor, level: Tensor, *more: Tensor) -> Tensor:
        """Return the output."""
        out: Tensor = self.net(x, level, *(more if self.labels else (None, *more)))
        return out


class OnnxNetwork(nn.Module):
    """A network computed by ONNX Runtime on the CPU.

    labels: number of labels; entries: width of the conditioning vector.  x: (B, ...); level: (B,); cond: (B,) or None;
    conditioning: (B, entries) or None, which is zero.
    """

    def __init__(self, net: nn.Module, shape: tuple[int, ...], labels: int, entries: int) -> None:
        super().__init__()
        try:
            import onnxruntime
        except ImportError:
            raise UserError(f"--backend onnx needs ONNX Runtime: {NEEDED}") from None
        self.labels, self.entries = labels, entries
        self.empty = nn.Buffer(torch.zeros(0), persistent=False)  # defines the device
        inputs = [("x", torch.zeros(2, *shape), True), ("level", torch.zeros(2), True)]
        inputs += [("label", torch.tensor([0, NULL]), True)] if labels else []
        inputs += [("conditioning", torch.zeros(2, entries), True)] if entries else []
        options: Any = onnxruntime.SessionOptions()
        options.intra_op_num_threads = torch.get_num_threads()
        program = export_module(BareNetwork(copy.deepcopy(net).eval(), labels), inputs, ["y"], fixed=2)
        self.session: Any = onnxruntime.InferenceSession(program.model_proto.SerializeToString(), options)

    def forward(self, x: Tensor, level: Tensor, cond: Tensor | None = None, conditioning: Tensor | None = None) -> Tensor:
        """Return the output."""
        feed = {"x": x.numpy(), "level": level.contiguous().numpy()}
        if self.labels:
            feed["label"] = (torch.full((len(x),), NULL) if cond is None else cond).numpy()
        if self.entries:
            feed["conditioning"] = (torch.zeros(len(x), self.entries) if conditioning is None else conditioning).numpy()
        return torch.from_numpy(self.session.run(["y"], feed)[0])


def with_backend(run: Run, backend: str) -> Run:
    """Return a run whose network is computed by a backend, torch or onnx."""
    if not pick(BACKENDS, backend, "backend"):
        return run
    if run.model.device.type != "cpu":
        raise UserError(f"ONNX Runtime runs on the CPU, got the device {run.model.device.type}; use --device cpu")
    if run.config.data.condition is not None or run.diffusion_settings.target == "levels":
        raise UserError(f"{run.path} is conditioned on captions, numbers or images, or predicts levels; use --backend torch")
    accelerated = replace(run, model=_with_onnx(run.diffusion), changes=(*run.changes, f"backend {backend}"))
    if run.autoguidance != 1 and isinstance(early := run.early(), Diffusion):
        accelerated._early = _with_onnx(early)
    return accelerated


def _with_onnx(model: Diffusion) -> Diffusion:
    copied = copy.deepcopy(model)
    entries = model.augmentation_width + len(model.clusters or ())
    copied.denoiser.net = OnnxNetwork(model.denoiser.net, model.model_shape, model.label_count, entries)
    return copied
