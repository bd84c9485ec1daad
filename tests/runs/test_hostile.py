"""Run folders that were damaged or made to do harm: each file is right in every respect, or refused."""

from __future__ import annotations

import json
import shutil
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

import reverie
from reverie import api
from reverie.base.errors import ReverieWarning, UserError
from reverie.base.tensors import checksum, tensor_specs
from reverie.families import FAMILIES
from reverie.runs import folder
from reverie.runs.config import build_model, model_forms
from reverie.runs.run import Run
from reverie.runs.weights import write_weights
from reverie.training import checkpoints

ROW = {"i": 5, "loss": 1.0, "fraction": 0.5, "seconds": 2.0, "held_out": 0.5, "held_out_levels": [1, 2, 3, 4.0], "active": []}
FINDING = {"check": "copies", "what": "w", "since": 3, "cause": "c", "advice": "a", "change": {"length": "0.5"}}


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Return a run of format 1 written again."""
    place = shutil.copytree(Path(__file__).parent / "format1" / "images", tmp_path_factory.mktemp("runs") / "images")
    run = reverie.load(place)
    folder.write_config(place, run.config)
    write_weights(place, run.config, run.model)
    return reverie.load(place)


def copied(run: Run, to: Path) -> Path:
    return Path(shutil.copytree(run.path, to / "run"))


def changed(path: Path, *pairs: tuple[str, str]) -> None:
    text = path.read_text()
    for old, new in pairs:
        assert old in text
        text = text.replace(old, new)
    path.write_text(text)


def forged(path: Path, change: Callable[[dict[str, torch.Tensor], Any], None]) -> None:
    """Change tensors and facts of a file and make its checksum right again."""
    with safe_open(path, framework="pt") as file:
        facts = json.loads(file.metadata()["facts"])
    tensors = load_file(path)
    change(tensors, facts)
    message = json.dumps(facts)
    save_file(tensors, path, {"facts": message, "checksum": checksum(tensors, message)})


def test_flipped_bits_of_weights_are_found_wherever_they_are(images: Run, tmp_path: Path) -> None:
    """One bit of the values; and one of the checksum's own name with one of the values, which no checksum would then find."""
    path = copied(images, tmp_path) / folder.WEIGHTS_FILE
    content = path.read_bytes()
    name = content.index(b'"checksum"') + 3
    for places in ((len(content) - 2,), (name, len(content) - 2)):
        harmed = bytearray(content)
        for place in places:
            harmed[place] ^= 4
        path.write_bytes(bytes(harmed))
        with pytest.raises(UserError, match=r"checksum|header key"):
            reverie.load(path.parent)


def test_settings_without_effect_on_shapes_must_be_those_of_the_training(images: Run, tmp_path: Path) -> None:
    """A U-Net takes images of any size, and other groups or another schedule give other samples from the same tensors."""
    for k, (pairs, what) in enumerate([
        ([("    8,\n    8,\n", "    320,\n    320,\n"), ("height = 8", "height = 320"), ("width = 8", "width = 320")], "shape"),
        ([("groups = 2", "groups = 4")], "family.network"),
        ([('name = "rectified"', 'name = "cosine"')], "family.schedule"),
        ([('    "0",\n    "1",', '    "1",\n    "0",')], "labels"),
    ]):  # fmt: skip
        run = copied(images, tmp_path / str(k))
        changed(run / folder.CONFIG, *pairs)
        with pytest.raises(UserError, match=f"does not fit config.toml.*{what}"):
            reverie.load(run)


def test_weights_of_another_dtype_are_refused_by_name(images: Run, tmp_path: Path) -> None:
    path = copied(images, tmp_path) / folder.WEIGHTS_FILE
    header = json.dumps({"denoiser.net.x": {"dtype": "F8_E4M3", "shape": [2], "data_offsets": [0, 2]}}).encode()
    path.write_bytes(struct.pack("<Q", len(header)) + header + b"\1\1")
    with pytest.raises(UserError, match=r"does not fit config.toml"):
        reverie.load(path.parent)
    shutil.copy(images.path / folder.WEIGHTS_FILE, path)
    tensors = {name: tensor.bfloat16() for name, tensor in load_file(path).items()}
    save_file(tensors, path)
    with pytest.raises(UserError, match="found bfloat16"):
        reverie.load(path.parent)


def test_forms_are_those_of_the_model(images: Run, spiral_run: Run) -> None:
    for run in (images, spiral_run):
        assert model_forms(run.config) == tensor_specs(build_model(run.config).state_dict())
    for family in ("gaussian", "mixture", "pca"):
        kind = FAMILIES[family]
        for shape, labels in (((3,), 0), ((1, 4, 4), 2)):
            settings = kind.settings.model_validate({"name": family})
            assert kind.tensor_specs(settings, shape, labels) == tensor_specs(
                kind.build(settings, shape, labels, 0).state_dict()
            )


LARGE = """
import resource, sys
from reverie import api
from reverie.base.errors import UserError
import reverie.runs.weights, reverie.training.resume
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
for attempt in (lambda: api.load(sys.argv[1]), lambda: api.begin(resume=sys.argv[1])):
    try:
        attempt()
    except UserError as error:
        print(error)
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


def test_a_configuration_of_a_large_network_is_refused_before_it_is_made(spiral_run: Run, tmp_path: Path) -> None:
    run = copied(spiral_run, tmp_path)
    changed(run / folder.CONFIG, ("hidden = 42", "hidden = 8192"), ("layers = 3", "layers = 7"))
    done = subprocess.run([sys.executable, "-c", LARGE, str(run)], capture_output=True, text=True, timeout=120, check=True)
    *message, kilobytes = done.stdout.splitlines()
    assert len(message) == 2 and all("does not fit config.toml" in line for line in message)
    assert int(kilobytes) < 300_000


INVALID_ROWS = {
    "a number": 3,
    "no loss": {"i": 1},
    "held_out null": ROW | {"held_out": None},
    "levels": ROW | {"held_out_levels": [1.0]},
    "levels missing": {k: v for k, v in ROW.items() if k != "held_out_levels"} | {"train_levels": [1.0, 2.0, 3.0, 4.0]},
    "a large step": ROW | {"i": 10**400},
    "a step before the first": ROW | {"i": -1},
    "words": ROW | {"seconds": "long"},
    "infinite": ROW | {"loss": float("inf")},
    "look": ROW | {"look": {"noise": "loud"}},
    "active": ROW | {"active": 3},
    "no finding": {"i": 1, "finding": {}},
    "a finding of others": {"i": 1, "finding": FINDING | {"evil": 1}},
    "a command": {"i": 1, "finding": FINDING | {"change": {"batch 1; rm -rf ~ #": "1"}}},
    "a length": {"i": 1, "finding": FINDING | {"change": {"length": "long"}}},
}


@pytest.mark.parametrize("kind", list(INVALID_ROWS))
def test_an_invalid_row_is_left_out_with_one_warning(tmp_path: Path, kind: str) -> None:
    rows = [ROW, INVALID_ROWS[kind], {"i": 6, "finding": FINDING}]
    (tmp_path / folder.METRICS).write_text("".join(json.dumps(row) + "\n" for row in rows) + '{"i": ')
    with pytest.warns(ReverieWarning, match=r"1 rows of .* line 2") as message:
        assert folder.read_metrics(tmp_path) == [ROW]
        assert [finding.check for finding in folder.read_findings(tmp_path)] == ["copies"]
    assert len(message) == 1
    folder.drop_rows_after(tmp_path, 5)
    assert (tmp_path / folder.METRICS).read_text() == json.dumps(ROW) + "\n"


def test_lines_without_end_and_depth_are_left_out(tmp_path: Path) -> None:
    lines = [b"[" * 100_000, b"\xff\xfe", b'{"i": 1' + b"1" * 200_000 + b"}", json.dumps(ROW).encode()]
    (tmp_path / folder.METRICS).write_bytes(b"\n".join(lines) + b"\n")
    with pytest.warns(ReverieWarning, match="3 rows"):
        assert folder.read_metrics(tmp_path) == [ROW]


FACTS = {
    "i": ({"i": 10**400}, "digits"),
    "a large i": ({"i": 10**30}, "less than or equal"),
    "rescues": ({"rescues": 10**9}, "less than or equal to 2"),
    "ending 0": ({"ending": 0.0}, "greater than 0"),
    "ending -1": ({"ending": -1.0}, "greater than 0"),
    "seconds": ({"seconds": 1e300}, "less than or equal"),
}


def _all(tensors: dict[str, torch.Tensor], change: Callable[[str, torch.Tensor], torch.Tensor | None]) -> None:
    for name, tensor in list(tensors.items()):
        new = change(name, tensor)
        if new is None:
            del tensors[name]
        else:
            tensors[name] = new


STATES = {
    "no exp_avg": (lambda n, t: None if n.endswith(".exp_avg") else t, "has only"),
    "no step": (lambda n, t: None if n.endswith(".step") else t, "has only"),
    "no state": (lambda n, t: None if ".optimizer." in n else t, "without optimizer state"),
    "negative": (lambda n, t: -t - 1 if n.endswith(".exp_avg_sq") else t, "negative"),
}


@pytest.mark.parametrize("kind", [*FACTS, *STATES])
def test_an_invalid_checkpoint_falls_back_to_the_one_before(begun_run: Path, tmp_path: Path, kind: str) -> None:
    run = Path(shutil.copytree(begun_run, tmp_path / "run"))
    newest, before = checkpoints.existing(run)
    if kind in FACTS:
        change, message = FACTS[kind]
        forged(newest, lambda tensors, facts: facts["now"].update(change))
    else:
        spoil, message = STATES[kind]
        forged(newest, lambda tensors, facts: _all(tensors, spoil))
    reported = list(api.begin(resume=run).introduction())
    assert message in reported[0] and "checkpoint before" in reported[0]
    assert f"resuming at step {int(before.stem)}" in reported


@pytest.fixture(scope="module")
def begun_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a run that was broken off twice, so that it has two checkpoints."""
    run = tmp_path_factory.mktemp("runs") / "begun"
    for _ in range(2):
        steps = iter(api.begin(resume=run) if run.exists() else api.prepare("moons", run, points=300, steps=400))
        for _ in range(5):
            next(steps)
        steps.close()
    return run


def test_a_run_is_not_extended_beyond_what_its_configuration_can_say(spiral_run: Run, tmp_path: Path) -> None:
    """Else it would be written down and never be read again."""
    run = copied(spiral_run, tmp_path)
    kept = (run / folder.CONFIG).read_bytes()
    with pytest.raises(UserError, match="cannot extend"):
        api.begin(resume=run, extend=True, steps=10**9)
    assert (run / folder.CONFIG).read_bytes() == kept and reverie.load(run).config == spiral_run.config


def test_too_little_memory_is_a_sentence(command, spiral_run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """The allocator of torch itself refuses here, with its own error."""
    monkeypatch.setattr(Run, "batch_size", lambda self: torch.empty(2**55))
    code, _, err = command("sample", spiral_run.path, "--out", "x.npy")
    assert code == 2 and err.count("\n") == 1 and "memory" in err


@pytest.mark.parametrize(
    "words", [("--epochs", "1", "--batch", "0"), ("--epochs", "1e308"), ("--epochs", "1e8"), ("--minutes", "1e308")]
)
def test_lengths_that_cannot_be_are_refused(command, tmp_path: Path, words: tuple[str, ...]) -> None:
    code, _, err = command("train", "spiral", "--out", tmp_path / "run", *words)
    assert code == 2 and err.count("error:") == 1 and not (tmp_path / "run").exists()
