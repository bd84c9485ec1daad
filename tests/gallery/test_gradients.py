"""The gallery of vanishing gradients, where it has numbers."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

import reverie
from reverie import api
from reverie.base.errors import UserError
from reverie.gallery.gradients import gradient_norms, trained, untrained
from reverie.nets.sequence import LSTM, RNN
from reverie.runs.source_data import load_source_data


def test_without_inputs_the_derivative_is_a_power_of_the_recurrent_matrix() -> None:
    torch.manual_seed(0)
    rnn = RNN(5)
    for p in rnn.cells.parameters():
        nn.init.normal_(p, 0, 0.5) if p.ndim > 1 else nn.init.zeros_(p)
    u = rnn.cells.weight_hh_l0.detach().double()
    wanted = [torch.linalg.matrix_norm(torch.linalg.matrix_power(u, t), 2) for t in range(1, 7)]  # tanh' is 1 at 0
    torch.testing.assert_close(gradient_norms(rnn, torch.zeros(6, 5)), torch.stack(wanted))


@pytest.mark.parametrize("net", [RNN(3, 2), LSTM(3, 2)], ids=["rnn", "lstm"])
def test_it_is_the_derivative_over_all_steps(net: RNN | LSTM) -> None:
    x = torch.randn(4, 3, dtype=torch.float64)
    net = net.double()
    first = [torch.zeros(2, 1, 3, dtype=torch.float64, requires_grad=True) for _ in range(1 + isinstance(net, LSTM))]
    y, _ = net.cells(x[None], tuple(first) if isinstance(net, LSTM) else first[0])
    rows = [torch.cat([g.flatten() for g in torch.autograd.grad(y[0, -1, k], first, retain_graph=True)]) for k in range(3)]
    assert float(gradient_norms(net, x)[-1]) == pytest.approx(float(torch.linalg.matrix_norm(torch.stack(rows), 2)))


def test_gradients_of_an_rnn_vanish_and_those_of_an_lstm_last() -> None:
    shown = {name: float(gradient_norms(net, x[:60])[-1]) for name, (net, x) in untrained().items()}
    assert shown["rnn, recurrent weights of scale 0.6"] < 1e-8 and shown["lstm, forget bias 4"] > 1e-3
    assert shown["lstm, forget bias 0"] < shown["lstm, forget bias 1"] < shown["lstm, forget bias 4"]


@pytest.mark.parametrize("family", ["rnn", "lstm"])
def test_runs_of_texts_are_shown(tmp_path: Path, family: str) -> None:
    (tmp_path / "text.txt").write_text("so say we all, and so it goes. " * 60)
    options = {"family": f"{family}:dim=8", "window": 24, "steps": 2, "batch": 8, "progress": False}
    run = reverie.train(tmp_path / "text.txt", tmp_path / "run", **options)
    net, x = trained(run)
    held_out = load_source_data(run.config.data, folder=run.path).split(run.config.data.seed)[1]
    ids = run.model.encode(held_out.batch(torch.arange(1))[0])
    logits, _ = run.model.logits(ids[:, :-1], None)
    h, _ = net(x[None])
    words = (run.model.embed if run.model.head is None else run.model.head).weight
    torch.testing.assert_close(h @ words.T + run.model.bias, logits)
    api.gallery("gradients", tmp_path / "g.png", runs=[run])
    assert (tmp_path / "g.png").is_file()


def test_runs_of_other_families_are_refused(spiral_run, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="needs runs of rnn and lstm"):
        api.gallery("gradients", tmp_path / "g.png", runs=[spiral_run])
    assert not (tmp_path / "g.png").exists()
