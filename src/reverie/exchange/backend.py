"""Sampling by ONNX Runtime: the network of a run as a session, with everything around it as it is.

On one core it was 1.6 to 1.7 times as fast as torch for batches of digits, and takes about nine seconds of processor time to
make first: it pays from several hundred images on.
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

BACKENDS = {"torch": False, "onnx": True}  # whether the network is computed by ONNX Runtime


class BareNetwork(nn.Module):
    """A network as ONNX takes it: x, level, a label where there are any, and what it is told where it is told something."""

    def __init__(self, net: nn.Module, labels: int) -> None:
        super().__init__()
        self.net, self.labels = net, labels

    def forward(self, x: Tensor, level: Tensor, *more: Tensor) -> Tensor:
        """Return the output."""
        out: Tensor = self.net(x, level, *(more if self.labels else (None, *more)))
        return out


class OnnxNetwork(nn.Module):
    """The same network, computed by ONNX Runtime on the CPU.

    labels, entries: how many there are, and how many numbers it is told.  x: (B, ...); level: (B,); cond: (B,) or None;
    told: (B, entries) or None, which is zero.
    """

    def __init__(self, net: nn.Module, shape: tuple[int, ...], labels: int, entries: int) -> None:
        super().__init__()
        try:
            import onnxruntime
        except ImportError:
            raise UserError(f"sampling by ONNX Runtime needs it: {NEEDED}") from None
        self.labels, self.entries = labels, entries
        self.nothing = nn.Buffer(torch.zeros(0), persistent=False)  # which says where it is
        inputs = [("x", torch.zeros(2, *shape), True), ("level", torch.zeros(2), True)]
        inputs += [("label", torch.tensor([0, NULL]), True)] if labels else []
        inputs += [("told", torch.zeros(2, entries), True)] if entries else []
        options: Any = onnxruntime.SessionOptions()
        options.intra_op_num_threads = torch.get_num_threads()
        made = export_module(BareNetwork(copy.deepcopy(net).eval(), labels), inputs, ["y"], fixed=2)
        self.session: Any = onnxruntime.InferenceSession(made.model_proto.SerializeToString(), options)

    def forward(self, x: Tensor, level: Tensor, cond: Tensor | None = None, told: Tensor | None = None) -> Tensor:
        """Return the output."""
        feed = {"x": x.numpy(), "level": level.contiguous().numpy()}
        if self.labels:
            feed["label"] = (torch.full((len(x),), NULL) if cond is None else cond).numpy()
        if self.entries:
            feed["told"] = (torch.zeros(len(x), self.entries) if told is None else told).numpy()
        return torch.from_numpy(self.session.run(["y"], feed)[0])


def with_backend(run: Run, backend: str) -> Run:
    """Return a run whose network is computed by a backend: torch as it is, or onnx."""
    if not pick(BACKENDS, backend, "backend"):
        return run
    if run.model.device.type != "cpu":
        raise UserError("ONNX Runtime is used on the CPU; give --device cpu with --backend onnx")
    if run.config.data.condition is not None or run.diffusion_settings.target == "levels":
        raise UserError(f"{run.path} is told captions, numbers or images, or predicts levels: use --backend torch for it")
    made = replace(run, model=_swapped(run.diffusion), changes=(*run.changes, f"backend {backend}"))
    if run.autoguidance != 1 and isinstance(early := run.early(), Diffusion):
        made._early = _swapped(early)
    return made


def _swapped(model: Diffusion) -> Diffusion:
    made = copy.deepcopy(model)
    entries = model.augmentation_width + len(model.clusters or ())
    made.denoiser.net = OnnxNetwork(model.denoiser.net, model.model_shape, model.label_count, entries)
    return made
