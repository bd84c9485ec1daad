"""Sequence-to-sequence models: exact likelihoods, greedy and beam search, bit-for-bit resuming, all kinds of sources."""

from __future__ import annotations

import itertools
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import reverie
from reverie.base.errors import UserError
from reverie.base.noise import image_seeds
from reverie.data.text_pairs import make_pairs
from reverie.families import FAMILIES
from reverie.families.language.model import NONE
from reverie.families.model import SamplingInputs
from reverie.families.seq2seq.model import PairModel, pair_codes
from reverie.runs.run import Run
from reverie.runs.source_data import load_source_data
from reverie.text.learn import learn_tokenizer
from reverie.text.tokenizer import END
from reverie.text.tokenizer_table import TokenizerTable

NAMES = ("seq2seq:none", "seq2seq:dot", "seq2seq:bilinear", "seq2seq:mlp", "transformer-seq2seq")
FEW = 3  # tokens of which sequences are enumerated: the end, and two more


def model_of(name: str, **more: Any) -> PairModel:
    """Return a small model with weights that are not those of the beginning."""
    family, _, attention = name.partition(":")
    table = TokenizerTable.of(learn_tokenizer(["ab"], "characters")).model_dump()
    own = {"attention": attention} if attention else {"heads": 2}
    settings = FAMILIES[family].settings.model_validate({"tokenizer": table, "dim": 8, **own, **more})
    made = FAMILIES[family].build(settings, (2, 6), 0, 0)
    assert isinstance(made, PairModel)
    draws = torch.Generator().manual_seed(1)
    for tensor in made.parameters():
        tensor.data += 0.5 * torch.randn(tensor.shape, generator=draws)
    return made.eval().requires_grad_(False)


def with_few_tokens(name: str) -> PairModel:
    """Return a model that writes the end and the last two tokens alone, so that all it can write is enumerated."""
    model = model_of(name)
    model.bias[1:-2] = -1e4
    return model


def pair(source: list[int], target: list[int]) -> torch.Tensor:
    """Return a pair of tokens: (1, 2, n)."""
    width = max(len(source), len(target))
    return torch.tensor([[[*side, *[NONE] * (width - len(side))] for side in (source, target)]])


@pytest.mark.parametrize("name", NAMES)
def test_all_targets_together_have_probability_one(name: str) -> None:
    """Those that end within 3 tokens, and the beginnings, of 4 tokens, of those that do not."""
    model = with_few_tokens(name)
    a, b = model.tokenizer.size - 2, model.tokenizer.size - 1
    source, total = [a, b, b], 0.0
    for length in range(4):
        for target in itertools.product((a, b), repeat=length):
            total += math.exp(float(model.log_targets(pair(source, list(target))).double().sum()))
    assert total < 1
    for target in itertools.product((a, b), repeat=4):
        total += math.exp(float(model.log_targets(pair(source, list(target))).double()[0, :4].sum()))
    assert total == pytest.approx(1, abs=1e-5)


@pytest.mark.parametrize("name", NAMES)
def test_log_prob_is_that_of_the_pair_alone(name: str) -> None:
    model = model_of(name)
    x = pair_codes(make_pairs([("ab", "ba"), ("aabbab", "babbaa"), ("b", "b")]))
    together = model.log_prob(x, None, torch.empty(0)).nats
    alone = torch.cat([model.log_prob(x[k : k + 1], None, torch.empty(0)).nats for k in range(3)])
    assert torch.allclose(together, alone, atol=1e-6)
    cost = model.cost(x)
    assert cost.nats == pytest.approx(-float(together.sum())) and cost.tokens == 2 + 6 + 1 + 3


@pytest.mark.parametrize("name", NAMES)
def test_one_beam_is_greedy_and_its_probability_that_of_the_answer(name: str) -> None:
    model = model_of(name)
    for source in ("ab", "aabbab", ""):
        *_, last = model.frames(SamplingInputs(image_seeds(0, 1), options={"prompt": source, "length": 12}))
        (found,) = model.search(model.source_tokens(source, torch.zeros(1, dtype=torch.int64))[0], 1, 12)
        greedy = [int(k) for k in last.x0[0, 1] if k != NONE]
        assert list(found.tokens) == greedy
        if found.ended:
            ids = model.source_tokens(source, torch.zeros(1, dtype=torch.int64))[0].tolist()
            expected = float(model.log_targets(pair(ids, greedy)).double().sum())
            assert found.log_prob == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("name", NAMES)
def test_as_many_beams_as_there_are_answers_find_the_likeliest(name: str) -> None:
    model = with_few_tokens(name)
    a, b = model.tokenizer.size - 2, model.tokenizer.size - 1
    source, every = [b, a], dict[tuple[int, ...], float]()
    for length in range(5):
        for target in itertools.product((a, b), repeat=length):
            every[target] = float(model.log_targets(pair(source, list(target))).double().sum())
    found = [one for one in model.search(torch.tensor(source), 256, 4) if one.log_prob > -1e3]
    assert len(found) == len(every) and [one.log_prob for one in found] == sorted((one.log_prob for one in found), reverse=True)
    for one in found:
        assert one.ended == (len(one.tokens) < 4) and one.log_prob == pytest.approx(every[one.tokens], abs=1e-5)
    assert found[0].tokens == max(every, key=lambda target: every[target])
    fewer = model.search(torch.tensor(source), 2, 4)
    assert len(fewer) == 2 and fewer[0].log_prob <= found[0].log_prob + 1e-6


def test_answers_are_drawn_with_their_probabilities() -> None:
    model = with_few_tokens("seq2seq:dot")
    options = {"prompt": "ab", "temperature": 1.0, "length": 1}
    *_, last = model.frames(SamplingInputs(image_seeds(3, 3000), options=options))
    first = last.x0[:, 1, 0]
    memory = model.read(model.source_tokens("ab", torch.zeros(1, dtype=torch.int64)))
    truth = model.logits(memory, torch.zeros(1, 0, dtype=torch.int64), None)[0][0, -1].softmax(-1)
    for token in (model.tokenizer.size - 2, model.tokenizer.size - 1):
        assert float((first == token).float().mean()) == pytest.approx(float(truth[token]), abs=4 * math.sqrt(0.25 / 3000))
    assert float((first == NONE).float().mean()) == pytest.approx(float(truth[END]), abs=4 * math.sqrt(0.25 / 3000))


def test_a_pair_is_encoded_and_decoded() -> None:
    model = model_of("seq2seq:dot")
    x = pair_codes(make_pairs([("aß", "\U0001f600b"), ("سلام", "a"), ("a\ud800", "\0")]))
    back = model.decode(model.encode(x))
    assert torch.equal(back[..., : x.shape[-1]], x) and back.shape[-1] >= model.shape[1]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run that has learned to turn strings of three letters round."""
    folder = tmp_path_factory.mktemp("pairs")
    rows = ["".join(letters) for letters in itertools.product("abcdefgh", repeat=3)]
    (folder / "turned.csv").write_text("source,target\n" + "".join(f"{row},{row[::-1]}\n" for row in rows))
    family = "transformer-seq2seq:dim=32,layers=1,dropout=0"
    return reverie.train(folder / "turned.csv", folder / "run", family=family, steps=120, batch=64)


def test_it_answers_held_out_sources(run: Run, command, tmp_path: Path) -> None:
    found = reverie.evaluate(run)
    figures = found["sections"]["answers"]
    assert figures["exact_match"]["value"] >= 0.9 and figures["exact_match"]["n"] == 26
    assert "was not measured" in " ".join(found.sections[0].notes) and "486" in found.sections[0].notes[0]
    code, out, _ = command("sample", run.path, "--prompt", "abc")
    assert code == 0 and out.strip() == "cba"
    code, out, _ = command("sample", run.path, "--prompt", "abc", "--beams", 3, "--json")
    answers = json.loads(out)["answers"]
    assert code == 0 and len(answers) == 3 and answers[0]["text"] == "cba" and answers[0]["log_prob"] > answers[1]["log_prob"]
    code, out, _ = command("sample", run.path, "-n", 2)
    assert code == 0 and out.count("\u2192") == 2
    code, out, _ = command("sample", run.path, "-n", 2, "--json")
    assert code == 0 and [row["source"] for row in json.loads(out)["pairs"]] == [s for s, _ in run.sample(2).pairs]
    made = reverie.sample(run, 12, out=tmp_path / "x.csv")
    assert reverie.inspect(tmp_path / "x.csv")["kind"] == "pairs"
    assert (tmp_path / "x.csv").read_text().splitlines()[1] == ",".join(made.pairs[0])
    assert reverie.answers(run, "edc", 2)[0].text == "cde"


def test_alignment_shows_the_requested_texts(run: Run, command, tmp_path: Path) -> None:
    code, _, _ = command("gallery", "alignment", run.path, "--prompt", "abc", "--out", tmp_path / "a.png")
    assert code == 0 and (tmp_path / "a.png").stat().st_size > 1000
    sources, targets, layers = run.model.alignment("abc")
    assert sources == ["a", "b", "c", "the end"] and targets == ["c", "b", "a", "the end"] and layers[0].shape == (4, 4, 4)


PROMPTS = {
    "none": "", "unknown": "Zylophon ß", "emoji": "\U0001f600\U0001f1eb\U0001f1ee", "right to left": "سلام دنیا",
    "long": "ab " * 300, "a lone surrogate": "a\ud800b", "a zero byte": "a\0b",
}  # fmt: skip


@pytest.mark.parametrize("name", PROMPTS)
def test_every_source_has_an_answer(run: Run, name: str) -> None:
    written = "".join(run.written(prompt=PROMPTS[name], length=20))
    assert run.sample(1, prompt=PROMPTS[name], length=20).texts == [written] and len(written) <= 20


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"prompt": "x" * 5000}, "at most 4,096"), ({"prompt": "a", "beams": 0}, "--beams must be"),
        ({"prompt": "a", "beams": 2, "temperature": 1.0}, "--beams does not sample"),
        ({"prompt": "a", "length": 0}, "--length"), ({"prompt": "a", "temperature": -1.0}, "temperature"),
        ({"sampler": "ddim"}, "has no --sampler"),
        ({"negative_prompt": "b"}, "trained with pairs alone"),
    ],
)  # fmt: skip
def test_options_that_cannot_be_are_refused(run: Run, options: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=words):
        run.sample(1, **options)


def test_what_other_families_and_formats_cannot_do_is_refused(run: Run, tmp_path: Path, command) -> None:
    with pytest.raises(UserError, match="run of pairs"):
        reverie.export(run, tmp_path / "x.onnx")
    with pytest.raises(UserError, match=r"cannot write pairs to .*ends in \.csv"):
        reverie.sample(run, 1, out=tmp_path / "x.png")
    with pytest.raises(UserError, match="families that take pairs: seq2seq, transformer-seq2seq"):
        reverie.train("reversal", tmp_path / "other", family="lstm", points=50, steps=1)
    with pytest.raises(UserError, match=r"needs pairs|takes pairs"):
        reverie.train("spiral", tmp_path / "other", family="seq2seq", points=50, steps=1)
    with pytest.raises(UserError, match="attention"):
        reverie.train("reversal", tmp_path / "other", family="seq2seq:attention=dott", points=50, steps=1)
    assert not (tmp_path / "other").exists()
    code, _, err = command("gallery", "attention", run.path, "--out", tmp_path / "a.png")
    assert code == 2 and "transformer-seq2seq on pairs" in err


GOING_ON = ["seq2seq:dim=8,dropout=0.2", pytest.param("transformer-seq2seq:dim=8,dropout=0.2", marks=pytest.mark.slow)]


@pytest.mark.parametrize("family", GOING_ON)
def test_resuming_is_bit_for_bit(tmp_path: Path, family: str) -> None:
    options: dict[str, Any] = {"family": family, "steps": 8, "batch": 8, "points": 60}
    whole = reverie.train("numbers-fa", tmp_path / "whole", **options)
    training = reverie.api.begin("numbers-fa", tmp_path / "parts", **options)
    for step in training:
        if step.i >= 4:
            break
    del training
    again = reverie.train(resume=tmp_path / "parts")
    for name, tensor in whole.model.state_dict().items():
        assert torch.equal(tensor, again.model.state_dict()[name]), name
    assert np.array_equal(whole.sample(4).x, again.sample(4).x)


@pytest.mark.slow
@pytest.mark.parametrize(("attention", "least", "most"), [("dot", 0.8, 1.0), ("none", 0.0, 0.3)])
def test_attention_is_what_turns_long_strings_round(tmp_path: Path, attention: str, least: float, most: float) -> None:
    made = reverie.train("reversal", tmp_path / "run", family=f"seq2seq:attention={attention}", points=20_000, steps=450)
    rows = reverie.evaluate(made)["sections"]["answers"]["by_length"]
    (found,) = [row for row in rows if row["characters"] == "17-20"]
    assert least <= found["exact"] <= most


@pytest.mark.parametrize("kind", ["text", "pairs"])
def test_texts_are_stored_in_the_run_on_request(tmp_path: Path, kind: str) -> None:
    data = tmp_path / ("t.csv" if kind == "pairs" else "t.txt")
    rows = [f"{k},{k + 1}x" for k in range(40)]
    data.write_text("source,target\n" + "\n".join(rows) if kind == "pairs" else "سلام, world. " * 40)
    family = "seq2seq:dim=8" if kind == "pairs" else "bigram"
    made = reverie.train(data, tmp_path / "run", family=family, keep_data=True, **({"steps": 2} if kind == "pairs" else {}))
    data.unlink()
    kept = load_source_data(made.config.data, folder=made.path)
    assert kept.fingerprint() == made.config.data.fingerprint and kept.kind == kind
    assert "not_computable" not in reverie.evaluate(made, 4)["sections"]["likelihood"]
    damaged = (made.path / "data.safetensors").read_bytes()
    (made.path / "data.safetensors").write_bytes(damaged[:-3] + b"abc")
    with pytest.raises(UserError, match=r"torn|damaged"):
        load_source_data(made.config.data, folder=made.path)


def test_a_long_answer_is_shown_in_part(run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from reverie.gallery import alignment

    monkeypatch.setattr(alignment, "MAX_TOKENS", 3)
    assert alignment.draw(run, tmp_path / "part.png", prompt="ab") == [tmp_path / "part.png"]
    with pytest.raises(UserError, match="tokens, above the limit"):
        alignment.draw(run, tmp_path / "part.png", prompt="abcdef")
