"""Tensor files round trip or are refused."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from pydantic import BaseModel, TypeAdapter
from safetensors.torch import load_file, save_file

from reverie.base.errors import UserError
from reverie.base.tensors import read_tensors, tensor_specs, write_tensors


class Facts(BaseModel):
    steps: int


WEIGHTS = {"a": torch.arange(6.0).reshape(2, 3).T, "b": torch.tensor(7), "c": torch.tensor([True, False])}


def read(path: Path, wanted: dict[str, torch.Tensor] = WEIGHTS, **options):
    return read_tensors(path, lambda facts: tensor_specs(wanted), TypeAdapter(Facts), fits="the test", **options)


def test_tensors_and_metadata_round_trip(tmp_path: Path) -> None:
    write_tensors(tmp_path / "x.safetensors", WEIGHTS, '{"steps": 3}')
    tensors, facts = read(tmp_path / "x.safetensors")
    assert facts == Facts(steps=3) and tensors.keys() == WEIGHTS.keys()
    assert all(torch.equal(tensors[name], kept) and tensors[name].dtype == kept.dtype for name, kept in WEIGHTS.items())


def test_optional_tensors_may_be_missing(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    write_tensors(path, {"a": WEIGHTS["a"]}, '{"steps": 3}')
    assert read(path, optional=lambda name: name != "a")[0].keys() == {"a"}
    with pytest.raises(UserError, match="2 tensors differ, first b"):
        read(path)


def torn(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(bytes(content))


DAMAGES = {
    "cut": (lambda p: p.write_bytes(p.read_bytes()[:-3]), "truncated or damaged"),
    "missing": (lambda p: p.unlink(), "truncated or damaged"),
    "one bit": (torn, "checksum is wrong"),
    "no facts": (lambda p: write_tensors(p, WEIGHTS), "metadata"),
    "wrong facts": (lambda p: write_tensors(p, WEIGHTS, '{"steps": "many"}'), "steps: .* integer"),
    "deep facts": (lambda p: write_tensors(p, WEIGHTS, "[" * 100_000), "metadata"),
    "shape": (lambda p: write_tensors(p, {**WEIGHTS, "a": torch.zeros(2, 3)}, '{"steps": 3}'), "found float32 \\(2, 3\\)"),
    "dtype": (lambda p: write_tensors(p, {**WEIGHTS, "a": WEIGHTS["a"].double()}, '{"steps": 3}'), "found float64"),
    "another": (lambda p: write_tensors(p, {**WEIGHTS, "evil": torch.zeros(1)}, '{"steps": 3}'), "first evil"),
    "nan": (lambda p: write_tensors(p, {**WEIGHTS, "a": WEIGHTS["a"] / 0}, '{"steps": 3}'), "not finite, first in a"),
    "pickle": (lambda p: torch.save(WEIGHTS, p), "truncated or damaged"),
}


@pytest.mark.parametrize("kind", list(DAMAGES))
def test_damaged_files_are_refused_with_advice(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "x.safetensors"
    write_tensors(path, WEIGHTS, '{"steps": 3}')
    harm, message = DAMAGES[kind]
    harm(path)
    with pytest.raises(UserError, match=message) as caught:
        read(path, advice="; do this")
    assert str(caught.value).endswith("; do this") and "\n" not in str(caught.value)


def test_files_without_a_checksum_are_read(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    write_tensors(path, WEIGHTS, '{"steps": 3}')
    save_file(load_file(path), path, {"facts": '{"steps": 3}'})
    assert read(path)[1].steps == 3
