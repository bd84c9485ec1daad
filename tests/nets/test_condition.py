from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from reverie.base.spec import build
from reverie.nets import NETWORKS
from reverie.nets.condition import ConditionEncoder, TextCrossAttention, TextEncoder, TextEncoderLayer

NAN = math.nan


def naive(q: Tensor, k: Tensor, v: Tensor, there: Tensor) -> Tensor:
    """Attention of one head, number by number.  q: (P, D); k, v: (L, D); there: (L,)."""
    out = torch.zeros(len(q), v.shape[1])
    for i in range(len(q)):
        scores = [math.exp(float(q[i] @ k[j]) / math.sqrt(q.shape[1])) if there[j] else 0.0 for j in range(len(k))]
        for j, score in enumerate(scores):
            out[i] += score / sum(scores) * v[j]
    return out


def test_attention_between_words_is_that_of_a_loop() -> None:
    torch.manual_seed(0)
    layer, x, there = (
        TextEncoderLayer(8, heads=2),
        torch.randn(2, 5, 8),
        torch.tensor([[True] * 5, [True, True, True, False, False]]),
    )
    for b in range(2):
        q, k, v = layer.qkv(layer.first(x[b])).reshape(5, 3, 2, 4).permute(1, 2, 0, 3)
        gathered = torch.cat([naive(q[h], k[h], v[h], there[b]) for h in range(2)], 1)
        y = x[b] + layer.out(gathered)
        torch.testing.assert_close(layer(x, there)[b], y + layer.dense(layer.second(y)), atol=1e-6, rtol=1e-5)


def test_attention_to_words_is_that_of_a_loop() -> None:
    torch.manual_seed(0)
    layer = TextCrossAttention(8, 6, head=4)
    torch.nn.init.normal_(layer.out.weight)
    x, words, there = torch.randn(1, 3, 8), torch.randn(1, 4, 6), torch.tensor([[True, True, False, True]])
    q = layer.query(layer.norm(x[0])).reshape(3, 2, 4).permute(1, 0, 2)
    k, v = layer.known(words[0]).reshape(4, 2, 2, 4).permute(1, 2, 0, 3)
    gathered = torch.cat([naive(q[h], k[h], v[h], there[0]) for h in range(2)], 1)
    torch.testing.assert_close(layer(x, words, there)[0], x[0] + layer.out(gathered), atol=1e-6, rtol=1e-5)


def test_what_stands_after_the_end_of_a_text_changes_nothing() -> None:
    torch.manual_seed(0)
    encoder = TextEncoder(10, 6, 32, 2)
    tokens = torch.tensor([[3, 4, 5, -1, -1, -1]])
    encoder.places.data[4:] += 5.0
    before, there = encoder(tokens)
    assert there.tolist() == [[True, True, True, True, False, False, False]]
    encoder.places.data[4:] -= 5.0
    torch.testing.assert_close(encoder(tokens)[0][:, :4], before[:, :4])
    assert not torch.allclose(encoder(torch.tensor([[4, 3, 5, -1, -1, -1]]))[0][:, 0], before[:, 0])  # order matters


@pytest.mark.parametrize("name", ["unet", "transformer"])
@pytest.mark.parametrize("attends", [False, True])
def test_networks_take_condition_vectors(name: str, attends: bool) -> None:
    torch.manual_seed(0)
    size = {"widths": (8, 12), "groups": 4} if name == "unet" else {"dim": 32, "layers": 2, "heads": 2}
    options = {"vocabulary": 9, "length": 4, "numbers": 2, "cond_channels": 3}
    options |= {"attends": attends, "channels": 1, "height": 8, "width": 8}
    net = build(NETWORKS, {"name": name, **size, **options}, "network")
    for p in net.parameters():  # layers that begin at zero are made to say something
        p.data += 0.1 * torch.randn_like(p)
    x, level, row = (
        torch.randn(2, 1, 8, 8),
        torch.zeros(2),
        torch.cat([torch.tensor([1.0, 2, NAN, NAN, 0.5, -1]), torch.rand(192)]),
    )
    rows = row.repeat(2, 1)
    y = net(x, level, rows)
    assert y.shape == x.shape
    nothing = torch.full_like(rows, NAN)
    torch.testing.assert_close(net(x, level, nothing), net(x, level, None))
    for part in (slice(0, 4), slice(4, 5), slice(5, 6), slice(6, 198)):  # each of them matters, and may be left out
        without = rows.clone()
        without[0, part] = NAN
        other = net(x, level, without)
        assert other.isfinite().all()
        assert not torch.allclose(other[0], y[0], atol=1e-6)
        torch.testing.assert_close(other[1], y[1])


def test_a_missing_number_adds_nothing() -> None:
    encoder = ConditionEncoder(0, 0, 1, 0, (4, 4), 16, 0)
    known, missing = encoder(torch.tensor([[0.7], [NAN]]), torch.zeros(2, 1, 4, 4))[0]
    assert known.abs().sum() > 0
    torch.testing.assert_close(missing, encoder.number[0].bias)
