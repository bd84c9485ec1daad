"""Language models: exact likelihoods, causality, cached keys, prompts of every kind."""

from __future__ import annotations

import itertools
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import reverie
from reverie.base.errors import UserError
from reverie.base.noise import image_seeds
from reverie.data import Dataset
from reverie.data.text_windows import END_OF_TEXT, codes_of, windows_of
from reverie.families import FAMILIES
from reverie.families.language.model import LanguageModel
from reverie.families.language.token_sampling import TokenSampling
from reverie.families.model import SamplingInputs
from reverie.nets.sequence import CausalSelfAttention, FixedContext
from reverie.runs.run import Run
from reverie.text.learn import learn_tokenizer
from reverie.text.tokenizer import END
from reverie.text.tokenizer_table import TokenizerTable

NAMES = ("bigram", "mlp-lm", "rnn", "lstm", "transformer")
SMALL: dict[str, dict[str, Any]] = {
    "mlp-lm": {"dim": 8, "hidden": 16, "context": 3}, "rnn": {"dim": 12}, "lstm": {"dim": 12},
    "transformer": {"dim": 16, "layers": 2, "heads": 2, "context": 8, "positions": "rotary"},
}  # fmt: skip


def model_of(name: str, tokenizer: str = "characters", alphabet: str = "ab", **more: Any) -> LanguageModel:
    """Return a small model with weights that are not those of the beginning."""
    table = TokenizerTable.of(learn_tokenizer([alphabet], tokenizer)).model_dump()
    family = FAMILIES[name]
    made = family.build(family.settings.model_validate({"tokenizer": table, **SMALL.get(name, {}), **more}), (8,), 0, 0)
    assert isinstance(made, LanguageModel)
    draws = torch.Generator().manual_seed(1)
    for tensor in (*made.parameters(), *made.buffers()):
        tensor.data += 0.3 * torch.randn(tensor.shape, generator=draws)
    if name == "bigram":
        made.table.copy_(made.table.log_softmax(-1))
    return made.eval().requires_grad_(False)


@pytest.mark.parametrize("name", NAMES)
def test_all_strings_of_three_tokens_together_have_probability_one(name: str) -> None:
    model = model_of(name)
    ids = torch.tensor(list(itertools.product(range(model.tokenizer.size), repeat=3)))
    assert float(model.log_tokens(ids).double().sum(1).exp().sum()) == pytest.approx(1, abs=1e-4)


@pytest.mark.parametrize("name", NAMES)
def test_no_token_knows_those_after_it(name: str) -> None:
    """The networks' own Jacobians are looked at in tests/nets/test_sequence.py."""
    model = model_of(name)
    ids = torch.tensor([[3, 18, 17, 5, 18, 17]])
    logits = model.logits(ids, None)[0]
    for k in range(6):
        other = ids.clone()
        other[0, k] = 1
        changed = (model.logits(other, None)[0] - logits).abs().amax(-1)[0] > 0
        assert not changed[: k + 1].any() and changed[k + 1]


@pytest.mark.parametrize("name", NAMES)
def test_a_sequence_step_by_step_is_the_whole_sequence(name: str) -> None:
    model = model_of(name)
    ids = torch.randint(0, model.tokenizer.size, (2, 7), generator=torch.Generator().manual_seed(0))
    whole = model.logits(ids, None)[0]
    y, state = model.logits(ids[:, :0], None)
    parts = [y]
    for k in range(7):
        y, state = model.logits(ids[:, k : k + 1], state)
        parts.append(y)
    assert torch.allclose(torch.cat(parts, 1), whole, atol=1e-5)


@pytest.mark.parametrize("name", ["transformer", "lstm"])
def test_samples_have_the_probabilities_of_the_model(name: str) -> None:
    """Cached drawing equals uncached, beyond the context too: greedy tokens are the likeliest by `log_tokens`."""
    model = model_of(name, begins=False)
    *_, last = model.frames(SamplingInputs(image_seeds(0, 2), options={"temperature": 0.0, "length": 30, "prompt": "ab"}))
    ids = last.x0
    assert ids.shape[1] > 2 * 8
    for k in range(2, ids.shape[1]):
        tries = ids[:1, : k + 1].repeat(model.tokenizer.size, 1)
        tries[:, k] = torch.arange(model.tokenizer.size)
        assert int(model.log_tokens(tries)[:, k].argmax()) == int(ids[0, k]), k


def test_draws_have_the_frequencies_of_the_model() -> None:
    model = model_of("transformer")
    *_, last = model.frames(SamplingInputs(image_seeds(5, 4000), options={"length": 1}))
    found = torch.bincount(last.x0[:, 0], minlength=model.tokenizer.size) / 4000
    truth = model.logits(torch.zeros(1, 0, dtype=torch.int64), None)[0][0, -1].softmax(-1)
    assert float((found - truth).abs().max()) < 4 * math.sqrt(0.25 / 4000)


def test_attention_is_the_naive_loop() -> None:
    torch.manual_seed(0)
    attention = CausalSelfAttention(8, 2, rotary=False)
    torch.nn.init.normal_(attention.out.weight)
    x = torch.randn(1, 5, 8)
    q, k, v = attention.qkv(x).reshape(5, 3, 2, 4).permute(1, 2, 0, 3)
    out = torch.zeros(5, 2, 4)
    for head in range(2):
        for t in range(5):
            weights = [math.exp(float(q[head, t] @ k[head, s]) / 2) for s in range(t + 1)]
            for s, w in enumerate(weights):
                out[t, head] += w / sum(weights) * v[head, s]
    assert torch.allclose(attention(x, None, 0, 5)[0][0], attention.out(out.flatten(1)), atol=1e-6)


def test_a_fixed_context_sees_so_many_vectors_and_no_more() -> None:
    net = FixedContext(4, 3, 8)
    x = torch.randn(1, 6, 4)
    y = net(x)[0]
    other = x.clone()
    other[0, 1] += 1
    changed = (net(other)[0] - y).abs().amax(-1)[0] > 0
    assert changed.tolist() == [False, True, True, True, False, False]


@pytest.mark.parametrize("tied", [True, False])
def test_tied_vectors_are_read_and_written_alike(tied: bool) -> None:
    model = model_of("lstm", tied=tied)
    names = dict(model.named_parameters())
    assert ("head.weight" in names) != tied
    h, _ = model.net(model.start.expand(1, 1, -1))
    logits = model.logits(torch.zeros(1, 0, dtype=torch.int64), None)[0][0, 0]
    decoder = names["embed.weight"] if tied else names["head.weight"]
    assert torch.allclose(logits, decoder @ h[0, 0] + model.bias, atol=1e-6)


def test_a_bigram_counts() -> None:
    model = model_of("bigram")
    data = Dataset("t", windows_of(codes_of("abab" * 60 + "aa" * 30), 8))
    list(model.fit(data, 0))
    a, b = (int(model.tokenizer.encode(sign)[0]) for sign in "ab")
    chance = model.table.exp()
    assert torch.allclose(chance.sum(1), torch.ones(len(chance)), atol=1e-5)
    assert float(chance[b, a]) > 0.95 and 0.6 < float(chance[a, b]) < 0.7


@settings(max_examples=20, deadline=None)
@given(text=st.text(max_size=30))
def test_any_text_is_encoded_and_decoded(text: str) -> None:
    for tokenizer in ("characters", "bytes"):
        model = model_of("bigram", tokenizer)
        codes = np.concatenate([codes_of(text), [END_OF_TEXT], codes_of("ab")])
        x = torch.from_numpy(codes.astype(np.int64))[None]
        assert torch.equal(model.decode(model.encode(x)), x)
        assert model.log_prob(x, None, torch.empty(0)).nats.isfinite().all()


def test_choice() -> None:
    y = torch.tensor([[2.0, 1.0, 0.0, -1.0]])
    assert TokenSampling(0.0).probabilities(y).tolist() == [[1, 0, 0, 0]]
    assert (TokenSampling(top_k=2).probabilities(y) > 0).tolist() == [[True, True, False, False]]
    p = y.softmax(1)[0]
    assert TokenSampling(top_p=float(p[0]) - 0.01).probabilities(y).tolist() == [[1, 0, 0, 0]]
    assert (TokenSampling(top_p=float(p[0]) + 0.01).probabilities(y) > 0).tolist() == [[True, True, False, False]]
    assert torch.allclose(TokenSampling(2.0).probabilities(y), (y / 2).softmax(1))
    assert TokenSampling(top_k=1)(y, torch.tensor([[1 - 1e-12]])).tolist() == [0]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run that has almost memorized a small text."""
    folder = tmp_path_factory.mktemp("language")
    text = folder / "rhyme.txt"
    text.write_text("".join(f"{k} bottles of beer on the wall.\n" for k in range(99, 20, -1)))
    return reverie.train(text, folder / "run", family="lstm:dim=32", steps=150, batch=16, window=32)


PROMPTS = {
    "none": "", "unknown": "Zylophon ß", "emoji": "\U0001f600\U0001f1eb\U0001f1ee", "right to left": "سلام دنیا",
    "long": "word " * 2000, "a lone surrogate": "a\ud800b", "a zero byte": "a\0b",
}  # fmt: skip


@pytest.mark.parametrize("name", PROMPTS)
def test_every_prompt_has_a_continuation(run: Run, name: str) -> None:
    written = "".join(run.written(prompt=PROMPTS[name], length=12))
    assert written.startswith(PROMPTS[name])
    assert run.sample(1, prompt=PROMPTS[name], length=12).texts[0] == written


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"temperature": -1.0}, "temperature"), ({"temperature": math.nan}, "temperature"), ({"top_k": 0}, "--top-k"),
        ({"top_p": 0.0}, "--top-p"), ({"length": 10**7}, "--length"), ({"length": 0}, "--length"),
        ({"guidance": 2.0}, "has no --guidance"),
        ({"prompt": "x" * (10**6 + 1)}, "at most"), ({"sampler": "ddim"}, "has no --sampler"),
    ],
)  # fmt: skip
def test_options_that_cannot_be_are_refused(run: Run, options: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=words):
        run.sample(1, **options)


def test_text_options_are_refused_elsewhere(tmp_path: Path) -> None:
    images = reverie.train("digits8", tmp_path / "images", family="rnn:dim=8", steps=2, batch=8)
    with pytest.raises(UserError, match="--prompt is for text"):
        images.sample(1, prompt="a")
    with pytest.raises(UserError, match="--tokenizer needs text"):
        reverie.train("digits8", tmp_path / "other", family="rnn", tokenizer="bytes", steps=2)
    with pytest.raises(UserError, match=r"cannot write images to .*\.txt"):
        reverie.sample(images, 1, out=tmp_path / "x.txt")


def test_what_a_text_costs(run: Run) -> None:
    likely, unlikely = (
        reverie.text_cost(run, text) for text in ("50 bottles of beer on the wall.\n", "lowt eb fo reeb wall eht")
    )
    assert likely.bits < unlikely.bits and likely.tokens == likely.characters == 32
    model = run.model
    ids = model.encode(torch.from_numpy(codes_of("50 bottles of beer on the wall.\n").astype(np.int64))[None])
    assert likely.nats == pytest.approx(-float(model.log_tokens(ids).sum()), rel=1e-6)


def test_saved_as_text(run: Run, tmp_path: Path, command) -> None:
    made = reverie.sample(run, 3, out=tmp_path / "x.txt", length=20)
    assert (tmp_path / "x.txt").read_text().split("\n" + "-" * 60 + "\n")[0] == made.texts[0]
    code, out, _ = command("sample", run.path, "-n", "1", "--length", "20")
    assert code == 0 and out.rstrip("\n") == made.texts[0].rstrip("\n")
    code, _, err = command("sample", run.path, "--out", tmp_path / "x.png")
    assert code == 2 and "ends in .txt" in err


def test_resuming_is_bit_for_bit(tmp_path: Path) -> None:
    text = tmp_path / "t.txt"
    text.write_text("the cat sat on the mat and the rat sat on the cat. " * 30)
    options: dict[str, Any] = {"family": "transformer:dim=16,layers=1,dropout=0.1", "steps": 24, "batch": 8, "window": 16}
    whole = reverie.train(text, tmp_path / "whole", **options)
    training = reverie.api.begin(text, tmp_path / "parts", **options)
    for step in training:
        if step.i >= 9:
            break
    del training
    again = reverie.train(resume=tmp_path / "parts")
    for name, tensor in whole.model.state_dict().items():
        assert torch.equal(tensor, again.model.state_dict()[name]), name


@pytest.mark.slow
def test_several_texts_are_begun_and_ended(tmp_path: Path) -> None:
    file = tmp_path / "names.jsonl"
    file.write_text("".join(f'{{"text": "{a}{b}na"}}\n' for a in "ABCDEFGH" for b in "aeiou") * 2)
    made = reverie.train(file, tmp_path / "run", family="lstm:dim=32", steps=500, batch=16, window=16)
    assert made.config.family.begins
    texts = made.sample(20, length=40).texts
    assert np.mean([len(text) <= 8 for text in texts]) > 0.8
    assert made.model.prompt_tokens(None) == [END]


SPECS = [
    pytest.param("bytes", marks=pytest.mark.slow),
    "bpe:size=60",
    pytest.param("byte-bpe:size=300", marks=pytest.mark.slow),
]


@pytest.mark.parametrize("spec", SPECS)
def test_other_tokenizers_are_trained_stored_and_compared_in_characters(tmp_path: Path, spec: str) -> None:
    text = tmp_path / "t.txt"
    text.write_text("the cat sat on the mat, and the naïve rat sat on the cat. " * 30)
    made = reverie.train(
        text, tmp_path / "run", family="transformer:dim=16,layers=1", steps=20, batch=8, window=16, tokenizer=spec
    )
    assert made.config.family.tokenizer.name == spec.partition(":")[0]
    again = reverie.load(tmp_path / "run")
    assert again.sample(2, seed=1).texts == made.sample(2, seed=1).texts
    found = reverie.text_cost(again, "the cat sat on the mat")
    assert found.characters == 22 and 0 < found.bits < 20
    with pytest.raises(UserError, match="tokenizer was"):
        reverie.train(resume=tmp_path / "run", tokenizer="characters")
