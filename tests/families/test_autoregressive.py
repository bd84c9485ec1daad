"""Autoregressive families against enumeration, their own sparsity, and the numbers that papers' formulas give."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import chisquare
from torch import Tensor

from reverie.autodiff.sparse import detect
from reverie.base.errors import UserError
from reverie.base.noise import image_seeds
from reverie.families import FAMILIES
from reverie.families.autoregressive.completion import KnownNumbers, label_posterior
from reverie.families.autoregressive.dense import FVSBN
from reverie.families.autoregressive.model import Autoregressive
from reverie.families.autoregressive.recurrence import Recurrence, block_size
from reverie.families.autoregressive.sequence import SequenceModel
from reverie.families.model import SamplingInputs

TINY: dict[str, dict[str, Any]] = {
    "fvsbn": {}, "nade": {"hidden": 5}, "orderless": {"name": "nade", "hidden": 5, "orderless": True},
    "rnn": {"dim": 6}, "lstm": {"dim": 6}, "transformer": {"dim": 8, "layers": 2, "heads": 2},
}  # fmt: skip
BINARY = {"codec": {"name": "levels", "values": [0, 255]}, "decoder": "bernoulli"}
TERNARY = {"codec": {"name": "levels", "values": [0, 100, 255]}, "decoder": "categorical"}
RECURRENT = ("rnn", "lstm")


def tiny(name: str, shape: tuple[int, ...], labels: int = 0, units: dict[str, Any] = BINARY, seed: int = 0) -> Autoregressive:
    """A model with weights at random, also where they begin at zero."""
    options = {"name": name, **units, **TINY[name]}
    family = FAMILIES[options["name"]]
    model = family.build(family.settings.model_validate(options), shape, labels, seed)
    assert isinstance(model, Autoregressive)
    random = torch.Generator().manual_seed(seed)
    for p in model.parameters():
        p.data.copy_(torch.randn(p.shape, generator=random) * 0.8)
    return model.eval()


def every(shape: tuple[int, ...], levels: int = 2) -> Tensor:
    """All images of so many levels, in user units: (K^D, ...)."""
    values = [0.0, 1.0] if levels == 2 else [0.0, 100 / 255, 1.0]
    size = torch.Size(shape).numel()
    return torch.tensor(list(product(values, repeat=size))).reshape(-1, *shape)


@pytest.mark.parametrize("name", TINY)
@pytest.mark.parametrize(("shape", "units"), [((1, 2, 3), BINARY), ((2, 1, 3), TERNARY)], ids=["grey", "colour"])
def test_probabilities_of_all_images_add_up_to_one(name: str, shape: tuple[int, ...], units: dict[str, Any]) -> None:
    model, x = tiny(name, shape, 2, units), every(shape, 2 if units is BINARY else 3)
    for label in (0, 1):
        nats = model.log_prob(x, torch.full((len(x),), label), torch.empty(0)).nats
        assert float(nats.exp().sum()) == pytest.approx(1, abs=1e-5) and float(nats.max()) < 0


@pytest.mark.parametrize("name", ["fvsbn", "rnn", "lstm", "transformer"])
def test_a_value_depends_on_earlier_values_only(name: str) -> None:
    model = tiny(name, (1, 2, 3)).requires_grad_(False)

    def parameters(z: Tensor) -> Tensor:
        if isinstance(model, FVSBN):  # masked by numbers, so the pattern is that of these numbers
            return torch.nn.functional.linear(z, model.weight.masked_fill(~model.earlier, 0))
        assert isinstance(model, SequenceModel)
        x = torch.cat([model.start_input(1, None), z[None, :-1, None].expand(-1, -1, model.net.dim)], 1)
        return model.output_layer(model.net(x)[0])[0]

    with torch.backends.mkldnn.flags(enabled=False):  # whose own LSTM is one operation, of which all outputs see all inputs
        pattern = detect(parameters, torch.randn(6), method="local" if name == "fvsbn" else "global").toarray()
    assert np.array_equal(pattern, np.tril(np.ones((6, 6), bool), -1))


@pytest.mark.parametrize("name", TINY)
@torch.no_grad()
def test_changing_a_value_changes_the_parameters_of_later_ones_only(name: str) -> None:
    model = tiny(name, (1, 3, 3))
    z = torch.ones(10, 9)
    z[torch.arange(9), torch.arange(9)] = -1.0  # the last is as it was
    parameters = model.output_parameters(z, None)[..., 0]
    change = (parameters[:9] - parameters[9]).abs()  # (changed value, parameter)
    assert float(change.tril().max()) < 1e-5 and bool((change.triu(1)[:8].amax(1) > 1e-3).all())


def test_the_recurrence_in_blocks_is_the_recurrence() -> None:
    random = torch.Generator().manual_seed(0)
    for inputs, outputs, count in ((1, 1, 5), (3, 4, 900)):  # of several numbers a block, and of one
        shapes = ((9, inputs, 300), (count, 300), (9, 300, outputs), (9, outputs))
        weights = [torch.randn(s, generator=random).requires_grad_() for s in shapes]
        x = torch.randn(count, 9, inputs, generator=random)
        into, first, out, bias = weights
        sums = torch.cat([first[:, None], torch.einsum("bdq,dqh->bdh", x, into)], 1).cumsum(1)[:, :-1]
        plain = torch.einsum("bdh,dhp->bdp", sums.relu(), out) + bias
        blocks = Recurrence.apply(x, *weights)
        torch.testing.assert_close(blocks, plain, rtol=1e-4, atol=1e-3)
        pull = torch.randn(plain.shape, generator=random)
        grads = [torch.autograd.grad((y * pull).sum(), weights) for y in (blocks, plain)]
        for ours, theirs in zip(*grads, strict=True):
            assert float((ours - theirs).norm() / theirs.norm()) < 1e-5
    assert block_size(5, 300, 1) > 1 and block_size(900, 300, 1) == 1


@pytest.mark.parametrize("name", TINY)
def test_drawing_number_by_number_follows_the_likelihood(name: str) -> None:
    model, x = tiny(name, (1, 2, 2), 2), every((1, 2, 2))
    cond = torch.ones(4000, dtype=torch.int64)
    *_, last = model.frames(SamplingInputs(image_seeds(1, 4000), cond))
    wanted = model.log_prob(x, torch.ones(16, dtype=torch.int64), torch.empty(0)).nats.exp()
    assert last.i + 1 == last.of == 4
    assert _p_value(model.decode(last.x0), x, wanted) > 1e-3


def _p_value(drawn: Tensor, x: Tensor, wanted: Tensor) -> float:
    """Return how probable it is that draws of these probabilities differ so much from them.  x: all images."""
    counts = (drawn.flatten(1)[:, None] == x.flatten(1)).all(2).sum(0).double()
    few = wanted * len(drawn) < 5
    pooled = [torch.cat([t[~few], t[few].sum()[None]]).numpy() for t in (counts, wanted / wanted.sum() * len(drawn))]
    keep = pooled[1] > 0.5
    return float(chisquare(pooled[0][keep], pooled[1][keep] * pooled[0][keep].sum() / pooled[1][keep].sum()).pvalue)


SEEN = torch.tensor([[[True, False, True], [False, False, True]]])


@pytest.mark.parametrize("name", TINY)
@pytest.mark.parametrize(("first", "labels"), [(True, 0), (True, 3), (False, 3)], ids=["first", "first, labels", "anywhere"])
def test_completion_is_the_enumerated_conditional(name: str, first: bool, labels: int) -> None:
    model, x = tiny(name, (1, 2, 3), labels), every((1, 2, 3))
    seen = torch.tensor([[[True, True, True], [False, False, False]]]) if first else SEEN
    truth, prior = x[43], torch.tensor([0.2, 0.5, 0.3]).log() if labels else None
    shares: list[float] = []
    *_, last = model.complete(SamplingInputs(image_seeds(2, 1500 if first else 500)), truth, seen, prior, shares.append)
    drawn = model.decode(last.x0)
    assert bool((drawn[:, seen] == truth[seen]).all())
    exact = first or name == "orderless"
    assert model.completes_exactly(seen) == exact and (shares == [1.0]) == exact
    joint = torch.zeros(len(x), dtype=torch.float64)
    for label in range(max(1, labels)):
        cond = torch.full((len(x),), label) if labels else None
        there = _joint(model, x, cond, seen)
        log_p = model.log_prob(x, cond, torch.empty(0), order=model.order_around(seen.flatten())).nats
        torch.testing.assert_close(log_p, there, rtol=0, atol=1e-5)
        joint += (prior[label].exp() if prior is not None else 1) * there.exp()
    joint[(x[:, seen] != truth[seen]).any(1)] = 0
    assert _p_value(drawn, x, joint / joint.sum()) > 1e-3
    if first and prior is not None:
        z = model.encode(truth[None]).flatten()[model.order]
        found = label_posterior(model, KnownNumbers(z, seen.flatten()[model.order]), model.order, prior)
        same = (x[:, seen] == truth[seen]).all(1)
        each = [model.log_prob(x[same], torch.full((int(same.sum()),), k), torch.empty(0)).nats.logsumexp(0) for k in range(3)]
        torch.testing.assert_close(found.double(), (torch.stack(each) + prior).log_softmax(0), rtol=0, atol=1e-5)


def test_an_orderless_model_has_a_joint_for_every_order_and_says_by_which_it_completes() -> None:
    model, x = tiny("orderless", (1, 2, 3)), every((1, 2, 3))
    order = model.order_around(SEEN.flatten())
    own, around = (model.log_prob(x, None, torch.empty(0), order=o).nats.exp() for o in (model.order, order))
    assert order.tolist() == [0, 2, 5, 1, 3, 4] and float(around.sum()) == pytest.approx(1, abs=1e-5)
    assert torch.equal(own, model.log_prob(x, None, torch.empty(0)).nats.exp())
    same = (x[:, SEEN] == x[43][SEEN]).all(1)
    apart = (own[same] / own[same].sum() - around[same] / around[same].sum()).abs().sum() / 2
    assert float(apart) > 0.05 and model.completes_exactly(SEEN) and not model.completes_in_own_order(SEEN)
    assert model.completes_in_own_order(torch.arange(6).reshape(1, 2, 3) < 3)
    assert tiny("nade", (1, 2, 3)).completes_in_own_order(SEEN)
    with pytest.raises(UserError, match="orderless"):
        tiny("nade", (1, 2, 3)).log_prob(x, None, torch.empty(0), order=order)


def _joint(model: Autoregressive, x: Tensor, cond: Tensor | None, seen: Tensor) -> Tensor:
    """Return log p(x) in the order in which a datum is written of which some numbers are known: (B,)."""
    order = model.order_around(seen.flatten())
    z = model.encode(x).flatten(1)[:, order]
    incremental_decoder, found = model.incremental_decoder(len(x), cond, order), torch.zeros(len(x), dtype=torch.float64)
    with torch.no_grad():
        for i in range(z.shape[1]):
            found += model.observation.log_prob(z[:, i], incremental_decoder.next_parameters())
            incremental_decoder.append(z[:, i]) if i + 1 < z.shape[1] else None
    return found


def test_the_loss_of_all_orders_is_that_of_each_on_average() -> None:
    model, x = tiny("orderless", (1, 1, 3)), every((1, 1, 3))[[1, 3, 4]]
    with torch.no_grad():
        drawn = torch.stack([model.train().loss(x.repeat(400, 1, 1, 1), None, seed) for seed in range(20)])
    drawn = drawn.reshape(-1, 3)
    orders = [torch.tensor(o) for o in ((0, 1, 2), (0, 2, 1), (1, 0, 2), (1, 2, 0), (2, 0, 1), (2, 1, 0))]
    costs = []
    for order in orders:
        incremental_decoder, z = model.incremental_decoder(3, None, order), model.encode(x).flatten(1)[:, order]
        cost = torch.zeros(3)
        with torch.no_grad():
            for i in range(3):
                cost -= model.observation.log_prob(z[:, i], incremental_decoder.next_parameters())
                incremental_decoder.append(z[:, i]) if i < 2 else None
        costs.append(cost / 3)
    error = drawn.std(0) / len(drawn) ** 0.5
    assert bool(((drawn.mean(0) - torch.stack(costs).mean(0)).abs() < 4 * error).all())


@pytest.mark.parametrize("name", RECURRENT)
def test_truncation_keeps_the_values_and_cuts_the_gradients(name: str) -> None:
    model = tiny(name, (1, 3, 3))
    model.truncate = 4
    z = torch.randn(2, 9).sign()
    whole = model.output_parameters(z, None)
    torch.testing.assert_close(model.train().output_parameters(z, None), whole)
    x = torch.randn(1, 9, model.net.dim, requires_grad=True)
    state, outputs = None, []
    for part in x.split(4, 1):
        y, state = model.net(part, state.detach() if state is not None else None)
        outputs.append(y)
    (grad,) = torch.autograd.grad(outputs[1][:, -1].sum(), x)
    assert not bool(grad[:, :4].any()) and bool(grad[:, 4:8].any())


def test_dropped_hidden_units_have_no_effect_and_the_others_are_rescaled() -> None:
    model, x = tiny("nade", (1, 2, 3)), every((1, 2, 3))
    model.dropout = 0.5
    with torch.no_grad():
        plain = model.loss(x, None, 0)
        model.train()
        dropped = torch.stack([model.loss(x[:1].expand(512, -1, -1, -1), None, seed) for seed in range(8)])
        assert torch.equal(model.loss(x, None, 5), model.loss(x, None, 5))
        z = model.encode(x[:1]).flatten(1)[:, model.order]
        costs = []
        for keep in product([0.0, 1.0], repeat=5):  # all that the five units can be
            first = torch.where(torch.tensor(keep) > 0, model.first, -1e6)[None]
            y = Recurrence.apply(model.inputs_with_mask(z), model.into, first, 2 * model.out, model.bias)
            costs.append(-model.observation.log_prob(z, y).mean())
    assert not torch.allclose(dropped.mean(), plain[0]) and len(dropped.unique()) <= 32
    assert float(dropped.mean()) == pytest.approx(float(torch.stack(costs).mean()), abs=4 * float(dropped.std()) / 4096**0.5)
