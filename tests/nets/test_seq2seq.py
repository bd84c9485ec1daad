"""Encoders and decoders: attention against naive loops, padding, causality, cached steps."""

from __future__ import annotations

import math

import pytest
import torch

from reverie.base.errors import UserError
from reverie.nets.attention import Alignment, MultiHeadAttention
from reverie.nets.seq2seq import EncoderDecoder, RecurrentPair, TransformerPair

KINDS = ("none", "dot", "bilinear", "mlp", "transformer")
ATTENDING = KINDS[1:]


def net_of(kind: str, layers: int = 1) -> EncoderDecoder:
    """Return a small network with weights that are not those of the beginning."""
    torch.manual_seed(0)
    made = TransformerPair(8, 2, 2, 0.0, 16) if kind == "transformer" else RecurrentPair(8, layers, kind, 0.0)
    draws = torch.Generator().manual_seed(1)
    for tensor in made.parameters():
        tensor.data += 0.4 * torch.randn(tensor.shape, generator=draws)
    return made.eval().requires_grad_(False)


def some(lengths: tuple[int, ...] = (5, 3), width: int = 5) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return sources, which of their vectors there are, and inputs of the decoder."""
    draws = torch.Generator().manual_seed(2)
    x = torch.randn(len(lengths), width, 8, generator=draws)
    there = torch.arange(width) < torch.tensor(lengths)[:, None]
    return x, there, torch.randn(len(lengths), 4, 8, generator=draws)


@pytest.mark.parametrize("kind", ["dot", "bilinear", "mlp"])
def test_alignment_is_the_naive_loop(kind: str) -> None:
    torch.manual_seed(3)
    align = Alignment(8, kind).requires_grad_(False)
    keys, there, queries = some()
    seen, weights = align(queries, keys, there)
    for b in range(2):
        for t in range(4):
            q, scores = queries[b, t], []
            for s in range(int(there[b].sum())):
                k = keys[b, s]
                if kind == "dot":
                    scores.append(float(q @ k))
                elif kind == "bilinear":
                    scores.append(float((align.map.weight @ q) @ k))
                else:
                    inner = align.query.weight @ q + align.query.bias + align.key.weight @ k
                    scores.append(float(align.sum.weight[0] @ inner.tanh()))
            total = sum(map(math.exp, scores))
            assert weights[b, t, : len(scores)].tolist() == pytest.approx([math.exp(s) / total for s in scores], abs=1e-6)
            expected = sum(math.exp(s) / total * keys[b, k] for k, s in enumerate(scores))
            assert torch.allclose(seen[b, t], expected, atol=1e-6)


def test_cross_attention_is_the_naive_loop() -> None:
    torch.manual_seed(3)
    attention = MultiHeadAttention(8, 2).requires_grad_(False)
    torch.nn.init.normal_(attention.out.weight)
    memory, there, x = some()
    k, v = attention.keys_values(memory)
    found, weights = attention(x, k, v, there), attention.weights(x, k, there)
    q = attention.query(x).reshape(2, 4, 2, 4)
    for b in range(2):
        for t in range(4):
            heads = []
            for h in range(2):
                scores = [math.exp(float(q[b, t, h] @ k[b, h, s]) / 2) for s in range(int(there[b].sum()))]
                heads.append(sum(w / sum(scores) * v[b, h, s] for s, w in enumerate(scores)))
                assert weights[b, h, t, : len(scores)].tolist() == pytest.approx([w / sum(scores) for w in scores], abs=1e-6)
            assert torch.allclose(found[b, t], attention.out(torch.cat(heads)), atol=1e-6)


@pytest.mark.parametrize("kind", ATTENDING)
def test_weights_sum_to_one_over_what_is_there_and_move_with_the_input(kind: str) -> None:
    net, (x, there, inputs) = net_of(kind), some((5, 3))
    for layer in net.attention_weights(net.encode(x, there), inputs):
        assert torch.allclose(layer.sum(-1), torch.ones(layer.shape[:-1]), atol=1e-5)
        assert float(layer[1, ..., 3:].abs().max()) == 0
    order = torch.tensor([4, 2, 0, 1, 3])
    before = net.attention_weights(net.encode(x, there), inputs)[0][0]
    after = net.attention_weights(net.encode(x[:, order], there), inputs)[0][0]
    assert float((before - after).abs().max()) > 1e-3


def test_alignment_without_recurrence_moves_exactly_as_its_keys_do() -> None:
    align, (keys, there, queries) = Alignment(8, "dot"), some((5, 5))
    order = torch.tensor([4, 2, 0, 1, 3])
    seen, weights = align(queries, keys, there)
    again, moved = align(queries, keys[:, order], there)
    assert torch.allclose(moved, weights[..., order], atol=1e-6) and torch.allclose(seen, again, atol=1e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_padding_changes_nothing(kind: str) -> None:
    net, (x, there, inputs) = net_of(kind, layers=2), some((5, 3))
    whole = net(net.encode(x, there), inputs)[0][1]
    alone = net(net.encode(x[1:, :3], there[1:, :3]), inputs[1:])[0][0]
    assert torch.allclose(whole, alone, atol=1e-6)
    other = x.clone()
    other[1, 3:] = 100.0
    assert torch.equal(net(net.encode(other, there), inputs)[0][1], whole)


@pytest.mark.parametrize("kind", KINDS)
def test_no_output_knows_later_inputs_and_every_one_knows_the_source(kind: str) -> None:
    net, (x, there, inputs) = net_of(kind), some((5,), 5)
    outputs = net(net.encode(x, there), inputs)[0]
    for k in range(4):
        other = inputs.clone()
        other[0, k] += 1
        changed = (net(net.encode(x, there), other)[0] - outputs).abs().amax(-1)[0] > 0
        assert not changed[:k].any() and changed[k]
    for k in range(5):
        other = x.clone()
        other[0, k] += 1
        assert bool(((net(net.encode(other, there), inputs)[0] - outputs).abs().amax(-1)[0] > 0).all())


@pytest.mark.parametrize("kind", KINDS)
def test_step_by_step_is_the_whole_sequence(kind: str) -> None:
    net, (x, there, inputs) = net_of(kind, layers=2), some()
    memory = net.encode(x, there)
    whole, state, parts = net(memory, inputs)[0], None, []
    for k in range(4):
        y, state = net(memory, inputs[:, k : k + 1], state)
        parts.append(y)
    assert torch.allclose(torch.cat(parts, 1), whole, atol=1e-5)
    index = torch.tensor([1, 1, 0])
    _, half = net(memory, inputs[:, :3])
    taken, _ = net(memory.take(index), inputs[index, 3:], half.take(index))
    assert torch.allclose(taken[:, 0], whole[index, 3], atol=1e-5)


def test_sizes_that_cannot_be_are_refused() -> None:
    with pytest.raises(UserError, match="must be even"):
        RecurrentPair(7, 1, "dot", 0.0)
    with pytest.raises(UserError, match="divisible by its heads"):
        TransformerPair(12, 1, 8, 0.0, 8)
