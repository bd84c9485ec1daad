"""The galleries of text, where they have numbers."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import reverie
from reverie import api
from reverie.base.errors import UserError
from reverie.gallery.attention import heads_of
from reverie.gallery.cost import formula, measured
from reverie.gallery.depth import DEPTH, VARIANTS, gradients
from reverie.gallery.tokens import book_example
from reverie.nets.sequence import Decoder


@pytest.mark.parametrize(("n", "d", "layers"), [(16, 32, 1), (64, 16, 3)])
def test_the_formula_counts_every_operation(n: int, d: int, layers: int) -> None:
    assert measured(n, d, layers).counted == formula(layers, n, d)


def test_gradients_vanish_in_a_plain_network_and_last_with_residuals_and_norms() -> None:
    ends = {name: float(norms[0] / norms[-1]) for name in VARIANTS for norms in [gradients(name)]}
    assert len(gradients("plain")) == DEPTH + 1
    assert ends["plain"] < 1e-6 and ends["residual"] > 100
    assert 0.1 < ends["residual, LayerNorm before (pre)"] < 20 and 0.1 < ends["residual, LayerNorm after (post)"] < 20


def test_the_book_example() -> None:
    assert [line.split()[-3] for line in book_example()[1:]] == ["XracadXra", "XYcadXY", "ZcadZ"]


@pytest.mark.parametrize("positions", ["rotary", "learned"])
@torch.no_grad()
def test_attention_is_what_the_network_uses(positions: str) -> None:
    torch.manual_seed(0)
    net = Decoder(8, 2, 2, positions, 12).eval()
    for p in net.parameters():
        if not p.any():
            torch.nn.init.normal_(p, 0, 0.3)
    x = torch.randn(1, 6, 8)
    weights = net.attention_weights(x)
    assert all(torch.allclose(w.sum(-1), torch.ones(1, 2, 6)) and not w.triu(1).any() for w in weights)
    first = net.layers[0]
    h = first.norms[0](net._add_positions(x, 0))
    v = first.attention.qkv(h).reshape(1, 6, 3, 2, 4).permute(2, 0, 3, 1, 4)[2]
    by_hand = first.attention.out((weights[0] @ v).transpose(1, 2).flatten(2))
    assert torch.allclose(first.attention(h, None, 0, 12)[0], by_hand, atol=1e-5)


def test_they_are_drawn(tmp_path: Path) -> None:
    text = tmp_path / "t.txt"
    text.write_text("the cat sat on the mat and the rat sat on the cat. " * 30)
    run = reverie.train(text, tmp_path / "run", family="transformer:dim=16,layers=1", steps=3, batch=4, window=16)
    names, found = heads_of(run, "the cat")
    assert names == ["start", *"the cat"] and found.shape == (1, 4, 8, 8)
    files = [
        *api.gallery("attention", tmp_path / "a.png", run=run, prompt="the rat"),
        *api.gallery("tokens", tmp_path / "tokens", data=text, prompt="naïve cat"),
        *api.gallery("depth", tmp_path / "d.png"),
    ]
    assert all(file.read_bytes()[:4] == b"\x89PNG" for file in files)
    with pytest.raises(UserError, match="sentence is empty"):
        api.gallery("attention", tmp_path / "b.png", run=run, prompt="")
    with pytest.raises(UserError, match="1 to 60 characters"):
        api.gallery("tokens", tmp_path / "tokens", data=text, prompt="x" * 100)
    with pytest.raises(UserError, match="has images"):
        api.gallery("tokens", tmp_path / "tokens", data="digits8")
