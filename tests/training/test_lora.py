"""Adapters of low rank: only they learn, they are small, merged they are the run, and several add up on the base."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

import reverie
from reverie.api import with_adapters
from reverie.base.errors import UserError
from reverie.nets.lora import add_adapters, merged_weights
from reverie.nets.unet import UNet
from reverie.runs.adapters import ADAPTER_FILE
from reverie.runs.run import Run

UNET = "unet:widths=[16,24],groups=4,embedding_dim=16"
SHORT: dict[str, Any] = {"batch": 8, "augment": "none"}


def images(seed: int) -> tuple[np.ndarray, list[str]]:
    return np.random.default_rng(seed).integers(0, 256, (40, 8, 8), dtype=np.uint8), ["a", "b"] * 20


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return reverie.train(images(0), tmp_path_factory.mktemp("base") / "run", network=UNET, steps=4, **SHORT)


@pytest.fixture(scope="module")
def adapted(base: Run) -> Run:
    return reverie.train(images(1), base.path.parent / "adapted", start_from=base.path, lora="rank=2", steps=4, **SHORT)


def test_an_adapter_changes_nothing_at_first_and_learns_alone() -> None:
    net = UNet(labels=3)
    for p in net.parameters():
        p.data.normal_(std=0.1)
    x, level, cond = torch.randn(2, 1, 28, 28), torch.tensor([0.3, -1.0]), torch.tensor([1, -1])
    before = {name: p.detach().clone() for name, p in net.named_parameters()}
    with torch.no_grad():
        wanted = net(x, level, cond)
        add_adapters(net, 4)
        assert torch.equal(net(x, level, cond), wanted)
    learned = {name for name, p in net.named_parameters() if p.requires_grad}
    assert all(name.endswith((".up", ".down", "label.table")) for name in learned)
    assert sum(p.numel() for p in net.parameters() if p.requires_grad) < 0.3 * sum(p.numel() for p in before.values())
    torch.optim.SGD([p for p in net.parameters() if p.requires_grad], 0.1).zero_grad()
    net(x, level, cond).square().mean().backward()
    with torch.no_grad():
        for p in net.parameters():
            if p.requires_grad and p.grad is not None:
                p -= 0.1 * p.grad
        plain = UNet(labels=3)
        plain.load_state_dict(merged_weights(net))
        assert (plain(x, level, cond) - net(x, level, cond)).abs().max() < 1e-5
        changed = {name for name, p in plain.named_parameters() if not torch.equal(p, before[name])}
    assert changed and not any(name.endswith("bias") for name in changed)


def test_a_run_of_an_adapter_is_its_base_with_the_adapter(base: Run, adapted: Run) -> None:
    small, whole = (adapted.path / name for name in (ADAPTER_FILE, "model.safetensors"))
    assert small.stat().st_size < 0.5 * whole.stat().st_size
    # previews and samples of the training itself, and of the run that is read again
    wanted = reverie.load(adapted.path).sample(3, steps=4, label="a").x
    assert np.abs(adapted.sample(3, steps=4, label="a").x - wanted).max() < 1e-4
    found = with_adapters(reverie.load(base.path), [str(adapted.path)])
    assert np.abs(found.sample(3, steps=4, label="a").x - wanted).max() < 1e-4
    assert np.abs(base.sample(3, steps=4, label="a").x - wanted).max() > 1e-3


def test_weights_of_several_adapters_add_up(base: Run, adapted: Run) -> None:
    plain = reverie.load(base.path)
    one, halves, none = (
        with_adapters(plain, [f"{adapted.path}:{w}" for w in weights]) for weights in ((1,), (0.25, 0.75), (1, -1))
    )
    for name, tensor in one.model.state_dict().items():
        assert (halves.model.state_dict()[name] - tensor).abs().max() < 1e-6
        assert (none.model.state_dict()[name] - plain.model.state_dict()[name]).abs().max() < 1e-6


@pytest.mark.slow
def test_a_stopped_adapter_resumes_as_if_it_had_not_been(base: Run, tmp_path: Path) -> None:
    reported: dict[str, Any] = {"start_from": base.path, "lora": 2, "steps": 4, **SHORT}
    whole = reverie.train(images(1), tmp_path / "whole", keep_data=True, **reported)
    training = reverie.api.begin(images(1), tmp_path / "stopped", keep_data=True, **reported)
    for step in training:
        if step.i >= 2:
            break
    training.close()
    again = reverie.train(resume=tmp_path / "stopped")
    for name, tensor in whole.model.state_dict().items():
        assert torch.equal(again.model.state_dict()[name], tensor)


def test_what_does_not_fit_is_refused(base: Run, adapted: Run, tmp_path: Path, command: Any) -> None:
    with pytest.raises(UserError, match="add --from RUN"):
        reverie.train(images(0), tmp_path / "a", lora="rank=2", steps=1, **SHORT)
    with pytest.raises(UserError, match="adamw"):
        reverie.train(images(0), tmp_path / "b", start_from=base.path, lora=2, optimizer="muon", steps=1, **SHORT)
    with pytest.raises(UserError, match="does not fit the weights"):
        with_adapters(adapted, [str(adapted.path)])
    place = tmp_path / "torn"
    place.mkdir()
    save_file(load_file(adapted.path / ADAPTER_FILE), place / ADAPTER_FILE)  # without what it belongs to
    with pytest.raises(UserError, match="metadata"):
        with_adapters(reverie.load(base.path), [str(place)])
    assert command("sample", base.path, "--adapter", tmp_path / "none", "--out", tmp_path / "x.png")[0] == 2
    assert command("sample", base.path, "--adapter", f"{adapted.path}:1e9", "--out", tmp_path / "x.png")[0] == 2
    assert not (tmp_path / "x.png").exists()
