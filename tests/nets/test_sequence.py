"""Sequence networks: causal by their Jacobians, the same in one go, in parts and step by step."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from reverie.autodiff.sparse import detect
from reverie.base.errors import UserError
from reverie.nets.sequence import LSTM, RNN, Decoder, FixedContext, SequenceNet, apply_rotary, rotary_angles

NETS = {
    "rnn": lambda: RNN(8, 2), "lstm": lambda: LSTM(8, 2), "fixed": lambda: FixedContext(8, 6, 12),
    **{f"{p} {n}": lambda p=p, n=n: Decoder(8, 2, 2, p, 12, n) for p in ("learned", "rotary", "sinusoidal", "none")
       for n in ("pre", "post")},
}  # fmt: skip


@pytest.fixture(params=NETS)
def net(request: pytest.FixtureRequest) -> SequenceNet:
    torch.manual_seed(0)
    made: SequenceNet = NETS[request.param]().eval()
    for p in made.parameters():
        if not p.any():
            torch.nn.init.normal_(p, 0, 0.3)
    return made


def test_an_output_depends_on_inputs_up_to_its_own_alone(net: SequenceNet) -> None:
    with torch.backends.mkldnn.flags(enabled=False):  # whose own LSTM is one operation, of which all outputs see all inputs
        pattern = detect(lambda x: net(x)[0], torch.randn(1, 6, 8)).toarray().reshape(6, 8, 6, 8)
    assert np.array_equal(pattern.any((1, 3)), np.tril(np.ones((6, 6), bool)))


@torch.no_grad()
def test_steps_and_parts_are_the_whole(net: SequenceNet) -> None:
    x, state, steps = torch.randn(3, 11, 8), None, []
    whole = net(x)[0]
    for t in range(11):
        y, state = net.step(x[:, t], state)
        steps.append(y)
    torch.testing.assert_close(torch.stack(steps, 1), whole, rtol=1e-4, atol=1e-5)
    first, state = net(x[:, :4])
    second, state = net(x[:, 4:9], state)
    chosen = torch.tensor([2, 0, 0])
    third, state = net(x[chosen, 9:], state.take(chosen))
    torch.testing.assert_close(torch.cat([first, second], 1), whole[:, :9], rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(third, whole[chosen, 9:], rtol=1e-4, atol=1e-5)
    assert state.length == 11


def test_gradients_go_through_the_state_unless_it_is_detached(net: SequenceNet) -> None:
    x, w = torch.randn(2, 6, 8, requires_grad=True), torch.randn(8)
    _, state = net(x[:, :3])
    for kept, wanted in ((state, True), (state.detach(), False)):
        (grad,) = torch.autograd.grad((net(x[:, 3:], kept)[0][:, -1] @ w).sum(), x, retain_graph=True)
        assert bool(grad[:, :3].any()) == wanted and bool(grad[:, 3:].any())


def test_rotary_products_depend_on_how_far_places_are_apart() -> None:
    q, k = torch.randn(6, dtype=torch.float64), torch.randn(6, dtype=torch.float64)

    def product(i: int, j: int) -> float:
        return float(apply_rotary(q[None], rotary_angles(i, 1, 6, q)) @ apply_rotary(k[None], rotary_angles(j, 1, 6, q)).T)

    assert product(7, 4) == pytest.approx(product(103, 100)) and product(7, 4) != pytest.approx(product(7, 5))


def test_more_than_the_learned_places_are_refused() -> None:
    with pytest.raises(UserError, match="has 4 learned positions, and a sequence has 5"):
        Decoder(8, 1, 2, "learned", 4)(torch.zeros(1, 5, 8))
    with pytest.raises(UserError, match="divisible by twice its heads"):
        Decoder(10, 1, 2)
