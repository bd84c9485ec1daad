"""Gradients of recurrent networks over time: the norm of d h_t / d h_0 for rnn and lstm."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from reverie.base.errors import UserError
from reverie.data import chunk_size
from reverie.draw.curves import label_axes
from reverie.draw.picture import CYCLE, SOFT, check_picture, figure, save
from reverie.families.autoregressive.sequence import SequenceModel
from reverie.families.language.model import NONE
from reverie.families.language.neural import NeuralLanguageModel
from reverie.nets.sequence import LSTM, RNN, Recurrent, State
from reverie.runs.run import Run, load
from reverie.runs.source_data import load_source_data

DIM, LENGTH = 48, 200
RADII = (0.6, 0.9, 1.0, 1.5)  # of the recurrent matrix of an rnn, initialized as a scaled orthogonal matrix
FORGETS = (0.0, 1.0, 4.0)  # biases of an lstm's forget gates
MIN_SHOWN = 1e-16  # smallest value shown


def gradient_norms(net: Recurrent, x: Tensor) -> Tensor:
    """Return |d h_t / d s_0| for t = 1 .. T, the largest singular value; the state s: h, for an lstm h and c, of all layers.

    J_t = (d s_t / d s_{t-1}) J_{t-1}, in float64.  x: (T, dim).
    """
    net, x = copy.deepcopy(net).double().eval().requires_grad_(False), x.double()
    _, first = net(torch.zeros(1, 1, net.dim, dtype=torch.float64, device=x.device))
    shapes = [t.shape[1:] for t in first.tensors]
    sizes = [shape.numel() for shape in shapes]
    state = x.new_zeros(sum(sizes))
    jacobian = torch.eye(sum(sizes), dtype=x.dtype, device=x.device)
    last_h = slice(sizes[0] - net.dim, sizes[0])  # h of the last layer
    norms = []
    for vector in x:
        copies = state.expand(len(state), -1).clone().requires_grad_()  # one copy per row of the Jacobian
        parts = tuple(part.unflatten(1, shape) for part, shape in zip(copies.split(sizes, 1), shapes, strict=True))
        _, next_state = net.step(vector.expand(len(state), -1), State(parts, 1))
        flat = torch.cat([t.flatten(1) for t in next_state.tensors], 1)
        (step_jacobian,) = torch.autograd.grad(flat.diagonal().sum(), copies)
        state, jacobian = flat[0].detach(), step_jacobian @ jacobian
        norms.append(torch.linalg.matrix_norm(jacobian[last_h], 2))
    return torch.stack(norms)


def untrained(seed: int = 0) -> dict[str, tuple[Recurrent, Tensor]]:
    """Return untrained rnns and lstms with standard normal inputs."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        x, networks = torch.randn(LENGTH, DIM), dict[str, tuple[Recurrent, Tensor]]()
        for radius in RADII:
            rnn = RNN(DIM)
            weights = dict(rnn.cells.named_parameters())
            weights["weight_hh_l0"].data.mul_(radius)
            weights["weight_ih_l0"].data.mul_(0.2)
            networks[f"rnn, recurrent weights of scale {radius:g}"] = (rnn, x)
        for bias in FORGETS:
            lstm = LSTM(DIM)
            nn.init.constant_(dict(lstm.cells.named_parameters())["bias_ih_l0"][DIM : 2 * DIM], bias)
            networks[f"lstm, forget bias {bias:g}"] = (lstm, x)
    return networks


@torch.no_grad()
def trained(run: Run) -> tuple[Recurrent, Tensor]:
    """Return the network of a run, and the input vectors of a held-out datum."""
    model = run.model
    if not isinstance(model, SequenceModel | NeuralLanguageModel) or not isinstance(model.net, Recurrent):
        raise UserError(f"{run.path} is a run of {run.config.family.name}; this gallery needs runs of rnn and lstm")
    held = load_source_data(run.config.data, folder=run.path).split(run.config.data.seed)[1]
    x, labels = held.batch(torch.arange(chunk_size(held.shape, 1)))
    z = model.encode(x.to(model.device))
    if isinstance(model, NeuralLanguageModel):
        return model.net, model.inputs(z[z != NONE][None, :-1])[0, :LENGTH]
    z = z.flatten(1)[:, model.order]
    cond = labels.to(model.device) if labels is not None and model.label_count else None
    return model.net, torch.cat([model.start_input(1, cond), model.embedded(z[:, :-1], cond)], 1)[0, :LENGTH]


def draw(out: Path, runs: Sequence[str | Path | Run] = (), device: str = "auto") -> list[Path]:
    """Draw gradient norms over time, for runs and for untrained networks."""
    check_picture(out)
    opened = [run if isinstance(run, Run) else load(run, device) for run in runs]
    networks = {**untrained(), **{f"{run.config.family.name}, {run.path.name} trained": trained(run) for run in opened}}
    fig = figure(9, 4.2)
    axes = fig.subplots()
    axes.axhline(1, color=SOFT, lw=0.8)
    for k, (name, (net, x)) in enumerate(networks.items()):
        norms = gradient_norms(net, x).cpu().numpy()
        norms[norms < MIN_SHOWN] = np.nan
        style = "-" if isinstance(net, LSTM) else "--"
        width = 2.2 if k >= len(RADII) + len(FORGETS) else 1.4
        axes.semilogy(range(1, len(norms) + 1), norms, style, lw=width, color=CYCLE[k % len(CYCLE)], label=name)
    title = "Sensitivity of h_t to h_0: vanishing, exploding or preserved gradients"
    label_axes(axes, title, "t", "norm of d h_t / d h_0, for lstm d h_t / d (h_0, c_0)")
    axes.legend(fontsize=8, loc="upper left", bbox_to_anchor=(1.01, 1), frameon=False)
    save(fig, out)
    return [out]
