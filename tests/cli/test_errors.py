"""User errors say what is wrong, where, and what to do; exit code 2, one line, and nothing is written."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import reverie
from reverie import api
from reverie.base.errors import UserError
from reverie.runs.lock import Lock
from reverie.runs.run import Run

NEW = ("train", "spiral", "--out", "{tmp}/r")
# A command line, and what its message must contain: the wrong value or path, and the option or choice to use.
COMMANDS: list[tuple[tuple[str, ...], tuple[str, ...]]] = [
    # a missing argument or command, an unknown command or option
    (("train",), ("DATA",)),
    (("sample",), ("RUN",)),
    (("trian", "spiral"), ("trian", "train")),
    (("train", "spiral", "--setps", "5"), ("--setps", "--steps")),
    (("train", "spiral", "--lr", "0.1"), ("--lr", "--learning-rate")),
    (("train", "spiral", "--batch-size", "8"), ("--batch-size", "--batch")),
    (("train", "spiral", "--epoch", "8"), ("--epoch", "--epochs")),
    (("train", "spiral", "--max-grad-norm", "1"), ("--max-grad-norm", "--gradient-clip")),
    (("sample", "{run}", "--n-steps", "8"), ("--n-steps", "--steps")),
    (("sample", "{run}", "--ci", "8"), ("--ci", "--condition-image")),
    (("sample", "{run}", "--xyzzy"), ("--xyzzy", "--help")),
    (("evaluate",), ("RUN",)),
    (("compare", "moons"), ("--families",)),
    (("gallery", "spirals"), ("spirals", "spiral")),
    # a value of the wrong type
    ((*NEW, "--steps", "many"), ("--steps", "many")),
    (("sample", "{run}", "--steps", "many"), ("--steps", "many", "auto")),
    ((*NEW, "--learning-rate", "fast"), ("--learning-rate", "fast")),
    (("sample", "{run}", "-n", "x"), ("-n", "x")),
    # an unknown name
    (("train", "nonsense"), ("nonsense", "digits")),
    (("train", "sprial"), ("sprial", "spiral")),
    ((*NEW, "--schedule", "cosinus"), ("cosinus", "cosine")),
    ((*NEW, "--network", "mlp:hiden=3"), ("hiden", "hidden")),
    ((*NEW, "--network", "mpl"), ("mpl", "mlp")),
    ((*NEW, "--network", "mlp:connector=plus"), ("connector", "plus")),
    ((*NEW, "--loss", "hubr"), ("hubr", "huber")),
    ((*NEW, "--target", "epsilon"), ("epsilon", "eps")),
    ((*NEW, "--family", "difusion"), ("difusion", "diffusion")),
    ((*NEW, "--purpose", "beauty"), ("beauty", "samples", "likelihood")),
    ((*NEW, "--optimizer", "sgd"), ("optimizer", "sgd", "adamw")),
    ((*NEW, "--device", "tpu"), ("tpu", "cpu")),
    (("sample", "{run}", "--sampler", "dimm"), ("dimm", "ddim")),
    (("sample", "{run}", "--grid", "unifrom"), ("unifrom", "uniform")),
    (("sample", "{run}", "--backend", "tensorrt"), ("tensorrt", "onnx")),
    (("list", "smaplers"), ("smaplers", "samplers")),
    (("inspect", "{tmp}/nowhere"), ("nowhere", "spiral")),
    (("gallery", "forward", "sprial", "--out", "{tmp}/f"), ("sprial", "spiral")),
    (("evaluate", "{run}", "--features", "vgg", "--quick"), ("vgg", "pixels")),
    (("export", "{run}", "--out", "{tmp}/x", "--format", "pdf"), ("pdf", "onnx")),
    # an impossible number
    ((*NEW, "--steps", "-5"), ("--steps", "-5")),
    ((*NEW, "--steps", "0"), ("--steps", "0")),
    ((*NEW, "--minutes", "nan"), ("--minutes", "nan")),
    ((*NEW, "--points", "1"), ("--points", "1", "2")),
    ((*NEW, "--seed", "-1"), ("seed", "-1", "0")),
    ((*NEW, "--ema-share", "7"), ("ema_share", "7", "1")),
    ((*NEW, "--gradient-clip", "0"), ("gradient_clip", "0")),
    ((*NEW, "--schedule", "linear:steps=10"), ("steps", "10")),
    ((*NEW, "--loss", "huber:delta=0"), ("delta", "0")),
    ((*NEW, "--network", "mlp:hidden=8192,layers=64"), ("500,000,000",)),
    (("sample", "{run}", "-n", "0"), ("0", "1")),
    (("sample", "{run}", "-n", "100000000000"), ("100000000000", "10,000,000")),
    (("sample", "{run}", "--steps", "0"), ("0", "1")),
    (("sample", "{run}", "--sampler", "ddim:eta=3"), ("eta", "3", "1")),
    (("sample", "{run}", "--sampler", "sigma-space:mu=1"), ("mu", "1")),
    (("sample", "{run}", "--sampler", "rk45:tolerance=-1"), ("tolerance", "-1")),
    (("sample", "{run}", "--grid", "karras:rho=x"), ("rho", "x")),
    (("sample", "{run}", "--guidance", "nan"), ("guidance", "nan")),
    (("sample", "{run}", "--grid", "trailing", "--steps", "5000"), ("0.0002", "steps")),
    (("inspect", "spiral", "--seed", "-1"), ("seed", "-1")),
    (("gallery", "transport", "--seed", "-1", "--out", "{tmp}/t"), ("seed", "-1")),
    (("edit", "{digits}", "{tmp}/image.png", "--strength", "2", "--out", "{tmp}/e.png"), ("strength", "2", "1")),
    # a missing file, or one of the wrong type
    (("sample", "{tmp}/nowhere"), ("{tmp}/nowhere", "reverie train")),
    (("sample", "{tmp}/full"), ("{tmp}/full",)),
    (("evaluate", "{tmp}/nowhere"), ("{tmp}/nowhere",)),
    (("gallery", "spiral", "{tmp}/nowhere"), ("{tmp}/nowhere",)),
    (("runs", "{tmp}/nowhere"), ("{tmp}/nowhere",)),
    (("train", "--resume", "{tmp}/nowhere"), ("{tmp}/nowhere",)),
    (("train", "--config", "{tmp}/nowhere.toml"), ("{tmp}/nowhere.toml", "--config")),
    (("train", "--config", "{tmp}/file", "--out", "{tmp}/r"), ("{tmp}/file", "TOML")),
    (("train", "{tmp}/file", "--out", "{tmp}/r"), ("{tmp}/file",)),
    (("train", "mnist", "--data-dir", "~nobody-by-this-name/x", "--out", "{tmp}/r"), ("~nobody-by-this-name",)),
    (("edit", "{digits}", "{tmp}/file", "--out", "{tmp}/e.png"), ("{tmp}/file",)),
    (("inpaint", "{digits}", "{tmp}/none.png", "--mask", "left-half", "--out", "{tmp}/i.png"), ("{tmp}/none.png",)),
    (("decompress", "{digits}", "{tmp}/file", "--out", "{tmp}/d.npy"), ("{tmp}/file",)),
    (("import", "{tmp}/full", "--out", "{tmp}/r"), ("{tmp}/full",)),
    (("pack", "{tmp}/file", "--out", "{tmp}/shards"), ("{tmp}/file",)),
    (("distil", "{tmp}/nowhere", "--out", "{tmp}/r"), ("{tmp}/nowhere",)),
    # an output that cannot be written, or would replace something
    (("train", "spiral", "--out", "{tmp}/file/r"), ("{tmp}/file",)),
    (("train", "spiral", "--out", "/proc/r"), ("/proc/r",)),
    (("train", "spiral", "--out", "{tmp}/full"), ("{tmp}/full",)),
    (("train", "spiral", "--out", "{run}"), ("{run}", "--overwrite")),
    (("sample", "{run}", "--out", "{tmp}/file/x.png"), ("{tmp}/file",)),
    (("sample", "{run}", "--out", "{tmp}/x.jpeg2"), ("x.jpeg2", ".npy")),
    (("inspect", "spiral", "--out", "{tmp}/picture"), ("picture", ".png")),
    (("gallery", "samplers", "{run}", "--out", "{tmp}/sheet"), ("sheet", ".png")),
    (("gallery", "embeddings", "--out", "{tmp}/file"), ("{tmp}/file",)),
    (("evaluate", "{run}", "--quick", "--out", "{tmp}/report.pdf"), ("report.pdf", ".html")),
    (("export", "{run}", "--out", "{tmp}/x.pdf"), ("x.pdf", ".html")),
    # options that contradict each other
    ((*NEW, "--steps", "5", "--minutes", "1"), ("--steps", "--minutes")),
    (("train", "--resume", "{run}", "--out", "{tmp}/r"), ("{run}", "--out", "--resume")),
    (("train", "--resume", "{run}", "--from", "{run}"), ("{run}", "--from", "--resume")),
    (("train", "spiral", "--extend", "--out", "{tmp}/r"), ("--extend", "--resume")),
    (("train", "spiral", "--data", "{tmp}/file", "--out", "{tmp}/r"), ("--data", "--resume")),
    ((*NEW, "--lora", "rank=8"), ("--lora", "--from")),
    ((*NEW, "--micro-batches", "9", "--batch", "8"), ("8", "9")),
    (("compare", "moons", "--families", "gaussian,pca", "--family", "pca"), ("--family", "--families")),
    (("sample", "{run}", "--grid", "level"), ("level", "langevin")),
    ((*NEW, "--target", "eps"), ("eps", "alpha")),
    ((*NEW, "--network", "mlp:channels=7"), ("channels", "--network")),
    # what the data, the run or its family lacks
    (("sample", "{run}", "--label", "7"), ("{run}", "7")),
    (("sample", "{digits}", "--negative-prompt", "seven"), ("{digits}", "--label")),
    (("sample", "{digits}", "--label", "eleven"), ("eleven", "7")),
    (("sample", "{gaussian}", "--sampler", "ddim"), ("{gaussian}", "gaussian", "--sampler", "diffusion")),
    (("edit", "{gaussian}", "{tmp}/image.png", "--out", "{tmp}/e.png"), ("{gaussian}", "gaussian", "diffusion")),
    (("distil", "{gaussian}", "--out", "{tmp}/r"), ("{gaussian}", "gaussian", "diffusion")),
    (("gallery", "spiral", "{digits}", "--out", "{tmp}/p"), ("digits", "spiral")),
    (("gallery", "alignment", "{run}", "--out", "{tmp}/p.png"), ("{run}",)),
    (("sample", "{run}", "--temperature", "0.5"), ("{run}", "--temperature")),
    (("train-classifier", "{run}", "--steps", "1"), ("{run}",)),
    (("illusion", "{run}", "--views", "identity,rotate180", "--out", "{tmp}/i.png"), ("views", "images")),
    ((*NEW, "--family", "gaussian", "--latent"), ("gaussian", "--latent")),
    ((*NEW, "--augment", "flip"), ("points", "--augment")),
    # a run that another process trains
    (("train", "--resume", "{locked}", "--extend", "--steps", "1"), ("{locked}",)),
    (("train", "spiral", "--out", "{locked}", "--overwrite"), ("{locked}",)),
]  # fmt: skip
# Calls in Python, and what their messages must contain.
CALLS: list[tuple[Callable[[dict[str, Any]], object], tuple[str, ...]]] = [
    (lambda at: reverie.train(out=at["tmp"] / "r"), ("DATA",)),
    (lambda at: reverie.train("spiral", at["tmp"] / "r", stesp=5), ("stesp", "steps")),
    (lambda at: reverie.train(resume=at["run"], keep_data=True), ("keep_data",)),
    (lambda at: reverie.train("spiral", at["tmp"] / "r", gradient_limit=1, gradient_clip=1), ("gradient_clip",)),
    (lambda at: reverie.sample(at["run"], 0), ("0", "1")),
    (lambda at: reverie.sample(at["run"], 1, first=-1), ("-1", "0")),
    (lambda at: reverie.sample(at["run"], 1, smapler="ddim"), ("smapler", "sampler")),
    (lambda at: reverie.text_cost(at["run"], "a"), ("{run}", "text")),
    (lambda at: reverie.load(at["tmp"] / "nowhere"), ("{tmp}/nowhere",)),
    (lambda at: reverie.sample(at["run"], 2, steps=2).save(at["tmp"] / "x.jpeg2"), ("x.jpeg2", ".npy")),
    (lambda at: api.gallery("transprot", at["tmp"] / "x.png"), ("transprot", "transport")),
    (lambda at: reverie.inspect(np.zeros((3, 4, 5, 6, 7))), ("3, 4, 5, 6, 7",)),
]


@pytest.fixture(scope="module")
def gaussian(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return reverie.train("digits8", tmp_path_factory.mktemp("runs") / "gaussian", family="gaussian").path


@pytest.fixture
def places(spiral_run: Run, digits_run: Run, gaussian: Path, tmp_path: Path) -> dict[str, Any]:
    (tmp_path / "file").write_text("a file, not a folder")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.txt").write_text("precious")
    Image.new("L", (8, 8)).save(tmp_path / "image.png")
    shutil.copytree(spiral_run.path, tmp_path / "locked")
    return {
        "tmp": tmp_path, "run": spiral_run.path, "digits": digits_run.path, "gaussian": gaussian, "locked": tmp_path / "locked",
    }  # fmt: skip


def advises(sentence: str) -> bool:
    """Return whether a message has a second clause with an option, a choice, a command, or a limit to keep."""
    clause = sentence.partition(";")[2]
    other = r"--[a-z]|-n\b|did you mean|choose from|`?reverie |must (be|lie)|at (most|least)|between|ends in|Did you mean"
    return len(clause.split()) > 1 or re.search(other, sentence.removeprefix("error: ")) is not None


def test_the_tables_cover_enough() -> None:
    assert len(COMMANDS) >= 60 and len({words[0] for words, _ in COMMANDS}) >= 16


@pytest.mark.parametrize(("words", "needles"), COMMANDS, ids=[" ".join(words) for words, _ in COMMANDS])
def test_a_wrong_command_says_what_where_and_what_to_do(
    command: Callable[..., tuple[int, str, str]], places: dict[str, Any], words: tuple[str, ...], needles: tuple[str, ...],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.chdir(places["tmp"])
    if any("{locked}" in word for word in words):
        other = Lock(places["locked"])
        other.__enter__()  # as another process that trains there
    before = sorted(places["tmp"].rglob("*"))
    code, out, err = command(*(word.format(**places) for word in words))
    assert code == 2 and out == "" and "Traceback" not in err
    assert err.startswith("error: ") and err.count("\n") == 1, err
    for needle in needles:
        assert needle.format(**places) in err, err
    assert advises(err), err
    assert sorted(places["tmp"].rglob("*")) == before  # nothing half-written, nothing lost


@pytest.mark.parametrize(("call", "needles"), CALLS, ids=[str(k) for k in range(len(CALLS))])
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_wrong_call_says_what_where_and_what_to_do(
    places: dict[str, Any], call: Callable[[dict[str, Any]], object], needles: tuple[str, ...]
) -> None:
    before = sorted(places["tmp"].rglob("*"))
    with pytest.raises(UserError) as raised:
        call(places)
    sentence = str(raised.value)
    for needle in needles:
        assert needle.format(**places) in sentence, sentence
    assert advises(sentence) and "\n" not in sentence, sentence
    assert sorted(places["tmp"].rglob("*")) == before
