"""What is installed beside the project: versions, hashes and licences are known, and what is missing is named."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

import pytest
from tools import licences, lock
from tools.distributions import canonical, constrained, extras, needed

import reverie
from reverie.base.errors import UserError
from reverie.draw import picture
from reverie.nets import efficientnet
from reverie.runs.run import Run


def test_everything_that_an_installation_needs_has_a_version() -> None:
    found = needed(text for requirements in extras().values() for text in requirements)
    assert {"torch", "formulaic", "interface-meta", "wrapt"} <= found
    parts = ("nvidia-", "cuda-", "triton")  # of torch's builds for GPUs, which it states with their versions
    assert not {name for name in found - constrained().keys() if not name.startswith(parts)}


def test_every_version_but_that_of_torch_has_hashes() -> None:
    locked = lock.locked()
    assert {name: version for name, (version, _) in locked.items()} | {"torch": constrained()["torch"]} == constrained()
    assert all(count for _, count in locked.values())


def test_the_developers_have_every_extra() -> None:
    named = {
        extra: {canonical(text.partition(">")[0].partition("=")[0]) for text in texts} for extra, texts in extras().items()
    }
    assert all(names <= named["dev"] for extra, names in named.items() if extra)
    assert "imageio-ffmpeg" not in needed(extras()[""])  # which contains ffmpeg, under the GPL


def test_bundled_files_are_those_whose_licences_are_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not licences.changed()
    bundled = {path for path, *_ in licences.BUNDLED}
    vendored = [*(licences.ROOT / licences.VENDOR).iterdir(), *(licences.ROOT / "docs" / "vendor").iterdir()]
    assert {str(p.relative_to(licences.ROOT)) for p in vendored if p.suffix != ".txt"} == bundled
    for path in bundled:
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(licences.ROOT / path, tmp_path / path)
    (tmp_path / "docs/vendor/iframe-worker.js").write_text("other")
    monkeypatch.setattr(licences, "ROOT", tmp_path)
    assert licences.changed() == ["docs/vendor/iframe-worker.js"]


def test_other_weights_of_the_general_network_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = efficientnet.find_spec(efficientnet.PACKAGE)
    if spec is None or spec.origin is None:
        pytest.skip("the general network is not installed")
    content = bytearray((Path(spec.origin).parent / efficientnet.WEIGHTS).read_bytes())
    content[len(content) // 2] ^= 1  # of a weight: a file that can be read
    (tmp_path / efficientnet.WEIGHTS).parent.mkdir()
    (tmp_path / efficientnet.WEIGHTS).write_bytes(content)
    other = ModuleSpec(efficientnet.PACKAGE, None, origin=str(tmp_path / "__init__.py"))
    monkeypatch.setattr(efficientnet, "find_spec", lambda _: other)
    with pytest.raises(UserError, match=efficientnet.SHA256) as refused:
        efficientnet.load_general()
    assert str(tmp_path) in str(refused.value) and "\n" not in str(refused.value)


@pytest.mark.parametrize("verb", ["sample", "interpolate", "illusion"])
def test_a_video_without_its_program_is_refused_before_anything_is_drawn(
    verb: str, patterns_run: Run, command: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(picture, "find_spec", lambda name: None)
    words = {"sample": ("-n", 2), "interpolate": ("--from", 1, "--to", 2), "illusion": ("--views", "identity,rotate180")}[verb]
    code, _, err = command(verb, patterns_run.path, *words, "--out", tmp_path / "x.mp4")
    assert code == 2 and "reverie[video]" in err and "x.mp4" in err and err.count("\n") == 1
    assert not list(tmp_path.iterdir())
    with pytest.raises(UserError, match=r"reverie\[video\]"):
        reverie.load(patterns_run.path).sample(2, steps=2).save(tmp_path / "y.mp4")
